"""A run whose ranks die goes on by itself: from which checkpoint, and when no more."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from rollenv.cli import train
from rollenv.cluster.runtime import WorkerDied
from rollenv.config import TrainConfig
from rollenv.trainers import run as runs
from rollenv.trainers.checkpoint import Checkpoint
from rollenv.trainers.learner import LearnerDied


class Attempts:
    """What becomes of each attempt to make the workers and to train; `begun` are the checkpoints they began from."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, made: list[Any], trained: list[Any]) -> None:
        self.made, self.trained = made, trained
        self.begun: list[int | None] = []
        monkeypatch.setattr(train, "_elsewhere", self.elsewhere)
        monkeypatch.setattr(train, "_train", self.train)
        monkeypatch.setattr(runs, "TrainRun", lambda *args: None)

        async def no_time(seconds: float) -> None:
            pass

        monkeypatch.setattr(train.asyncio, "sleep", no_time)

    @contextlib.asynccontextmanager
    async def elsewhere(
        self, config: Any, model: str, checkpoint: Checkpoint | None, timeline: Any
    ) -> AsyncIterator[Any]:
        self.begun.append(checkpoint.step if checkpoint else None)
        self.next(self.made)
        yield None

    async def train(self, run: Any, screen: Any) -> None:
        self.next(self.trained)

    @staticmethod
    def next(outcomes: list[Any]) -> None:
        if (outcome := outcomes.pop(0)) is not None:
            raise outcome

    def carry_out(self, out: Path, begin: Callable[[], None] = lambda: None) -> None:
        config: Any = TrainConfig.model_validate({"env": "webshop", "out": str(out)})
        screen: Any = type("Screen", (), {"on_figures": None})()
        asyncio.run(train._train_on(config, "model", None, screen, None, begin))


def test_it_goes_on_from_the_newest_whole_checkpoint_also_when_workers_die_as_they_are_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for step in (1, 2):
        (tmp_path / "checkpoints" / f"step-{step:06d}").mkdir(parents=True)

    def torn(self: Checkpoint) -> dict[str, Any]:
        if self.step == 2:
            raise train.RollenvError("torn")
        return {}

    for name in ("state", "rollouts", "tensors"):
        monkeypatch.setattr(Checkpoint, name, torn)
    attempts = Attempts(monkeypatch, [None, WorkerDied("rank-0"), None], [LearnerDied("rank-1"), None])
    attempts.carry_out(tmp_path)
    assert attempts.begun == [None, 1, 1]


def test_a_worker_that_cannot_be_made_in_the_beginning_ends_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    attempts = Attempts(monkeypatch, [WorkerDied("rank-0")], [])
    with pytest.raises(WorkerDied):
        attempts.carry_out(tmp_path)


def test_who_dies_again_and_again_ends_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    attempts = Attempts(monkeypatch, [None] * 20, [LearnerDied("rank-1")] * 20)
    with pytest.raises(LearnerDied):
        attempts.carry_out(tmp_path)
    assert len(attempts.begun) == 7
