"""Which runs a folder holds, and what each says of itself beside its episodes.

A run is a folder: a training run has `metrics.jsonl` or kept steps, an evaluation has `trajectories.jsonl`.
"""

from __future__ import annotations

import json
import math
import os
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rollenv.errors import RollenvError
from rollenv.evaluation.export import kept_steps
from rollenv.evaluation.records import TRAJECTORIES

METRICS, SUMMARY, CONFIG = "metrics.jsonl", "summary.json", "config.toml"
DEPTH = 4
"""Folders below the given one in which runs are looked for."""
_NO_RUNS_IN = {"checkpoints", "tensorboard", "wandb", "model", "export", "node_modules"}

Kind = Literal["training", "evaluation"]


@dataclass(frozen=True, slots=True)
class Run:
    """A run on disk. `id`: its path below the folder that was looked through, `.` for that folder itself."""

    id: str
    folder: Path
    kind: Kind

    @property
    def name(self) -> str:
        """What it is called on a page."""
        return self.id if self.id != "." else self.folder.resolve().name

    def summary(self) -> dict[str, Any]:
        """`summary.json`; empty where there is none that can be read."""
        try:
            found = json.loads((self.folder / SUMMARY).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def config(self) -> dict[str, Any]:
        """`config.toml`; empty where there is none that can be read."""
        try:
            return tomllib.loads((self.folder / CONFIG).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}

    def files(self) -> list[Path]:
        """The files with its episodes, in order; none where it keeps none."""
        if self.kind == "evaluation":
            return [self.folder / TRAJECTORIES]
        return [file for _, file in kept_steps(self.folder)]


def find_runs(root: Path) -> list[Run]:
    """The run that a folder is, or those below it, by their names.

    Raises:
        RollenvError: there are none.
    """
    if not root.is_dir():
        raise RollenvError(
            f"there is no folder '{root}': give that of a run, of 'rollenv eval --out', or one of several"
        )
    runs = sorted(_below(root, root, DEPTH), key=lambda run: run.id)
    if not runs:
        raise RollenvError(
            f"'{root}' holds no run: give the folder of a training run ('rollenv train --out'), of an evaluation "
            "('rollenv eval --out'), or one that such folders are in"
        )
    return runs


def kind_of(folder: Path) -> Kind | None:
    """What a folder is, None if it is no run."""
    if (folder / METRICS).is_file() or kept_steps(folder):
        return "training"
    return "evaluation" if (folder / TRAJECTORIES).is_file() else None


def _below(folder: Path, root: Path, depth: int) -> Iterator[Run]:
    kind = kind_of(folder)
    if kind is not None:
        yield Run(folder.relative_to(root).as_posix(), folder, kind)
        return
    if depth == 0:
        return
    try:
        inside = [Path(entry) for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith(".")]
    except OSError:
        return
    for each in inside:
        if each.name not in _NO_RUNS_IN:
            yield from _below(each, root, depth - 1)


def read_metrics(run: Run) -> list[dict[str, Any]]:
    """The figures of its steps so far, one object a step."""
    return MetricsTail(run.folder).new()[1]


class MetricsTail:
    """Reads `metrics.jsonl` as it grows.

    Invariant: a line is given once, when it is whole; after the file was replaced by another (a run resumed, or begun
    anew), all lines are given again.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / METRICS
        self._inode, self._offset = -1, 0

    def new(self) -> tuple[bool, list[dict[str, Any]]]:
        """Whether it began from the beginning, and the lines that are new since the last call."""
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                anew = status.st_ino != self._inode or status.st_size < self._offset
                if anew:
                    self._inode, self._offset = status.st_ino, 0
                file.seek(self._offset)
                whole, newline, _ = file.read().rpartition(b"\n")
        except OSError:
            return False, []
        self._offset += len(whole) + len(newline)
        return anew, list(_objects(whole))


def _objects(lines: bytes) -> Iterator[dict[str, Any]]:
    for line in lines.splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            yield found


def finite(value: Any) -> Any:
    """`value` with None for every number that JSON has no word for (NaN and the infinities)."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


def as_json(value: Any) -> str:
    """JSON that every browser reads: ASCII alone, and `finite`."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return json.dumps(finite(value), separators=(",", ":"))
