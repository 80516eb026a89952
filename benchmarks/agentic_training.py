"""Training end to end where environments are slow and now and then very slow: synchronous against asynchronous.

The real engine, environment, trainer and policy (WebShop, the seed policy) on the same devices. What is put in is the
environment's own time (slow_shop.py): every step sleeps for a log-normal time (mean 0.25 s, sigma 1), one episode in
a hundred for ten times as long; both ways meet the same latencies.

- synchronous: eta = 0; the batch waits for its slowest episode, then trains.
- asynchronous: eta = 1, two groups and one episode per group to spare, cancelled when the batch is full.

Prints training steps per hour of each, their ratio, how much of the time the engine was asked for something, and how
much of that it was busy: in a forward step, not waiting for the event loop or for the training beside it.

Usage: python benchmarks/agentic_training.py [--steps 8] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import slow_shop

from rollenv.config import TrainConfig, load_config
from rollenv.inference.torch_engine import EngineStats
from rollenv.rollout.timeline import Timeline
from rollenv.trainers.run import TrainRun

MEAN_SECONDS = 0.25
WAYS = {
    "synchronous": [],
    "asynchronous": ["eta=1", "extra_groups=2", "extra_samples=1", "concurrency=320"],
}


def play(way: str, steps: int, folder: Path) -> dict[str, float]:
    """Trains and returns the figures of one way; the first step, in which pipelines fill, is left out."""
    words = [f"steps={steps}", "eval.episodes=1", "eval.every=0", "checkpoint.every=0", *WAYS[way]]
    config: TrainConfig = load_config(TrainConfig, "slowshop", None, [*words, f"out={folder / way}"])
    lines: list[dict[str, Any]] = []

    def on_figures(kind: str, figures: dict[str, Any]) -> None:
        if kind == "step":
            lines.append(figures)

    async def train() -> EngineStats:
        timeline = Timeline(folder / way / "timeline.json")
        run = TrainRun(config, slow_shop.SEED_POLICY, None, on_figures, timeline)
        await run.train()
        stats: EngineStats = run.engine.inner.stats()  # behind what draws it
        return stats

    stats = asyncio.run(train())
    seconds = [line["seconds"] for line in lines[1:]]
    whole, with_work = engine_seconds(json.loads((folder / way / "timeline.json").read_text()))
    return {
        "steps_per_hour": 3600 / statistics.mean(seconds),
        "seconds_per_step": statistics.mean(seconds),
        "train_seconds": statistics.mean(line["train_seconds"] for line in lines[1:]),
        "engine_asked": with_work / whole,
        "engine_busy": stats.step_seconds / with_work,
        "wasted_tokens": sum(line["wasted_tokens"] for line in lines)
        / sum(line["completion_tokens"] for line in lines),
        "staleness_max": max(line["staleness_max"] for line in lines),
    }


def engine_seconds(events: list[dict[str, Any]]) -> tuple[float, float]:
    """Seconds from the first completion to the last, and those of them in which there was at least one to make: the
    time that the engine could be busy."""
    drawn = [event for event in events if event["ph"] == "C" and event["name"].endswith("completions in flight")]
    spans = [((then["ts"] - now["ts"]) / 1e6, now["args"]["completions"]) for now, then in pairwise(drawn)]
    return sum(length for length, _ in spans), sum(length for length, n in spans if n > 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    slow_shop.register(MEAN_SECONDS)
    with tempfile.TemporaryDirectory() as temporary:
        figures = {way: play(way, options.steps, Path(temporary)) for way in WAYS}
    for way, line in figures.items():
        print(
            f"{way:>12}: {line['steps_per_hour']:7.1f} steps/h  {line['seconds_per_step']:5.1f} s/step, "
            f"of which training {line['train_seconds']:.1f}  engine asked {100 * line['engine_asked']:.1f}%, "
            f"busy {100 * line['engine_busy']:.1f}% of that  "
            f"wasted tokens {100 * line['wasted_tokens']:.1f}%  staleness up to {line['staleness_max']:.0f}"
        )
    ratio = figures["asynchronous"]["steps_per_hour"] / figures["synchronous"]["steps_per_hour"]
    print(f"asynchronous against synchronous: {ratio:.2f} times the steps per hour")
    if options.json:
        options.json.write_text(json.dumps(figures | {"ratio": ratio}, indent=1))


if __name__ == "__main__":
    main()
