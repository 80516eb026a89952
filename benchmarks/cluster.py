"""What workers cost and what they bring: the Ray runtime against the local one, weight sync, engines added.

- overhead: the default WebShop job for some steps, on the local runtime and on Ray, in turn: seconds, and seconds of
  processors (of all processes of the run: what counts on a machine that others use, too).
- sync: weights of some hundred megabytes to an engine of this process, to one of another process of this machine (in
  shared memory), to one as if it were elsewhere (Ray's object store), and to one from a rank directly (gloo), GB per
  second; the seed policy's to two engines in other processes, milliseconds.
- scaling: episodes whose environments take twice as long as generation, with 1, 4 and 16 simulated engines in processes
  of their own and as many episodes for each; episodes per second for each engine, against those with one engine.

Usage: python benchmarks/cluster.py [--only overhead|sync|scaling] [--steps 12] [--rounds 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import slow_shop
import torch

from rollenv.cluster.engine import EngineWorker, RemoteEngine, start_engine
from rollenv.cluster.handover import Giver, Handover
from rollenv.cluster.ray_runtime import RayRuntime
from rollenv.cluster.runtime import Runtime, WorkerSpec
from rollenv.cluster.weights import Publisher, packed, unpacked
from rollenv.cluster.worker_group import WorkerGroup
from rollenv.config import TrainConfig, load_config
from rollenv.config.cluster import RayConfig
from rollenv.inference import LLMProxy, SamplingParams, ScriptedEngine
from rollenv.rollout.setup import torch_engine
from rollenv.trainers.learner import TrainJob
from rollenv.trainers.parts import cluster_parts, planned
from rollenv.trainers.policy import load_model
from rollenv.trainers.run import TrainRun
from rollenv.trainers.world import algorithms

REPEATS = 5
SYNC_MIB = 512
TURNS, TOKENS, TOKEN_SECONDS, ENV_SECONDS = 5, 10, 0.1, 2.0
CAPACITY, PER_ENGINE, ROUNDS = 8, 24, 5
"""Completions that a simulated engine works on at a time; episodes in flight for each engine; how often that many."""


# -- overhead --------------------------------------------------------------------------------------------------------


def processor_seconds() -> float:
    """Of this process and of all that it has started."""
    total = 0.0
    for process in (here := psutil.Process(), *here.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


async def train(runtime: Runtime | None, steps: int, folder: Path) -> tuple[float, float]:
    """Seconds, and seconds of processors, of all steps of the default job but the first."""
    words = [f"steps={steps}", "eval.every=0", "eval.episodes=1", "checkpoint.every=0", f"out={folder}"]
    words += ["runtime=ray"] if runtime is not None else []
    config: TrainConfig = load_config(TrainConfig, "webshop", None, words)
    parts = None
    if runtime is not None:
        job = TrainJob(config, str(slow_shop.SEED_POLICY), None, algorithms(config))
        parts = await cluster_parts(job, runtime, planned(config, 0))
    seconds: list[float] = []
    spent: list[float] = []

    def on_figures(kind: str, figures: dict[str, Any]) -> None:
        if kind == "step":
            seconds.append(figures["seconds"])
            spent.append(processor_seconds())

    await TrainRun(config, slow_shop.SEED_POLICY, None, on_figures, parts=parts).train()
    return sum(seconds[1:]), spent[-1] - spent[0]


async def overhead(ray: RayRuntime, steps: int, rounds: int) -> dict[str, Any]:
    """Both runtimes by turns, the one that begins changing from round to round; medians of the rounds."""
    seen: list[tuple[tuple[float, float], tuple[float, float]]] = []
    for n in range(rounds):
        with tempfile.TemporaryDirectory() as temporary:
            took = {}
            for runtime in (None, ray) if n % 2 == 0 else (ray, None):
                took[runtime] = await train(runtime, steps, Path(temporary) / ("local" if runtime is None else "ray"))
        seen.append((took[None], took[ray]))
    figures: dict[str, Any] = {}
    for part, what in enumerate(("seconds", "processor_seconds")):
        here, there = ([one[where][part] for one in seen] for where in (0, 1))
        ratios = [theirs / ours for ours, theirs in zip(here, there, strict=True)]
        ratio = statistics.median(ratios)
        print(
            f"{steps - 1} steps of the default job, {what}: {statistics.median(here):.1f} here, "
            f"{statistics.median(there):.1f} on Ray: {ratio:.2f} times "
            f"({', '.join(f'{one:.2f}' for one in ratios)})",
            flush=True,
        )
        figures |= {f"local_{what}": here, f"ray_{what}": there, f"{what}_ratio": ratio}
    return figures


# -- weight sync -----------------------------------------------------------------------------------------------------


class Copying(ScriptedEngine):
    """An engine whose weights are copied into tensors that it has, as a model's are."""

    def __init__(self, like: dict[str, tuple[int, ...]]) -> None:
        super().__init__(lambda prompt, sampling: [0])
        self._own = {name: torch.zeros(shape) for name, shape in like.items()}

    async def update_weights(self, version: int, tensors: Any) -> None:
        for name, tensor in tensors.items():
            self._own[name].copy_(tensor)
        await super().update_weights(version, {})


class Holding(Giver):
    """A rank that has such weights and does not train them."""

    def __init__(self, shapes: dict[str, tuple[int, ...]]) -> None:
        super().__init__()
        self._weights = {name: torch.randn(shape) for name, shape in shapes.items()}

    def present_weights(self) -> dict[str, torch.Tensor]:
        return self._weights

    def device(self) -> torch.device:
        return torch.device("cpu")


