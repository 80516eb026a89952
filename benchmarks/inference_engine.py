"""Multi-turn episodes per second: the embedded engine against transformers' own `generate`, side by side in one run.

The work: E episodes of five turns; in each turn the policy reads new observation tokens and writes some completion
tokens; every turn's prompt is the whole history. Workload `uniform` gives all episodes the same lengths (which suits
lock-step batches best); `varied` draws them as text games do (short clicks, longer searches).

The opponents, each with one and with two threads, the best of which counts:
  sequential    one `generate` per turn of each episode
  lock-step     one left-padded `generate` per turn for a batch of episodes (several batch sizes), history read again
  lock-step+kv  the same with the `DynamicCache` carried from turn to turn (uniform lengths only)

Nobody tokenizes or plays: only generation is measured. Usage: python benchmarks/inference_engine.py [--episodes 64]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "0")

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from rollenv.inference import SamplingParams, TorchEngine

VOCAB = 1500
OBSERVATIONS = (160, 60, 60, 60, 20)
COMPLETION = 12


@dataclass(frozen=True)
class Turn:
    """Observation tokens to read, then `n_new` tokens to write."""

    observation: list[int]
    n_new: int


Episode = list[Turn]


def workload(kind: str, n_episodes: int) -> list[Episode]:
    """E episodes of five turns; `varied` keeps the mean lengths of `uniform`."""
    episodes = []
    for index in range(n_episodes):
        draw = random.Random(index)
        turns = []
        for n in OBSERVATIONS:
            n_read = n if kind == "uniform" else draw.randint(n // 2, n + n // 2)
            n_new = COMPLETION if kind == "uniform" else draw.choice((5, 7, 9, 13, 26))
            turns.append(Turn([draw.randrange(3, VOCAB) for _ in range(n_read)], n_new))
        episodes.append(turns)
    return episodes


def build_model(size: str) -> Any:
    """A Llama of about 1M or 5M parameters with random weights."""
    hidden, layers, heads = {"1M": (128, 4, 4), "5M": (256, 6, 8)}[size]
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config).eval()


def lock_step(model: Any, episodes: list[Episode], batch: int, keep_cache: bool = False) -> None:
    """`generate` for a batch of episodes at a time, turn by turn; each row's surplus tokens are cut off."""
    for first in range(0, len(episodes), batch):
        group = episodes[first : first + batch]
        histories: list[list[int]] = [[] for _ in group]
        cache = DynamicCache(config=model.config) if keep_cache else None
        for turns in zip(*group, strict=True):
            histories = [h + t.observation for h, t in zip(histories, turns, strict=True)]
            width = max(len(h) for h in histories)
            ids = torch.tensor([[0] * (width - len(h)) + h for h in histories])
            mask = torch.tensor([[0] * (width - len(h)) + [1] * len(h) for h in histories])
            n_new = max(t.n_new for t in turns)
            out = model.generate(
                ids,
                attention_mask=mask,
                past_key_values=cache,
                max_new_tokens=n_new,
                do_sample=True,
                top_k=0,
            )[:, width:].tolist()
            histories = [h + o[: t.n_new] for h, o, t in zip(histories, out, turns, strict=True)]


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


def compare(kind: str, model: Any, engine: TorchEngine, n_episodes: int, repeats: int) -> tuple[float, float]:
    """Prints every contestant's rate; returns ours against the best re-reading and against the best of all."""
    episodes = workload(kind, n_episodes)
    some = episodes[: max(1, n_episodes // 8)]
    contestants: dict[str, tuple[Callable[[], None], int, int]] = {}
    for threads in (1, 2):
        label = f"{threads} thread{'s' * (threads > 1)}"
        contestants[f"sequential, {label}"] = (lambda: lock_step(model, some, 1), len(some), threads)
        for batch in sorted({16, 32, n_episodes}):
            name = f"lock-step of {batch}, {label}"
            contestants[name] = (lambda b=batch: lock_step(model, episodes, b), n_episodes, threads)
            if kind == "uniform":
                name = f"lock-step+kv of {batch}, {label}"
                contestants[name] = (lambda b=batch: lock_step(model, episodes, b, True), n_episodes, threads)
    for warm_up in (lambda: lock_step(model, some, 8), lambda: ours(engine, episodes)):
        warm_up()
    contestants["rollenv TorchEngine"] = (lambda: ours(engine, episodes), n_episodes, 2)
    rates = measure(contestants, repeats)
    mine = rates.pop("rollenv TorchEngine")
    print(f"\n{kind}: {n_episodes} episodes x {len(OBSERVATIONS)} turns")
    for name, rate in rates.items():
        print(f"  transformers, {name:32s} {rate:8.2f} episodes/s")
    print(f"  {'rollenv TorchEngine':46s} {mine:8.2f} episodes/s")
    plain = max(rate for name, rate in rates.items() if "+kv" not in name)
    best = max(rates.values())
    print(f"  ratio to the best plain generate: {mine / plain:.2f}")
    if best > plain:
        print(f"  ratio to the best with a carried cache: {mine / best:.2f}")
    return mine / plain, mine / best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--size", choices=("1M", "5M"), default="1M")
    parser.add_argument("--only-ours", action="store_true", help="measure the engine alone, for tuning")
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    model = build_model(arguments.size)
    engine = TorchEngine(model)
    n_parameters = sum(p.numel() for p in model.parameters())
    print(f"{n_parameters:,} parameters; exact: {engine.exact}; load average {os.getloadavg()[0]:.2f}")
    for kind in ("uniform", "varied"):
        if arguments.only_ours:
            episodes = workload(kind, arguments.episodes)
            rates = measure({kind: (lambda e=episodes: ours(engine, e), len(episodes), 2)}, arguments.repeats)
            print({name: round(rate, 2) for name, rate in rates.items()})
        else:
            compare(kind, model, engine, arguments.episodes, arguments.repeats)
    asyncio.run(engine.close())


if __name__ == "__main__":
    main()
