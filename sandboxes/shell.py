"""A shell session: one shell process that commands are given to, one after another.

Invariant: a command's end is told by a marker that is drawn for it alone; what a command prints cannot end the next
one.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shlex
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from rollenv.sandboxes.errors import SandboxError
from rollenv.sandboxes.process import FLOOD, KILL_SECONDS, NOT_STARTED, Process, Tail
from rollenv.sandboxes.protocol import ExecResult

_CHUNK = 1 << 16


class Shell:
    """Made by `Sandbox.shell`; starts with its first command. Also an asynchronous context manager.

    A command that ends the shell (`exit`), takes too long or floods ends all that runs in it; the next command finds a
    new shell, in the folder where the first one began.

    Args:
        spawn: starts the shell's process.
        oom_kills: how often the sandbox ran out of memory so far.
        timeout: seconds for a command that is not told otherwise.
        limit: bytes kept of each of a command's outputs.
    """

    def __init__(
        self,
        spawn: Callable[[], Awaitable[Process]],
        oom_kills: Callable[[], Awaitable[int]],
        timeout: float,
        limit: int,
    ) -> None:
        self._spawn, self._oom_kills = spawn, oom_kills
        self._timeout, self._limit = timeout, limit
        self._process: Process | None = None
        self._rest: dict[int, bytes] = {}
        self._turn = asyncio.Lock()

    @property
    def alive(self) -> bool:
        """Whether the next command finds what the last one left."""
        return self._process is not None

    async def run(self, cmd: str, *, timeout: float | None = None) -> ExecResult:
        """Runs a command in the shell; it reads nothing from its stdin.

        Raises:
            SandboxError: the shell could not be started.
        """
        async with self._turn:
            before = await self._oom_kills()
            if self._process is None:
                self._process, self._rest = await self._spawn(), {}
            try:
                result = await self._run(self._process, cmd, self._timeout if timeout is None else timeout)
            except BaseException:
                await asyncio.shield(self.close())
                raise
            oom = await self._oom_kills() > before
            return ExecResult(**result, oom=oom)  # type: ignore[arg-type]

    async def _run(self, process: Process, cmd: str, timeout: float) -> dict[str, object]:
        mark = secrets.token_hex(16)
        began = time.monotonic()
        said = f"eval {shlex.quote(cmd)} </dev/null\n" + _SAY_END.format(mark=mark)
        out, err = Tail(self._limit), Tail(self._limit)
        reading = [
            asyncio.ensure_future(self._until(process.stdout, 1, mark, out)),
            asyncio.ensure_future(self._until(process.stderr, 2, mark, err)),
        ]
        try:
            with contextlib.suppress(ConnectionError):  # it has ended: its outputs say so
                process.stdin.write(said.encode())
                await process.stdin.drain()
            done, under_way = await asyncio.wait(reading, timeout=timeout, return_when=asyncio.FIRST_EXCEPTION)
            flooded = any(one.exception() is not None for one in done)
            timed_out = bool(under_way) and not flooded
            exit_code = None if timed_out or flooded else reading[0].result()
            if exit_code is None:
                exit_code = await self._end(process)
        finally:
            for one in reading:
                one.cancel()
            await asyncio.gather(*reading, return_exceptions=True)
        if exit_code == NOT_STARTED:
            raise SandboxError(f"the shell cannot be started: {err.text().strip() or 'it says nothing'}")
        return {
            "exit_code": exit_code,
            "stdout": out.text(),
            "stderr": err.text(),
            "seconds": time.monotonic() - began,
            "timed_out": timed_out,
            "flooded": flooded,
            "truncated": out.truncated or err.truncated,
        }

    async def _until(self, stream: asyncio.StreamReader, number: int, mark: str, tail: Tail) -> int | None:
        """Reads to the mark and returns the code after it; None at the stream's end."""
        end = f"\n{mark}:".encode()
        pending = self._rest.pop(number, b"")
        while True:
            at = pending.find(end)
            if at >= 0 and (stop := pending.find(b"\n", at + len(end))) >= 0:
                tail.add(pending[:at])
                self._rest[number] = pending[stop + 1 :]
                return int(pending[at + len(end) : stop])
            if at < 0 and len(pending) > len(end):
                tail.add(pending[: -len(end)])
                pending = pending[-len(end) :]
            if tail.total > FLOOD * self._limit:
                raise _FloodError
            data = await stream.read(_CHUNK)
            if not data:
                tail.add(pending)
                return None
            pending += data

    async def _end(self, process: Process) -> int:
        self._process = None
        ended = asyncio.ensure_future(process.wait())
        # One that ended by itself has its own code; one that is still there is killed.
        await asyncio.wait({ended}, timeout=0.05)
        if not ended.done():
            await process.kill()
        return await asyncio.wait_for(ended, KILL_SECONDS)

    async def close(self) -> None:
        """Ends the shell and everything in it. A later command finds a new one."""
        process, self._process = self._process, None
        if process is not None:
            await process.kill()
            await asyncio.wait_for(process.wait(), KILL_SECONDS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class _FloodError(Exception):
    """Output without end."""


# The status is kept among the shell's arguments: no variable of ours can meet one of a command's.
_SAY_END = "set -- $? \"$@\"; printf '\\n%s:%d\\n' {mark} $1; printf '\\n%s:%d\\n' {mark} $1 >&2; shift\n"
