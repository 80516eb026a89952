"""An index of a run's episodes: where each begins in its file, and what is needed to list, filter and sort them.

Invariant: everything here can be made again from the run's files. The index is kept between runs (`rollenv.files.
cache_folder`); a file that changed is indexed anew, one that is gone is forgotten. Files are read once, from front to
back, by a thread of its own: what it has read so far can be asked for at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import sqlite3
import tempfile
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollenv.evaluation.records import TIMINGS
from rollenv.files import cache_folder
from rollenv.viewer.facts import Facts, lines_of, rank_in_group
from rollenv.viewer.runs import Run

VERSION = 1
"""Of the tables; an index of another one is made anew."""
FIRST, BATCH = 20, 500
"""Episodes that are written at a time: soon for the first ones, which somebody waits for."""
HEAD_START = 0.5
"""Seconds that the processor is left to the page with the first ones, before the others are read."""

_TABLES = """
CREATE TABLE files (id INTEGER PRIMARY KEY, path TEXT UNIQUE, stamp TEXT, torn INTEGER);
CREATE TABLE tasks (id INTEGER PRIMARY KEY, env TEXT, task TEXT, about TEXT, UNIQUE (env, task));
CREATE TABLE episodes (
  id INTEGER PRIMARY KEY, file INTEGER, start INTEGER, length INTEGER, timing INTEGER, timing_length INTEGER,
  task INTEGER, step INTEGER, trained INTEGER, grp INTEGER, sample INTEGER, attempt INTEGER, turns INTEGER, stop TEXT,
  failure TEXT, success INTEGER, reward REAL, above REAL, tokens INTEGER, seconds REAL, invalid INTEGER, version INTEGER
);
CREATE INDEX of_group ON episodes (step, grp);
CREATE INDEX of_file ON episodes (file);
CREATE INDEX of_outcome ON episodes (stop, success, invalid);
"""
_COLUMNS = (
    "id, file, start, length, timing, timing_length, task, step, trained, grp, sample, attempt, turns, stop, failure, "
    "success, reward, above, tokens, seconds, invalid, version"
)
_VALUES = (
    ":id, :file, :start, :length, :timing, :timing_length, (SELECT id FROM tasks WHERE env = :env AND task = :task), "
    ":step, :trained, :group, :sample, :attempt, :turns, :stop, :failure, :success, :reward, :above, :tokens, "
    ":seconds, :invalid, :version"
)

SHOW = {
    "all": "1",
    "successful": "e.success = 1 AND e.stop != 'failed'",
    "unsuccessful": "e.success IS NOT 1 AND e.stop NOT IN ('failed', 'aborted')",
    "failed": "e.stop = 'failed'",
    "limit": "e.stop IN ('max_turns', 'max_tokens', 'truncated')",
    "invalid": "e.invalid > 0",
}
"""What can be shown -> which episodes these are."""
SORT = {
    "order": "e.id",
    "newest": "e.id DESC",
    "turns": "e.turns DESC, e.id",
    "tokens": "e.tokens DESC, e.id",
    "seconds": "e.seconds DESC, e.id",
    "reward": "e.reward DESC, e.id",
    "low": "e.reward, e.id",
    "above": "e.above DESC, e.id",
}
"""How they can be sorted: as they were played, the latest first, the longest (in turns, tokens, seconds), by the
highest and lowest reward, and by how far the reward is above that of the episode's group."""


@dataclass(frozen=True, slots=True)
class Query:
    """Which episodes are wanted, and in which order.

    Attributes:
        show: a key of `SHOW`.
        sort: a key of `SORT`.
        text: words that the task's name or its first observation must hold, in small or capital letters.
        step: only those of this training step.
    """

    show: str = "all"
    sort: str = "order"
    text: str = ""
    step: int | None = None

    def where(self) -> tuple[str, list[Any]]:
        """The condition, and what stands for its question marks."""
        conditions, values = [SHOW[self.show]], list[Any]()
        for word in self.text.split():
            pattern = "%" + word.translate({ord(sign): f"\\{sign}" for sign in "%_\\"}) + "%"
            said = "task LIKE ? ESCAPE '\\' OR about LIKE ? ESCAPE '\\'"
            conditions.append(f"e.task IN (SELECT id FROM tasks WHERE {said})")  # once a task, not once an episode
            values += [pattern, pattern]
        if self.step is not None:
            conditions.append("e.step = ?")
            values.append(self.step)
        return " AND ".join(conditions), values


@dataclass(frozen=True, slots=True)
class Place:
    """Where an episode is: bytes `start` to `start + length` of `file`, and likewise of the timings beside it."""

    file: Path
    start: int
    length: int
    timing: int | None
    timing_length: int | None

    def read(self) -> dict[str, Any]:
        """The episode as its file has it, with the seconds of its turns.

        Raises:
            OSError: the file is gone.
            ValueError: it has changed since.
        """
        with self.file.open("rb") as file:
            file.seek(self.start)
            episode: dict[str, Any] = json.loads(file.read(self.length))
        if self.timing is not None and self.timing_length is not None:
            with self.file.with_name(TIMINGS).open("rb") as file:
                file.seek(self.timing)
                seconds = json.loads(file.read(self.timing_length))
            for turn, each in zip(episode["turns"], seconds, strict=True):
                turn["seconds"] = each
        return episode


