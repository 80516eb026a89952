"""vLLM behind the `Engine` protocol: token ids in, token ids out, with the probability and the version of each.

vLLM's engine runs in a process of its own. Its client lives on an event loop of its own as well, so that this engine
serves any loop, one after another, and is made without one. Weights reach the process through shared memory, bucket by
bucket, while generation pauses; completions that are under way go on with the new ones. vLLM itself says which version
of the weights made which token. Sessions share vLLM's prefix cache, which forgets what was not used for longest.

Invariant: a completion's log-probabilities are those of the distribution that its tokens were drawn from, and the
weights are always those of `version`: an update that fails half-way ends the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import pickle
import tempfile
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import torch

from rollenv.executor import LoopThread
from rollenv.inference.base import (
    Completion,
    EngineDead,
    EngineError,
    FinishReason,
    InvalidRequest,
    SamplingParams,
    StaleKV,
    note_made,
)
from rollenv.inference.buckets import BUCKET_BYTES, Manifest, SharedBuffer, bucket_of, fill, first_names, layout
from rollenv.inference.handles import gpu_of, handles_of
from rollenv.inference.requests import check_ids, check_not_empty, check_sampling, check_tensors
from rollenv.inference.vllm_process import started, write_model
from rollenv.inference.vllm_worker import to_wire

T = TypeVar("T")
Put: TypeAlias = tuple[str, tuple[Any, ...]]
"""The worker's method that loads a bucket, and where it finds it."""

SEED_MASK = (1 << 63) - 1
"""vLLM takes seeds of 63 bits (and -1 for none)."""

ABORT_SECONDS = 5.0
"""How long a cancelled caller waits to hear what had been made by then."""

CPU_BLOCK = 32
"""Tokens of a block of the prefix cache on a CPU; vLLM's own choice there, 128, finds less of short turns again."""

LEAST_FREE = 0.02
"""Share of a GPU that has to be free for vLLM to try to start, where the bytes of its cache are given."""

_REASONS: dict[str | None, FinishReason] = {"stop": "stop", "length": "length", "abort": "aborted"}


@dataclass(frozen=True, slots=True)
class VLLMStats:
    """Counters since the engine was built and its state now.

    Attributes:
        prefilled_tokens: prompt tokens computed, of completions that have ended.
        reused_tokens: prompt tokens of theirs that were found in the cache.
        decoded_tokens: tokens of theirs that were sampled.
        updates: weight updates that came through.
        running: completions that were asked for and have not ended.
    """

    prefilled_tokens: int
    reused_tokens: int
    decoded_tokens: int
    updates: int
    running: int


@dataclass(slots=True, eq=False)
class _Call:
    """A caller of `generate`; `queue` is vLLM's, once it has the request."""

    name: str
    aborted: bool = False
    queue: Any = None
    task: asyncio.Task[Any] | None = None


