"""Layers: what may stand between one episode and its environment and engine, without either noticing.

A layer is made when an attempt begins and told when it has ended. The timeline watches through one, chaos breaks
things through one. Invariant: an episode played through a plain `Layer` is the episode played without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from rollenv.inference import optional
from rollenv.inference.base import Completion, Engine, SamplingParams, fork
from rollenv.rollout.episode import EpisodeEnv, EpisodeRequest
from rollenv.trajectory import Trajectory

if TYPE_CHECKING:
    import torch


class Layer:
    """Passes everything through; a subclass puts itself in between where it likes."""

    def env(self, env: EpisodeEnv) -> EpisodeEnv:
        """The environment as the episode shall see it."""
        return env

    def engine(self, engine: Engine) -> Engine:
        """The engine as the episode shall see it."""
        return engine

    def ended(self, trajectory: Trajectory) -> None:
        """The attempt is over; what is written into its trajectory here is what the scheduler gets to see."""


MakeLayer = Callable[[EpisodeRequest], Layer]
"""Makes the layer of one attempt."""


class Layers(Layer):
    """The layers of one attempt as one, the first next to the world and the last next to the episode."""

    def __init__(self, makers: Sequence[MakeLayer], request: EpisodeRequest) -> None:
        self._layers = [make(request) for make in makers]

    def env(self, env: EpisodeEnv) -> EpisodeEnv:
        for layer in self._layers:
            env = layer.env(env)
        return env

    def engine(self, engine: Engine) -> Engine:
        for layer in self._layers:
            engine = layer.engine(engine)
        return engine

    def ended(self, trajectory: Trajectory) -> None:
        for layer in self._layers:
            layer.ended(trajectory)


class EngineLayer:
    """An engine that passes every call on to `inner`."""

    def __init__(self, inner: Engine) -> None:
        self.inner = inner

    @property
    def version(self) -> int:
        """That of `inner`, as all the others."""
        return self.inner.version

    @property
    def max_length(self) -> int | None:
        return self.inner.max_length

    @property
    def token_budget(self) -> int | None:
        return self.inner.token_budget

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams, *, session: str) -> Completion:
        return await self.inner.generate(prompt_ids, sampling, session=session)

    async def abort(self, session: str) -> None:
        await self.inner.abort(session)

    async def release(self, session: str) -> None:
        await self.inner.release(session)

    async def fork(self, source: str, session: str) -> None:
        await fork(self.inner, source, session)

    async def update_weights(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        await self.inner.update_weights(version, tensors)

    async def check(self) -> None:
        await optional.check(self.inner)

    async def sleep(self) -> None:
        await optional.sleep(self.inner)

    async def wake(self) -> None:
        await optional.wake(self.inner)

    async def close(self) -> None:
        await self.inner.close()
