"""The embedded engine: torch and transformers' model classes, sessions batched as they come and go.

A background task runs steps while there is work. A step takes one token of every running completion and a bounded
number of new prompt tokens, packs them without padding into one forward pass, and samples. Each session keeps its keys
and values between turns, so a turn computes only what is new; when memory is short the session unused for longest is
evicted and computed again if it comes back.

Invariant: on the CPU a completion's ids and log-probabilities are the same bits whatever shares its batch, in whatever
order sessions come, and whether its prefix was cached or computed anew (`TorchEngine.exact` says whether the machine
allows it, see `rollenv.inference.invariance`).
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rollenv.executor import DaemonThread
from rollenv.inference.attention import IMPLEMENTATION, Chunk, PackedBatch
from rollenv.inference.base import (
    Completion,
    EngineDead,
    EngineError,
    InvalidRequest,
    SamplingParams,
    StaleKV,
    note_made,
)
from rollenv.inference.batching import Returns, deal, plan
from rollenv.inference.cores import one_core_threads, worth_sharing
from rollenv.inference.decoder import Decoder
from rollenv.inference.endings import TextDecoder, ending
from rollenv.inference.fused import fused_runner
from rollenv.inference.invariance import probe
from rollenv.inference.kv_cache import KVCache
from rollenv.inference.parking import Parked
from rollenv.inference.requests import check_ids, check_not_empty, check_sampling, check_tensors
from rollenv.inference.runner import ModuleRunner, Runner
from rollenv.inference.sampling import sample
from rollenv.inference.sessions import Request, Session, Sessions


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counters since the engine was built (tokens, steps, evictions) and its state now.

    Attributes:
        prefilled_tokens: prompt tokens computed.
        reused_tokens: prompt tokens found in a session's cache.
        decoded_tokens: tokens sampled.
        steps: forward steps taken.
        step_seconds: how long they took.
        evictions: idle sessions that lost their cache to another session.
        running: completions in the batch.
        queued: completions waiting for a place.
        sessions: sessions that hold a cache.
        kv_bytes: bytes allocated for keys and values.
    """

    prefilled_tokens: int
    reused_tokens: int
    decoded_tokens: int
    steps: int
    step_seconds: float
    evictions: int
    running: int
    queued: int
    sessions: int
    kv_bytes: int


@dataclass(slots=True)
class _Update:
    version: int
    tensors: Mapping[str, torch.Tensor]
    future: asyncio.Future[None]


