"""Where games come from: a folder or an archive of game files, or one file. Each is a `Library`.

Invariant: a library lists its games without compiling any, in an order that depends on their names alone; what it
found is kept, and found again as long as the files look the same.

The rules of alfworld/alfworld decide what is listed: a game lies at `<split>/<task>/<trial>/game.tw-pddl`; paths with
`movable` or `Sliced` are left out, and so are games that are not marked as solvable. Upstream takes the order in
which the file system lists folders; here games are sorted by their ids.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

from rollenv.envs.alfworld.cache import cache_root, replacing, write_bytes
from rollenv.errors import RollenvError
from rollenv.tasks import TaskSet

GAME = "game.tw-pddl"
TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
SPLITS = ("train", "valid_train", "valid_seen", "valid_unseen")
FORMAT = 1
"""Raised whenever an index changes its meaning."""

_LEFT_OUT = ("movable", "Sliced")
_SOLVABLE = re.compile(rb'"solvable"\s*:\s*true')
_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.bz2", ".tbz2")


class Library(Protocol):
    """Games by task id."""

    @property
    def source(self) -> str:
        """What messages call it."""
        ...

    @property
    def tasks(self) -> TaskSet:
        """The games as tasks."""
        ...

    def sha256(self, task: str) -> str:
        """Hex hash of the game's file. The task exists."""
        ...

    def read(self, task: str) -> bytes:
        """The game's file. The task exists."""
        ...


def task_type(task: str) -> str:
    """Which of the six kinds a task is of, by the name of its folder; `other` for none of them."""
    folder = task.split("/")[-2] if "/" in task else task
    kind = folder.split("-", 1)[0]
    return kind if kind in TASK_TYPES else "other"


class Entry(NamedTuple):
    """A game of a library.

    Attributes:
        task: `<split>/<task folder>/<trial folder>`.
        path: its file, below the folder or in the archive.
        stamp: what changes with the file: its size and time.
        sha256: of its bytes.
        solvable: whether it is marked so.
        offset, size: where its packed bytes are, for archives.
    """

    task: str
    path: str
    stamp: tuple[int, int]
    sha256: str
    solvable: bool
    offset: int = 0
    size: int = 0


class FileLibrary:
    """The games of a folder or an archive.

    Args:
        source: what messages call it.
        entries: the games, any order.
        fetch: gives an entry's bytes.
    """

    def __init__(self, source: str, entries: list[Entry], fetch: Callable[[Entry], bytes]) -> None:
        self.source = source
        self._fetch = fetch
        self._entries = {entry.task: entry for entry in sorted(entries, key=lambda entry: entry.task) if entry.solvable}
        if not self._entries:
            raise RollenvError(
                f"alfworld: no solvable game in '{source}'; give a folder or archive with "
                f"<split>/<task>/<trial>/{GAME} in it, or leave data out for generated games"
            )
        found = {task.split("/", 1)[0] for task in self._entries}
        names = [split for split in SPLITS if split in found] + sorted(found.difference(SPLITS))
        splits = {name: [task for task in self._entries if task.split("/", 1)[0] == name] for name in names}
        self.tasks = TaskSet("alfworld", splits, self._content, {"rules": FORMAT})

    def _content(self, task: str) -> dict[str, str]:
        return {"type": task_type(task), "sha256": self.sha256(task)}

    def sha256(self, task: str) -> str:
        return self._entries[task].sha256

    def read(self, task: str) -> bytes:
        entry = self._entries[task]
        data = self._fetch(entry)
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            raise RollenvError(f"alfworld: game '{task}' of '{self.source}' changed while it was in use; start anew")
        return data


@functools.cache
def open_library(data: str) -> FileLibrary:
    """The games of a folder or archive (.zip, .tar and packed tars), looked for once per process.

    Raises:
        RollenvError: there is no such folder or archive, it is torn, or has no solvable games.
    """
    path = Path(data).expanduser()
    if path.is_dir():
        return _open_folder(path)
    if not path.is_file():
        raise RollenvError(
            f"alfworld: data='{data}' does not exist; give the folder that holds json_2.1.1 (or one of its archives), "
            "or leave data out for generated games"
        )
    if not path.name.lower().endswith(_ARCHIVES):
        raise RollenvError(
            f"alfworld: data='{data}' is no folder and no archive ({', '.join(_ARCHIVES)}); for a single game say "
            f"game='{data}'"
        )
    return _open_archive(path)


