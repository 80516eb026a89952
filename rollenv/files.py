"""Files that are either the old ones or the new ones, never half of either."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rollenv.errors import RollenvError


def write_atomically(path: Path, parts: Iterable[str]) -> None:
    """Writes text beside `path` and moves it into place when it is whole and on the disk.

    Raises:
        RollenvError: it cannot be written; what was at `path` is still there.
    """
    try:
        with new_file(path) as temporary, temporary.open("w", encoding="utf-8") as file:
            file.writelines(parts)
    except OSError as error:
        raise RollenvError(f"cannot write '{path}': {error.strerror}; nothing there was changed") from error


def as_text(value: Any) -> str:
    """Text that UTF-8 has: half of a surrogate pair, which models do write, becomes a question mark."""
    return str(value).encode("utf-8", "replace").decode("utf-8")


def stamp(folder: Path) -> str:
    """The names, lengths and times of a folder's files as 16 hex digits: others once any of them was written again.

    Raises:
        OSError: the folder cannot be read.
    """
    found = [(path.relative_to(folder).as_posix(), path.stat()) for path in sorted(folder.rglob("*")) if path.is_file()]
    listing = "\n".join(f"{name} {about.st_size} {about.st_mtime_ns}" for name, about in found)
    return hashlib.sha256(listing.encode()).hexdigest()[:16]


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A file beside `path` to write, which becomes `path` when the block ends well and vanishes when it does not (also
    when Ctrl-C ends it).

    Raises:
        OSError: it cannot be made, or not be moved; what was at `path` is still there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(descriptor)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `path` when the block ends well and vanishes when it does not.

    A folder that is already at `path` is replaced, and is still there when the new one could not take its place.

    Raises:
        OSError: it cannot be made or moved.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary, lock = _locked_folder(path)
    try:
        yield temporary
        sync_folder(temporary)
        os.chmod(temporary, 0o755)
        _put_in_place(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    finally:
        os.close(lock)


def sync_folder(folder: Path) -> None:
    """Waits until every file of a folder is on the disk; all may read them from now on."""
    for file in folder.rglob("*"):
        if file.is_file():
            os.chmod(file, 0o644)  # some libraries write for the owner alone
            descriptor = os.open(file, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def sweep_folders(parent: Path, prefix: str) -> None:
    """Clears away what processes that were killed inside `new_folder` left in `parent`, for paths that begin with
    `prefix`: half-made folders go, and a folder that had only stepped aside comes back.

    What a living process is filling is left alone: it holds a lock on it, which the system takes away when it dies.
    """
    for folder in sorted(parent.glob(f".{prefix}*")) if parent.is_dir() else ():
        maker = folder.with_name(folder.name.removesuffix(".old"))
        name = maker.name[1:].rpartition(".")[0]
        if not name or not folder.is_dir():
            continue
        with _claimed(maker) as nobodys:
            if nobodys and folder != maker and not (parent / name).exists():
                with contextlib.suppress(OSError):
                    os.replace(folder, parent / name)
            if nobodys:
                shutil.rmtree(folder, ignore_errors=True)


def _locked_folder(path: Path) -> tuple[Path, int]:
    """A new folder beside `path` and the descriptor that holds its lock."""
    while True:
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
        lock = os.open(temporary, os.O_RDONLY)
        with contextlib.suppress(OSError):  # some network file systems have no locks: then nobody sweeps, either
            fcntl.flock(lock, fcntl.LOCK_EX)
        if temporary.is_dir():
            return temporary, lock
        os.close(lock)  # swept in the moment before it was locked


@contextlib.contextmanager
def _claimed(folder: Path) -> Iterator[bool]:
    """Whether no process is filling `folder` (False where nobody can know), and none begins to within the block."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        yield isinstance(error, FileNotFoundError)
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        free = True
    except OSError:
        free = False
    try:
        yield free
    finally:
        os.close(descriptor)


def _put_in_place(folder: Path, path: Path) -> None:
    """Moves `folder` to `path`; what is there steps aside first, and comes back when that fails."""
    if not path.exists():
        os.replace(folder, path)
        return
    aside = folder.with_name(f"{folder.name}.old")
    os.replace(path, aside)
    try:
        os.replace(folder, path)
    except BaseException:
        os.replace(aside, path)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def cache_folder(name: str) -> Path:
    """`name` in `$ROLLENV_CACHE` or `~/.cache/rollenv`, for what can be made again; a folder of this process where none
    can be made."""
    root = Path(os.environ.get("ROLLENV_CACHE") or Path("~/.cache/rollenv").expanduser()) / name
    with contextlib.suppress(OSError):
        root.mkdir(parents=True, exist_ok=True)
        if os.access(root, os.W_OK):
            return root
    return Path(_own_folder(name).name)


@functools.cache
def _own_folder(name: str) -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix=f"rollenv-{name}-")
