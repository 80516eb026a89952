"""Multi-turn episodes per second: the embedded engine against transformers' own `generate`, side by side in one run.

The work: 64 episodes. In each turn the policy reads new tokens and writes some; every prompt is the whole history.
Workload `webshop` has the lengths, turn by turn, of WebShop episodes that the seed policy just played; `uniform` gives
all episodes the same lengths and numbers of turns, as no environment does but lock-step batches like best. All
contestants run the seed policy's weights and write as many tokens as the schedule says.

The opponents, each with one and with two threads, the best of which counts:
  sequential    one `generate` per turn of each episode
  lock-step     one left-padded `generate` per turn for a batch of episodes (several batch sizes), history read again;
                an episode that is over leaves the batch
  lock-step+kv  the same with the `DynamicCache` carried from turn to turn (`uniform` only: it cannot hold gaps)

Nobody tokenizes or plays: only generation is measured. Usage: python benchmarks/inference_engine.py [--episodes 64]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "0")

import torch
from transformers import DynamicCache

import rollenv
from rollenv.agents import make_agent
from rollenv.cli.models import seed_policy
from rollenv.config import TrainConfig, load_config
from rollenv.evaluation.evaluate import play_panel
from rollenv.inference import SamplingParams, TorchEngine
from rollenv.inference.chat import ChatFormat
from rollenv.rollout.env_pool import EnvPool
from rollenv.rollout.play import ModelPlay
from rollenv.rollout.setup import episode_limits, sampling_params
from rollenv.trainers.policy import load_model

OBSERVATIONS = (160, 60, 60, 60, 20)
COMPLETION = 12


@dataclass(frozen=True)
class Turn:
    """Tokens to read, then `n_new` tokens to write."""

    observation: list[int]
    n_new: int


Episode = list[Turn]


def webshop(model: Any, tokenizer: Any, n_episodes: int) -> list[Episode]:
    """What the seed policy reads and how much it writes on the first test goals of the generated store."""
    spec = rollenv.spec("webshop")
    config = load_config(TrainConfig, "webshop")
    chat, engine = ChatFormat(tokenizer), TorchEngine(model, tokenizer=tokenizer)
    play = ModelPlay(
        EnvPool(lambda: rollenv.make(spec)),
        spec.id,
        make_agent(spec, config.agent.name, config.agent.arguments),
        engine,
        chat,
        sampling_params(config.sampling, chat),
        episode_limits(config.rollout, spec, engine.max_length),
    )
    panel = rollenv.make(spec).tasks.panel("test", n_episodes)

    async def record() -> list[Episode]:
        trajectories = await play_panel(play, panel, seed=0, concurrency=n_episodes)
        await engine.close()
        return [[Turn(turn.prompt_ids, len(turn.completion_ids)) for turn in t.turns] for t in trajectories]

    return asyncio.run(record())


def uniform(vocabulary: int, n_episodes: int) -> list[Episode]:
    """Episodes of five turns of the same lengths, with random tokens."""
    draw = random.Random(0)
    return [
        [Turn([draw.randrange(vocabulary) for _ in range(n)], COMPLETION) for n in OBSERVATIONS]
        for _ in range(n_episodes)
    ]


def lock_step(model: Any, episodes: list[Episode], batch: int, keep_cache: bool = False) -> None:
    """`generate` for a batch of episodes at a time, turn by turn; each row's surplus tokens are cut off."""
    for first in range(0, len(episodes), batch):
        group = episodes[first : first + batch]
        histories: list[list[int]] = [[] for _ in group]
        cache = DynamicCache(config=model.config) if keep_cache else None
        for turn in range(max(map(len, group))):
            active = [i for i, episode in enumerate(group) if turn < len(episode)]
            for i in active:
                histories[i] = histories[i] + group[i][turn].observation
            width = max(len(histories[i]) for i in active)
            ids = torch.tensor([[0] * (width - len(histories[i])) + histories[i] for i in active])
            mask = torch.tensor([[0] * (width - len(histories[i])) + [1] * len(histories[i]) for i in active])
            out = model.generate(
                ids,
                attention_mask=mask,
                past_key_values=cache,
                max_new_tokens=max(group[i][turn].n_new for i in active),
                do_sample=True,
                top_k=0,
            )[:, width:].tolist()
            for i, row in zip(active, out, strict=True):
                histories[i] = histories[i] + row[: group[i][turn].n_new]


