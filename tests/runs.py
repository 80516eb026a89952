"""Small training runs on the toy environment, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import toys
from safetensors.torch import load_file

from rollenv.config import TrainConfig
from rollenv.rollout.figures import depends_on_speed
from rollenv.trainers import checkpoint
from rollenv.trainers.metrics import read_groups, read_metrics
from rollenv.trainers.run import Interrupted, TrainRun

Listener = Callable[[str, dict[str, Any]], None]


def config(out: Path, **settings: Any) -> TrainConfig:
    data: dict[str, Any] = {
        "env": "Colours-v0",
        "out": str(out),
        "device": "cpu",
        "threads": 1,
        "steps": 4,
        "agent": {"name": "llm", "system": "", "list_actions": False},
        "sampling": {"max_tokens": 5},
        "rollout": {"groups": 4, "group_size": 4, "concurrency": 8, "kv_mib": 64},
        "optim": {"lr": 3e-3, "microbatch_tokens": 512},
        "eval": {"every": 2, "episodes": 6, "temperature": 1.0},
        "checkpoint": {"every": 2, "keep": 2},
    }
    for section, values in settings.items():
        data[section] = (data.get(section, {}) | values) if isinstance(values, dict) else values
    return TrainConfig.model_validate(data)


def train(c: TrainConfig, model: Path, resume: Any = None, on: Listener = lambda kind, figures: None) -> TrainRun:
    async def main() -> TrainRun:
        run = TrainRun(c, model, resume, on)
        await run.train()
        return run

    return asyncio.run(main())


def figures(folder: Path) -> list[dict[str, Any]]:
    """What metrics.jsonl says, apart from clocks and from where memory was."""
    own, lines = {"offloaded_mib"}, read_metrics(folder)
    return [{k: v for k, v in line.items() if not depends_on_speed(k) and k not in own} for line in lines]


def weights(folder: Path) -> dict[str, Any]:
    last = checkpoint.newest(folder)
    assert last is not None
    return load_file(last.model / "model.safetensors")


def assert_equal_runs(a: Path, b: Path) -> None:
    assert figures(a) == figures(b)
    assert read_groups(a) == read_groups(b)
    ours, theirs = weights(a), weights(b)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


class StopAt:
    """Asks the run to stop when the n-th env step of a training step, or an evaluation, is under way."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, when: int) -> None:
        self.run: TrainRun | None = None
        self.steps, self.when = 0, when
        original = toys.Colours.step

        def step(env: Any, action: str) -> Any:
            self.steps += 1
            if self.steps == self.when and self.run is not None:
                self.run.request_stop()
            return original(env, action)

        monkeypatch.setattr(toys.Colours, "step", step)


def interrupted(c: TrainConfig, model: Path, monkeypatch: pytest.MonkeyPatch, when: int) -> Interrupted | None:
    """The interruption, None when the run was over before."""
    with monkeypatch.context() as patch:
        stop = StopAt(patch, when)

        async def main() -> Interrupted | None:
            stop.run = TrainRun(c, model)
            try:
                await stop.run.train()
            except Interrupted as interruption:
                return interruption
            return None

        return asyncio.run(main())