class SingleGame:
    """The library of one game file."""

    def __init__(self, game: str) -> None:
        self.path = Path(game).expanduser()
        self.source = game
        try:
            data = self.path.read_bytes()
        except OSError as error:
            raise RollenvError(
                f"alfworld: cannot read game='{game}' ({error.strerror}); give the path of a {GAME} file"
            ) from error
        self._sha256 = hashlib.sha256(data).hexdigest()
        parts = self.path.resolve().parts
        self.task = "/".join(parts[-4:-1]) if self.path.name == GAME and len(parts) > 4 else self.path.name
        self.tasks = TaskSet("alfworld", {"game": [self.task]}, self._content)

    def _content(self, task: str) -> dict[str, str]:
        return {"type": task_type(task), "sha256": self._sha256}

    def sha256(self, task: str) -> str:
        return self._sha256

    def read(self, task: str) -> bytes:
        data = self.path.read_bytes()
        if hashlib.sha256(data).hexdigest() != self._sha256:
            raise RollenvError(f"alfworld: '{self.path}' changed while it was in use; make the environment anew")
        return data


# -- what is where ----------------------------------------------------------------------------------------------


def _task_of(path: str) -> str | None:
    """The task id of a game file by its path; None for what is no game, or is left out."""
    parts = path.split("/")
    if len(parts) < 4 or parts[-1] != GAME or any(word in path for word in _LEFT_OUT):
        return None
    return "/".join(parts[-4:-1])


def _add(entries: dict[str, Entry], entry: Entry, source: object) -> None:
    other = entries.setdefault(entry.task, entry)
    if other is not entry:
        raise RollenvError(
            f"alfworld: '{source}' has two games '{entry.task}' ('{other.path}' and '{entry.path}'); "
            "give the folder that holds one of them"
        )


def _index_path(source: Path, kind: str) -> Path:
    key = hashlib.sha256(f"{FORMAT}\n{kind}\n{source.resolve()}".encode()).hexdigest()[:24]
    return cache_root() / "indexes" / f"{key}.json"


def _load_index(path: Path) -> dict[str, Any]:
    """A kept index; an empty one when there is none."""
    try:
        index = json.loads(path.read_bytes())
        entries = [Entry(task, path, tuple(stamp), *others) for task, path, stamp, *others in index["entries"]]
    except (OSError, ValueError, KeyError, TypeError):
        return {"stamp": None, "entries": []}
    return {"stamp": index["stamp"], "entries": entries}


def _save_index(path: Path, stamp: object, entries: list[Entry]) -> None:
    data = json.dumps({"stamp": stamp, "entries": entries}, separators=(",", ":"))
    with contextlib.suppress(OSError):
        write_bytes(path, data.encode())


# -- folders ----------------------------------------------------------------------------------------------------


def _open_folder(folder: Path) -> FileLibrary:
    index = _index_path(folder, "folder")
    kept = {(entry.path, entry.stamp): entry for entry in _load_index(index)["entries"]}
    entries: dict[str, Entry] = {}
    above = folder.resolve().as_posix()
    for path, stamp in _game_files(str(folder), ""):
        task = _task_of(f"{above}/{path}")
        if task is not None:
            _add(entries, kept.get((path, stamp)) or _look_at(folder, path, task, stamp), folder)
    if len(entries) != len(kept) or any((entry.path, entry.stamp) not in kept for entry in entries.values()):
        _save_index(index, None, list(entries.values()))
    return FileLibrary(str(folder), list(entries.values()), functools.partial(_read_below, folder))


