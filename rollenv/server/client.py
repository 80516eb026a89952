"""An environment on a server, played as if it were here.

Each environment is a session of its own on one WebSocket, all of them on one event loop of this process. Every request
has a number, so that after a lost connection it can be sent again: the server carries it out once.

Invariant: a call returns what the server's environment returned, once, or raises what that raised, or a RollenvError
that says that the server, or its session, is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import math
import os
import secrets
import threading
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit, urlunsplit

import httpx
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as connect_socket
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage

from rollenv.core import TextEnv
from rollenv.errors import RollenvError, SnapshotError
from rollenv.executor import LoopThread
from rollenv.server import wire
from rollenv.tasks import TaskSet

T = TypeVar("T")

ANSWER_SECONDS = 600.0
"""How long an answer may take; a server has deadlines of its own."""
WAITS = (0.0, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds before each attempt to connect again."""
LONGEST_MESSAGE = 100 << 20


@dataclass(frozen=True, slots=True)
class Facts:
    """What a server says of an environment."""

    url: str
    token: str | None
    metadata: dict[str, Any]
    tasks: TaskSet | None


@functools.cache
def facts_of(url: str, token: str | None) -> Facts:
    """Asks a server, once per process.

    Raises:
        RollenvError: nobody answers there, or not as a server of environments does.
    """
    with _http(token) as http:
        metadata = _get(http, f"{url}/metadata", url)
        splits = _get(http, f"{url}/tasks", url, missing_is_none=True)
    if splits is None:
        return Facts(url, token, metadata, None)

    @functools.cache
    def content(task: str) -> Any:
        with _http(token) as http:
            return _get(http, f"{url}/tasks/{quote(task, safe='')}", url)["data"]

    return Facts(url, token, metadata, TaskSet(splits["name"], splits["splits"], content, splits["facts"]))


def _http(token: str | None) -> httpx.Client:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return httpx.Client(headers=headers, timeout=httpx.Timeout(ANSWER_SECONDS, connect=10.0))


def _get(http: httpx.Client, url: str, server: str, missing_is_none: bool = False) -> Any:
    try:
        answer = http.get(url)
        if answer.status_code == 404 and missing_is_none:
            return None
        if answer.status_code == 401:
            raise RollenvError(f"{server}: the server wants a token: give token=... or set ROLLENV_TOKEN")
        answer.raise_for_status()
        return answer.json()
    except (httpx.HTTPError, ValueError) as error:
        raise RollenvError(f"{server}: no environment answers there ({str(error) or type(error).__name__})") from error


