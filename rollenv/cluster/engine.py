"""An engine in a worker, and what stands for it here: `RemoteEngine` keeps the `Engine` protocol."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rollenv.cluster.calls import Answer, Desk, Line, Question, Verb
from rollenv.cluster.handover import HeldWeights, Lent, Receiver
from rollenv.cluster.links import Medium, Seat
from rollenv.cluster.runtime import Handle, Runtime, WorkerDied, WorkerSpec
from rollenv.cluster.weights import Manifest, Publisher, Shared, SharedReader, this_machine, unpacked
from rollenv.inference import optional
from rollenv.inference.base import Completion, Engine, EngineDead, SamplingParams, made_before, note_made
from rollenv.inference.handles import gpu_of, opened

ABORT_SECONDS = 5.0
"""How long a cancelled caller waits to hear what had been made by then."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What an engine says of itself once it is made."""

    version: int
    max_length: int | None
    token_budget: int | None
    machine: str = ""
    gpu: str = ""


class EngineWorker:
    """The worker: holds an engine.

    Args:
        make: makes the engine, here.
        device: where weights are to arrive.
    """

    def __init__(self, make: Callable[[], Engine], device: str = "cpu") -> None:
        self._engine, self._device = make(), torch.device(device)
        self._reader, self._seat = SharedReader(), Seat()
        self._desk = Desk(self._engine)

    def facts(self) -> Facts:
        """Of the engine as it is."""
        engine = self._engine
        return Facts(engine.version, engine.max_length, engine.token_budget, this_machine(), gpu_of(self._device))

    async def ask(self, questions: Sequence[Question]) -> None:
        """See `Desk.ask`."""
        self._desk.ask(questions)

    async def answers(self) -> list[Answer]:
        """See `Desk.answers`."""
        return await self._desk.answers()

    async def update_weights(self, version: int, manifest: Manifest, *buffers: Any) -> int:
        """Takes packed weights; returns the version that the engine then has: its confirmation."""
        await self._engine.update_weights(version, unpacked(manifest, buffers))
        return self._engine.version

    async def update_shared(self, version: int, manifest: Manifest, buffers: Shared) -> int:
        """The same, for weights that a process of this machine has written into shared memory."""
        await self._engine.update_weights(version, unpacked(manifest, self._reader.read(buffers)))
        return self._engine.version

    async def sit_down(self, address: str, number: int, size: int, medium: Medium) -> None:
        """See `Seat.take`."""
        device = self._device if medium == "cuda" else torch.device("cpu")
        await asyncio.to_thread(self._seat.take, address, number, size, device)

    async def leave_link(self) -> None:
        """See `Seat.leave`."""
        self._seat.leave()

    async def update_over_link(self, version: int) -> int:
        """The same, for weights that come over the link."""
        await self._engine.update_weights(version, await asyncio.to_thread(self._seat.link.receive))
        if self._device.type == "cuda":
            torch.cuda.empty_cache()  # the engine's own process may be another one
        return self._engine.version

    async def update_by_handles(self, version: int, lent: Lent) -> int:
        """The same, for weights that another process has on the same GPU."""
        manifest, handles = lent
        buffers = list(opened(handles).values())
        await self._engine.update_weights(version, unpacked(manifest, buffers))
        return self._engine.version

    async def check(self) -> None:
        """See `optional.Checked.check`."""
        await optional.check(self._engine)

    async def sleep(self) -> None:
        """See `optional.Sleeping.sleep`."""
        await optional.sleep(self._engine)

    async def wake(self) -> None:
        """See `optional.Sleeping.wake`."""
        await optional.wake(self._engine)

    async def close(self) -> None:
        """See `Engine.close`."""
        self._seat.leave()
        await self._engine.close()


class RemoteEngine:
    """An engine in a worker. Made by `start_engine`.

    Args:
        handle: the worker.
        facts: what its engine said when it was made.
        publisher: carries weights; engines that share one get them put once.
    """

    def __init__(self, handle: Handle, facts: Facts, publisher: Publisher) -> None:
        self.handle, self._facts, self._publisher = handle, facts, publisher
        self._version = facts.version
        self._line = Line(handle)

    @property
    def version(self) -> int:
        """The version that the engine confirmed last."""
        return self._version

    @property
    def max_length(self) -> int | None:
        """See `Engine.max_length`."""
        return self._facts.max_length

    @property
    def token_budget(self) -> int | None:
        """See `Engine.token_budget`."""
        return self._facts.token_budget

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams, *, session: str) -> Completion:
        """See `Engine.generate`."""
        call = self._line.generate(prompt_ids, sampling, session)
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError as error:
            await self._end(call, session, error)
            raise
        except WorkerDied as error:
            raise EngineDead(str(error)) from error

    async def _end(self, call: asyncio.Future[Completion], session: str, error: BaseException) -> None:
        """Aborts what a caller no longer wants, and notes what had been made of it."""
        try:
            async with asyncio.timeout(ABORT_SECONDS):
                await self._line.tell("abort", session)
                note_made(error, await call)
        except (TimeoutError, WorkerDied):
            call.cancel()
        except Exception as other:  # it had failed on its own by then
            if (made := made_before(other)) is not None:
                note_made(error, made)

    async def abort(self, session: str) -> None:
        """See `Engine.abort`."""
        await self._tell("abort", session)

    async def release(self, session: str) -> None:
        """See `Engine.release`."""
        await self._tell("release", session)

    async def fork(self, source: str, session: str) -> None:
        """See `Forking.fork`."""
        await self._tell("fork", session, source)

    async def update_weights(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """See `Engine.update_weights`."""
        if isinstance(tensors, HeldWeights):
            confirmed = await tensors.deliver(version, Receiver(self.handle, self._facts.gpu))
            if confirmed is not None:
                self._version = confirmed
                return
        if self._facts.machine and self._facts.machine == this_machine():
            await self._share_weights(version, tensors)
            return
        manifest, buffers = await asyncio.to_thread(self._publisher.publish, version, tensors)
        self._version = await self._call("update_weights", version, manifest, *buffers)

    async def _share_weights(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        with contextlib.ExitStack() as reading:
            shared = self._publisher.shared(version, tensors)
            manifest, buffers = await asyncio.to_thread(reading.enter_context, shared)
            self._version = await self._call("update_shared", version, manifest, buffers)

    async def ping(self) -> None:
        """Returns when the worker answers, and its engine is well.

        Raises:
            EngineDead: it is gone.
        """
        await self._call("check")

    async def sleep(self) -> None:
        """See `optional.Sleeping.sleep`."""
        await self._call("sleep")

    async def wake(self) -> None:
        """See `optional.Sleeping.wake`."""
        await self._call("wake")

    async def close(self) -> None:
        """Ends the worker, too."""
        await self.handle.stop()

    async def _tell(self, verb: Verb, session: str, source: str = "") -> None:
        try:
            await self._line.tell(verb, session, source)
        except WorkerDied as error:
            raise EngineDead(str(error)) from error

    async def _call(self, method: str, *args: Any) -> Any:
        try:
            return await self.handle.call(method, *args)
        except WorkerDied as error:
            raise EngineDead(str(error)) from error


async def start_engine(runtime: Runtime, spec: WorkerSpec, publisher: Publisher) -> RemoteEngine:
    """Starts a worker whose `make` returns an `EngineWorker`.

    Raises:
        WorkerDied: its process ended first.
    """
    handle = await runtime.start(spec)
    return RemoteEngine(handle, await handle.call("facts"), publisher)
