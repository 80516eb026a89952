"""Where workers live: in this process, or elsewhere. What calls them cannot tell the difference.

A worker is any object. Its methods are called by name: coroutine methods run side by side on an event loop, all others
one after another on one thread of the worker's own, so that neither blocks the caller, and so that a worker answers
while it computes.

Invariant: every call returns, raises what the worker's method raised, or raises `WorkerDied`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from rollenv.cluster.devices import Devices
from rollenv.executor import DaemonThread


class WorkerDied(Exception):
    """The worker's process is gone, or was told to go: whatever it held is lost."""


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What worker to start, and where.

    Attributes:
        name: for messages and logs; distinct within a run.
        make: makes the worker, in the process where it will live; picklable where that is another one.
        devices: those it may use; none: the CPU of its host.
        share: part of each device that is counted as taken: 0.5 where two roles take turns.
        env: environment variables of its process, on top of the caller's.
    """

    name: str
    make: Callable[[], Any]
    devices: Devices = ()
    share: float = 1.0
    env: Mapping[str, str] = field(default_factory=dict)


class Handle(Protocol):
    """A worker as seen from here."""

    @property
    def name(self) -> str:
        """The name it was started with."""
        ...

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Calls a method. References (`Runtime.put`) among `args` arrive as what they stand for. A caller that is
        cancelled stops waiting; the method runs on.

        Raises:
            WorkerDied: it is gone.
        """
        ...

    async def stop(self, seconds: float = 10.0) -> None:
        """Calls the worker's `close` method, if it has one, and ends it; kills it after `seconds`."""
        ...

    def kill(self) -> None:
        """Ends it as a crash would."""
        ...


class Runtime(Protocol):
    """Starts workers."""

    async def start(self, spec: WorkerSpec) -> Handle:
        """Starts a worker and waits until it has been made.

        Raises:
            WorkerDied: its process ended first; whatever its `make` raised is raised here as well.
        """
        ...

    def put(self, value: Any) -> Any:
        """A reference to `value` that may be an argument of many calls and travels to each host once."""
        ...

    async def leaving(self) -> frozenset[str]:
        """Names of the workers whose machine has been told to leave and will soon be gone."""
        ...

    async def close(self) -> None:
        """Ends every worker that is left."""
        ...


class Host:
    """Holds a worker and runs its methods; the inside of every handle. For one event loop."""

    def __init__(self, name: str, make: Callable[[], Any]) -> None:
        self._thread = DaemonThread(name)
        self._make, self._worker = make, None

    async def ready(self) -> None:
        """Makes the worker, on its thread."""
        self._worker = await self._on_thread(self._make)

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """See `Handle.call`."""
        function = getattr(self._worker, method)
        if inspect.iscoroutinefunction(function):
            return await function(*args, **kwargs)
        return await self._on_thread(lambda: function(*args, **kwargs))

    async def close(self) -> None:
        """Calls the worker's own `close`, if it has one, and ends its thread."""
        if hasattr(self._worker, "close"):
            await self.call("close")
        self._thread.stop(0.0)

    async def _on_thread(self, function: Callable[[], Any]) -> Any:
        return await asyncio.wrap_future(self._thread.submit(function))


class LocalRuntime:
    """Workers are objects of this process: nothing is pickled, everything can be stepped through."""

    def __init__(self) -> None:
        self._handles: list[_LocalHandle] = []

    async def start(self, spec: WorkerSpec) -> Handle:
        handle = _LocalHandle(spec.name, Host(spec.name, spec.make))
        await handle.host.ready()
        self._handles.append(handle)
        return handle

    def put(self, value: Any) -> Any:
        return value

    async def leaving(self) -> frozenset[str]:
        return frozenset()

    async def close(self) -> None:
        await asyncio.gather(*(handle.stop() for handle in self._handles))


class _LocalHandle:
    """A worker of this process. Killed, it is forgotten: what its thread is doing runs to its end, unheard."""

    def __init__(self, name: str, host: Host) -> None:
        self.name, self.host = name, host
        self._calls: set[asyncio.Future[Any]] = set()
        self._gone = False

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        if self._gone:
            raise WorkerDied(f"worker '{self.name}' has ended")
        call = asyncio.ensure_future(self.host.call(method, *args, **kwargs))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        await asyncio.wait({call})
        if call.cancelled() or self._gone:
            raise WorkerDied(f"worker '{self.name}' was killed while it was at '{method}'")
        return call.result()

    async def stop(self, seconds: float = 10.0) -> None:
        if self._gone:
            return
        try:
            await asyncio.wait_for(self.host.close(), seconds)
        finally:
            self.kill()

    def kill(self) -> None:
        self._gone = True
        for call in self._calls:
            call.cancel()