def seed_engine() -> EngineWorker:
    model, tokenizer = load_model(slow_shop.SEED_POLICY)
    config: TrainConfig = load_config(TrainConfig, "webshop", None, [])
    return EngineWorker(lambda: torch_engine(model, tokenizer, "cpu", config.rollout))


async def sync(ray: RayRuntime) -> dict[str, float]:
    shapes = {f"layer.{i}": (1024, 1024) for i in range(SYNC_MIB // 4)}
    weights = {name: torch.randn(shape) for name, shape in shapes.items()}
    gigabytes = SYNC_MIB * 2**20 / 1e9
    spec = WorkerSpec("copying", lambda: EngineWorker(lambda: Copying(shapes)))
    shared = await start_engine(ray, spec, Publisher(ray.put))
    # The same worker, as it would be on another machine.
    facts = replace(await shared.handle.call("facts"), machine="")
    by_reference = RemoteEngine(shared.handle, facts, Publisher(ray.put))
    ranks = await WorkerGroup.start(ray, [WorkerSpec("rank", partial(Holding, shapes))])
    handover = Handover(ranks, "")
    # In one process an engine gets the tensors themselves, as `LocalLearner` hands them over.
    ways = {
        "in process": partial(_directly, Copying(shapes)),
        "between processes of a machine": shared.update_weights,
        "through the object store": by_reference.update_weights,
        "from a rank directly": lambda version, weights: shared.update_weights(version, handover.issue()),
        "packing alone": _pack,
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for version in range(1, REPEATS + 2):  # in turn, so that whatever else the machine does meets all of them
        for name, update in ways.items():
            seconds[name].append(await _timed(update(version, dict(weights))))
    figures = {name: gigabytes / statistics.median(times[1:]) for name, times in seconds.items()}
    for name, rate in figures.items():
        print(f"weights {name}: {rate:.2f} GB/s, {1 / rate:.2f} s per GB (median of {REPEATS}, {gigabytes:.2f} GB)")
    await shared.close()
    await ranks.stop()
    figures["seed_policy_ms"] = await seed_policy(ray)
    return figures


async def seed_policy(ray: RayRuntime) -> float:
    """Milliseconds until two engines in workers have the seed policy."""
    publisher = Publisher(ray.put)
    engines = [await start_engine(ray, WorkerSpec(f"seed-{i}", seed_engine), publisher) for i in range(2)]
    proxy = LLMProxy(engines)
    policy = load_model(slow_shop.SEED_POLICY)[0].state_dict()
    seconds = [await _timed(proxy.update_weights(version, policy)) for version in range(1, 12)]
    milliseconds = 1e3 * statistics.median(seconds[1:])
    print(f"the seed policy to two engines: {milliseconds:.0f} ms (median of 10)")
    await proxy.close()
    return milliseconds


async def _pack(version: int, tensors: Any) -> None:
    unpacked(*packed(tensors))


async def _directly(engine: Copying, version: int, tensors: Any) -> None:
    await engine.update_weights(version, tensors)


async def _timed(work: Any) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


# -- scaling -------------------------------------------------------------------------------------------------------


def simulated() -> EngineWorker:
    return EngineWorker(
        lambda: ScriptedEngine(
            lambda prompt, sampling: [1] * TOKENS, seconds_per_token=TOKEN_SECONDS, token_budget=CAPACITY * 2 * TOKENS
        )
    )


async def play(proxy: LLMProxy, number: int) -> None:
    """An episode: its environment's seconds are drawn from its number."""
    for turn in range(TURNS):
        await proxy.generate([1] * TOKENS, SamplingParams(max_tokens=TOKENS), session=str(number))
        await asyncio.sleep(ENV_SECONDS * (0.5 + ((number * 7919 + turn * 104729) % 1000) / 1000))
    await proxy.release(str(number))


async def scaling(ray: RayRuntime) -> dict[str, float]:
    rates: dict[int, float] = {}
    for n in (1, 4, 16):
        publisher = Publisher(ray.put)
        engines = await asyncio.gather(
            *(start_engine(ray, WorkerSpec(f"simulated-{i}", simulated), publisher) for i in range(n))
        )
        proxy = LLMProxy(engines)
        places = asyncio.Semaphore(PER_ENGINE * n)

        async def one(number: int, proxy: LLMProxy = proxy, places: asyncio.Semaphore = places) -> None:
            async with places:
                await play(proxy, number)

        episodes = PER_ENGINE * n * ROUNDS
        began = time.perf_counter()
        await asyncio.gather(*(one(number) for number in range(episodes)))
        rates[n] = episodes / (time.perf_counter() - began)
        await proxy.close()
        print(
            f"{n:2d} engines: {rates[n]:6.2f} episodes/s, {rates[n] / n:.3f} for each: efficiency "
            f"{rates[n] / n / rates[1]:.3f}",
            flush=True,
        )
    return {str(n): rate / n / rates[1] for n, rate in rates.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("overhead", "sync", "scaling"), help="one part")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3, help="of the overhead's two runs")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    ray = RayRuntime(RayConfig.model_validate({}))
    parts = {
        "overhead": lambda: overhead(ray, options.steps, options.rounds),
        "sync": lambda: sync(ray),
        "scaling": lambda: scaling(ray),
    }
    chosen = [name for name in parts if options.only in (None, name)]

    async def run() -> dict[str, Any]:
        try:
            return {name: await parts[name]() for name in chosen}
        finally:
            await ray.close()

    figures = asyncio.run(run())
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
