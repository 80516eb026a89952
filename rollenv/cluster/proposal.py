"""How to split devices between training and generating, from what a run has measured.

The model is that of ROLL Flash (arXiv 2510.11345): generating and training are device seconds that more devices share,
but no step ends before its longest episode, which asynchrony spreads over eta + 1 steps. `rollenv simulate --devices`
answers the same question from a scenario instead, with queues and waiting in it.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollenv.cluster.devices import Devices, parse_devices
from rollenv.errors import RollenvError


@dataclass(frozen=True, slots=True)
class Measured:
    """What a step of a run costs: device seconds of generating and of training, and the seconds of a long episode."""

    generate: float
    train: float
    longest: float


@dataclass(frozen=True, slots=True)
class Proposal:
    """A split, and the seconds that a step should take with it. `train` 0: all devices do both, by turns."""

    train: int
    total: int
    eta: float
    seconds: float

    @property
    def settings(self) -> list[str]:
        """The words for the command line."""
        everyone = tuple(range(self.total))
        if not self.train:
            return [f"devices.policy={written(everyone)}", f"devices.rollout={written(everyone)}", "devices.share=true"]
        policy, rollout = everyone[: self.train], everyone[self.train :]
        return [
            f"devices.policy={written(policy)}",
            f"devices.rollout={written(rollout)}",
            f"rollout.eta={self.eta:g}",
        ]


def measured(run: Path) -> Measured:
    """From the `metrics.jsonl` and the settings of a run: medians over its steps but the first.

    Raises:
        RollenvError: it is no run, or has too few steps.
    """
    try:
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        config = _settings_of(run)
    except (OSError, ValueError, IndexError) as error:
        raise RollenvError(f"'{run}' is not the folder of a training run with a checkpoint: {error}") from error
    steps = [line for line in lines if "train_seconds" in line][1:]
    if not steps:
        raise RollenvError(f"the run '{run}' has fewer than two steps: nothing can be told from the first alone")
    devices = config.get("devices", {})
    trains, generates = (max(1, _count(devices.get(key, ""))) for key in ("policy", "rollout"))
    # Synchronous rollouts are all of the waiting; asynchronous ones go on all the time.
    rollout = "rollout_seconds" if config["rollout"]["eta"] == 0 else "seconds"
    return Measured(
        generate=_median(steps, rollout) * generates,
        train=_median(steps, "train_seconds") * trains,
        longest=_median(steps, "episode_seconds_p99"),
    )


def proposals(cost: Measured, devices: int, eta: float = 1.0) -> list[Proposal]:
    """Every split of `devices` devices, the fastest first: training and generating side by side (with `eta`), and by
    turns."""
    turns = max(cost.generate / devices, cost.longest) + cost.train / devices
    found = [Proposal(0, devices, 0.0, turns)]
    for train in range(1, devices):
        generating = max(cost.generate / (devices - train), cost.longest / (eta + 1))
        found.append(Proposal(train, devices, eta, max(generating, cost.train / train)))
    return sorted(found, key=lambda one: (one.seconds, one.train))


def written(devices: Devices) -> str:
    """`(0, 1, 2, 6)` -> `"0-2,6"`, what `parse_devices` reads.

    >>> written((0, 1, 2, 6))
    '0-2,6'
    """
    runs: list[list[int]] = []
    for device in devices:
        if runs and device == runs[-1][-1] + 1:
            runs[-1].append(device)
        else:
            runs.append([device])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _settings_of(run: Path) -> dict[str, Any]:
    newest = sorted((run / "checkpoints").glob("step-*"))[-1]
    state: dict[str, Any] = json.loads((newest / "state.json").read_text(encoding="utf-8"))
    config: dict[str, Any] = state["config"]
    return config


def _count(text: str) -> int:
    return len(parse_devices(text, "devices"))


def _median(steps: Sequence[dict[str, Any]], key: str) -> float:
    return statistics.median(float(step[key]) for step in steps)