class TorchEngine:
    """Generates with any decoder-only transformers model that goes through the attention interface.

    Args:
        model: Llama, Qwen2, Qwen3, Mistral, ... with full attention (a sliding window bounds the context instead).
            The engine works on its own deep copy; weights reach it by `update_weights` alone.
        tokenizer: only needed for stop strings.
        max_sessions: sessions that may hold a cache, idle ones included.
        max_batch: completions that run at the same time; more are queued, first come first served.
        kv_budget_bytes: upper bound for the cache; default 1 GiB on the CPU, half of the free memory on a GPU.
        max_step_tokens: tokens per step; longer prompts are computed in chunks.
        dtype: of weights and cache; default: as the model is.
        device: where to run; default: where the model is.
        workers: threads that share a step when it is big enough; default 2 on a CPU with at least two cores and a model
            so small (hidden size up to 512) that one matrix product cannot use two cores, else 1. A worker that
            shares uses one core.
        stale_kv: what becomes of keys and values made by old weights when new ones arrive.
            "drop" (default): a completion that is running keeps them to its end; between turns they are dropped, so
            the next turn is computed from its whole prompt. "keep": they stay. "recompute": running completions, too,
            read their tokens again with the new weights before their next token.
        fused: run Llama, Qwen2, Qwen3 and Mistral by `rollenv.inference.fused` rather than by their own forward.
        version: of the model's present weights.

    Raises:
        ValueError: the model cannot be served, or an argument makes no sense.
    """

    def __init__(
        self,
        model: Any,
        *,
        tokenizer: TextDecoder | None = None,
        max_sessions: int = 1024,
        max_batch: int = 256,
        kv_budget_bytes: int | None = None,
        max_step_tokens: int = 2048,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        workers: int | None = None,
        stale_kv: StaleKV = "drop",
        fused: bool = True,
        version: int = 0,
    ) -> None:
        for name, value in (
            ("max_sessions", max_sessions),
            ("max_batch", max_batch),
            ("max_step_tokens", max_step_tokens),
        ):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        if stale_kv not in ("keep", "drop", "recompute"):
            raise ValueError(f"stale_kv must be 'keep', 'drop' or 'recompute', not {stale_kv!r}")
        self._model = copy.deepcopy(model).to(device=device).eval().requires_grad_(False)
        if next(self._model.parameters()).is_cuda:
            # Of the whole process. cuDNN's attention makes a plan for every new shape, and here most steps have one.
            torch.backends.cuda.enable_cudnn_sdp(False)
        if dtype is not None:
            for parameter in self._model.parameters():  # not the buffers: rotary frequencies need fp32
                parameter.data = parameter.data.to(dtype)
        self._model.config._attn_implementation = IMPLEMENTATION
        self._tokenizer = tokenizer
        self._max_batch, self._max_step_tokens = max_batch, max_step_tokens
        self._stale_kv: StaleKV = stale_kv
        self._version = version
        self._decoder = Decoder.of(self._model)
        self._start_workers(workers)
        self._runner: Runner = (fused_runner(self._model, self._decoder.context) if fused else None) or ModuleRunner(
            self._model
        )
        self._targets: dict[str, torch.Tensor] = self._model.state_dict()
        self._shapes = {name: tensor.shape for name, tensor in self._targets.items()}
        self._layout, self.exact = self._workers[0].submit(self._probe).result()
        self._cache = KVCache(
            self._decoder.kv, self._decoder.default_kv_budget if kv_budget_bytes is None else kv_budget_bytes
        )
        self._max_length = min(self._decoder.context, self._cache.max_tokens)
        if self._max_length < 2:
            raise ValueError(
                f"kv_budget_bytes = {self._cache.budget_bytes} holds no session: one slot takes "
                f"{512 * self._decoder.kv.bytes_per_token} bytes"
            )
        self._sessions = Sessions(self._cache, max_sessions)
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._updates: deque[_Update] = deque()
        self._asleep = False
        self._to_sleep: list[asyncio.Future[None]] = []
        self._parked: Parked | None = None  # weights, while they are on the host
        self._counts = {"prefilled": 0, "reused": 0, "decoded": 0, "steps": 0}
        self._step_seconds = 0.0
        self._answered, self._returns = False, Returns()
        self._closed = False
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._work = asyncio.Event()

    # -- the model -----------------------------------------------------------------------------------------------------

    def _start_workers(self, workers: int | None) -> None:
        if workers is None:
            workers = worth_sharing(self._decoder.device, self._decoder.hidden, most=2)
        if workers < 1:
            raise ValueError(f"workers must be at least 1, not {workers}")
        self._workers = one_core_threads(workers, "rollenv-engine")

    def _probe(self) -> tuple[Any, bool]:
        decoder, kv = self._decoder, self._decoder.kv
        return probe(self._runner.linear_maps(), kv.dtype, kv.device, decoder.n_heads, kv.kv_heads, kv.head_dim)

    # -- the protocol --------------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The version of the weights that would make the next token."""
        return self._version

    @property
    def max_length(self) -> int:
        """The most tokens, prompt and completion together, that a session can have."""
        return self._max_length

    @property
    def token_budget(self) -> int:
        """Tokens that the KV budget holds. A session takes a slot of a power of two, so that fewer may fit at once."""
        return self._cache.budget_bytes // self._decoder.kv.bytes_per_token

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams, *, session: str) -> Completion:
        """Continues `prompt_ids` (the whole prompt; what the session's cache already holds is not computed again).

        A completion that reaches `max_length` ends there with `length`. A cancelled caller aborts its session.

        Raises:
            InvalidRequest: the prompt is too long or no token ids, the sampling makes no sense, the session is already
                generating, or stop strings were given without a tokenizer.
            EngineDead: the engine is closed.
            EngineError: a step failed.
        """
        prompt = list(prompt_ids)
        self._refuse(prompt, sampling, session)
        self._ensure_loop()
        state = self._sessions.open(session)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Completion] = loop.create_future()
        limit = min(sampling.max_tokens, self._max_length - len(prompt))
        request = state.request = Request(state, prompt, sampling, limit, future, loop.time())
        self._waiting.append(request)
        self._work.set()
        try:
            return await future
        except (asyncio.CancelledError, EngineError) as error:
            note_made(error, Completion(request.ids, request.logprobs, request.versions, "aborted"))
            if state.request is request:
                self._drop(state)
            raise

    def _refuse(self, prompt: Sequence[int], sampling: SamplingParams, session: str) -> None:
        """Raises when a request cannot be served, before it costs anything."""
        if self._closed:
            raise EngineDead("the engine is closed")
        check_not_empty(prompt)
        if len(prompt) >= self._max_length:
            what = "the model's context" if self._max_length == self._decoder.context else "the KV budget"
            raise InvalidRequest(
                f"the prompt has {len(prompt)} tokens, but {what} ends at {self._max_length}, completion included; "
                "shorten the history"
                + ("" if self._max_length == self._decoder.context else " or raise kv_budget_bytes")
            )
        check_ids(prompt, self._decoder.vocab)
        check_sampling(sampling)
        if sampling.stop and self._tokenizer is None:
            raise InvalidRequest("stop strings need TorchEngine(model, tokenizer=...); or use stop_token_ids")
        state = self._sessions.get(session)
        if state is not None and state.request is not None:
            raise InvalidRequest(f"session '{session}' is already generating; one completion at a time per session")

    async def abort(self, session: str) -> None:
        """Ends what the session is generating (its `generate` returns with `aborted`) and frees its cache."""
        if state := self._sessions.get(session):
            self._drop(state)

    async def release(self, session: str) -> None:
        """The session will not come back: frees its cache. Unknown sessions are ignored."""
        await self.abort(session)

    async def fork(self, source: str, session: str) -> None:
        """The new `session` will begin like `source`: the keys and values that it shares with its first prompt are
        copied. It changes nothing but speed; unknown sources are ignored."""
        self._sessions.fork(source, session)

    async def update_weights(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Replaces the weights between two decode steps; running completions continue with the new ones.

        `tensors` are named as in `model.state_dict()`; names may be missing (they stay as they are), and of tied
        weights one name is enough. They are copied before this returns. `stale_kv` says what becomes of cached keys and
        values.

        Raises:
            InvalidRequest: an unknown name or a wrong shape; nothing is changed then.
            EngineDead: the engine is closed.
            EngineError: loading failed half-way.
        """
        if self._closed:
            raise EngineDead("the engine is closed")
        check_tensors(tensors, self._shapes)
        self._ensure_loop()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._updates.append(_Update(version, tensors, future))
        self._work.set()
        await future

    async def sleep(self) -> None:
        """Gives its memory away between two steps: keys and values are forgotten, weights move to the host's memory (on
        the CPU they are there). Completions that run are computed from their whole prompt when it wakes, and go on with
        the weights of then; those that are asked for meanwhile wait. New weights are taken while it sleeps, too.

        Raises:
            EngineDead: the engine is closed.
        """
        if self._closed:
            raise EngineDead("the engine is closed")
        if self._asleep:
            return
        self._ensure_loop()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._to_sleep.append(future)
        self._work.set()
        await future

    async def wake(self) -> None:
        """Takes its memory back and goes on, with the weights that it had. Awake, it does nothing."""
        if self._asleep:
            await self._fetch_weights()
            self._asleep = False
            self._work.set()

    async def close(self) -> None:
        """Ends all work (running completions return with `aborted`) and frees everything."""
        if self._closed:
            return
        self._closed = True
        for state in self._sessions:
            self._drop(state)
        self._work.set()
        if self._task is not None and self._loop is asyncio.get_running_loop():
            await self._task
        for future in [*(update.future for update in self._updates), *self._to_sleep]:
            if not future.done():
                future.set_exception(EngineDead("the engine was closed"))
        for worker in self._workers:
            worker.stop()
        self._cache.clear()

    def stats(self) -> EngineStats:
        """Counters and state now."""
        return EngineStats(
            prefilled_tokens=self._counts["prefilled"],
            reused_tokens=self._counts["reused"],
            decoded_tokens=self._counts["decoded"],
            steps=self._counts["steps"],
            step_seconds=self._step_seconds,
            evictions=self._sessions.evictions,
            running=len(self._running),
            queued=len(self._waiting),
            sessions=self._sessions.n_holders,
            kv_bytes=self._cache.n_bytes,
        )

    # -- the loop ------------------------------------------------------------------------------------------------------

    def _ensure_loop(self) -> None:
        """Starts the background task in the running event loop (again, when the one it ran in is gone)."""
        loop = asyncio.get_running_loop()
        if self._task is not None and not self._task.done() and self._loop is loop:
            return
        if self._loop is not None and self._loop is not loop:
            if self._task is not None and not self._task.done() and not self._loop.is_closed():
                raise EngineError("the engine serves another event loop; use one engine per loop")
            self._forget_work()
        self._loop = loop
        self._work = asyncio.Event()
        self._task = loop.create_task(self._run(), name="rollenv-engine")

    def _forget_work(self) -> None:
        """Drops what callers of a vanished event loop left behind."""
        self._sessions.in_step.clear()
        self._waiting.clear()
        self._running.clear()
        self._updates.clear()
        self._to_sleep.clear()
        for state in self._sessions:
            if state.request is not None:
                self._sessions.forget(state)

    async def _run(self) -> None:
        while not self._closed:
            was_idle = not self._updates and (self._asleep or not (self._waiting or self._running or self._to_sleep))
            if was_idle:
                self._work.clear()
                await self._work.wait()
            if was_idle or self._answered:
                await self._let_return(was_idle)
            try:
                if self._updates:
                    await self._fetch_weights()  # it may be asleep, and stays so
                    await self._apply_updates()
                if self._to_sleep and not self._asleep:
                    await self._fall_asleep()
                if self._asleep:
                    continue
                self._admit()
                if self._running and not self._closed:
                    await self._step()
            except Exception as error:  # a defect here must not leave callers waiting for ever
                self._fail_all(error)

    async def _let_return(self, was_idle: bool) -> None:
        """Environments that answer at once bring their sessions back within a tick or two: they join this step. Where
        none has done so of late, the step begins at once, and the callers of the last one go on beside it."""
        self._answered = False
        if not was_idle and not self._returns.worth_waiting():
            return
        before = len(self._waiting)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if not was_idle:
            self._returns.note(len(self._waiting) > before)

    def _fail_all(self, error: Exception) -> None:
        for request in [*self._running, *self._waiting]:
            request.fail(EngineError(f"the engine failed: {type(error).__name__}: {error}"))
            self._sessions.forget(request.session)
        self._running.clear()
        self._waiting.clear()
        self._sessions.in_step.clear()

    # -- sessions ------------------------------------------------------------------------------------------------------

    def _drop(self, state: Session) -> None:
        """Ends the session's completion, if any, and forgets the session."""
        request = state.request
        if request is not None:
            if request in self._running:
                self._running.remove(request)
            elif request in self._waiting:
                self._waiting.remove(request)
            request.finish("aborted")
        self._sessions.forget(state)

    def _admit(self) -> None:
        """Moves completions from the queue into the batch, in order, while there is room and memory."""
        while self._waiting and len(self._running) < self._max_batch:
            request = self._waiting[0]
            try:
                reused = self._sessions.place(
                    request, {other.session for other in self._running}, self._version, self._stale_kv == "keep"
                )
            except Exception as error:  # out of memory, most likely
                self._waiting.popleft()
                request.fail(EngineError(f"no cache for session '{request.session.name}': {error}"))
                self._sessions.forget(request.session)
                continue
            if reused is None:
                return
            request.todo += request.ids  # of one that was running when the engine fell asleep
            self._counts["reused"] += reused
            self._waiting.popleft()
            if not request.ids:
                request.waited = asyncio.get_running_loop().time() - request.asked
            self._running.append(request)

    # -- steps ---------------------------------------------------------------------------------------------------------

    async def _step(self) -> None:
        """One forward pass over the batch, shared by the workers, and what follows from it."""
        work = plan(self._running, self._max_step_tokens)
        shares = deal(list(work), len(self._workers))
        self._sessions.in_step = {request.session for request in work.values()}
        began = time.perf_counter()
        outcomes = await asyncio.gather(
            *(self._submit(worker, share, work) for worker, share in zip(self._workers, shares, strict=False)),
            return_exceptions=True,
        )
        self._sessions.in_step = set()
        self._counts["steps"] += 1
        self._step_seconds += time.perf_counter() - began
        for share, outcome in zip(shares, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                self._fail_share([work[chunk] for chunk in share], outcome)
            else:
                self._advance(work, share, outcome)

    def _submit(
        self, worker: DaemonThread, share: list[Chunk], work: Mapping[Chunk, Request]
    ) -> asyncio.Future[list[tuple[Chunk, int, float]]]:
        """Runs one worker's share on its thread: (chunk, token, log-probability) for each chunk that samples."""
        draws = {chunk: (work[chunk].sampling, len(work[chunk].ids)) for chunk in share}
        return asyncio.wrap_future(worker.submit(lambda: self._forward(share, draws)))

    def _forward(
        self, chunks: list[Chunk], draws: Mapping[Chunk, tuple[SamplingParams, int]]
    ) -> list[tuple[Chunk, int, float]]:
        """On a worker's thread: lays the chunks out, runs the model, samples."""
        with torch.inference_mode():
            batch = PackedBatch(chunks, self._layout, self._decoder.dtype, self._decoder.device)
            logits = self._runner(batch)[: len(batch.sampled)]
            if not batch.sampled:
                return []
            params, indices = zip(*(draws[c] for c in batch.sampled), strict=True)
            tokens, logprobs = sample(logits, params, indices)
        return list(zip(batch.sampled, tokens, logprobs, strict=True))

    def _advance(
        self, work: Mapping[Chunk, Request], share: Sequence[Chunk], sampled: Sequence[tuple[Chunk, int, float]]
    ) -> None:
        """Books what a share of a step has computed, and answers those whose completion is complete."""
        for chunk in share:
            request = work[chunk]
            state = request.session
            if state.gone:
                self._sessions.free(state)
                continue
            state.ids.extend(chunk.ids)
            del request.todo[: len(chunk.ids)]
            if len(chunk.ids) > 1 or not request.ids:
                self._counts["prefilled"] += len(chunk.ids)
        for chunk, token, logprob in sampled:
            request = work[chunk]
            if request.session.gone:
                continue
            request.ids.append(token)
            request.logprobs.append(logprob)
            request.versions.append(self._version)
            request.todo = [token]
            self._counts["decoded"] += 1
            reason = ending(request, self._tokenizer)
            if reason is not None:
                self._running.remove(request)
                self._sessions.touch(request.session)
                request.finish(reason)
                self._answered = True

    def _fail_share(self, requests: Sequence[Request], error: BaseException) -> None:
        """A share that failed fails its completions; what their slots hold is unknown, so they lose them."""
        for request in requests:
            if request in self._running:
                self._running.remove(request)
            request.fail(EngineError(f"a step failed: {type(error).__name__}: {error}"))
            self._sessions.forget(request.session)

    # -- sleep ---------------------------------------------------------------------------------------------------------

    async def _fall_asleep(self) -> None:
        self._waiting.extendleft(reversed(self._running))
        self._running.clear()
        for session in self._sessions:
            self._sessions.free(session)
        self._cache.clear()
        self._parked = await asyncio.wrap_future(self._workers[0].submit(self._park))
        self._asleep = True
        for future in self._to_sleep:
            if not future.done():
                future.set_result(None)
        self._to_sleep.clear()

    def _park(self) -> Parked:
        parked = Parked(self._model.parameters(), "host")
        if self._decoder.device.type == "cuda":
            torch.cuda.empty_cache()  # what is only free here no other process can have
        return parked

    async def _fetch_weights(self) -> None:
        parked, self._parked = self._parked, None
        if parked is not None:
            await asyncio.wrap_future(self._workers[0].submit(parked.bring_back))

    # -- weights -------------------------------------------------------------------------------------------------------

    async def _apply_updates(self) -> None:
        """Loads the weights that wait, between two steps, and deals with what the old ones left in the cache."""
        while self._updates:
            update = self._updates.popleft()
            try:
                await asyncio.wrap_future(self._workers[0].submit(lambda u=update: self._load(u.tensors)))  # type: ignore[misc]
            except Exception as error:
                if not update.future.done():
                    update.future.set_exception(EngineError(f"the weights could not be loaded: {error}"))
                continue
            self._version = update.version
            for request in self._running:
                if self._stale_kv == "recompute" or (self._stale_kv == "drop" and not request.ids):
                    request.session.ids = []
                    request.session.version = update.version
                    request.todo = request.prompt + request.ids
            if not update.future.done():
                update.future.set_result(None)

    def _load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        with torch.no_grad():
            for name, tensor in tensors.items():
                self._targets[name].copy_(tensor)
        if self._decoder.device.type == "cuda":
            torch.cuda.synchronize(self._decoder.device)  # whose the tensors are may change them now