class VLLMEngine:
    """Generates with vLLM, in a process that it starts.

    Args:
        model: a transformers model of an architecture that vLLM has. Its config and its weights are taken over when the
            engine is made; afterwards weights reach it by `update_weights` alone.
        tokenizer: a `transformers` tokenizer; only needed for stop strings.
        max_batch: completions that run at the same time; more are queued.
        kv_budget_bytes: memory for the prefix cache; where `gpu_memory_utilization` is given, that decides.
        dtype: of weights and cache; default: as the model is.
        device: `cpu`, `cuda` or `cuda:1`, which has to be what this vLLM is built for; default: where the model is.
        stale_kv: what becomes of keys and values made by old weights when new ones arrive.
            "drop" (default): a completion that was asked for before keeps them to its end; those that come later
            compute their whole prompt. "keep": they stay. "recompute": completions under way, too, read their tokens
            again with the new weights before their next token.
        max_model_len: bound on the tokens of a session; default: the model's own context.
        gpu_memory_utilization: share of the device's memory for model and cache together.
        enforce_eager: without CUDA graphs and compilation: ready sooner, slower on a GPU. A CPU always is.
        tensor_parallel: devices that share the model.
        can_sleep: whether `sleep` gives a GPU's memory back; on a CPU it only empties the cache.
        version: of the model's present weights.

    Attributes:
        pids: the processes that hold the model.

    Raises:
        RollenvError: vLLM is not installed, or does not start with this model and these settings.
    """

    def __init__(
        self,
        model: Any,
        *,
        tokenizer: Any = None,
        max_batch: int = 256,
        kv_budget_bytes: int = 1 << 30,
        dtype: torch.dtype | None = None,
        device: str | None = None,
        stale_kv: StaleKV = "drop",
        max_model_len: int | None = None,
        gpu_memory_utilization: float | None = None,
        enforce_eager: bool = False,
        tensor_parallel: int = 1,
        can_sleep: bool = False,
        version: int = 0,
    ) -> None:
        parameter = next(model.parameters())
        device = str(parameter.device) if device is None else device
        arguments = {
            "dtype": str(parameter.dtype if dtype is None else dtype).removeprefix("torch."),
            "max_num_seqs": max_batch,
            "max_model_len": max_model_len,
            "enforce_eager": enforce_eager or device == "cpu",
            "tensor_parallel_size": tensor_parallel,
            "distributed_executor_backend": "uni" if tensor_parallel == 1 else "mp",
            "enable_sleep_mode": can_sleep and device != "cpu",
        }
        if gpu_memory_utilization is None:
            arguments["kv_cache_memory_bytes"] = kv_budget_bytes
            if device != "cpu":
                # The bytes alone decide; but vLLM does not start where less than this share of the GPU is free, by
                # default nearly all of it.
                arguments["gpu_memory_utilization"] = LEAST_FREE
        else:
            arguments["gpu_memory_utilization"] = gpu_memory_utilization
        if device == "cpu":
            arguments["block_size"] = CPU_BLOCK
            # What a part of a prompt draws is drawn again, for which vLLM turns the generator back: a CPU's
            # cannot be, and the process would end.
            arguments["enable_chunked_prefill"] = False
        self._stale_kv, self._version, self._can_sleep = stale_kv, version, can_sleep and device != "cpu"
        self._can_stop_at_text = tokenizer is not None
        self._device = device
        self._vocab = int(model.get_input_embeddings().weight.shape[0])
        state = model.state_dict()
        self._names = first_names(state)  # vLLM loads a weight by its first name
        self._shapes = {name: tensor.shape for name, tensor in state.items()}
        self._numbers = itertools.count()
        self._calls: dict[str, _Call] = {}
        self._counts = {"prefilled": 0, "reused": 0, "decoded": 0, "updates": 0}
        self._dead = ""
        self._asleep = False
        self._changing = asyncio.Lock()
        self._llm: Any = None
        self._buffers = SharedBuffer(), SharedBuffer()
        self._flats: dict[int, torch.Tensor] = {}  # what stands for them on a GPU, during an update
        # The process watches the reading end of this pipe: nobody writes, and it ends when nobody could any more.
        self._watched = os.pipe2(os.O_CLOEXEC)
        self._folder = tempfile.TemporaryDirectory(prefix="rollenv-vllm-")
        self._thread = LoopThread("rollenv-vllm")
        try:
            write_model(model, tokenizer, Path(self._folder.name))
            self._llm = started(self._thread, self._folder.name, tokenizer is not None, device, arguments)
            cache = self._llm.vllm_config.cache_config
            self._max_length = int(self._llm.model_config.max_model_len)
            self._token_budget = int(cache.num_gpu_blocks) * int(cache.block_size)
            self._thread.submit(self._begin(state)).result()
        except BaseException:
            self._free()
            raise

    async def _begin(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Gives the process its first weights, and somebody to end with."""
        pipe = f"/proc/{os.getpid()}/fd/{self._watched[0]}"
        self.pids: list[int] = await self._llm.collective_rpc("rollenv_end_with", args=(pipe,))
        await self._load(self._named(tensors))
        await self._llm.update_weight_version(str(self._version))

    # -- what it says of itself ----------------------------------------------------------------------------------------

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
        """Tokens that the cache holds, in whole blocks."""
        return self._token_budget

    def stats(self) -> VLLMStats:
        """Counters and state now."""
        counts = self._counts
        return VLLMStats(counts["prefilled"], counts["reused"], counts["decoded"], counts["updates"], len(self._calls))

    @property
    def folder(self) -> str:
        """Where vLLM read the model's config; gone when the engine is closed."""
        return self._folder.name

    async def check(self) -> None:
        """See `rollenv.inference.optional.Checked.check`."""
        self._ensure_alive()
        await self._there(self._llm.check_health())

    # -- completions ---------------------------------------------------------------------------------------------------

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams, *, session: str) -> Completion:
        """Continues `prompt_ids` (the whole prompt; what the prefix cache already holds is not computed again).

        A completion that reaches `max_length` ends there with `length`. A cancelled caller aborts its session.

        Raises:
            InvalidRequest: the prompt is too long or no token ids, the sampling makes no sense, the session is already
                generating, or stop strings were given without a tokenizer.
            EngineDead: the engine is closed, or its process has died.
            EngineError: vLLM failed.
        """
        prompt = list(prompt_ids)
        self._refuse(prompt, sampling, session)
        call = self._calls[session] = _Call(f"{session}#{next(self._numbers)}")
        work = asyncio.wrap_future(self._thread.submit(self._complete(call, prompt, sampling)))
        try:
            completion = await asyncio.shield(work)
        except asyncio.CancelledError as error:
            with contextlib.suppress(TimeoutError, EngineError):
                async with asyncio.timeout(ABORT_SECONDS):
                    await self._there(self._abort(call))
                    note_made(error, await work)
            work.cancel()
            raise
        finally:
            if self._calls.get(session) is call:
                del self._calls[session]
        return completion

    def _refuse(self, prompt: Sequence[int], sampling: SamplingParams, session: str) -> None:
        """Raises when a request cannot be served, before it costs anything."""
        self._ensure_alive()
        check_not_empty(prompt)
        check_ids(prompt, self._vocab)
        check_sampling(sampling)
        if len(prompt) >= self.max_length:
            raise InvalidRequest(
                f"the prompt has {len(prompt)} tokens, but the engine's context ends at {self.max_length}, completion "
                "included; shorten the history"
            )
        if sampling.stop and not self._can_stop_at_text:
            raise InvalidRequest("stop strings need VLLMEngine(model, tokenizer=...); or use stop_token_ids")
        if session in self._calls:
            raise InvalidRequest(f"session '{session}' is already generating; one completion at a time per session")

    async def _complete(self, call: _Call, prompt: list[int], sampling: SamplingParams) -> Completion:
        """On the engine's loop: hands the request to vLLM and waits for its end."""
        from vllm.inputs.engine import tokens_input

        call.task = asyncio.current_task()
        salt = None if self._stale_kv == "keep" else str(self._version)
        parameters = _parameters(sampling, min(sampling.max_tokens, self.max_length - len(prompt)))
        try:
            call.queue = await self._llm.add_request(call.name, tokens_input(prompt, cache_salt=salt), parameters)
            if call.aborted:
                await self._abort(call)
            output = await call.queue.get()
        except asyncio.CancelledError:
            await self._abort(call)
            raise
        except Exception as error:
            raise _translated(error) from error
        return self._booked(output)

    def _booked(self, output: Any) -> Completion:
        """The completion that vLLM has made, and its counts."""
        made = output.outputs[0]
        if made.finish_reason not in _REASONS:
            raise EngineError(f"vLLM ended a completion with '{made.finish_reason}'")
        ids = list(made.token_ids)
        versions = [int(span.version) for span in made.weight_versions or () for _ in range(span.start, span.end)]
        reused = int(output.num_cached_tokens or 0)
        self._counts["reused"] += reused
        self._counts["prefilled"] += len(output.prompt_token_ids) - reused if ids else 0
        self._counts["decoded"] += len(ids)
        return Completion(ids, list(made.logprobs.logprobs), versions, _REASONS[made.finish_reason])

    async def abort(self, session: str) -> None:
        """Ends what the session is generating; its `generate` returns with `aborted`."""
        if (call := self._calls.get(session)) is not None:
            await self._there(self._abort(call))

    async def release(self, session: str) -> None:
        """The session will not come back. Its cache is forgotten when others need the room."""
        await self.abort(session)

    async def _abort(self, call: _Call) -> None:
        call.aborted = True
        if call.queue is not None:
            await self._llm.abort(call.queue.request_id, internal=True)

    # -- weights -------------------------------------------------------------------------------------------------------

    async def update_weights(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Replaces the weights while generation pauses; running completions continue with the new ones.

        `tensors` are named as in `model.state_dict()`, all of them; of tied weights one name is enough. They are copied
        before this returns. `stale_kv` says what becomes of cached keys and values. A sleeping engine wakes.

        Raises:
            InvalidRequest: an unknown name, a wrong shape, or a name that is missing; nothing is changed then.
            EngineDead: the engine is closed, or its process has died.
            EngineError: loading failed half-way: this engine has ended.
        """
        self._ensure_alive()
        named = self._named(tensors)
        await asyncio.shield(self._there(self._update(version, named)))

    def _named(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The tensors under the names that vLLM loads; raises InvalidRequest when they are not the model's."""
        check_tensors(tensors, self._shapes)
        named = {self._names[name]: tensor for name, tensor in tensors.items()}
        for name in self._names.values():
            if name not in named:
                raise InvalidRequest(f"weight '{name}' is missing: vLLM puts layers together, so it needs all of them")
        return named

    async def _update(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        async with self._changing:
            await self._pause()
            try:
                await self._load(tensors)
                await self._llm.update_weight_version(str(version))
            except Exception as error:
                await self._end(f"an update failed half-way: {error}")
                raise
            self._version = version
            self._counts["updates"] += 1
            await self._go_on()

    async def _load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Sends the tensors through two buffers in turn: one is filled while the other is loaded."""
        manifest, sizes = layout(tensors, BUCKET_BYTES)
        put = self._put_on_gpu if on_gpu_of(self._device, tensors) else self._put_in_memory
        sent: asyncio.Future[Any] | None = None
        for i, size in enumerate(sizes):
            part = bucket_of(manifest, i)
            method, where = await asyncio.to_thread(put, i % 2, size, part, tensors)
            if sent is not None:
                await sent
            arguments = (*where, to_wire(part), i == 0, i == len(sizes) - 1)
            sent = asyncio.ensure_future(self._llm.collective_rpc(method, args=arguments))
        assert sent is not None
        await sent
        self._flats.clear()

    def _put_in_memory(self, turn: int, size: int, part: Manifest, tensors: Mapping[str, torch.Tensor]) -> Put:
        buffer = self._buffers[turn]
        fill(part, [buffer.sized(size)], tensors)
        return "rollenv_load", (buffer.path, size)

    def _put_on_gpu(self, turn: int, size: int, part: Manifest, tensors: Mapping[str, torch.Tensor]) -> Put:
        # A copy, as torch passes on no handles of what another process owns.
        flat = self._flats[turn] = torch.empty(size, dtype=torch.uint8, device=tensors[part[0].name].device)
        fill(part, [flat], tensors)
        return "rollenv_load_handles", (pickle.dumps(handles_of({"bucket": flat})),)

    # -- sleep ---------------------------------------------------------------------------------------------------------

    async def sleep(self) -> None:
        """See `rollenv.inference.optional.Sleeping.sleep`."""
        self._ensure_alive()
        await asyncio.shield(self._there(self._fall_asleep()))

    async def wake(self) -> None:
        """See `rollenv.inference.optional.Sleeping.wake`."""
        self._ensure_alive()
        await asyncio.shield(self._there(self._wake_up()))

    async def _fall_asleep(self) -> None:
        async with self._changing:
            if self._can_sleep:
                await self._llm.sleep(level=1, mode="keep")
            else:
                await self._llm.pause_generation(mode="keep", clear_cache=True)
            self._asleep = True

    async def _wake_up(self) -> None:
        async with self._changing:
            if self._asleep:
                await self._go_on()

    async def _pause(self) -> None:
        """Stops between two steps. A sleeping engine has stopped, but may need its memory."""
        if not self._asleep:
            await self._llm.pause_generation(mode="keep", clear_cache=self._stale_kv == "recompute")
        elif self._can_sleep:
            await self._llm.wake_up()
            await self._llm.pause_generation(mode="keep", clear_cache=False)

    async def _go_on(self) -> None:
        if self._asleep and self._can_sleep:
            await self._llm.wake_up()
        await self._llm.resume_generation()
        self._asleep = False

    # -- its end -------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Ends all work (running completions return with `aborted`) and the process."""
        if self._dead == "the engine is closed":
            return
        with contextlib.suppress(EngineError):
            await self._there(self._end("the engine is closed"))
        await asyncio.to_thread(self._free)

    async def _end(self, why: str) -> None:
        """Serves nothing any more; what runs returns with what there is."""
        self._dead = why
        calls = list(self._calls.values())
        for call in calls:
            with contextlib.suppress(Exception):  # a dead process aborts nothing
                await self._abort(call)
        if tasks := [call.task for call in calls if call.task is not None]:
            await asyncio.wait(tasks, timeout=ABORT_SECONDS)

    def _free(self) -> None:
        if self._llm is not None:
            self._llm.shutdown(timeout=0)
            if self._llm.output_handler is not None:
                with contextlib.suppress(Exception):
                    self._thread.submit(_over(self._llm.output_handler)).result(ABORT_SECONDS)
            self._llm = None  # it shuts itself down once more when it goes, for which the interpreter's end is too late
        self._thread.stop()
        for buffer in self._buffers:
            buffer.close()
        for end in self._watched:
            os.close(end)
        self._folder.cleanup()

    def _ensure_alive(self) -> None:
        if self._dead:
            raise EngineDead(self._dead)

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs `work` on the engine's own loop."""

        async def translated() -> T:
            try:
                return await work
            except EngineError:
                raise
            except Exception as error:
                raise _translated(error) from error

        try:
            future: Future[T] = self._thread.submit(translated())
        except RuntimeError as error:
            work.close()
            raise EngineDead("the engine is closed") from error
        return await asyncio.wrap_future(future)


# -- to and from vLLM ------------------------------------------------------------------------------------------------


async def _over(task: asyncio.Task[Any]) -> None:
    await asyncio.wait([task])


def on_gpu_of(device: str, tensors: Mapping[str, torch.Tensor]) -> bool:
    """Whether all tensors are in the memory of the very GPU that is meant: another one's may be out of reach there."""
    gpu = gpu_of(device)
    return bool(gpu) and {gpu_of(where) for where in {tensor.device for tensor in tensors.values()}} == {gpu}


def _parameters(sampling: SamplingParams, limit: int) -> Any:
    """vLLM's sampling parameters: nothing ends a completion but what `sampling` says."""
    from vllm import SamplingParams as Parameters
    from vllm.sampling_params import RequestOutputKind

    return Parameters(
        max_tokens=limit,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        seed=sampling.seed & SEED_MASK,
        stop_token_ids=list(sampling.stop_token_ids),
        stop=list(sampling.stop),
        ignore_eos=True,
        logprobs=0,
        flat_logprobs=True,
        detokenize=bool(sampling.stop),
        skip_special_tokens=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def _translated(error: Exception) -> EngineError:
    from vllm.v1.engine.exceptions import EngineDeadError

    if isinstance(error, EngineDeadError):
        return EngineDead("vLLM's process has died")
    cause = error.__cause__ or error
    return EngineError(f"vLLM failed: {type(cause).__name__}: {cause!s:.300}")
