"""An environment that computes for milliseconds: on the event loop, on threads, in worker processes. Side by side.

    python benchmarks/env_workers.py [--json FILE] [--steps 192] [--milliseconds 4] [--episodes 16]

Every placement plays the same episodes with the same scripted agent; the rounds alternate, and medians are printed. The
longest stall is how late a task on the same loop was that wanted to run every 5 ms: what all other episodes, the engine
and the weights' transfer would have waited. The CPU time of this process per step does not depend on what else the
machine does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from rollenv import EnvSpec, TaskSet, TextEnv
from rollenv.config.rollout import RolloutConfig
from rollenv.rollout.controller import collect
from rollenv.rollout.episode import EpisodeLimits
from rollenv.rollout.groups import GroupRequest
from rollenv.rollout.play import ScriptedPlay
from rollenv.rollout.scheduler import Scheduler

ROUNDS = 3
TURNS = 12
EVERY = 0.005
PLACEMENTS = ("inline", "thread", "process")


class Sums(TextEnv):
    """Adds up numbers in plain Python for a while at every step.

    Args:
        rounds: how many numbers.
    """

    def __init__(self, rounds: int) -> None:
        self._rounds, self._at = rounds, 0

    @property
    def tasks(self) -> TaskSet:
        return TaskSet("sums", {"train": [f"sum-{i}" for i in range(1000)]}, str)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._task, self._at = self.check_options(options)["task"], 0
        return self._task, {"task": self._task}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._at += 1
        total = work(self._rounds, int(self.np_random.integers(97)))
        return f"{action}: {total}", 0.0, self._at == TURNS, False, {"task": self._task, "valid_action": True}


def work(rounds: int, start: int) -> int:
    total = start
    for i in range(rounds):
        total = (total * 31 + i) % 1_000_003
    return total


class Adder:
    """Says a number."""

    def reset(self, seed: int) -> None:
        return None

    def act(self, observation: str, info: dict[str, Any]) -> str:
        return "7"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--steps", type=int, default=192, help="steps of each round")
    parser.add_argument("--milliseconds", type=float, default=4.0, help="what a step computes")
    parser.add_argument("--episodes", type=int, default=16, help="episodes in flight")
    arguments = parser.parse_args()
    figures = measure(arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """All figures by name; each is printed when it is known."""
    from rollenv.rollout.setup import env_pool

    rounds = calibrated(arguments.milliseconds)
    episodes = max(1, arguments.steps // TURNS)
    cores = len(os.sched_getaffinity(0))
    print(f"{episodes} episodes of {TURNS} steps of {arguments.milliseconds:g} ms, {arguments.episodes} in flight")
    # By its name, so that worker processes can import it.
    spec = EnvSpec("Sums-v0", "env_workers:Sums")
    rates: dict[str, list[float]] = {placement: [] for placement in PLACEMENTS}
    stalls: dict[str, list[float]] = {placement: [] for placement in PLACEMENTS}
    spent: dict[str, list[float]] = {placement: [] for placement in PLACEMENTS}
    pools = {p: env_pool(spec, {"rounds": rounds}, RolloutConfig(env_executor=p)) for p in PLACEMENTS}
    try:
        for _ in range(ROUNDS):
            for placement, pool in pools.items():
                before = time.process_time()
                seconds, stall = asyncio.run(play(pool, episodes, arguments.episodes))
                spent[placement].append((time.process_time() - before) / (episodes * TURNS))
                rates[placement].append(episodes * TURNS / seconds)
                stalls[placement].append(stall)
    finally:
        for pool in pools.values():
            pool.close()
    figures: dict[str, Any] = {"cores": cores}
    for placement in PLACEMENTS:
        rate, stall, cpu = (statistics.median(values[placement]) for values in (rates, stalls, spent))
        figures |= {
            f"{placement}_steps_per_s": rate,
            f"{placement}_longest_stall_ms": stall * 1e3,
            f"{placement}_cpu_ms_per_step": cpu * 1e3,
        }
        print(
            f"{placement:8} {rate:7.0f} steps/s   longest stall of the loop {stall * 1e3:7.1f} ms   "
            f"{cpu * 1e3:5.2f} ms CPU of this process per step"
        )
    figures["process_over_inline"] = figures["process_steps_per_s"] / figures["inline_steps_per_s"]
    figures["process_over_thread"] = figures["process_steps_per_s"] / figures["thread_steps_per_s"]
    print(
        f"processes: {figures['process_over_inline']:.2f} x inline, {figures['process_over_thread']:.2f} x threads "
        f"on {cores} cores"
    )
    return figures


async def play(pool: Any, episodes: int, in_flight: int) -> tuple[float, float]:
    """Seconds that the episodes took, and the longest stall of the loop meanwhile."""
    scheduler = Scheduler(ScriptedPlay(pool, "Sums-v0", Adder, EpisodeLimits()), in_flight)
    late = asyncio.ensure_future(lateness())
    began = time.perf_counter()
    groups = await collect(scheduler, [GroupRequest(i, f"sum-{i}", 1, 0) for i in range(episodes)])
    seconds = time.perf_counter() - began
    late.cancel()
    await scheduler.close()
    assert all(len(t.turns) == TURNS for group in groups for t in group.trajectories)
    return seconds, await late


async def lateness() -> float:
    """The most that a wait of `EVERY` seconds took longer, until it is cancelled."""
    longest, began = 0.0, time.perf_counter()
    try:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(EVERY)
            longest = max(longest, time.perf_counter() - began - EVERY)
    except asyncio.CancelledError:
        return max(longest, time.perf_counter() - began - EVERY)


def calibrated(milliseconds: float) -> int:
    """How many rounds of work take so long on one idle core."""
    best = min(timed(20_000) for _ in range(5))
    return int(20_000 * milliseconds / 1e3 / best)


def timed(rounds: int) -> float:
    began = time.process_time()
    work(rounds, 0)
    return time.process_time() - began


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
