"""Where a run's figures go: `metrics.jsonl`, one object a step, `groups.jsonl`, one a group, and trackers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollenv.errors import RollenvError
from rollenv.evaluation.export import Exported, keep, kept_steps
from rollenv.files import write_atomically
from rollenv.rollout.buffer import Batch
from rollenv.trainers.trackers import MakeTracker, TensorBoard, TrackedRun, Trackers, run_id
from rollenv.trajectory import Trajectory

if TYPE_CHECKING:
    from rollenv.trainers.minibatch import Advantages


class StepLog:
    """A file of JSON lines, each of a `step`, that a resumed run continues.

    Args:
        step: keep what an earlier process wrote up to this step and drop what came later; None starts anew.

    Raises:
        RollenvError: it cannot be written.
    """

    def __init__(self, path: Path, step: int | None) -> None:
        self._path = path
        kept = [line for line in read_lines(path) if line["step"] <= step] if step is not None else []
        write_atomically(path, (json.dumps(line) + "\n" for line in kept))

    def write(self, lines: Iterable[dict[str, Any]]) -> None:
        """Appends lines. Raises RollenvError when the disk refuses."""
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write("".join(json.dumps(line) + "\n" for line in lines))
        except OSError as error:
            raise RollenvError(f"cannot write '{self._path}': {error.strerror}; make room, then --resume") from error


class MetricsWriter:
    """Appends figures to a run folder, and shows them to trackers.

    Args:
        run: the run's folder.
        step: the run goes on after this step; None: it begins.
        makers: of the trackers.
        project, config: what these get to know of the run.
        due: the figures of `step` itself are still to come.
    """

    def __init__(
        self,
        run: Path,
        step: int | None,
        makers: Mapping[str, MakeTracker] | None = None,
        project: str = "rollenv",
        config: Mapping[str, Any] | None = None,
        due: bool = False,
    ) -> None:
        makers = {"tensorboard": TensorBoard} if makers is None else makers
        self._run = run
        for later, file in kept_steps(run):
            if step is None or later > step:  # of a future that the run has turned away from
                file.unlink()
        last = step if step is None else step - due
        self._figures = StepLog(run / "metrics.jsonl", last)
        self._groups = StepLog(run / "groups.jsonl", step)
        name = run_id(run, begins=step is None) if set(makers) - {"tensorboard"} else ""
        self._trackers = Trackers(makers, TrackedRun(run, last or 0, name, project, config or {}))

    def write(self, figures: dict[str, Any]) -> None:
        """Writes the figures of a step, `step` among them. Raises RollenvError when the disk refuses."""
        self._figures.write([figures])
        self._trackers.log(figures["step"], figures)

    def write_groups(self, step: int, batch: Batch) -> None:
        """Writes what each group of a batch was and what it came to. Raises RollenvError when the disk refuses."""
        trained = {group.request.index for group in batch.groups}
        self._groups.write(
            {
                "step": step,
                "index": group.request.index,
                "env": group.trajectories[0].env,
                "task": group.request.task,
                "trained": group.request.index in trained,
                "rewards": [t.reward for t in group.trainable],
                "successes": [t.success for t in group.trainable],
                "staleness": batch.version - group.oldest_version,
            }
            for group in batch.played
        )

    def keep_trajectories(self, step: int, batch: Batch, advantages: Advantages) -> None:
        """Keeps the episodes of a batch, for `rollenv export`. Raises RollenvError when the disk refuses."""
        trained = {group.request.index for group in batch.groups}
        episodes = ((group.request.index, t) for group in batch.played for t in group.trajectories)
        kept = (Exported(t, step, i in trained, _by_token(t, advantages.get((i, t.sample)))) for i, t in episodes)
        keep(self._run, step, kept)

    def close(self) -> None:
        """Waits until trackers have what there is to see."""
        self._trackers.close()


def _by_token(trajectory: Trajectory, given: Mapping[int, Sequence[float]] | None) -> list[list[float]] | None:
    """Of each turn the advantages of all its sampled tokens. (One that nothing came before did not train.)"""
    if not given:
        return None
    turns = [(len(turn.completion_ids), given.get(number, ())) for number, turn in enumerate(trajectory.turns)]
    return [[0.0] * (n - len(advantages)) * bool(advantages) + [*advantages] for n, advantages in turns]


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """The figures of a run's steps so far."""
    return read_lines(run / "metrics.jsonl")


def read_groups(run: Path) -> list[dict[str, Any]]:
    """The groups that a run has played so far, a batch after the other."""
    return read_lines(run / "groups.jsonl")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines written so far; a torn last one (the process was killed in mid-write) is left out."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return lines
