"""Trusted code only: plain processes in a folder of this machine, as this user, with this user's rights.

No limit holds but time and output. It exists for tests and for code of your own where there is nothing better.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import posixpath
import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollenv.sandboxes.base import BaseSandbox
from rollenv.sandboxes.errors import SandboxError
from rollenv.sandboxes.ledger import Ledger
from rollenv.sandboxes.process import Process, Writer, discard_after
from rollenv.sandboxes.protocol import Snapshot
from rollenv.sandboxes.spec import SandboxSpec


def why_not() -> str:
    """Empty: it can always be used."""
    return ""


async def create(spec: SandboxSpec, ledger: Ledger) -> SubprocessSandbox:
    """A sandbox that is none. `workdir` is a new folder; every other path is this machine's own."""
    if spec.network:
        raise SandboxError(
            "the subprocess backend cannot bound the network: leave 'network' empty or choose bubblewrap or docker"
        )
    return SubprocessSandbox(spec, ledger)


class SubprocessSandbox(BaseSandbox):
    """See the module. `image`, `user`, `cpus`, `memory`, `pids`, `disk` and `writable` have no effect."""

    backend = "subprocess"

    def __init__(self, spec: SandboxSpec, ledger: Ledger) -> None:
        self._ledger, self._folder = ledger, ledger.new_folder()
        super().__init__(self._folder.name, spec)
        self.root.mkdir()
        self._snapshots = 0
        self._running: set[GroupProcess] = set()

    @property
    def root(self) -> Path:
        """The folder that stands for `workdir`."""
        return self._folder / "root"

    def _path(self, path: str | None) -> str:
        whole = super()._path(path)
        inside = posixpath.relpath(whole, self.spec.workdir)
        return whole if inside.startswith("..") else str(self.root / inside)

    async def _spawn(self, argv: Sequence[str], env: Mapping[str, str], user: str, *, shell: bool) -> Process:
        return await self._begun(self._begin(argv, env))

    async def _begin(self, argv: Sequence[str], env: Mapping[str, str]) -> GroupProcess:
        pipe = asyncio.subprocess.PIPE
        words: dict[str, Any] = {"stdin": pipe, "stdout": pipe, "stderr": pipe, "start_new_session": True}
        try:
            started = await asyncio.create_subprocess_exec(*argv, env=dict(env), cwd=self.root, **words)
        except OSError as error:
            raise SandboxError(f"cannot run '{argv[0]}': {error.strerror}") from error
        process = GroupProcess(started)
        self._running = {p for p in self._running if p.running} | {process}
        return process

    async def _oom_kills(self) -> int:
        return 0

    async def snapshot(self) -> Snapshot:
        """Copies the folder: there is no copy-on-write without a sandbox."""
        self._check_alive()
        await self._end_processes()
        self._snapshots += 1
        kept = f"snapshot-{self._snapshots}"
        await asyncio.to_thread(shutil.copytree, self.root, self._folder / kept, symlinks=True)
        return Snapshot(self.id, (kept,))

    async def restore(self, snapshot: Snapshot | None = None) -> None:
        """Copies the folder back."""
        self._check_alive()
        source = None if snapshot is None else self._folder / self._owned(snapshot).layers[0]
        await self._end_processes()
        await asyncio.to_thread(self._replace, source)

    def _replace(self, source: Path | None) -> None:
        shutil.rmtree(self.root)
        if source is None:
            self.root.mkdir()
        else:
            shutil.copytree(source, self.root, symlinks=True)

    async def _end_processes(self) -> None:
        await self._end_shells()
        await self._all_begun()
        for process in self._running:
            await process.kill()

    async def _remove(self) -> None:
        await self._end_processes()
        await asyncio.to_thread(self._ledger.remove_folder, self._folder)


class GroupProcess:
    """A process that leads a process group, which is ended with it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.stdin: Writer = process.stdin
        self.stdout, self.stderr = process.stdout, process.stderr

        self._discarding: asyncio.Task[None] | None = None
        self._ended: asyncio.Task[int] = asyncio.ensure_future(self._process.wait())

    @property
    def running(self) -> bool:
        """Whether its first process is."""
        return self._process.returncode is None

    async def wait(self) -> int:
        """Its exit code, when all of its group has been ended."""
        code = await asyncio.shield(self._ended)
        await self.kill()
        return code if code >= 0 else 128 - code

    async def kill(self) -> None:
        """Ends the group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        if self._discarding is None:
            self._discarding = asyncio.ensure_future(discard_after(self._ended, self.stdout, self.stderr))
