"""The few addresses that a sandbox may reach: everything else has no route, since its network has no interface.

Two kinds of doors are opened in the sandbox's own network, by sockets that this process listens on: a proxy for HTTP
and for tunnels (CONNECT, RFC 9110 section 9.3.6), which checks each address against the list and looks names up
outside; and for `localhost:port` a plain relay to this machine's port.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import socket
import threading
from collections.abc import Awaitable, Callable, Iterable
from urllib.parse import urlsplit

from rollenv.sandboxes.errors import SandboxError

_CLONE_NEWNET = 0x40000000
_PROXY_PORT = 3128
_HEAD_LIMIT = 1 << 16
_SECONDS = 30.0
_LOCAL = ("localhost", "127.0.0.1")

Address = tuple[str, int]
_Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Gateway:
    """The doors of one sandbox. Make it with `open_gateway`."""

    def __init__(self, allowed: Iterable[str]) -> None:
        pairs = (address.rpartition(":") for address in allowed)
        self.allowed: set[Address] = {(host.lower(), int(port)) for host, _, port in pairs}
        self._relayed = {port for host, port in self.allowed if host in _LOCAL}
        self._port = next(port for port in range(_PROXY_PORT, 1 << 16) if port not in self._relayed)
        self._servers: list[asyncio.Server] = []

    @property
    def env(self) -> dict[str, str]:
        """What tells programs where the proxy is."""
        proxy = f"http://127.0.0.1:{self._port}"
        names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
        return {**dict.fromkeys(names, proxy), "no_proxy": "localhost,127.0.0.1", "NO_PROXY": "localhost,127.0.0.1"}

    async def open(self, pid: int) -> None:
        """Opens the doors in the network of a process.

        Raises:
            SandboxError: this process may not enter that network.
        """
        for port in (self._port, *sorted(self._relayed)):
            listening = await asyncio.to_thread(_listen_in, pid, port)
            serve = self._serve_proxy if port == self._port else self._relay_to(port)
            self._servers.append(await asyncio.start_server(serve, sock=listening, limit=_HEAD_LIMIT))

    def close(self) -> None:
        """Closes the doors; what is under way ends with the sandbox."""
        for server in self._servers:
            server.close()
        self._servers.clear()

    def _relay_to(self, port: int) -> _Serve:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await _join(reader, writer, ("127.0.0.1", port), b"", b"")

        return serve

    async def _serve_proxy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            line, _, fields = head.partition(b"\r\n")
            method, target, version = line.decode("latin-1").split(" ")
            tunnel = method == "CONNECT"
            parts = urlsplit(f"//{target}" if tunnel else target)
            address = ((parts.hostname or "").lower(), parts.port or 80)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, ConnectionError, ValueError):
            await _refuse(writer, "400 Bad Request", "this is a proxy for HTTP and CONNECT")
            return
        if address not in self.allowed:
            await _refuse(writer, "403 Forbidden", f"{address[0]}:{address[1]} is not in this sandbox's network list")
            return
        if tunnel:
            await _join(reader, writer, address, b"HTTP/1.1 200 Connection established\r\n\r\n", b"")
            return
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        # One request per connection: a second one might be meant for another address.
        kept = [f for f in fields.split(b"\r\n") if f and not f.lower().startswith((b"proxy-", b"connection:"))]
        request = b"\r\n".join([f"{method} {path} {version}".encode("latin-1"), *kept, b"Connection: close"])
        await _join(reader, writer, address, b"", request + b"\r\n\r\n")


async def open_gateway(allowed: Iterable[str], pid: int) -> Gateway:
    """A gateway in the network of a process; see `Gateway.open`."""
    gateway = Gateway(allowed)
    try:
        await gateway.open(pid)
    except BaseException:
        gateway.close()
        raise
    return gateway


def _listen_in(pid: int, port: int) -> socket.socket:
    """A socket that listens in another network. It belongs to it for good; the thread that made it ends."""
    made: list[socket.socket] = []
    failed: list[OSError] = []

    def make() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        try:
            fd = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            try:
                if libc.setns(fd, _CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            finally:
                os.close(fd)
            listening = socket.create_server(("127.0.0.1", port), backlog=64)
            listening.setblocking(False)
            made.append(listening)
        except OSError as error:
            failed.append(error)

    # A thread of its own, and no other: the network stays with the thread that entered it.
    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if failed:
        raise SandboxError(
            f"a sandbox's network list cannot be served ({failed[0].strerror}): it takes root, on the machine where "
            "the sandbox is; leave 'network' empty otherwise"
        )
    return made[0]


async def _join(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: Address, answer: bytes, request: bytes
) -> None:
    """Connects to an address, and passes on what either side says until both have ended."""
    try:
        async with asyncio.timeout(_SECONDS):
            far_reader, far_writer = await asyncio.open_connection(*address)
    except (OSError, TimeoutError) as error:
        await _refuse(writer, "502 Bad Gateway", f"{address[0]}:{address[1]} does not answer ({error})")
        return
    writer.write(answer)
    far_writer.write(request)
    await asyncio.gather(_pass_on(reader, far_writer), _pass_on(far_reader, writer), return_exceptions=True)
    for one in (writer, far_writer):
        one.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


async def _refuse(writer: asyncio.StreamWriter, status: str, words: str) -> None:
    with contextlib.suppress(ConnectionError):
        body = words.encode() + b"\n"
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()
