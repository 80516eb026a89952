"""Many replicas of an engine behind one object that keeps the `Engine` protocol itself.

`rollenv.inference.routing` decides which replica serves which request; this module carries its decisions out.

Invariant: every `generate` returns one completion that a single replica made from the whole prompt, or raises. When the
replica that is at it dies, the completion begins again on another one with the same sampling parameters, so its seed
makes the same draws: on the CPU the result is the same bits, as long as both replicas have the same weights and get no
new ones on the way. When versions differ it is what the other replica's weights say, and `policy_versions` says which
made each token; tokens of two replicas are never mixed in one completion.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from operator import methodcaller
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from rollenv.errors import did_you_mean
from rollenv.inference import optional
from rollenv.inference.base import (
    Completion,
    Engine,
    EngineDead,
    EngineError,
    InvalidRequest,
    LastingWeights,
    SamplingParams,
    WeightsGone,
    fork,
)
from rollenv.inference.replica import Replica
from rollenv.inference.routing import Request, Router, RoutingStats

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

Successor = Callable[[str, str], Awaitable[Engine]]

CLOSE_SECONDS = 10.0
"""How long `close` waits for engines that may hang."""


class _Job:
    """A caller of `generate`: `turn` is what it waits for while its request waits, `over` is done when it returns."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.turn: asyncio.Future[None] | None = None
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.error: EngineError | None = None