class EpisodeIndex:
    """The index of one run. Close it when it is no longer needed."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._stack = contextlib.ExitStack()
        self._path = self._open()
        self._stop = threading.Event()
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None
        self._state = {"bytes": 0, "total": 0}
        self._first = False
        self._problem = ""

    # -- what is in it ---------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Begins to read what is new in the run's files, unless that is under way."""
        with self._guard:
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=self._run_reader, name="episode index", daemon=True)
                thread.start()
                self._thread = thread  # to be waited for, which only a thread that runs can be

    def wait(self, seconds: float | None = None) -> bool:
        """Whether all files have been read, after waiting for it that long."""
        thread = self._thread
        if thread is not None:
            thread.join(seconds)
        return thread is None or not thread.is_alive()

    def progress(self) -> dict[str, Any]:
        """Bytes read of how many, whether there is more to come, and what went wrong, if something did."""
        return {**self._state, "reading": not self.wait(0), "problem": self._problem}

    def counts(self) -> dict[str, int]:
        """How many episodes each of `SHOW` has, and lines that are torn or no episodes (`torn`)."""
        sums = ", ".join(f"coalesce(sum({condition}), 0)" for condition in SHOW.values())
        with self._reading() as database:
            found = database.execute(f"SELECT {sums} FROM episodes e").fetchone()
            (torn,) = database.execute("SELECT coalesce(sum(torn), 0) FROM files").fetchone()
        return dict(zip(SHOW, found, strict=True)) | {"torn": torn}

    def steps(self) -> list[int]:
        """The training steps that have episodes."""
        with self._reading() as database:
            return [step for (step,) in database.execute("SELECT DISTINCT step FROM episodes WHERE step IS NOT NULL")]

    def count(self, query: Query) -> int:
        """How many episodes there are."""
        where, values = query.where()
        with self._reading() as database:
            (n,) = database.execute(f"SELECT count(*) FROM episodes e WHERE {where}", values).fetchone()
        return int(n)

    def rows(self, query: Query, offset: int, limit: int) -> list[dict[str, Any]]:
        """What is known of some of the episodes."""
        where, values = query.where()
        return self._rows(f"WHERE {where} ORDER BY {SORT[query.sort]} LIMIT ? OFFSET ?", [*values, limit, offset])

    def row(self, number: int) -> dict[str, Any] | None:
        """What is known of one; None: there is no such episode."""
        return next(iter(self._rows("WHERE e.id = ?", [number])), None)

    def group(self, number: int, limit: int) -> list[dict[str, Any]]:
        """The episodes that are compared with this one, itself among them: those of its task and group."""
        same = "(SELECT step, grp, task FROM episodes WHERE id = ?) o ON e.step IS o.step AND e.grp = o.grp"
        return self._rows(f"JOIN {same} AND e.task = o.task ORDER BY e.sample, e.id LIMIT ?", [number, limit])

    def place(self, number: int) -> Place | None:
        """Where an episode is; None: there is no such episode."""
        with self._reading() as database:
            found = database.execute(
                "SELECT f.path, e.start, e.length, e.timing, e.timing_length FROM episodes e JOIN files f "
                "ON f.id = e.file WHERE e.id = ?",
                [number],
            ).fetchone()
        return Place(self._run.folder / found[0], *found[1:]) if found else None

    def _rows(self, rest: str, values: list[Any]) -> list[dict[str, Any]]:
        with self._reading() as database:
            database.row_factory = sqlite3.Row
            found = database.execute(
                "SELECT e.id, t.env, t.task, t.about, e.step, e.trained, e.grp AS 'group', e.sample, e.attempt, "
                "e.turns, e.stop, e.failure, e.success, e.reward, e.above, e.tokens, e.seconds, e.invalid, e.version "
                f"FROM episodes e JOIN tasks t ON t.id = e.task {rest}",
                values,
            )
            return [dict(row) for row in found]

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with contextlib.closing(sqlite3.connect(self._path, timeout=30)) as database:
            yield database

    def close(self) -> None:
        """Stops reading, and gives the index back."""
        self._stop.set()
        self.wait()
        self._stack.close()

    # -- how it is made --------------------------------------------------------------------------------------

    def _open(self) -> Path:
        """The database: that of earlier, if no other process is at it; made anew where it is damaged."""
        key = hashlib.sha256(str(self._run.folder.resolve()).encode()).hexdigest()[:24]
        path = cache_folder("viewer") / f"{key}.sqlite"
        if self._claimed(path.with_suffix(".lock")):
            for _ in range(2):
                try:
                    return _prepare(path)
                except sqlite3.DatabaseError:
                    for file in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
                        file.unlink(missing_ok=True)
        own = tempfile.TemporaryDirectory(prefix="rollenv-viewer-")
        return _prepare(Path(self._stack.enter_context(own)) / path.name)

    def _claimed(self, lock: Path) -> bool:
        try:
            file = self._stack.enter_context(lock.open("w"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def _run_reader(self) -> None:
        try:
            self._problem = ""
            self._read_files()
        except (OSError, sqlite3.Error) as error:
            self._problem = f"the episodes of '{self._run.folder}' cannot be indexed: {error}"

    def _read_files(self) -> None:
        """Brings the tables up to date with the files."""
        files = {file.relative_to(self._run.folder).as_posix(): file for file in self._run.files()}
        stamps = {name: stamp for name, file in files.items() if (stamp := _stamp(file))}
        with contextlib.closing(sqlite3.connect(self._path, timeout=30)) as database:
            database.execute("PRAGMA synchronous = NORMAL")
            known = dict(database.execute("SELECT path, stamp FROM files"))
            for name in known:
                if known[name] != stamps.get(name):
                    _forget(database, name)
            new = [name for name in stamps if known.get(name) != stamps[name]]
            self._state = {"bytes": 0, "total": sum(files[name].stat().st_size for name in new if files[name].exists())}
            for name in new:
                with contextlib.suppress(FileNotFoundError):
                    self._read_file(database, name, files[name], stamps[name])
                if self._stop.is_set():
                    return
            if new:
                database.execute("PRAGMA optimize")

    def _read_file(self, database: sqlite3.Connection, name: str, path: Path, stamp: str) -> None:
        """Reads one file. Its stamp is written last: a file that was not read to its end counts as changed."""
        file = database.execute("INSERT INTO files (path, stamp, torn) VALUES (?, '', 0)", [name]).lastrowid
        torn, pending = 0, list[Facts]()
        for members, length, bad in groups_of(lines_of(path)):
            pending += members
            torn += bad
            self._state["bytes"] += length
            if len(pending) >= (BATCH if self._first else FIRST):
                _write(database, file, pending)
                pending, head_start = [], 0.0 if self._first else HEAD_START
                self._first = True
                if self._stop.wait(head_start):
                    return
        _write(database, file, pending)
        database.execute("UPDATE files SET stamp = ?, torn = ? WHERE id = ?", [stamp, torn, file])
        database.commit()


def groups_of(lines: Iterable[tuple[int, Facts | None]]) -> Iterator[tuple[list[Facts], int, int]]:
    """Episodes that are compared with each other and stand one behind the other, ranked; the bytes of their lines, and
    how many lines were none."""
    members, length, torn = list[Facts](), 0, 0
    for size, facts in lines:
        if facts is not None and members and _group(facts) != _group(members[0]):
            rank_in_group(members)
            yield members, length, torn
            members, length, torn = [], 0, 0
        length += size
        torn += facts is None
        members += [] if facts is None else [facts]
    rank_in_group(members)
    yield members, length, torn


def _group(facts: Facts) -> tuple[Any, ...]:
    return facts["step"], facts["group"], facts["env"], facts["task"]


# -- tables --------------------------------------------------------------------------------------------------------


def _prepare(path: Path) -> Path:
    """The path of a database, with the tables made where they were missing.

    Raises:
        sqlite3.DatabaseError: what is there is damaged, or of another version.
    """
    with contextlib.closing(sqlite3.connect(path, timeout=30)) as database:
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version not in (0, VERSION):
            raise sqlite3.DatabaseError("of another version")
        if version == 0:
            database.execute("PRAGMA synchronous = NORMAL")
            database.execute("PRAGMA journal_mode = WAL")
            database.executescript(f"{_TABLES} PRAGMA user_version = {VERSION};")
        for table in ("files", "tasks", "episodes"):
            database.execute(f"SELECT * FROM {table} LIMIT 1").fetchone()
    return path


def _forget(database: sqlite3.Connection, name: str) -> None:
    (file,) = database.execute("SELECT id FROM files WHERE path = ?", [name]).fetchone()
    database.execute("DELETE FROM episodes WHERE file = ?", [file])
    database.execute("DELETE FROM files WHERE id = ?", [file])
    database.commit()


def _write(database: sqlite3.Connection, file: int | None, episodes: list[Facts]) -> None:
    for facts in episodes:
        facts["file"] = file
        database.execute("INSERT OR IGNORE INTO tasks (env, task, about) VALUES (:env, :task, :about)", facts)
    database.executemany(f"INSERT OR REPLACE INTO episodes ({_COLUMNS}) VALUES ({_VALUES})", episodes)
    database.commit()


def _stamp(file: Path) -> str:
    """Changes with a file and with the timings beside it; empty if it is gone."""
    parts = []
    for each in (file, file.with_name(TIMINGS)):
        with contextlib.suppress(OSError):
            status = each.stat()
            parts.append(f"{status.st_ino}-{status.st_size}-{status.st_mtime_ns}")
    return "+".join(parts) if file.is_file() else ""
