"""Engines: token ids in, token ids out.

`TorchEngine` (embedded, torch and transformers' model classes), `ScriptedEngine` (a function, for tests and
simulations) and `LLMProxy` (many engines as one) keep the same `Engine` protocol. Importing this package loads neither
torch nor transformers: `TorchEngine` and `EngineStats` are loaded when they are first asked for.
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
]


def __getattr__(name: str) -> object:
    if name in ("TorchEngine", "EngineStats"):
        from rollenv.inference import torch_engine

        return getattr(torch_engine, name)
    raise AttributeError(f"module 'rollenv.inference' has no attribute '{name}'")
