"""Does asynchrony cost success, and how much sooner is it there? WebShop's default job over eta, seed by seed.

The default job (seed policy, settings, test panel) on an environment whose steps sleep (slow_shop.py), so that there is
something to wait for. Printed for each eta: success on the 200 test goals at the end of every seed with its 95%
interval, and the time until a panel first shows 80%: seconds of training steps and of panels, summed.

Usage: python benchmarks/time_to_success.py [--etas 0 1 2] [--seeds 0 1 2] [--steps 60] [--latency 0.1]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import slow_shop

from rollenv.config import TrainConfig, load_config
from rollenv.trainers.run import TrainRun

GOAL = 0.8
EVERY = 10
"""Steps from one panel to the next."""


def play(eta: float, seed: int, steps: int, folder: Path) -> dict[str, Any]:
    """Trains, and returns success and seconds at each panel."""
    words = [f"eta={eta}", f"seed={seed}", f"steps={steps}", f"eval.every={EVERY}", f"checkpoint.every={steps}"]
    # Groups under way beyond the batch: with eta = 0 there are none, so the places would stay empty.
    words += [f"out={folder}", f"concurrency={int(128 * (1 + eta))}"]
    config: TrainConfig = load_config(TrainConfig, "slowshop", None, words)
    lines: dict[str, list[dict[str, Any]]] = {"step": [], "eval": [], "checkpoint": []}
    run = TrainRun(config, slow_shop.SEED_POLICY, None, lambda kind, figures: lines[kind].append(figures))
    asyncio.run(run.train())
    seconds = {line["step"]: line["seconds"] for line in lines["step"]}
    panels, elapsed, last = [], 0.0, 0
    for panel in lines["eval"]:
        elapsed += sum(seconds[step] for step in range(last + 1, panel["step"] + 1))
        elapsed += panel["eval_seconds"] if panel["step"] else 0.0
        last = panel["step"]
        panels.append({"step": last, "success": panel["eval_success"], "ci95": panel["eval_ci95"], "seconds": elapsed})
    reached = next((panel["seconds"] for panel in panels if panel["success"] >= GOAL), None)
    return {"eta": eta, "seed": seed, "panels": panels, "seconds_to_goal": reached, "seconds": elapsed}


def show(run: dict[str, Any]) -> None:
    """One line of the table."""
    end = run["panels"][-1]
    reached = "not reached" if run["seconds_to_goal"] is None else f"{run['seconds_to_goal']:.0f} s"
    curve = " ".join(f"{100 * panel['success']:.1f}" for panel in run["panels"])
    print(
        f"eta {run['eta']:g}  seed {run['seed']}  success {100 * end['success']:.1f}% "
        f"(95% CI {100 * end['ci95'][0]:.1f}-{100 * end['ci95'][1]:.1f})  80% after {reached}  "
        f"{run['seconds']:.0f} s in all  [{curve}]",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--etas", type=float, nargs="+", default=[0.0, 1.0, 2.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--latency", type=float, default=0.1, help="mean seconds of an environment's step")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    slow_shop.register(options.latency)
    runs = []
    with tempfile.TemporaryDirectory() as temporary:
        for seed in options.seeds:
            for eta in options.etas:
                runs.append(play(eta, seed, options.steps, Path(temporary) / f"eta-{eta}-seed-{seed}"))
                show(runs[-1])
                if options.json:
                    options.json.write_text(json.dumps(runs, indent=1))
    for eta in options.etas:
        ours = [run for run in runs if run["eta"] == eta]
        final = statistics.mean(run["panels"][-1]["success"] for run in ours)
        times = [run["seconds_to_goal"] or float("inf") for run in ours]
        print(
            f"eta {eta:g}: success {100 * final:.1f}% in the mean, 80% after {statistics.median(times):.0f} s (median)"
        )


if __name__ == "__main__":
    main()
