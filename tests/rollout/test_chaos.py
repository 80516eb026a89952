"""Injected faults: as many as were asked for, the same ones each time, labelled with their name, and nobody else's."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inference.clock import run_jumping
from pydantic import ValidationError
from rollout.fakes import Fragile, Recorder, babbles, model_play

from rollenv.config import InjectConfig
from rollenv.rollout.chaos import Chaos
from rollenv.rollout.controller import collect
from rollenv.rollout.episode import EpisodeRequest
from rollenv.rollout.groups import Group, GroupRequest
from rollenv.rollout.layers import Layer
from rollenv.rollout.play import ModelPlay
from rollenv.rollout.scheduler import Scheduler
from rollenv.trajectory import Failure, StopReason, Trajectory


class Inline(Fragile):
    executor = "inline"


def fragile(fault: str = "") -> Callable[[], Fragile]:
    return lambda: Inline(lambda task, tried: fault, Counter(), threading.Event())


def injected(seed: int = 0, env: Any = None, engine: Any = None, **faults: Any) -> ModelPlay:
    """A play with faults; deadlines are short beside a slow call and long beside anything else."""
    play = model_play(env or fragile(), engine or Recorder(babbles), step_seconds=5.0, generate_seconds=7.0)
    return replace(play, layers=(Chaos(InjectConfig(**faults), seed, play.limits).layer,))


REQUEST = EpisodeRequest("t1", seed=7, group=4, sample=2)

LABELS = {
    "env_crash": ("env", "crash", "reset: InjectedCrash: injected env_crash"),
    "worker_crash": ("env", "crash", "reset: InjectedCrash: injected worker_crash"),
    "env_hang": ("env", "timeout", "injected env_hang: reset took longer than 60.0 s"),
    "engine_error": ("engine", "crash", "generate: EngineError: injected engine_error"),
    "engine_hang": ("engine", "timeout", "injected engine_hang: generate took longer than 7.0 s"),
}


@pytest.mark.parametrize("fault", LABELS)
def test_a_certain_fault_is_labelled_with_its_name(fault: str) -> None:
    play = injected(**{fault: 1.0})
    trajectory = run_jumping(play(REQUEST))
    where, kind, message = LABELS[fault]
    assert trajectory.failure == Failure(where, kind, message, None, injected=fault)  # type: ignore[arg-type]
    assert trajectory.failure.label == f"injected/{fault}"
    assert trajectory.stop is StopReason.FAILED
    assert not trajectory.trainable
    assert play.engine.aborted == ["train/4/2/0"]  # type: ignore[attr-defined]


def test_a_slow_environment_is_slow_and_nothing_else() -> None:
    async def seconds(play: ModelPlay) -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        trajectory = await play(REQUEST)
        assert (trajectory.stop, trajectory.failure, trajectory.reward) == (StopReason.TERMINATED, None, 0.75)
        return loop.time() - began

    assert run_jumping(seconds(injected())) == 0.0
    assert run_jumping(seconds(injected(slow_env=1.0))) == pytest.approx(4 * 1.0)
    assert run_jumping(seconds(injected(env=Sleepy, slow_env=1.0))) == pytest.approx(4 * 0.25 * 10)
    assert run_jumping(seconds(injected(env=Sleepy, slow_env=1.0, slow_factor=2))) == pytest.approx(4 * (0.25 + 1))


class Sleepy(Inline):
    """Takes a quarter of a second for everything."""

    def __init__(self) -> None:
        super().__init__(lambda task, tried: "", Counter(), threading.Event())

    async def areset(self, **options: Any) -> Any:
        await asyncio.sleep(0.25)
        return await super().areset(**options)

    async def astep(self, action: str) -> Any:
        await asyncio.sleep(0.25)
        return await super().astep(action)


def test_slowness_beyond_the_deadline_is_its_own_fault() -> None:
    trajectory = run_jumping(injected(slow_env=1.0, slow_seconds=59.0)(REQUEST))
    assert trajectory.failure is not None
    assert trajectory.failure.label == "injected/slow_env"
    assert trajectory.failure.kind == "timeout"


@pytest.mark.parametrize("fault", [f for f in Fragile.FAULTS if "hang" not in f])
def test_a_real_fault_keeps_its_own_label_amid_chaos(fault: str) -> None:
    """Every call is slow on purpose, and something else breaks."""
    play, plain = injected(env=fragile(fault), slow_env=1.0), model_play(fragile(fault))
    trajectory = run_jumping(play(REQUEST))
    assert trajectory.failure is not None
    assert trajectory.failure == run_jumping(plain(REQUEST)).failure
    assert trajectory.failure.injected == ""


def test_a_hang_ends_at_once_when_it_is_cancelled_and_is_then_no_fault() -> None:
    async def main() -> Trajectory:
        task = asyncio.ensure_future(injected(env_hang=1.0)(REQUEST))
        await asyncio.sleep(1.0)
        task.cancel()
        began = asyncio.get_running_loop().time()
        trajectory = await task
        assert asyncio.get_running_loop().time() == began
        return trajectory

    trajectory = run_jumping(main())
    assert (trajectory.stop, trajectory.failure) == (StopReason.ABORTED, None)


def test_a_hang_ends_where_the_episode_itself_watches_no_deadline() -> None:
    play = injected(env_hang=1.0)
    play = replace(play, limits=replace(play.limits, reset_seconds=None, step_seconds=None))
    trajectory = run_jumping(play(REQUEST))
    assert trajectory.failure is not None
    assert (trajectory.failure.label, trajectory.failure.kind) == ("injected/env_hang", "timeout")
    assert trajectory.failure.message == "injected env_hang: reset took longer than 60.0 s"


class Killed(Inline):
    """Lives in a process of its own, as it were: once killed, its calls fail."""

    alive = True

    def __init__(self, immortal: bool = False) -> None:
        super().__init__(lambda task, tried: "", Counter(), threading.Event())
        self._immortal = immortal

    def kill(self) -> None:
        self.alive = self._immortal

    async def areset(self, **options: Any) -> Any:
        if not self.alive:
            raise BrokenPipeError("the worker has died")
        return await super().areset(**options)


def test_an_environment_in_a_process_of_its_own_is_killed_rather_than_faked() -> None:
    trajectory = run_jumping(injected(env=Killed, worker_crash=1.0)(REQUEST))
    assert trajectory.failure is not None
    assert trajectory.failure.message == "injected worker_crash: reset: BrokenPipeError: the worker has died"
    unharmed = run_jumping(injected(env=lambda: Killed(immortal=True), worker_crash=1.0)(REQUEST))
    assert (unharmed.stop, unharmed.failure) == (StopReason.TERMINATED, None)


# -- many episodes -----------------------------------------------------------------------------------------------

REQUESTS = [GroupRequest(i, f"t{i}", 4, 1) for i in range(60)]
MIX = {"env_crash": 0.05, "env_hang": 0.03, "slow_env": 0.05, "engine_error": 0.04, "engine_hang": 0.02}


class Calls(Layer):
    """Counts the calls that reach chaos: it stands in front of it."""

    def __init__(self, counts: Counter[str]) -> None:
        self.counts = counts

    def env(self, env: Any) -> Any:
        counts = self.counts

        class Counted:
            async def areset(self, **options: Any) -> Any:
                counts["env"] += 1
                return await env.areset(**options)

            async def astep(self, action: str) -> Any:
                counts["env"] += 1
                return await env.astep(action)

        return Counted()


def played(
    concurrency: int, seed: int = 0, n: int = len(REQUESTS), counts: Counter[str] | None = None, **faults: float
) -> Any:
    async def main() -> tuple[list[Group], Scheduler]:
        play = injected(seed, **faults)
        if counts is not None:
            play = replace(play, layers=(*play.layers, lambda request: Calls(counts)))
        scheduler = Scheduler(play, concurrency, max_attempts=4, give_up_after=10**6)
        groups = await collect(scheduler, REQUESTS[:n])
        await scheduler.close()
        return groups, scheduler

    return run_jumping(main())


def test_a_chaos_run_is_reproducible_whatever_the_order_and_differs_by_seed() -> None:
    groups, scheduler = played(8, **MIX)
    for concurrency in (1, 240):
        others, other = played(concurrency, **MIX)
        assert other.ledger.failures == scheduler.ledger.failures
        assert [t.to_dict() | {"turns": 0} for g in others for t in g.trajectories] == [
            t.to_dict() | {"turns": 0} for g in groups for t in g.trajectories
        ]
    assert played(8, seed=1, **MIX)[1].ledger.failures != scheduler.ledger.failures


def test_faults_strike_as_often_as_they_were_asked_to() -> None:
    """Six standard deviations of a binomial are allowed."""
    counts: Counter[str] = Counter()
    _, scheduler = played(16, counts=counts, env_crash=0.1)
    struck, n = scheduler.ledger.failures["injected/env_crash"], counts["env"]
    assert abs(struck - 0.1 * n) < 6 * (n * 0.1 * 0.9) ** 0.5


def test_one_more_fault_leaves_the_others_where_they_were() -> None:
    """Slowness breaks nothing, so everything else is as it was without it."""
    without = {name: p for name, p in MIX.items() if name != "slow_env"}
    assert played(8, **without)[1].ledger.failures == played(8, **MIX)[1].ledger.failures


def test_what_survives_chaos_equals_what_was_played_without_it() -> None:
    """Retries draw anew, so that every episode is finished in the end, with the tokens it would have had."""
    clean, _ = played(8)
    groups, scheduler = played(8, **MIX)
    ledger = scheduler.ledger
    assert ledger.failed > 30
    assert set(ledger.failures) == {f"injected/{name}" for name in MIX if name != "slow_env"}
    assert ledger.balanced
    assert ledger.in_flight == 0
    for ours, theirs in zip(groups, clean, strict=True):
        for a, b in zip(ours.trajectories, theirs.trajectories, strict=True):
            if a.stop is StopReason.FAILED:
                assert a.attempt == 3
                assert not a.trainable
                continue
            assert [t.completion_ids for t in a.turns] == [t.completion_ids for t in b.turns]
            assert (a.reward, a.success) == (b.reward, b.success)


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.sampled_from(sorted(MIX)), st.floats(0.05, 0.6), st.integers(1, 20))
def test_the_ledger_balances_and_no_failure_trains(seed: int, fault: str, p: float, concurrency: int) -> None:
    groups, scheduler = played(concurrency, seed, 8, **{fault: p})
    assert scheduler.ledger.balanced
    trajectories = [t for g in groups for t in g.trajectories]
    assert len(trajectories) == 32
    assert all((t.failure is None) == t.trainable for t in trajectories)
    assert scheduler.ledger.failed == scheduler.ledger.retried + sum(not t.trainable for t in trajectories)


# -- settings ----------------------------------------------------------------------------------------------------


def test_nothing_is_injected_unless_asked_for() -> None:
    assert not InjectConfig().active  # type: ignore[call-arg]
    assert not InjectConfig(slow_factor=3, slow_seconds=9).active  # type: ignore[call-arg]
    for fault in MIX:
        assert InjectConfig(**{fault: 0.001}).active


@pytest.mark.parametrize("wrong", [{"env_crash": 1.5}, {"engine_error": -0.1}, {"env_crush": 0.1}, {"slow_factor": 0}])
def test_wrong_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        InjectConfig(**wrong)  # type: ignore[arg-type]
