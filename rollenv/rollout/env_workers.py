"""A pool of worker processes that host environments: those that compute would hold up the loop and each other.

Invariant: an environment lives in one process from its making to its end. A process that ends or hangs is replaced, and
takes down what lived in it: one episode is to blame, the others are collateral and lose nothing but time.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import pickle
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rollenv.core import TextEnv
from rollenv.errors import RollenvError
from rollenv.registration import EnvSpec
from rollenv.rollout.env_pool import CLOSE_SECONDS, Gate, close_aside
from rollenv.rollout.env_wire import Request, Setup
from rollenv.rollout.env_worker import START_SECONDS, Worker, collateral
from rollenv.rollout.episode import EpisodeLimits, describe
from rollenv.tasks import TaskSet

log = logging.getLogger(__name__)


class RemoteEnv(TextEnv):
    """An environment in a worker process, made there by its first reset. Only the asynchronous calls work."""

    def __init__(self, worker: Worker, number: int, reset_seconds: float, step_seconds: float) -> None:
        self.worker, self.number = worker, number
        self._reset_seconds, self._step_seconds = reset_seconds, step_seconds
        self._made = False

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """`reset` in the worker.

        Raises:
            Fault: it failed, took too long, or its process is gone.
        """
        return await self._begin(Request("reset", self.number, (seed, options)))

    async def areseed(self, seed: int) -> None:
        """`reseed` in the worker.

        Raises:
            Fault: it failed, took too long, or its process is gone.
        """
        await self._be_made()
        await self.worker.call(Request("reseed", self.number, (seed,)), self._step_seconds)

    async def asnapshot(self) -> bytes:
        """`snapshot` in the worker.

        Raises:
            Fault: it failed, took too long, or its process is gone.
        """
        await self._be_made()
        snapshot: bytes = await self.worker.call(Request("snapshot", self.number), self._step_seconds)
        return snapshot

    async def arestore(self, snapshot: bytes, *, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        """`restore` in the worker, and `reseed` when there is a seed.

        Raises:
            Fault: it failed, took too long, or its process is gone.
        """
        return await self._begin(Request("restore", self.number, (snapshot, seed)))

    async def _be_made(self) -> None:
        """Makes it where it was never reset: then the environment itself has something to say about that."""
        self._check_alive()
        if not self._made:
            self._made = True
            await self.worker.call(Request("make", self.number), START_SECONDS)

    async def _begin(self, request: Request) -> tuple[str, dict[str, Any]]:
        """Asks for the beginning of an episode, from an environment that is made first if need be."""
        self._check_alive()
        made = None
        if not self._made:
            made, self._made = self.worker.call(Request("make", self.number), START_SECONDS), True
        begun = self.worker.call(request, self._reset_seconds)
        try:
            if made is not None:
                await made
            result: tuple[str, dict[str, Any]] = await begun
            return result
        finally:
            begun.cancel()  # when it was never awaited, nobody wants its error

    async def astep(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """`step` in the worker.

        Raises:
            Fault: it failed, took too long, or its process is gone.
        """
        await self._be_made()
        request = Request("step", self.number, (self.check_text(action),))
        result: tuple[str, float, bool, bool, dict[str, Any]] = await self.worker.call(request, self._step_seconds)
        return result

    def kill(self) -> None:
        """Kills the process that it lives in (for tests of what follows)."""
        self.worker.kill()

    def _check_alive(self) -> None:
        if self.worker.ended:
            raise collateral()


class WorkerPool:
    """Environments of one spec in `n_workers` processes. For one event loop at a time; `close` it in the end.

    A process runs one call at a time, so deadlines count from the moment that it is at a call: waiting for other
    environments of the same process does not make anybody late.

    Args:
        spec: what to make. Its entry point must be importable in another process.
        arguments: of the environment.
        tasks: the environment's tasks.
        n_workers: processes; None: one per core that this process may use.
        reset_seconds: deadline of a reset.
        step_seconds: deadline of a step.
        owner: the environment of this process that `tasks` come from; it is closed with the pool.

    Raises:
        RollenvError: the environment cannot be made in another process.
    """

    def __init__(
        self,
        spec: EnvSpec,
        arguments: Mapping[str, Any],
        tasks: TaskSet,
        n_workers: int | None = None,
        reset_seconds: float = 60.0,
        step_seconds: float = 60.0,
        owner: TextEnv | None = None,
    ) -> None:
        self.tasks, self._owner = tasks, owner
        self._spec = spec
        self._seconds = (reset_seconds, step_seconds)
        self._setup = Setup(list(sys.path), os.environ.get("PYTHONPATH"), portable(spec, arguments))
        self._gate = Gate(spec.max_concurrency)
        self._numbers = itertools.count()
        self._idle: dict[Worker, list[RemoteEnv]] = {}
        self._gone: list[Worker] = []  # ended, but perhaps not reaped
        self._successors: set[Worker] = set()
        self._closed = False
        self.deaths = 0
        """Processes that ended or were killed before their time."""
        self._n_workers = n_workers if n_workers is not None else len(os.sched_getaffinity(0))
        try:
            for _ in range(self._n_workers):
                self._start()
            next(iter(self._idle)).wait_started()
        except BaseException:
            self.close(seconds=0.0)
            raise

    @property
    def workers(self) -> list[Worker]:
        """The processes that serve."""
        return list(self._idle)

    def limits(self, limits: EpisodeLimits) -> EpisodeLimits:
        """What an episode still has to watch itself: not the deadlines of reset and step, which are kept here."""
        return replace(limits, reset_seconds=None, step_seconds=None)

    async def acquire(self) -> TextEnv:
        """An environment of the process with the fewest episodes; waits while `max_concurrency` of them play."""
        await self._gate.enter()
        try:
            if self._closed:
                raise RollenvError("the pool of environments is closed")
            if len(self._idle) < self._n_workers:  # one did not even start: it is tried again when it is needed
                self._succeed()
            # What one died of, the next may die of as well: until it has started, the others are asked.
            worker = min(self._idle, key=lambda w: (w in self._successors and not w.started, w.load, w.n_pending))
            worker.load += 1
        except BaseException:
            self._gate.leave()
            raise
        idle = self._idle[worker]
        return idle.pop() if idle else RemoteEnv(worker, next(self._numbers), *self._seconds)

    def release(self, env: TextEnv, healthy: bool) -> None:
        """Takes one back. An unhealthy one is closed by its process and never used again."""
        assert isinstance(env, RemoteEnv)
        worker = env.worker
        if not worker.ended:
            worker.load -= 1
            if not healthy:  # its place is free when it has closed
                dropped = worker.call(Request("drop", env.number), CLOSE_SECONDS)
                dropped.add_done_callback(self._dropped)
                return
            self._idle[worker].append(env)
        self._gate.leave()

    def _dropped(self, answer: asyncio.Future[Any]) -> None:
        if not answer.cancelled():
            answer.exception()  # seen: what it says on closing changes nothing for anyone
        self._gate.leave()

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Has all processes close their environments and end; kills those that have not after `seconds`."""
        self._closed = True
        workers, self._idle = list(self._idle), {}
        for worker in workers:
            worker.ask_to_stop()
        deadline = time.monotonic() + seconds
        killed = sum(not worker.wait_or_kill(deadline - time.monotonic()) for worker in workers)
        if killed and seconds > 0:
            log.warning(
                "%d worker processes of '%s' did not close in %g s and were killed", killed, self._spec.id, seconds
            )
        for worker in self._gone:
            worker.process.wait()
        self._gone.clear()
        if self._owner is not None:
            close_aside([self._owner])
            self._owner = None

    def _start(self) -> Worker:
        worker = Worker(self._setup, max(*self._seconds, START_SECONDS), self._on_end)
        self._idle[worker] = []
        return worker

    def _succeed(self) -> None:
        """Starts one in the place of one that has ended."""
        self._successors.add(self._start())

    def _on_end(self, worker: Worker) -> None:
        self._idle.pop(worker, None)
        self._successors.discard(worker)
        self._gone = [gone for gone in self._gone if gone.process.poll() is None] + [worker]
        if self._closed:
            return
        self.deaths += 1
        if worker.started:
            with contextlib.suppress(RollenvError):  # then it is tried again when it is needed
                self._succeed()


def portable(spec: EnvSpec, arguments: Mapping[str, Any]) -> bytes:
    """What another process needs to make an environment: the pickled spec and arguments.

    Raises:
        RollenvError: they cannot be sent, or another process could not import the entry point.
    """
    advice = "put it into a module that can be imported, or set rollout.env_executor=thread"
    module = spec.entry_point.partition(":")[0] if isinstance(spec.entry_point, str) else spec.entry_point.__module__
    if module == "__main__":
        raise RollenvError(
            f"environment '{spec.id}' is defined in the script that runs, which workers cannot import: {advice}"
        )
    try:
        return pickle.dumps((spec, dict(arguments)), protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise RollenvError(
            f"environment '{spec.id}' cannot be made in worker processes, because its entry point or its arguments "
            f"cannot be pickled ({describe(error)}): {advice}"
        ) from error


def is_portable(spec: EnvSpec, arguments: Mapping[str, Any]) -> bool:
    """Whether `portable` would say yes."""
    try:
        portable(spec, arguments)
    except RollenvError:
        return False
    return True
