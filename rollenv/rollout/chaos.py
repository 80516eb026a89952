"""Chaos: faults put into a run on purpose, to see that it lives through them and that none of them is trained on.

Each call of an environment (reset, step) or an engine (generate) draws for each fault whether it strikes. A draw
follows from the run's seed, the episode's place, the attempt, the call and the fault's name: a chaos run is
reproducible, a retry draws anew, and one more fault in the settings leaves the others where they were.

Invariant: whatever an injected fault breaks carries its name (`Failure.injected`), and nothing else does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar, runtime_checkable

from rollenv.config.rollout import InjectConfig
from rollenv.inference.base import Completion, Engine, EngineError, SamplingParams
from rollenv.rollout.episode import EpisodeEnv, EpisodeLimits, EpisodeRequest, Fault
from rollenv.rollout.layers import EngineLayer, Layer
from rollenv.seeding import derive_seed
from rollenv.trajectory import Trajectory

T = TypeVar("T")


class InjectedCrash(Exception):
    """What an environment raises when chaos breaks it."""


@runtime_checkable
class Killable(Protocol):
    """An environment that lives where it can be killed for good, in a process of its own."""

    def kill(self) -> None:
        """Ends that process as a crash would; whoever calls the environment next finds it dead."""
        ...


class Chaos:
    """Makes the layers through which faults reach the episodes of a run.

    Args:
        config: how likely each fault is.
        seed: the run's.
        limits: those of an episode. A hang ends at its deadline here as well: where environments live in processes,
            these processes keep the deadlines, and know nothing of a hang that is only played.
    """

    def __init__(self, config: InjectConfig, seed: int, limits: EpisodeLimits) -> None:
        self.config, self._seed, self._limits = config, derive_seed(seed, "chaos"), limits

    def layer(self, request: EpisodeRequest) -> Layer:
        """The faults of one attempt: to be put among the `layers` of a play, as the first of them."""
        tries = (request.attempt, request.collateral, request.life)
        place = (self._seed, request.seed, request.group, request.sample, *tries)  # a branch has a seed of its own
        return _Faults(self.config, place, self._limits)


class _Faults(Layer):
    """The faults of one attempt. `under_way` is the one that strikes at the moment."""

    def __init__(self, config: InjectConfig, place: tuple[int, ...], limits: EpisodeLimits) -> None:
        self.config, self.limits, self._place = config, limits, place
        self.under_way = ""

    def strikes(self, fault: str, call: str, index: int) -> bool:
        """Whether `fault` strikes at the `index`-th such call; from then on it is under way."""
        probability: float = getattr(self.config, fault)
        if probability <= 0 or derive_seed(*self._place, call, index, fault) >= probability * 2**63:
            return False
        self.under_way = fault
        return True

    def env(self, env: EpisodeEnv) -> EpisodeEnv:
        return _FaultyEnv(env, self)

    def engine(self, engine: Engine) -> Engine:
        return _FaultyEngine(engine, self)

    def ended(self, trajectory: Trajectory) -> None:
        failure, place = trajectory.failure, "engine" if self.under_way.startswith("engine") else "env"
        if failure is not None and self.under_way and failure.where == place:
            said = "injected" in failure.message
            message = failure.message if said else f"injected {self.under_way}: {failure.message}"
            # Who was made to break its worker is not collateral, whomever the worker was busy with.
            trajectory.failure = replace(failure, message=message, injected=self.under_way, collateral=False)


class _FaultyEnv:
    """An environment that crashes, hangs or is slow."""

    def __init__(self, inner: EpisodeEnv, faults: _Faults) -> None:
        self._inner, self._faults, self._steps = inner, faults, 0

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        await self._before("reset", 0, self._faults.limits.reset_seconds)
        began = asyncio.get_running_loop().time()
        result = await self._inner.areset(seed=seed, options=options)
        return await self._after("reset", 0, began, result)

    async def asnapshot(self) -> bytes:
        snapshot: bytes = await self._inner.asnapshot()  # type: ignore[attr-defined]
        return snapshot

    async def arestore(self, snapshot: bytes, *, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        await self._before("reset", 0, self._faults.limits.reset_seconds)
        began = asyncio.get_running_loop().time()
        restored = await self._inner.arestore(snapshot, seed=seed)  # type: ignore[attr-defined]
        result: tuple[str, dict[str, Any]] = await self._after("reset", 0, began, restored)
        return result

    async def astep(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        index, self._steps = self._steps, self._steps + 1
        await self._before("step", index, self._faults.limits.step_seconds)
        began = asyncio.get_running_loop().time()
        result = await self._inner.astep(action)
        return await self._after("step", index, began, result)

    async def _before(self, call: str, index: int, seconds: float | None) -> None:
        if self._faults.strikes("worker_crash", call, index):
            if not isinstance(self._inner, Killable):
                raise InjectedCrash("injected worker_crash")
            self._inner.kill()  # the call that follows meets a dead process, as after any other crash
        elif self._faults.strikes("env_crash", call, index):
            raise InjectedCrash("injected env_crash")
        elif self._faults.strikes("env_hang", call, index):
            await _hang(seconds)
            raise Fault("env", "timeout", f"{call} took longer than {seconds} s")

    async def _after(self, call: str, index: int, began: float, result: T) -> T:
        if self._faults.under_way.startswith("engine"):
            return result  # of a program that asked while this step was under way: the episode ends with that
        self._faults.under_way = ""  # it came through: what breaks later has another cause
        if self._faults.strikes("slow_env", call, index):
            config, took = self._faults.config, asyncio.get_running_loop().time() - began
            await asyncio.sleep(max((config.slow_factor - 1) * took, config.slow_seconds))
            self._faults.under_way = ""
        return result


class _FaultyEngine(EngineLayer):
    """An engine that fails or hangs, for one episode."""

    def __init__(self, inner: Engine, faults: _Faults) -> None:
        super().__init__(inner)
        self._faults, self._calls = faults, 0

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams, *, session: str) -> Completion:
        index, self._calls = self._calls, self._calls + 1
        if self._faults.strikes("engine_error", "generate", index):
            raise EngineError("injected engine_error")
        if self._faults.strikes("engine_hang", "generate", index):
            await _hang(None)
        return await self.inner.generate(prompt_ids, sampling, session=session)


async def _hang(seconds: float | None) -> None:
    """Does nothing for so long, or for ever; blocks nobody, and ends at once when it is cancelled."""
    if seconds is not None:
        await asyncio.sleep(seconds)
    else:
        await asyncio.get_running_loop().create_future()
