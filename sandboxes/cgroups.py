"""A control group for one sandbox: bounds on memory, processes and processor time, under cgroup v1 or v2.

Invariant: a group of ours is one folder per hierarchy, of the same name, at the hierarchy's top, and has no groups
below.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from rollenv.sandboxes.errors import SandboxError
from rollenv.sandboxes.spec import SandboxSpec

MOUNT = Path("/sys/fs/cgroup")
_PERIOD = 100_000  # microseconds
_NEEDED = ("memory", "pids", "cpu")
_GONE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """Where groups can be made: one folder per controller (v1), or one for all (v2)."""

    version: int
    tops: tuple[Path, ...]


@functools.cache
def hierarchies() -> Hierarchies | None:
    """The hierarchies that this user may make groups in; None when a controller is missing or not writable."""
    if (MOUNT / "cgroup.controllers").is_file():
        controllers = (MOUNT / "cgroup.subtree_control").read_text().split()
        found = Hierarchies(2, (MOUNT,)) if set(_NEEDED) <= set(controllers) else None
    else:
        tops = tuple(MOUNT / name for name in _NEEDED)
        found = Hierarchies(1, tops) if all((top / "cgroup.procs").is_file() for top in tops) else None
    return found if found and all(_can_make(top) for top in found.tops) else None


def _can_make(top: Path) -> bool:
    return os.access(top, os.W_OK) and os.access(top / "cgroup.procs", os.W_OK)


@dataclass(frozen=True, slots=True)
class Cgroup:
    """One sandbox's group."""

    name: str
    version: int
    folders: tuple[Path, ...]

    @property
    def procs(self) -> list[str]:
        """Files that a process writes its id into to belong to the group."""
        return [str(folder / "cgroup.procs") for folder in self.folders]

    def oom_kills(self) -> int:
        """How many processes were killed because the group's memory was used up."""
        file = "memory.events" if self.version == 2 else "memory.oom_control"
        return oom_kills(self.folders[0] / file)


def oom_kills(file: Path) -> int:
    """The count in `memory.events` (v2) or `memory.oom_control` (v1); 0 where there is none."""
    with contextlib.suppress(OSError, ValueError):
        for line in file.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == "oom_kill":
                return int(value)
    return 0


def make_cgroup(name: str, spec: SandboxSpec) -> Cgroup:
    """Makes a group with a spec's bounds.

    Raises:
        SandboxError: it cannot be made.
    """
    where = hierarchies()
    assert where is not None
    group = Cgroup(name, where.version, tuple(top / name for top in where.tops))
    quota = max(1000, int(spec.cpus * _PERIOD))
    try:
        for folder in group.folders:
            folder.mkdir()
        if where.version == 2:
            _bound_v2(group.folders[0], spec, quota)
        else:
            _bound_v1(group.folders, spec, quota)
    except OSError as error:
        remove_cgroup(name)
        raise SandboxError(f"cannot make control group '{name}': {error.strerror} ({error.filename})") from error
    return group


def _bound_v1(folders: tuple[Path, ...], spec: SandboxSpec, quota: int) -> None:
    memory, pids, cpu = folders  # in the order of _NEEDED
    (memory / "memory.limit_in_bytes").write_text(str(spec.memory))
    with contextlib.suppress(FileNotFoundError):  # where swap is not counted
        (memory / "memory.memsw.limit_in_bytes").write_text(str(spec.memory))
    (pids / "pids.max").write_text(str(spec.pids))
    (cpu / "cpu.cfs_period_us").write_text(str(_PERIOD))
    (cpu / "cpu.cfs_quota_us").write_text(str(quota))


def _bound_v2(folder: Path, spec: SandboxSpec, quota: int) -> None:
    (folder / "memory.max").write_text(str(spec.memory))
    with contextlib.suppress(FileNotFoundError):
        (folder / "memory.swap.max").write_text("0")
    (folder / "pids.max").write_text(str(spec.pids))
    (folder / "cpu.max").write_text(f"{quota} {_PERIOD}")


def remove_cgroup(name: str) -> None:
    """Ends what is in a group and removes it from every hierarchy. A group that is not there is fine.

    Raises:
        OSError: something in it does not end.
    """
    tops = [MOUNT] if (MOUNT / "cgroup.controllers").is_file() else [MOUNT / key for key in _NEEDED]
    for top in tops:
        deadline = time.monotonic() + _GONE_SECONDS
        while not _removed(top / name):
            if time.monotonic() > deadline:
                raise OSError(errno.EBUSY, "its processes do not end", str(top / name))
            time.sleep(0.005)


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        with contextlib.suppress(FileNotFoundError):
            for pid in (folder / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        return False
    return True
