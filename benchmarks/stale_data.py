"""What old data costs, far behind (`rollout.eta=4`): plain PPO, which takes it for its own; PPO with its trust region
around the sampler; decoupled PPO.

WebShop's default job from the policy that ships, seed by seed: success on the 200 test goals as training goes, printed
and drawn. A run whose folder is there already is not made again, and is drawn as far as it came.

Usage: python benchmarks/stale_data.py --runs DIR [--seeds 0 1 2] [--steps 60] [--out docs/stale-data.svg] [WORD ...]
       WORDs are settings for all runs: optim.lr=2e-4 optim.minibatches=4
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from rollenv.trainers.metrics import read_metrics

WAYS = {
    "ppo": ["algo=ppo"],
    "ppo_sampler": ["algo=ppo", "algo.proximal=sampler"],
    "decoupled_ppo": ["algo=decoupled_ppo"],
}
COLORS = {"ppo": "tab:red", "ppo_sampler": "tab:orange", "decoupled_ppo": "tab:blue"}
ETA = 4


def panels(folder: Path) -> list[dict[str, Any]]:
    """The panels of a run so far."""
    lines = read_metrics(folder) if (folder / "metrics.jsonl").exists() else []
    return [line for line in lines if "eval_success" in line]


def train(way: str, seed: int, steps: int, folder: Path, words: list[str]) -> list[dict[str, Any]]:
    """Its panels; trains first unless it has been."""
    found = panels(folder)
    if not found:
        settings = [*WAYS[way], f"rollout.eta={ETA}", *words, "--seed", str(seed), "--steps", str(steps)]
        job = ["train", "--env", "webshop", *settings, "--out", str(folder)]
        command = [sys.executable, "-m", "rollenv", *job]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        found = panels(folder)
    return found


def show(way: str, seed: int, found: list[dict[str, Any]]) -> None:
    """One line of the table."""
    low, high = found[-1]["eval_ci95"]
    curve = " ".join(f"{line['step']}: {100 * line['eval_success']:.1f}" for line in found)
    print(f"{way:14} seed {seed}  [{curve}]  (95% CI {100 * low:.1f}-{100 * high:.1f})", flush=True)


def draw(curves: dict[str, list[list[dict[str, Any]]]], out: Path) -> None:
    """The seeds thin, their mean thick."""
    plt.rcParams["svg.hashsalt"] = "rollenv"  # the same picture, byte for byte
    figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
    for way, runs in curves.items():
        color = COLORS[way]
        steps = [line["step"] for line in max(runs, key=len)]
        values = [[100 * line["eval_success"] for line in found] for found in runs]
        for one in values:
            axes.plot(steps[: len(one)], one, color=color, alpha=0.3, linewidth=1)
        means = [statistics.mean(each) for each in zip(*values, strict=False)]  # as far as all of them came
        axes.plot(steps[: len(means)], means, color=color, marker="o", label=" ".join(WAYS[way]))
    axes.set(xlabel="training steps", ylabel="success on test goals, %", title=f"rollout.eta = {ETA}")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(out, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, help="where the runs are, or will be")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "docs" / "stale-data.svg")
    parser.add_argument("words", nargs="*", help="settings of all runs")
    options = parser.parse_args()
    curves: dict[str, list[list[dict[str, Any]]]] = {way: [] for way in WAYS}
    for seed in options.seeds:
        for way in WAYS:
            found = train(way, seed, options.steps, options.runs / f"{way}-{seed}", options.words)
            show(way, seed, found)
            curves[way].append(found)
    draw(curves, options.out)
    print(f"drawn in {options.out}")


if __name__ == "__main__":
    main()