class LLMProxy:
    """Serves sessions with several engines of the same model.

    A session's turns go to the replica that holds its cache. A new session goes to the replica with the fewest tokens
    in flight: prompts and the most that completions may add, counted until the completion has ended. When a replica's
    KV memory is spoken for, requests wait in the order they came, and start elsewhere if their session is free to.

    A replica is dead when it says so (`EngineDead`), when it fails `max_failures` times in a row, when it has work and
    answers nothing for `stall_seconds`, when it does not take new weights or free a cache, or by `declare_dead`. Its
    sessions move: an idle one is computed from its whole prompt at its next turn, a running completion begins again
    elsewhere. Its engine is closed.

    Args:
        replicas: engines, by name or not; all with the same version of the weights.
        token_budget: tokens in flight that each replica may have; default: what the engine says.
        stall_seconds: longer than the longest completion takes, and the slowest update; None: wait for ever.
        max_restarts: a completion that has failed on one more replica than this fails for good.
        max_failures: completions that fail together count once.
        successor: makes the engine that takes the place of a dead replica, from its name and what it died of; what no
            other replica can serve waits for it. When it raises there is no successor.

    Raises:
        ValueError: no replicas, one twice, versions that differ, or an argument that makes no sense.

    >>> from rollenv.inference import ScriptedEngine
    >>> engines = [ScriptedEngine(lambda prompt, sampling: [prompt[-1] + 1]) for _ in range(2)]
    >>> proxy = LLMProxy(engines)
    >>> asyncio.run(proxy.generate([5], SamplingParams(), session="a")).ids
    [6]
    >>> [stats.sessions for stats in proxy.stats().replicas.values()]
    [1, 0]
    """

    def __init__(
        self,
        replicas: Sequence[Engine] | Mapping[str, Engine],
        *,
        token_budget: int | None = None,
        stall_seconds: float | None = 600.0,
        max_restarts: int = 2,
        max_failures: int = 3,
        successor: Successor | None = None,
    ) -> None:
        if not isinstance(replicas, Mapping):
            replicas = {f"replica-{i}": engine for i, engine in enumerate(replicas)}
        if not replicas:
            raise ValueError("there is nothing to send requests to; give at least one replica")
        versions = sorted({engine.version for engine in replicas.values()})
        if len(versions) != 1:
            raise ValueError(f"replicas need the same version of the weights to begin with, not {versions}")
        if stall_seconds is not None and stall_seconds <= 0:
            raise ValueError(f"stall_seconds must be more than 0, or None; not {stall_seconds}")
        self._stall_seconds, self._successor = stall_seconds, successor
        self._version = versions[0]
        self._max_length = min((e.max_length for e in replicas.values() if e.max_length is not None), default=None)
        self._router = Router(max_restarts=max_restarts, max_failures=max_failures)
        self._replicas: dict[str, Replica] = {}
        self._n_joined = 0
        for name, engine in replicas.items():
            self._add(name, engine, token_budget)
            self._router.open(name)
        self._dead: dict[str, str] = {}
        self._weights: Mapping[str, torch.Tensor] | None = None  # the present ones; None: no update has come through
        self._asleep = False
        self._jobs: dict[int, _Job] = {}
        self._background: set[asyncio.Task[Any]] = set()  # updates, joins and drains
        self._successions: set[asyncio.Task[None]] = set()
        self._closing: set[asyncio.Task[None]] = set()  # of engines
        self._changing_weights = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    # -- what it says of itself ----------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The version that all live replicas have; while an update is under way, the one before it."""
        return self._version

    @property
    def max_length(self) -> int | None:
        """The most tokens, prompt and completion together, that a session can have on every replica; None: no bound."""
        return self._max_length

    @property
    def token_budget(self) -> int | None:
        """Tokens that all live replicas together may have in flight; None: no bound."""
        budgets = [replica.token_budget for replica in self.stats().replicas.values()]
        return sum(b for b in budgets if b is not None) if None not in budgets else None

    @property
    def dead(self) -> Mapping[str, str]:
        """The replicas that have died, by name, and of what."""
        return MappingProxyType(self._dead)

    def stats(self) -> RoutingStats:
        """Counters and state now, of each replica and in all."""
        return self._router.stats()

    # -- the protocol --------------------------------------------------------------------------------------------------

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams, *, session: str) -> Completion:
        """Continues `prompt_ids` on the session's replica, when it has room. See the module for what happens at faults.

        While it waits, cancelling the caller or aborting the session ends it at once.

        Raises:
            InvalidRequest: the request cannot be served, by whichever replica; it was tried once at most.
            EngineDead: the proxy is closed, or no replica is left.
            EngineError: the completion has failed on `max_restarts` + 1 replicas, or on the only one there is.
        """
        prompt = list(prompt_ids)
        self._ensure_open()
        request, started = self._router.submit(session, self._tokens(prompt, sampling))
        job = self._jobs[request.number] = _Job(request)
        self._wake(started)
        loop, waited = asyncio.get_running_loop(), 0.0
        try:
            while not request.stopping:
                if request.status == "waiting":
                    job.turn, began = loop.create_future(), loop.time()
                    await job.turn
                    waited += loop.time() - began
                elif request.status == "refused":
                    raise self._refusal(job)
                elif (completion := await self._attempt(job, prompt, sampling, session)) is not None:
                    completion.wait_seconds += waited
                    return completion
            return Completion([], [], [], "aborted")
        finally:
            self._jobs.pop(request.number, None)
            self._wake(self._router.end(request))
            self._notice_idle()
            job.over.set_result(None)

    async def abort(self, session: str) -> None:
        """Ends what the session is generating (its `generate` returns with `aborted`) and frees its cache."""
        await self._forget(session, methodcaller("abort", session))

    async def release(self, session: str) -> None:
        """The session will not come back: frees its cache. Unknown sessions are ignored."""
        await self._forget(session, methodcaller("release", session))

    async def fork(self, source: str, session: str) -> None:
        """The new `session` goes to the replica that holds the cache of `source`, and begins with that there."""
        self._ensure_open()
        home = self._router.fork(source, session)
        if home is not None:
            await self._tell(self._replicas[home], lambda engine: fork(engine, source, session))

    async def update_weights(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Gives every live replica new weights, and returns when all have confirmed them.

        Nothing waits for it: a request that comes meanwhile is served by its replica, with the old weights or the new
        ones, whichever that has by then; `policy_versions` tells. A replica that does not take the weights is declared
        dead. A copy of them is kept in host memory for replicas that join. Updates and joins happen one at a time. When
        the caller is cancelled the update goes on, and reads `tensors`, until it is complete.

        Raises:
            InvalidRequest: no replica wants these tensors; nothing has changed.
            EngineDead: the proxy is closed, or no replica is left and no successor is on its way.
            WeightsGone: who holds the weights does not give them; replicas may have these or the last ones.
        """
        self._ensure_open()
        await asyncio.shield(self._spawn(self._update(version, tensors)))

    async def sleep(self) -> None:
        """Sends every replica to sleep that can, and who joins before `wake`. One that fails to is declared dead."""
        self._ensure_open()
        self._asleep = True
        await asyncio.gather(*(self._tell(replica, optional.sleep) for replica in list(self._replicas.values())))

    async def wake(self) -> None:
        """Wakes them again."""
        self._ensure_open()
        self._asleep = False
        await asyncio.gather(*(self._tell(replica, optional.wake) for replica in list(self._replicas.values())))

    async def close(self) -> None:
        """Ends all work (completions return with `aborted`) and closes the engines of all replicas."""
        if self._closed:
            return
        self._ensure_open()
        self._closed = True
        self._wake(self._router.abort_all())
        for task in self._successions:  # they may have a long wait before them
            task.cancel()
        for replica in self._replicas.values():
            self._close_engine(replica)
        if self._closing:
            _, hanging = await asyncio.wait(self._closing, timeout=CLOSE_SECONDS)
            for task in hanging:
                task.cancel()
        for replica in list(self._replicas.values()):
            self._remove(replica, EngineDead("the proxy was closed"))
        if self._background:
            await asyncio.wait(self._background)
        self._weights = None

    # -- replicas come and go ------------------------------------------------------------------------------------------

    async def join(self, engine: Engine, *, name: str | None = None, token_budget: int | None = None) -> str:
        """Adds a replica, which serves as soon as it has the present weights, and returns its name.

        Args:
            engine: of the same model. It is the proxy's from now on.
            name: default: `replica-` and a number.
            token_budget: tokens in flight that it may have; default: what the engine says.

        Raises:
            ValueError: the name is taken, the engine is here already, its sessions cannot be as long as `max_length`,
                or it has other weights than the present ones and these have not come through the proxy.
            EngineDead: the proxy is closed.
            EngineError: it did not take the weights; its engine has been closed.
        """
        self._ensure_open()
        return await asyncio.shield(self._spawn(self._join(engine, name, token_budget)))

    async def drain(self, name: str) -> Engine:
        """Lets a replica finish what it runs, hands its other sessions over, and returns its engine, free of sessions.

        The engine stays open and is the caller's: to be closed, or to join again. Asking twice waits for the same end.

        Raises:
            ValueError: no such replica, it is still joining, or no other one could take its sessions.
            EngineDead: it has died before it was done.
        """
        self._ensure_open()
        sessions = self._router.sessions_of(name)
        replica = self._replicas[name]
        if replica.leaving is None:
            self._wake(self._router.drain(name))
            replica.leaving = self._spawn(self._drain(replica, sessions))
        return await asyncio.shield(replica.leaving)

    def declare_dead(self, name: str, cause: str) -> None:
        """Gives a replica up, as a supervisor does that knows more: its work begins again elsewhere, at once.

        Raises:
            ValueError: no such replica.
        """
        self._ensure_open()
        if name not in self._replicas:
            raise ValueError(f"there is no replica '{name}'{did_you_mean(name, self._replicas)}")
        self._give_up(self._replicas[name], cause)

    # -- completions ---------------------------------------------------------------------------------------------------

    def _tokens(self, prompt: Sequence[int], sampling: SamplingParams) -> int:
        """What the request takes of a budget at most."""
        tokens = len(prompt) + sampling.max_tokens
        if self._max_length is None:
            return tokens
        if len(prompt) >= self._max_length:
            raise InvalidRequest(
                f"the prompt has {len(prompt)} tokens, but the replicas' context ends at {self._max_length}, "
                "completion included; shorten the history"
            )
        return min(tokens, self._max_length)

    async def _attempt(
        self, job: _Job, prompt: Sequence[int], sampling: SamplingParams, session: str
    ) -> Completion | None:
        """Lets the request's replica make the completion. None: it did not, and the request's status says what next."""
        request, replica = job.request, self._replicas[job.request.replica]
        try:
            with replica.completion() as call:
                completion = await replica.engine.generate(prompt, sampling, session=session)
                if completion.finish_reason != "aborted":
                    replica.answered()
                elif not request.stopping:
                    raise EngineError("it aborted a completion although nobody had asked it to")
        except InvalidRequest:
            raise
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and call.is_cancelled:
                raise
            job.error = self._failed(replica, request, error)
            return None
        if call.interrupted:
            job.error = EngineDead(f"replica '{replica.name}' died: {self._dead.get(replica.name)}")
            return None
        if completion.finish_reason != "aborted":
            self._wake(self._router.complete(request))
        return completion

    def _failed(self, replica: Replica, request: Request, error: BaseException) -> EngineError:
        """Books a failed attempt, and lets the request go on elsewhere. Returns what its caller may get to see."""
        if self._router.fail(request) or isinstance(error, EngineDead):
            self._give_up(replica, _sentence(error))
        else:
            self._wake(self._router.restart(request))
        failure = EngineError(f"replica '{replica.name}' failed: {_sentence(error)}")
        failure.__cause__ = error
        return failure

    def _refusal(self, job: _Job) -> EngineError:
        """What a caller gets whose request no replica could serve."""
        why, cause = job.request.refusal, job.error
        if cause is None and self._dead:
            name = next(reversed(self._dead))
            cause = EngineDead(f"replica '{name}' died: {self._dead[name]}")
        kind = EngineError if self._router.has_future else EngineDead
        refusal = kind(why if cause is None else f"{why}; {cause}")
        refusal.__cause__ = cause
        return refusal

    def _wake(self, requests: Iterable[Request]) -> None:
        """Lets callers see that their requests wait no longer."""
        for request in requests:
            job = self._jobs.get(request.number)
            if job is not None and job.turn is not None and not job.turn.done():
                job.turn.set_result(None)

    async def _forget(self, session: str, tell: Callable[[Engine], Awaitable[None]]) -> None:
        """Ends the session here and, by `tell`, on the replica that holds its cache."""
        if self._closed:
            return
        self._ensure_open()
        request, home = self._router.request_of(session), self._router.home_of(session)
        self._wake(self._router.abort(session))
        if home is not None:
            await self._tell(self._replicas[home], tell)
        if request is not None and (job := self._jobs.get(request.number)) is not None:
            await asyncio.wait([job.over])

    async def _tell(self, replica: Replica, tell: Callable[[Engine], Awaitable[None]]) -> None:
        """Has a replica do something that it cannot but do; one that fails is dead."""
        try:
            with replica.control():
                await tell(replica.engine)
        except Exception as error:
            self._give_up(replica, _sentence(error))

    # -- weights -------------------------------------------------------------------------------------------------------

    async def _update(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        async with self._changing_weights:
            replicas = list(self._replicas.values())
            outcomes = await asyncio.gather(*(self._give_weights(replica, version, tensors) for replica in replicas))
            refusals = {r: outcome for r, outcome in zip(replicas, outcomes, strict=True) if outcome is not None}
            for refusal in refusals.values():
                if isinstance(refusal, WeightsGone):
                    raise refusal
            live = [replica for replica in replicas if self._is_here(replica)]
            if live and all(replica in refusals for replica in live):
                raise refusals[live[0]]
            for replica, refusal in refusals.items():
                self._give_up(replica, f"it refused the weights of version {version}: {refusal}")
            # A successor that is on its way gets them when it joins, whether the last replica died just now or before.
            if not any(self._is_here(replica) for replica in replicas) and not self._router.has_future:
                raise EngineDead(f"no replica is left that could take the weights of version {version}")
            if not any(self._is_here(replica) for replica in replicas):
                await asyncio.to_thread(len, tensors)  # who holds them may change them before the successor looks
            self._weights = await asyncio.to_thread(_kept, tensors, self._weights)
            self._version = version

    async def _give_weights(
        self, replica: Replica, version: int, tensors: Mapping[str, torch.Tensor]
    ) -> EngineError | None:
        """Returns why the replica has other weights still and lives: it refuses these, or they are gone. One that fails
        is dead afterwards."""
        try:
            with replica.control():
                await replica.engine.update_weights(version, tensors)
        except (InvalidRequest, WeightsGone) as refusal:
            return refusal
        except Exception as error:
            self._give_up(replica, f"it did not take the weights of version {version}: {_sentence(error)}")
        return None

    async def _bring_up_to_date(self, newcomer: Replica) -> EngineError | None:
        if self._weights is None:
            return None
        return await self._give_weights(newcomer, self._version, self._weights)

    # -- the lives of replicas -----------------------------------------------------------------------------------------

    def _add(self, name: str, engine: Engine, token_budget: int | None) -> Replica:
        if any(replica.engine is engine for replica in self._replicas.values()):
            raise ValueError(f"the engine of replica '{name}' is in the proxy already; each replica needs its own")
        self._router.add(name, engine.token_budget if token_budget is None else token_budget)
        replica = self._replicas[name] = Replica(name, engine, self._stall_seconds, self._stalled)
        self._n_joined += 1
        return replica

    async def _join(self, engine: Engine, name: str | None, token_budget: int | None) -> str:
        async with self._changing_weights:
            self._ensure_open()
            name = name if name is not None else f"replica-{self._n_joined}"
            self._check_newcomer(name, engine)
            return await self._bring_in(name, engine, token_budget)

    async def _succeed(self, dead: str, cause: str) -> None:
        """Brings in the successor of a dead replica, under its name; what no other can serve waits for it."""
        assert self._successor is not None
        engine: Engine | None = None
        try:
            engine = await self._successor(dead, cause)
            await self._join(engine, dead, None)
        except Exception as error:
            self._dead[dead] = f"{cause}; it has no successor: {_sentence(error)}"
            if engine is not None:
                await _close(engine)
        finally:
            self._wake(self._router.expect_no_more())

    async def _bring_in(self, name: str, engine: Engine, token_budget: int | None) -> str:
        """Gives a new replica the present weights and lets it serve."""
        replica = self._add(name, engine, token_budget)
        self._dead.pop(name, None)
        try:
            refusal = await self._bring_up_to_date(replica)
        except BaseException:
            self._remove(replica, EngineDead("joining was cancelled"))
            raise
        if refusal is not None:
            did = "refused" if isinstance(refusal, InvalidRequest) else "could not have"
            self._give_up(replica, f"it {did} the weights of version {self._version}: {refusal}")
        await self._let_sleep(replica)
        if not self._is_here(replica):
            raise EngineError(f"replica '{name}' could not join: {self._dead.get(name, 'the proxy was closed')}")
        self._wake(self._router.open(name))
        return name

    async def _let_sleep(self, newcomer: Replica) -> None:
        """Where the others sleep so does a newcomer: somebody else has the memory of their devices."""
        asleep = False
        while self._is_here(newcomer) and asleep != self._asleep:  # they may be woken while it falls asleep
            asleep = self._asleep
            await self._tell(newcomer, optional.sleep if asleep else optional.wake)

    def _check_newcomer(self, name: str, engine: Engine) -> None:
        bound, promised = engine.max_length, self._max_length
        if bound is not None and (promised is None or bound < promised):
            raise ValueError(
                f"replica '{name}' holds sessions of {bound} tokens at most, but the proxy has promised "
                + ("any length" if promised is None else f"{promised}")
            )
        if self._weights is None and engine.version != self._version:
            raise ValueError(
                f"replica '{name}' has weights of version {engine.version}, the present ones are of {self._version} "
                "and the proxy has no copy of them; let an engine join that has them, or call update_weights first"
            )

    async def _drain(self, replica: Replica, sessions: Sequence[str]) -> Engine:
        """Waits until nothing runs on the replica, frees the caches of its `sessions`, and lets it go."""
        replica.idle = asyncio.get_running_loop().create_future()
        self._notice_idle()
        await replica.idle
        await asyncio.gather(*(self._tell(replica, methodcaller("release", session)) for session in sessions))
        if not self._is_here(replica):
            raise EngineDead(f"replica '{replica.name}' died: {self._dead.get(replica.name)}")
        self._remove(replica, EngineDead("it was drained"))
        return replica.engine

    def _notice_idle(self) -> None:
        """Tells drains whose replicas run nothing any more."""
        for replica in self._replicas.values():
            if replica.idle is not None and not replica.idle.done() and not self._router.is_busy(replica.name):
                replica.idle.set_result(None)

    def _stalled(self, replica: Replica) -> None:
        self._give_up(replica, f"it was asked and gave no answer for {self._stall_seconds:g} s")

    def _give_up(self, replica: Replica, cause: str) -> None:
        """The replica is dead, if it is not already gone: its work begins again elsewhere."""
        if not self._is_here(replica):
            return
        self._dead[replica.name] = cause
        if self._successor is not None and not self._closed:
            self._router.expect()
            self._successions.add(task := self._spawn(self._succeed(replica.name, cause)))
            task.add_done_callback(self._successions.discard)
        self._remove(replica, EngineDead(f"replica '{replica.name}' died: {cause}"))
        self._close_engine(replica)

    def _remove(self, replica: Replica, error: EngineDead) -> None:
        """The replica is gone; who awaits it gets `error`, if the request cannot go on elsewhere."""
        if not self._is_here(replica):
            return
        del self._replicas[replica.name]
        over = self._router.remove(replica.name)
        replica.give_up(error)
        self._wake(over)

    def _is_here(self, replica: Replica) -> bool:
        return self._replicas.get(replica.name) is replica

    def _close_engine(self, replica: Replica) -> None:
        """Closes its engine on the side: it may hang."""
        task = asyncio.get_running_loop().create_task(_close(replica.engine))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    # -- the event loop ------------------------------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Runs `work` to its end, also when who asked for it is cancelled."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    def _ensure_open(self) -> None:
        """Refuses when closed; in another event loop than the last one, forgets what that has left behind."""
        if self._closed:
            raise EngineDead("the proxy is closed")
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            return
        if self._jobs and self._loop is not None and not self._loop.is_closed():
            raise EngineError("the proxy serves another event loop; use one proxy per loop")
        for job in self._jobs.values():
            self._router.end(job.request)
        for replica in self._replicas.values():
            replica.forget_loop()
        self._jobs.clear()
        self._background.clear()
        self._successions.clear()
        self._closing.clear()
        self._changing_weights = asyncio.Lock()
        self._loop = loop


async def _close(engine: Engine) -> None:
    with contextlib.suppress(Exception):  # a dead engine may not even close
        await engine.close()


def _kept(tensors: Mapping[str, torch.Tensor], old: Mapping[str, torch.Tensor] | None) -> Mapping[str, torch.Tensor]:
    """`old` with `tensors` in it, as they are now: the caller's may change as soon as it has them back. They are copied
    into host memory, in the place of old ones where there are any: new memory costs more than copying."""
    if isinstance(tensors, LastingWeights):
        return tensors
    before = dict(old or {})
    places = {} if isinstance(old, LastingWeights) else before
    return before | {name: _into(places.get(name), tensor.detach()) for name, tensor in tensors.items()}


def _into(place: torch.Tensor | None, tensor: torch.Tensor) -> torch.Tensor:
    if place is None or place.shape != tensor.shape or place.dtype != tensor.dtype:
        return tensor.to("cpu", copy=True)
    return place.copy_(tensor)


def _sentence(error: BaseException) -> str:
    return str(error) if isinstance(error, EngineError) else f"{type(error).__name__}: {error}".rstrip(": ")
