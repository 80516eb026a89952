"""What this process made on the machine, written down before it exists, and the reaping of what dead owners left.

Invariant: a thing is in its owner's ledger from before it exists until after it is gone, and carries its owner's name.
An owner holds a lock on its ledger for as long as it lives, which the kernel lets go of however it dies; only who gets
that lock may reap. Nothing is removed that is not in a ledger and does not carry the name of that ledger's owner.

Two processes share ledgers when they share the state folder: $ROLLENV_STATE, else $XDG_STATE_HOME/rollenv, else
~/.local/state/rollenv.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import itertools
import json
import logging
import os
import secrets
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar, Literal

from rollenv.errors import RollenvError

log = logging.getLogger(__name__)

Kind = Literal["container", "network", "volume", "image", "cgroup", "folder"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing: what it is, its name or path, its owner, and where it is (an engine's address; else empty)."""

    kind: Kind
    name: str
    owner: str
    run: str
    where: str = ""


def state_folder() -> Path:
    """Where ledgers and the folders of sandboxes are."""
    if own := os.environ.get("ROLLENV_STATE"):
        return Path(own).absolute()
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state").absolute() / "rollenv"


class Ledger:
    """This process's ledger; get it with `Ledger.current()`.

    Args:
        folder: where ledgers are.
        run: id of the run that things are labelled with; None: $ROLLENV_RUN, else the owner's name.

    Raises:
        RollenvError: the folder cannot be written.
    """

    _current: ClassVar[Ledger | None] = None
    _making: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, folder: Path, run: str | None = None) -> None:
        self.folder = folder
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._entries: dict[tuple[Kind, str], Entry] = {}
        self._pid = os.getpid()
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.owner, self._fd = self._open()
        except OSError as error:
            raise RollenvError(
                f"cannot keep a ledger of sandboxes in '{folder}': {error.strerror}; set ROLLENV_STATE to a folder of "
                "your own"
            ) from error
        self.run = run or os.environ.get("ROLLENV_RUN") or self.owner

    @classmethod
    def current(cls) -> Ledger:
        """The ledger of this process. Its first call reaps what dead owners left."""
        with cls._making:
            ledger = cls._current
            folder = state_folder() / "ledgers"
            if ledger is None or ledger._pid != os.getpid() or ledger.folder != folder:
                ledger = cls._current = Ledger(folder)
                atexit.register(ledger.close)
                reap(ledger.folder, but=ledger.path)
            return ledger

    def _open(self) -> tuple[str, int]:
        """A file of our own, locked. A reaper may get hold of a new file first and remove it: then another is made."""
        while True:
            owner = f"{os.getpid()}-{secrets.token_hex(4)}"
            path = self.folder / f"{owner}.jsonl"
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
            with contextlib.suppress(BlockingIOError, FileNotFoundError):
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.stat(path).st_ino == os.fstat(fd).st_ino:
                    return owner, fd
            os.close(fd)

    @property
    def path(self) -> Path:
        """The ledger's file."""
        return self.folder / f"{self.owner}.jsonl"

    @property
    def labels(self) -> dict[str, str]:
        """What an engine's things are labelled with."""
        return {"rollenv.owner": self.owner, "rollenv.run": self.run}

    def new_name(self) -> str:
        """A name that nothing else has on this machine: `rollenv-<owner>-<n>`."""
        return f"{prefix(self.owner)}{next(self._numbers)}"

    def record(self, kind: Kind, name: str, where: str = "") -> Entry:
        """Writes down what is about to be made."""
        entry = Entry(kind, name, self.owner, self.run, where)
        with self._lock:
            self._entries[kind, name] = entry
            self._append(json.dumps(asdict(entry)))
            if kind != "cgroup":  # which does not outlive a power cut, as the others do
                os.fdatasync(self._fd)
        return entry

    def forget(self, kind: Kind, name: str) -> None:
        """Crosses out what is gone."""
        with self._lock:
            if self._entries.pop((kind, name), None) is None:
                return
            if self._entries:
                self._append(json.dumps({"gone": [kind, name]}))
            else:
                os.ftruncate(self._fd, 0)

    def live(self) -> list[Entry]:
        """What is there, as far as is known."""
        with self._lock:
            return list(self._entries.values())

    def _append(self, line: str) -> None:
        os.write(self._fd, line.encode() + b"\n")

    def new_folder(self) -> Path:
        """An empty folder of this process, readable by its user alone."""
        path = folders_of(self.folder) / self.new_name()
        self.record("folder", str(path))
        path.mkdir(parents=True, mode=0o700)
        return path

    def remove_folder(self, path: Path) -> None:
        """Removes a folder that `new_folder` made."""
        shutil.rmtree(path, ignore_errors=True)
        if not path.exists():
            self.forget("folder", str(path))

    def close(self) -> None:
        """Lets go of the ledger; what is still in it is reaped by the next owner."""
        with self._lock:
            if self._fd >= 0 and self._pid == os.getpid():
                if not self._entries:
                    self.path.unlink(missing_ok=True)
                os.close(self._fd)
                self._fd = -1


