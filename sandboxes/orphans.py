"""Processes whose parent ended before them, on machines where nobody sees to them.

An ended process stays, as a zombie, until its parent has asked for its exit code; that of an orphan is the machine's
first process. In many containers that one never asks (it is the user's own program), and every command would leave a
zombie that counts among its sandbox's processes for ever. Where that is seen, this process adopts the orphans of its
descendants (prctl(2), PR_SET_CHILD_SUBREAPER) and asks for those that it knows. Elsewhere nothing is done.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
from pathlib import Path

log = logging.getLogger(__name__)

PATIENCE = 0.2
"""Seconds that an orphan may stay a zombie before it counts as one that nobody sees to."""
_PR_SET_CHILD_SUBREAPER = 36

_adopted_by = 0
"""This process, once it adopts orphans. A fork of it does not."""


def see_to(pid: int, name: str) -> None:
    """Called on an event loop when an orphan of ours has ended.

    Args:
        name: what it is called: a number alone may be another's by now.
    """
    parent = _parent_of_zombie(pid, name)
    if parent == os.getpid():
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    elif parent is not None and _adopted_by != os.getpid():
        asyncio.get_running_loop().call_later(PATIENCE, _adopt_if_left, pid, name)


def _adopt_if_left(pid: int, name: str) -> None:
    global _adopted_by
    if _adopted_by != os.getpid() and _parent_of_zombie(pid, name) not in (None, os.getpid()):
        _adopted_by = os.getpid()
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        log.info("the first process of this machine leaves zombies: this one sees to those of its sandboxes")


def _parent_of_zombie(pid: int, name: str) -> int | None:
    """The parent of a process that has ended and still is there; None when there is none such."""
    try:
        said = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    called, _, rest = said.partition("(")[2].rpartition(")")
    state, parent = rest.split()[:2]
    return int(parent) if state == "Z" and called == name else None
