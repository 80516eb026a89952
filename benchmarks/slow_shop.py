"""WebShop whose steps take time without computing anything: for benchmarks of what waits for what.

Every step sleeps for a log-normal time, and one episode in a hundred is ten times slower from beginning to end. The
draws follow from the episode's seed and the turn: whoever plays an episode, and whenever, meets the same latencies.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import rollenv
from rollenv.envs.webshop.env import WebShopEnv
from rollenv.registration import spec

SIGMA = 1.0
"""Standard deviation of the logarithm of a step's seconds."""
SLOW_SHARE, SLOW_FACTOR = 0.01, 10.0
SEED_POLICY = Path(rollenv.__file__).parent.parent / "envs" / "webshop" / "seed_policy"


class SlowShop(WebShopEnv):
    """`mean_seconds`: of a step of an ordinary episode."""

    mean_seconds = 0.25

    async def areset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._draw = random.Random(f"latency {seed}")
        self._factor = SLOW_FACTOR if self._draw.random() < SLOW_SHARE else 1.0
        return await super().areset(seed=seed, options=options)

    async def astep(self, action: str) -> Any:
        await asyncio.sleep(self.mean_seconds * self._factor * self._draw.lognormvariate(-(SIGMA**2) / 2, SIGMA))
        return await super().astep(action)


def register(mean_seconds: float) -> None:
    """Makes `slowshop` known, with WebShop's agents and settings."""
    shop = spec("webshop")
    SlowShop.mean_seconds = mean_seconds
    rollenv.register("SlowShop-v0", SlowShop, max_turns=shop.max_turns, placement="inline", agents=shop.agents,
                     train_config=shop.train_config)  # fmt: skip