class RemoteEnv(TextEnv):
    """An environment on a server. Made by `rollenv.connect`.

    Args:
        url: `http://HOST:PORT/NAME`.
        token: the server's bearer token, if it wants one.

    Raises:
        RollenvError: nobody answers there, or not as a server of environments does.
    """

    executor = "inline"  # `areset` and `astep` wait for the server without a thread

    def __init__(self, url: str, token: str | None = None) -> None:
        self._url, self._token = url.rstrip("/"), token
        self._facts = facts_of(self._url, token)
        low, high = self._facts.metadata["reward_range"]
        bounds = (-math.inf if low is None else float(low), math.inf if high is None else float(high))
        self.reward_range = bounds  # type: ignore[misc]
        self.free_text = bool(self._facts.metadata["free_text"])  # type: ignore[misc]
        self._line: _Line | None = None
        self._snapshot: str | None = None  # to begin from

    @property
    def metadata_of_server(self) -> dict[str, Any]:
        """What the server says of the environment (`GET /metadata`)."""
        return self._facts.metadata

    @property
    def tasks(self) -> TaskSet:
        if self._facts.tasks is None:
            raise AttributeError(f"the environment at {self._url} has no task set")
        return self._facts.tasks

    # -- calls -------------------------------------------------------------------------------------------------------

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        return _wait(self.areset(seed=seed, options=options))

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return _wait(self.astep(action))

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        data: dict[str, Any] = {"options": self.check_options(options)} if options is not None else {}
        if seed is not None:
            data["seed"] = seed
        return _begun(await self._ask("reset", data))

    async def astep(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        data = await self._ask("step", {"action": self.check_text(action)})
        seen = data["observation"]
        return seen["text"], float(data["reward"]), seen["terminated"], seen["truncated"], seen["info"]

    def snapshot(self) -> bytes:
        return _wait(self.asnapshot())

    def restore(self, snapshot: bytes) -> tuple[str, dict[str, Any]]:
        return _wait(self.arestore(snapshot))

    def reseed(self, seed: int) -> None:
        _wait(self._ask("reseed", {"seed": seed}))

    async def asnapshot(self) -> bytes:
        return wire.decode_bytes((await self._ask("snapshot", {}))["snapshot"])

    async def arestore(self, snapshot: bytes, *, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        data: dict[str, Any] = {"snapshot": wire.encode_bytes(snapshot)}
        return _begun(await self._ask("restore", data if seed is None else {**data, "seed": seed}))

    def close(self) -> None:
        super().close()
        line, self._line = self._line, None
        if line is not None:
            with contextlib.suppress(RollenvError):
                _wait(line.close())

    async def _ask(self, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        # On the loop where its connection lives; a caller that is cancelled waits no longer.
        return await asyncio.wrap_future(_loop().submit(self._asked(kind, data)))

    async def _asked(self, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        if self._line is None:
            self._line = _Line(self._url, self._token)
            if self._snapshot is not None:
                await self._line.ask("restore", {"snapshot": self._snapshot})
                self._snapshot = None
        return await self._line.ask(kind, data)

    def __getstate__(self) -> dict[str, Any]:
        """A session stays where it is: a copy begins its own, at the same point where the environment has snapshots."""
        snapshot = self._snapshot
        if self._line is not None:
            with contextlib.suppress(SnapshotError):
                snapshot = _wait(self._asked("snapshot", {}))["snapshot"]
        return {"url": self._url, "token": self._token, "snapshot": snapshot}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["url"], state["token"])  # type: ignore[misc]
        self._snapshot = state["snapshot"]


def connect(url: str, token: str | None = None) -> RemoteEnv:
    """An environment on a server, such as `connect("http://host:8000/webshop")`.

    Args:
        url: the server's address and the environment's name there; without a name its first one.
        token: its bearer token; default: the environment variable ROLLENV_TOKEN, if it is set.

    Raises:
        RollenvError: it is no such address, or nobody answers there.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise RollenvError(f"'{url}' is not the address of an environment: say http://HOST:PORT/NAME")
    return RemoteEnv(url, token or os.environ.get("ROLLENV_TOKEN"))


def _begun(data: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return data["observation"]["text"], data["observation"]["info"]


# -- the loop ----------------------------------------------------------------------------------------------------

_lock = threading.Lock()
_thread: LoopThread | None = None


def _loop() -> LoopThread:
    """The event loop of all connections."""
    global _thread
    with _lock:
        if _thread is None:
            _thread = LoopThread("rollenv-client")
        return _thread


def _wait(work: Coroutine[Any, Any, T]) -> T:
    """For callers without an event loop, and for those that block theirs."""
    return _loop().submit(work).result()


# -- one session -------------------------------------------------------------------------------------------------


class _Line:
    """A session and its connection, on the client's loop; requests wait for each other."""

    def __init__(self, url: str, token: str | None) -> None:
        self._server, self._token = url, token
        self._socket: ClientConnection | None = None
        self._busy = asyncio.Lock()
        self._begin()

    def _begin(self) -> None:
        """Names a new session."""
        self._session, self._began, self._number = secrets.token_urlsafe(18), False, 0

    async def _forget(self) -> None:
        """Leaves a session alone of which it is not known what became of its last request."""
        await self._hang_up()
        self._begin()

    async def ask(self, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        """Sends a request and returns the data of its answer.

        Raises:
            RollenvError: what the answer says is wrong; or the server, or the session, is gone.
        """
        async with self._busy:
            self._number += 1
            message = json.dumps({"type": kind, "data": {**data, "step_id": self._number}}, ensure_ascii=False)
            reply = await self._answered(message)
        if reply["type"] == "error":
            raise wire.error_of(reply)
        answer: dict[str, Any] = reply["data"]
        return answer

    async def _answered(self, message: str) -> dict[str, Any]:
        """The answer, over as many connections as it takes."""
        for wait in WAITS:
            await asyncio.sleep(wait)
            try:
                if self._socket is None:
                    self._socket = await self._connected()
                async with asyncio.timeout(ANSWER_SECONDS):
                    with contextlib.suppress(ConnectionClosed):  # a refusal came first: it is there to be read
                        await self._socket.send(message)
                    reply: dict[str, Any] = json.loads(await self._socket.recv())
            except (ConnectionClosed, OSError, InvalidHandshake, InvalidMessage, TimeoutError) as error:
                await self._hang_up()
                failure: BaseException = error
                continue
            except BaseException:  # cancelled: who knows whether the server was at it
                await self._forget()
                raise
            if reply["type"] != "error" or reply["data"].get("code") != "CAPACITY_REACHED":
                self._began = True
                return reply
            await self._hang_up()
            failure = wire.error_of(reply)
        await self._forget()
        raise RollenvError(f"{self._server}: the server does not answer ({failure})") from failure

    async def _connected(self) -> ClientConnection:
        parts = urlsplit(self._server)
        scheme = "wss" if parts.scheme == "https" else "ws"
        query = f"session={self._session}" + ("&resume=true" if self._began else "")
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        url = urlunsplit((scheme, parts.netloc, f"{parts.path}/ws", query, ""))
        return await connect_socket(
            url,
            additional_headers=headers,
            max_size=LONGEST_MESSAGE,
            compression=None,
            open_timeout=10.0,
            ping_interval=None,  # the server pings
            proxy=None,
        )

    async def _hang_up(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            with contextlib.suppress(Exception):
                socket.transport.abort()
                await asyncio.wait_for(socket.wait_closed(), 1.0)

    async def close(self) -> None:
        """Ends the session."""
        socket, self._socket = self._socket, None
        if socket is None:
            return
        with contextlib.suppress(Exception):
            async with asyncio.timeout(2.0):
                await socket.send('{"type":"close"}')
                await socket.close()