def ours(engine: TorchEngine, episodes: list[Episode]) -> None:
    """All episodes at once through the engine, each at its own pace."""

    async def play(index: int, episode: Episode) -> None:
        history: list[int] = []
        for turn, work in enumerate(episode):
            history = history + work.observation
            params = SamplingParams(max_tokens=work.n_new, seed=100 * index + turn)
            completion = await engine.generate(history, params, session=str(index))
            assert len(completion.ids) == work.n_new
            history = history + completion.ids
        await engine.release(str(index))

    async def run() -> None:
        await asyncio.gather(*(play(i, e) for i, e in enumerate(episodes)))

    asyncio.run(run())


def measure(contestants: dict[str, tuple[Callable[[], None], int, int]], repeats: int) -> dict[str, float]:
    """Episodes per second of each, median over `repeats` rounds in which all take their turn."""
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, (function, n_episodes, threads) in contestants.items():
            torch.set_num_threads(threads)
            start = time.perf_counter()
            function()
            rates[name].append(n_episodes / (time.perf_counter() - start))
    return {name: statistics.median(values) for name, values in rates.items()}


def compare(kind: str, model: Any, engine: TorchEngine, episodes: list[Episode], repeats: int) -> dict[str, float]:
    """Prints every contestant's rate; returns ours against the best that reads anew and against the best of all."""
    some = episodes[:: max(1, len(episodes) // 8)][:8]
    contestants: dict[str, tuple[Callable[[], None], int, int]] = {}
    for threads in (1, 2):
        label = f"{threads} thread{'s' * (threads > 1)}"
        contestants[f"sequential, {label}"] = (lambda: lock_step(model, some, 1), len(some), threads)
        for batch in sorted({8, 16, 32, len(episodes)}):
            name = f"lock-step of {batch}, {label}"
            contestants[name] = (lambda b=batch: lock_step(model, episodes, b), len(episodes), threads)
            if kind == "uniform":
                name = f"lock-step+kv of {batch}, {label}"
                contestants[name] = (lambda b=batch: lock_step(model, episodes, b, True), len(episodes), threads)
    for warm_up in (lambda: lock_step(model, some, 8), lambda: ours(engine, episodes)):
        warm_up()
    contestants["rollenv TorchEngine"] = (lambda: ours(engine, episodes), len(episodes), 2)
    rates = measure(contestants, repeats)
    mine = rates.pop("rollenv TorchEngine")
    turns = sum(map(len, episodes)) / len(episodes)
    read = sum(len(turn.observation) for e in episodes for turn in e) / len(episodes)
    written = sum(turn.n_new for e in episodes for turn in e) / len(episodes)
    print(
        f"\n{kind}: {len(episodes)} episodes of {turns:.1f} turns, {read:.0f} tokens read, {written:.0f} written (mean)"
    )
    for name, rate in rates.items():
        print(f"  transformers, {name:32s} {rate:8.2f} episodes/s")
    print(f"  {'rollenv TorchEngine':46s} {mine:8.2f} episodes/s")
    plain = max(rate for name, rate in rates.items() if "+kv" not in name)
    best = max(rates.values())
    print(f"  ratio to the best plain generate: {mine / plain:.2f}")
    if best > plain:
        print(f"  ratio to the best with a carried cache: {mine / best:.2f}")
    return {"episodes_per_second": mine, "ratio_to_generate": mine / plain, "ratio_to_best": mine / best}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--model", type=Path, help="another model folder than the seed policy")
    parser.add_argument("--only-ours", action="store_true", help="measure the engine alone, for tuning")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    torch.set_num_threads(2)
    model, tokenizer = load_model(args.model or seed_policy(rollenv.spec("webshop")))
    model.eval()
    model.generation_config.eos_token_id = None  # the schedule says how much is written
    model.generation_config.pad_token_id = 0
    engine = TorchEngine(model)
    n_parameters = sum(p.numel() for p in model.parameters())
    print(f"{n_parameters:,} parameters; exact: {engine.exact}; load average {os.getloadavg()[0]:.2f}")
    workloads = {
        "webshop": webshop(model, tokenizer, args.episodes),
        "uniform": uniform(len(tokenizer), args.episodes),
    }
    figures: dict[str, Any] = {}
    for kind, episodes in workloads.items():
        if args.only_ours:
            rates = measure({kind: (lambda e=episodes: ours(engine, e), len(episodes), 2)}, args.repeats)
            print({name: round(rate, 2) for name, rate in rates.items()})
        else:
            figures[kind] = compare(kind, model, engine, episodes, args.repeats)
    asyncio.run(engine.close())
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
