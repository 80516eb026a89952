"""What this process holds: threads, open files, child processes. Compared before and after an environment's life."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections import Counter
from pathlib import Path

HAS_PROC = Path("/proc/self/fd").is_dir()
"""Open files and child processes are visible under /proc only."""

_GRACE_SECONDS = 2.0


class Holdings:
    """A count of everything held at one moment."""

    def __init__(self) -> None:
        gc.collect()
        self.threads = Counter(f"thread '{t.name}'" for t in threading.enumerate())
        self.files = Counter(f"open file '{target}'" for target in _open_files())
        self.children = Counter(f"child process {child}" for child in _children())

    def since(self, before: Holdings) -> Counter[str]:
        """What is held now and was not held `before`."""
        return (self.threads - before.threads) + (self.files - before.files) + (self.children - before.children)


def left_since(before: Holdings) -> Counter[str]:
    """What is still held that was not held `before`, after giving it a moment to go."""
    deadline = time.monotonic() + _GRACE_SECONDS
    while True:
        left = Holdings().since(before)
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.05)


def _open_files() -> list[str]:
    if not HAS_PROC:
        return []
    targets = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            targets.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except OSError:  # the descriptor of this very listing
            continue
    return targets


def _children() -> list[str]:
    """`"<pid> (<name>)"` of every process whose parent is this one, ended but unreaped ones included."""
    if not HAS_PROC:
        return []
    me, found = str(os.getpid()), []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid_and_name, _, rest = stat.read_text(errors="replace").rpartition(")")
        except OSError:  # it ended meanwhile
            continue
        if rest.split()[1] == me:
            found.append(pid_and_name + ")")
    return found
