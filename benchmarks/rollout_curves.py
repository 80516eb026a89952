"""Throughput and staleness over the asynchronous ratio, with and without redundant groups: the picture of the docs.

Simulates the shipped scenario `agentic` (asynchronous, 6 devices generate and 2 train) at several values of
`rollout.eta`, prints the table, and draws it.

Usage: python benchmarks/rollout_curves.py [--out docs/rollout-curves.svg]
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from rollenv.simulation.run import Outcome, simulate
from rollenv.simulation.scenario import load_scenario

ETAS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)
EXTRA = (0, 2)
VARIANT = "asynchronous, eta 1"


@dataclass(frozen=True, slots=True)
class Point:
    eta: float
    steps_per_hour: float
    staleness: float
    waste: float


def point(eta: float, extra: int, steps: int) -> Point:
    words = [f"rollout.eta={eta}", f"rollout.extra_groups={extra}", f"steps={steps}", "rollout.concurrency=640"]
    scenario = load_scenario("agentic", words)
    outcome: Outcome = simulate(next(v.config for v in scenario.variants if v.name == VARIANT))
    trained = sum(outcome.staleness.values())
    staleness = sum(age * n for age, n in outcome.staleness.items()) / max(1, trained)
    return Point(eta, 3600 / outcome.mean_step, staleness, outcome.waste)


def draw(curves: dict[int, list[Point]], out: Path) -> None:
    plt.rcParams["svg.hashsalt"] = "rollenv"  # the same picture, byte for byte
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for extra, points in curves.items():
        label = f"{extra} extra groups" if extra else "no redundancy"
        left.plot([p.eta for p in points], [p.steps_per_hour for p in points], marker="o", label=label)
        right.plot([p.eta for p in points], [p.staleness for p in points], marker="o", label=label)
    left.set(xlabel="asynchronous ratio (rollout.eta)", ylabel="training steps per hour", ylim=(0, None))
    right.set(xlabel="asynchronous ratio (rollout.eta)", ylabel="versions, mean over trained groups", ylim=(0, None))
    left.set_title("throughput")
    right.set_title("staleness")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    figure.savefig(out, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "docs" / "rollout-curves.svg")
    parser.add_argument("--steps", type=int, default=20, help="training steps per point")
    options = parser.parse_args()
    curves: dict[int, list[Point]] = {}
    print(f"{'extra groups':>12} {'eta':>5} {'steps/h':>8} {'staleness':>10} {'waste':>7}")
    for extra in EXTRA:
        curves[extra] = [point(eta, extra, options.steps) for eta in ETAS]
        for p in curves[extra]:
            print(f"{extra:>12} {p.eta:>5} {p.steps_per_hour:>8.2f} {p.staleness:>10.2f} {100 * p.waste:>6.1f}%")
    draw(curves, options.out)
    print(f"drawn in {options.out}")


if __name__ == "__main__":
    main()