def prefix(owner: str) -> str:
    """What the names of an owner's things begin with."""
    return f"rollenv-{owner}-"


def folders_of(ledgers: Path) -> Path:
    """Where the folders of sandboxes are."""
    return ledgers.parent / "folders"


# -- reaping ---------------------------------------------------------------------------------------------------


def reap(folder: Path | None = None, *, but: Path | None = None, dry: bool = False) -> list[Entry]:
    """Removes what dead owners left.

    Args:
        folder: where ledgers are; None: in the state folder.
        but: a ledger that is not looked at; None: this process's own.
        dry: only look.

    Returns:
        What was removed (`dry`: what would be).
    """
    removed: list[Entry] = []
    folder = folder or state_folder() / "ledgers"
    mine = Ledger._current
    if but is None and mine is not None and mine._pid == os.getpid():
        but = mine.path
    for path in sorted(folder.glob("*.jsonl")) if folder.is_dir() else ():
        if path == but:  # to open and close it would let go of our own lock
            continue
        with _owned_by_the_dead(path) as fd:
            if fd is None:
                continue
            entries, left = _read(fd), False
            for entry in entries:
                gone = dry or _remove(entry, folder)
                left |= not gone
                removed += [entry] if gone else []
            if not dry and not left:
                path.unlink(missing_ok=True)
    return removed


@contextlib.contextmanager
def _owned_by_the_dead(path: Path) -> Iterator[int | None]:
    """The ledger's file, locked, when nobody living holds it."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # reaped by another, or another user's
        yield None
        return
    try:
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            yield None
            return
        yield fd
    finally:
        os.close(fd)


def _read(fd: int) -> list[Entry]:
    """The entries that are not crossed out, the latest first. Half a line at the end was never acted upon."""
    live: dict[tuple[str, str], Entry] = {}
    with os.fdopen(os.dup(fd), encoding="utf-8") as lines:
        for line in lines:
            try:
                said = json.loads(line)
                if "gone" in said:
                    live.pop(tuple(said["gone"]), None)
                else:
                    live[said["kind"], said["name"]] = Entry(**said)
            except (ValueError, TypeError, KeyError):
                log.warning("a line of a ledger cannot be read and is passed over: %r", line[:200])
    return list(reversed(live.values()))


def _remove(entry: Entry, ledgers: Path) -> bool:
    """Removes a thing; True when it is gone, False when it must be tried again later."""
    try:
        _REMOVERS[entry.kind](entry, ledgers)
    except (OSError, RollenvError) as error:
        log.warning("cannot remove %s '%s' of a dead owner: %s", entry.kind, entry.name, error)
        return False
    return True


def _remove_cgroup(entry: Entry, _: Path) -> None:
    from rollenv.sandboxes.cgroups import remove_cgroup

    if entry.name.startswith(prefix(entry.owner)) and "/" not in entry.name:
        remove_cgroup(entry.name)


def _remove_folder(entry: Entry, ledgers: Path) -> None:
    path = Path(entry.name)
    if path.parent == folders_of(ledgers) and path.name.startswith(prefix(entry.owner)) and path.is_dir():
        shutil.rmtree(path)


def _remove_from_engine(entry: Entry, _: Path) -> None:
    from rollenv.sandboxes.engine import remove_labelled

    remove_labelled(entry)


_REMOVERS: dict[Kind, Callable[[Entry, Path], None]] = {
    "container": _remove_from_engine,
    "network": _remove_from_engine,
    "volume": _remove_from_engine,
    "image": _remove_from_engine,
    "cgroup": _remove_cgroup,
    "folder": _remove_folder,
}


def summary(entries: Iterable[Entry]) -> str:
    """How many of each kind.

    >>> summary([Entry("cgroup", "a", "o", "r"), Entry("cgroup", "b", "o", "r"), Entry("folder", "/c", "o", "r")])
    '2 cgroups, 1 folder'
    """
    counts: dict[str, int] = {}
    for entry in entries:
        counts[entry.kind] = counts.get(entry.kind, 0) + 1
    return ", ".join(f"{n} {kind}{'s' if n > 1 else ''}" for kind, n in counts.items()) or "nothing"
