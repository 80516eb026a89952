"""Bringing up vLLM's process: what it reads of a model, its arguments, and the environment it is started in."""

from __future__ import annotations

import contextlib
import copy
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rollenv.errors import RollenvError
from rollenv.executor import LoopThread

QUIET = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
"""Environment of vLLM where it is not set already. A fork of a process in which torch has computed may hang."""

ON_CPU = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # engines and trainer share the cores
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # its process computes itself, rather than in one more process
    "TORCH_COMPILE_DISABLE": "1",  # what is compiled needs a compiler and a minute, and gains nothing
}
"""The same, on a CPU."""

_starting = threading.Lock()


def write_model(model: Any, tokenizer: Any, folder: Path) -> None:
    """What vLLM reads of a model but its weights."""
    config = copy.deepcopy(model.config)
    config._attn_implementation = None  # an engine's or a trainer's own is not the model's
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)


def started(thread: LoopThread, folder: str, with_tokenizer: bool, device: str, arguments: Mapping[str, Any]) -> Any:
    """vLLM's client, with its process.

    Raises:
        RollenvError: it is not installed, or does not start.
    """
    with _starting, _environment(device):
        return _start(thread, folder, with_tokenizer, device, arguments)


def _start(thread: LoopThread, folder: str, with_tokenizer: bool, device: str, arguments: Mapping[str, Any]) -> Any:
    try:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.platforms import current_platform
        from vllm.v1.engine.async_llm import AsyncLLM
    except ImportError as error:
        raise RollenvError(
            f"engine 'vllm' cannot be loaded ({error}): pip install 'rollenv[vllm]' where there is a GPU, see "
            "docs/inference.md for a CPU, or say rollout.engine=torch"
        ) from error
    if current_platform.is_cpu() != (device == "cpu"):
        built = "a CPU" if current_platform.is_cpu() else "GPUs"
        raise RollenvError(f"this vLLM is built for {built}, and the device is '{device}': say another device=...")

    async def start() -> Any:
        return AsyncLLM.from_engine_args(
            AsyncEngineArgs(
                model=folder,
                load_format="dummy",  # the weights come with the first update
                skip_tokenizer_init=not with_tokenizer,
                generation_config="vllm",
                logprobs_mode="processed_logprobs",
                enable_prefix_caching=True,
                worker_extension_cls="rollenv.inference.vllm_worker.WorkerExtension",
                disable_log_stats=True,
                **arguments,
            )
        )

    try:
        return thread.submit(start()).result()
    except Exception as error:
        raise RollenvError(f"vLLM does not start with this model and these settings: {_first_line(error)}") from error


@contextlib.contextmanager
def _environment(device: str) -> Iterator[None]:
    """The environment of the processes that are started inside. vLLM changes it on its own, too (libraries that are to
    be loaded first, ...): whatever else this process starts later shall not have it."""
    before = dict(os.environ)
    for name, value in {**QUIET, **(ON_CPU if device == "cpu" else {})}.items():
        os.environ.setdefault(name, value)
    _, colon, index = device.partition(":")
    if colon:
        seen = before.get("CUDA_VISIBLE_DEVICES")
        os.environ["CUDA_VISIBLE_DEVICES"] = seen.split(",")[int(index)] if seen else index
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{(lines or [type(error).__name__])[0]:.300}"
