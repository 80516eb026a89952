"""Runs the application until it is told to stop, and then lets episodes end."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from types import FrameType

import uvicorn

from rollenv.errors import RollenvError
from rollenv.server.app import make_app
from rollenv.server.direct import DirectProtocol
from rollenv.server.host import EnvHost


class Server(uvicorn.Server):
    """Told to stop, it takes no new sessions, waits until those that there are have ended, `drain_seconds` at most, and
    ends. Told again, it ends at once."""

    def __init__(self, config: uvicorn.Config, hosts: Mapping[str, EnvHost], drain_seconds: float) -> None:
        super().__init__(config)
        self._hosts, self._drain_seconds = hosts, drain_seconds
        self._drain_until: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._drain_until is not None:
            self.should_exit = True
            return
        self._drain_until = time.monotonic() + self._drain_seconds
        for host in self._hosts.values():
            host.sessions.draining = True

    async def on_tick(self, counter: int) -> bool:
        if self._drain_until is not None:
            left = sum(len(host.sessions) for host in self._hosts.values())
            if not left or time.monotonic() >= self._drain_until:
                self.should_exit = True
        return await super().on_tick(counter)


def make_server(hosts: Mapping[str, EnvHost], token: str | None = None, drain_seconds: float = 30.0) -> Server:
    """A server of these environments, by their names; the first is the default one."""
    limits = [host.limits for host in hosts.values()]
    ping_seconds = min(one.ping_seconds for one in limits)
    config = uvicorn.Config(
        make_app(hosts, token),
        log_level="warning",
        access_log=False,
        ws=DirectProtocol,
        ws_max_size=min(one.message_bytes for one in limits),
        ws_ping_interval=ping_seconds,
        ws_ping_timeout=ping_seconds,
        ws_per_message_deflate=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=5,
    )
    return Server(config, hosts, drain_seconds)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0 is any that is free.

    Raises:
        RollenvError: it cannot.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(2048)
    except OSError as error:
        raise RollenvError(
            f"cannot listen at {host}:{port}: {error.strerror or error}; choose another --port"
        ) from error
    return listening
