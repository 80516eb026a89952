"""The episodes of an evaluation as files: what happened in `trajectories.jsonl`, how long it took in `timings.jsonl`.

They are apart so that the same evaluation leaves the same bytes, however fast it was and however often it was begun
again. `Journal` is the file that it goes on from.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import IO, Any

from rollenv.errors import RollenvError
from rollenv.files import write_atomically
from rollenv.trajectory import Trajectory

TRAJECTORIES, TIMINGS = "trajectories.jsonl", "timings.jsonl"


def write_episodes(folder: Path, trajectories: Sequence[Trajectory], tasks_sha256: str) -> None:
    """Writes both files, each atomically.

    Raises:
        RollenvError: the folder cannot be written.
    """
    episodes = [trajectory.to_dict() | {"tasks_sha256": tasks_sha256} for trajectory in trajectories]
    timings = [[turn.pop("seconds") for turn in episode["turns"]] for episode in episodes]
    write_atomically(folder / TIMINGS, (json.dumps(timing) + "\n" for timing in timings))
    write_atomically(folder / TRAJECTORIES, (json.dumps(episode) + "\n" for episode in episodes))


def episode_lines(file: Path) -> Iterator[dict[str, Any]]:
    """The episodes of a file of JSON lines, with what `timings.jsonl` beside it says of their turns, where there is
    one.

    Raises:
        OSError: it cannot be read.
        ValueError: a line is no episode; the message says which.
    """
    with contextlib.ExitStack() as files:
        lines: IO[str] = files.enter_context(file.open(encoding="utf-8"))
        timings: Iterable[str] = ()
        beside = file.with_name(TIMINGS)
        if file.name == TRAJECTORIES and beside.is_file():
            timings = files.enter_context(beside.open(encoding="utf-8"))
        for number, (line, timing) in enumerate(zip_longest(lines, timings), 1):
            try:
                yield _joined(json.loads(line), timing)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ValueError(f"line {number} is torn or no episode ({error!r})") from error


def _joined(episode: dict[str, Any], timing: str | None) -> dict[str, Any]:
    turns = episode["turns"]
    if timing is not None:
        for turn, seconds in zip(turns, json.loads(timing), strict=True):
            turn["seconds"] = seconds
    return episode


class Journal:
    """What an evaluation has finished so far, task by task, in `unfinished.jsonl`: one that was killed goes on there.

    Made by `opened`. The file's first line says what is evaluated; it goes when the results are written.
    """

    NAME = "unfinished.jsonl"

    def __init__(self, path: Path, file: IO[bytes], finished: dict[int, list[Trajectory]]) -> None:
        self._path, self._file = path, file
        self.finished = finished
        """Place on the panel -> the episodes of that task."""

    @classmethod
    @contextlib.contextmanager
    def opened(cls, folder: Path, order: Mapping[str, Any]) -> Iterator[Journal]:
        """The journal of a folder, for this process alone.

        Args:
            order: all that decides the episodes, as JSON has it.

        Raises:
            RollenvError: the folder has an unfinished evaluation of something else, or another process is at it, or it
                cannot be written.
        """
        path = folder / cls.NAME
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = path.open("a+b")
        except OSError as error:
            raise RollenvError(f"cannot write '{path}': {error.strerror}") from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RollenvError(f"another evaluation is writing into '{folder}': give another --out") from None
            yield cls(path, file, _read_journal(path, file, order))

    def add(self, place: int, trajectories: Sequence[Trajectory]) -> None:
        """Notes the episodes of a task.

        Raises:
            RollenvError: the disk does not take them.
        """
        line = {"place": place, "episodes": [trajectory.to_dict() for trajectory in trajectories]}
        try:
            _append(self._file, line)
        except OSError as error:
            raise RollenvError(
                f"cannot write '{self._path}': {error.strerror}; the same command goes on where it stood"
            ) from error

    def remove(self) -> None:
        """The results are written, or there are none: a folder that has nothing else goes, too."""
        self._path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._path.parent.rmdir()


def _append(file: IO[bytes], line: Mapping[str, Any]) -> None:
    file.write(json.dumps(line).encode() + b"\n")
    file.flush()


def _read_journal(path: Path, file: IO[bytes], order: Mapping[str, Any]) -> dict[int, list[Trajectory]]:
    """What is in a journal, which is left ready to be written on. A line that a kill has torn is cut off."""
    file.seek(0)
    lines = file.read().splitlines(keepends=True)
    if lines and not lines[-1].endswith(b"\n"):
        file.truncate(sum(map(len, lines[:-1])))
        lines = lines[:-1]
    order = json.loads(json.dumps(order))
    if not lines:
        _append(file, order)
        return {}
    try:
        begun, *rest = map(json.loads, lines)
        finished = {int(each["place"]): list(map(Trajectory.from_dict, each["episodes"])) for each in rest}
    except (ValueError, KeyError, TypeError) as error:
        raise RollenvError(f"'{path}' is not what an evaluation writes ({error!r}): remove it") from error
    if begun != order:
        other = next(key for key in [*order, *begun] if order.get(key) != begun.get(key))
        raise RollenvError(
            f"'{path.parent}' has an unfinished evaluation of another kind ({other}: {begun.get(other)!r}, now "
            f"{order.get(other)!r}): give another --out, or remove '{path}'"
        )
    return finished
