"""Engines: token ids in, token ids out.

`TorchEngine` (embedded, torch and transformers' model classes), `VLLMEngine` (vLLM, in a process of its own),
`ScriptedEngine` (a function, for tests and simulations) and `LLMProxy` (many engines as one) keep the same `Engine`
protocol. Importing this package loads neither torch nor transformers: `TorchEngine`, `EngineStats` and `VLLMEngine` are
loaded when they are first asked for, and vLLM when one is made.
"""

from typing import TYPE_CHECKING

from rollenv.inference.base import (
    Completion,
    Engine,
    EngineDead,
    EngineError,
    FinishReason,
    InvalidRequest,
    SamplingParams,
)
from rollenv.inference.proxy import LLMProxy
from rollenv.inference.routing import ReplicaStats, RoutingStats
from rollenv.inference.simulated import ScriptedEngine

if TYPE_CHECKING:
    from rollenv.inference.torch_engine import EngineStats, TorchEngine
    from rollenv.inference.vllm_engine import VLLMEngine

__all__ = [
    "Completion",
    "Engine",
    "EngineDead",
    "EngineError",
    "EngineStats",
    "FinishReason",
    "InvalidRequest",
    "LLMProxy",
    "ReplicaStats",
    "RoutingStats",
    "SamplingParams",
    "ScriptedEngine",
    "TorchEngine",
    "VLLMEngine",
]


def __getattr__(name: str) -> object:
    if name in ("TorchEngine", "EngineStats"):
        from rollenv.inference import torch_engine

        return getattr(torch_engine, name)
    if name == "VLLMEngine":
        from rollenv.inference.vllm_engine import VLLMEngine

        return VLLMEngine
    raise AttributeError(f"module 'rollenv.inference' has no attribute '{name}'")
