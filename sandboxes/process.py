"""A running process, whoever runs it, and the collection of its output within limits."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import Protocol

FLOOD = 64
"""A command is ended when it has said this many times what is kept of its output."""
NOT_STARTED = -1
"""Exit code of a command that the sandbox could not start; its stderr says why."""
KILL_SECONDS = 10.0
"""How long a killed process may take to be gone."""
_CHUNK = 1 << 16


class Writer(Protocol):
    """The process's stdin."""

    def write(self, data: bytes) -> None: ...
    async def drain(self) -> None: ...
    def close(self) -> None: ...


class Process(Protocol):
    """A process and everything it started."""

    stdin: Writer
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader

    async def wait(self) -> int:
        """Its exit code once it and everything it started have ended: 128 + n for signal n, or `NOT_STARTED`."""
        ...

    async def kill(self) -> None:
        """Ends it and everything it started, whatever they do against it."""
        ...


class Tail:
    """Keeps the beginning and the end of a stream, `limit` bytes in all.

    >>> tail = Tail(8); tail.add(b"0123456789ab"); tail.text()
    '0123\\n[4 bytes left out]\\n89ab'
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._head, self._tail = limit, bytearray(), bytearray()
        self.total = 0

    @property
    def truncated(self) -> bool:
        """Whether something was left out."""
        return self.total > self._limit

    def add(self, data: bytes) -> None:
        """More of the stream."""
        self.total += len(data)
        room = self._limit - self._limit // 2 - len(self._head)
        self._head += data[:room] if room > 0 else b""
        self._tail += data[max(room, 0) :]
        if len(self._tail) > self._limit + 16 * _CHUNK:
            del self._tail[: -(self._limit // 2) or None]

    def bytes(self) -> bytes:
        """What is kept, with a line about what is not."""
        if not self.truncated:
            return bytes(self._head + self._tail)
        kept = self._tail[len(self._tail) - self._limit // 2 :]
        left_out = self.total - len(self._head) - len(kept)
        return bytes(self._head) + b"\n[%d bytes left out]\n" % left_out + bytes(kept)

    def text(self) -> str:
        """The same as text; what is not UTF-8 is replaced."""
        return self.bytes().decode("utf-8", "replace")


@dataclass(slots=True)
class Captured:
    """What `collect` saw."""

    exit_code: int
    stdout: Tail
    stderr: Tail
    seconds: float
    timed_out: bool = False
    flooded: bool = False


async def collect(process: Process, stdin: bytes | None, timeout: float, limit: int) -> Captured:
    """Feeds a process, keeps `limit` bytes of each of its outputs, and ends it after `timeout` seconds or in a flood.

    Cancelling it ends the process.
    """
    began = time.monotonic()
    out, err = Tail(limit), Tail(limit)
    flood = asyncio.Event()
    streams = [
        asyncio.ensure_future(_read(process.stdout, out, flood)),
        asyncio.ensure_future(_read(process.stderr, err, flood)),
        asyncio.ensure_future(_feed(process.stdin, stdin)),
    ]
    ended = asyncio.ensure_future(process.wait())
    flooded = asyncio.ensure_future(flood.wait())
    try:
        await asyncio.wait({ended, flooded}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        timed_out = not ended.done() and not flood.is_set()
        if not ended.done():
            await process.kill()
        exit_code = await asyncio.wait_for(ended, KILL_SECONDS)
        await asyncio.wait(streams[:2], timeout=KILL_SECONDS)
    except BaseException:
        with contextlib.suppress(Exception):
            await asyncio.shield(process.kill())
        raise
    finally:
        for task in (*streams, ended, flooded):
            task.cancel()
        await asyncio.gather(*streams, ended, flooded, return_exceptions=True)
    return Captured(exit_code, out, err, time.monotonic() - began, timed_out, flood.is_set() and not timed_out)


async def discard_after(ended: asyncio.Future[int], *streams: asyncio.StreamReader, seconds: float = 0.5) -> None:
    """Reads away what nobody reads any more of a process that was killed `seconds` ago.

    A pipe that is full is not closed, and a process with a pipe that is not closed has not ended for asyncio.
    """

    async def discard(stream: asyncio.StreamReader) -> None:
        while True:
            try:
                if not await stream.read(_CHUNK):
                    return
            except RuntimeError:  # somebody reads it after all
                await asyncio.sleep(0.05)

    await asyncio.wait({ended}, timeout=seconds)
    if not ended.done():
        await asyncio.gather(*map(discard, streams))


async def _read(stream: asyncio.StreamReader, tail: Tail, flood: asyncio.Event) -> None:
    while data := await stream.read(_CHUNK):
        tail.add(data)
        if tail.total > FLOOD * tail._limit:
            flood.set()
            await asyncio.sleep(0)  # others want to run, too


async def _feed(writer: Writer, data: bytes | None) -> None:
    with contextlib.suppress(ConnectionError, RuntimeError):  # it need not read what it is given
        if data:
            writer.write(data)
            await writer.drain()
        writer.close()