def _game_files(folder: str, below: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """Path and stamp of every game file below a folder."""
    try:
        with os.scandir(f"{folder}/{below}" if below else folder) as found:
            listed = list(found)
    except OSError as error:
        raise RollenvError(f"alfworld: cannot list '{folder}/{below}' ({error.strerror})") from error
    for item in listed:
        path = f"{below}/{item.name}" if below else item.name
        if item.name == GAME:
            stat = item.stat()
            yield path, (stat.st_size, stat.st_mtime_ns)
        elif item.is_dir():
            yield from _game_files(folder, path)


def _look_at(folder: Path, path: str, task: str, stamp: tuple[int, int]) -> Entry:
    data = _read(folder / path)
    return Entry(task, path, stamp, hashlib.sha256(data).hexdigest(), _is_solvable(data, folder / path))


def _is_solvable(data: bytes, name: object) -> bool:
    """Whether a game is marked as solvable, without reading all of it."""
    if not data.rstrip().endswith(b"}"):
        raise RollenvError(
            f"alfworld: '{name}' is torn after {len(data)} bytes; copy or download it again, or remove it"
        )
    return _SOLVABLE.search(data) is not None


def _read_below(folder: Path, entry: Entry) -> bytes:
    return _read(folder / entry.path)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RollenvError(f"alfworld: cannot read '{path}' ({error.strerror})") from error


# -- archives ---------------------------------------------------------------------------------------------------


def _open_archive(archive: Path) -> FileLibrary:
    """The games of an archive, whose bytes are copied once into a pack that can be read at any place."""
    stat = archive.stat()
    stamp = [stat.st_size, stat.st_mtime_ns]
    index = _index_path(archive, "archive")
    pack = index.with_suffix(".pack")
    kept = _load_index(index)
    if kept["stamp"] != stamp or not pack.is_file():
        kept["entries"] = _pack(archive, pack)
        _save_index(index, stamp, kept["entries"])
    return FileLibrary(str(archive), kept["entries"], functools.partial(_unpack, pack))


def _pack(archive: Path, pack: Path) -> list[Entry]:
    entries: dict[str, Entry] = {}
    offset = 0
    try:
        with replacing(pack) as file:
            for path, data in _members(archive):
                task = _task_of(path)
                if task is None:
                    continue
                packed = zlib.compress(data, 1)
                solvable = _is_solvable(data, f"{archive}: {path}")
                sha256 = hashlib.sha256(data).hexdigest()
                _add(entries, Entry(task, path, (0, 0), sha256, solvable, offset, len(packed)), archive)
                file.write(packed)
                offset += len(packed)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, _lzma_error()) as error:
        raise RollenvError(
            f"alfworld: '{archive}' is torn or no archive ({error}); copy or download it again"
        ) from error
    except OSError as error:
        raise RollenvError(f"alfworld: cannot unpack '{archive}' into '{pack}' ({error.strerror or error})") from error
    return list(entries.values())


def _lzma_error() -> type[Exception]:
    """What a torn .xz raises; an unrelated error where Python was built without lzma."""
    try:
        from lzma import LZMAError
    except ImportError:
        return tarfile.TarError
    return LZMAError


def _members(archive: Path) -> Iterator[tuple[str, bytes]]:
    """Path and bytes of the game files of an archive, in its order."""
    if archive.name.lower().endswith(".zip"):
        with zipfile.ZipFile(archive) as zipped:
            for name in zipped.namelist():
                if name.endswith(f"/{GAME}"):
                    yield name, zipped.read(name)
        return
    with tarfile.open(archive, "r|*") as tarred:
        for member in tarred:
            if member.isfile() and member.name.endswith(f"/{GAME}"):
                file: IO[bytes] | None = tarred.extractfile(member)
                if file is not None:
                    yield member.name, file.read()


def _unpack(pack: Path, entry: Entry) -> bytes:
    try:
        with pack.open("rb") as file:
            file.seek(entry.offset)
            return zlib.decompress(file.read(entry.size))
    except (OSError, zlib.error) as error:
        raise RollenvError(f"alfworld: the cache '{pack}' is damaged ({error}); delete it") from error
