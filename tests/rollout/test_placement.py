"""Where environments run: the setting before the spec, the spec before the class, the class before a measurement."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from conformance.toy import Corridor
from hypothesis import given
from hypothesis import strategies as st
from rollout import worker_envs

import rollenv
from rollenv.config.rollout import RolloutConfig
from rollenv.errors import RollenvError
from rollenv.registration import EnvSpec
from rollenv.rollout import placement
from rollenv.rollout.env_pool import EnvPool
from rollenv.rollout.env_workers import WorkerPool
from rollenv.rollout.placement import Cost, advised, declared, measured, probe


class Inline(Corridor):
    executor = "inline"


class OfInline(Inline):
    pass


def test_who_says_something_is_heard_in_order() -> None:
    silent, threaded = EnvSpec("A-v0", Corridor), EnvSpec("A-v0", Corridor, placement="thread")
    for setting in ("inline", "thread", "process"):
        assert declared(setting, threaded, Inline) == setting
    assert declared("auto", threaded, Inline) == "thread"
    assert declared("auto", silent, Inline) == declared("auto", silent, OfInline) == "inline"
    assert declared("auto", silent, Corridor) is None
    assert declared("auto", rollenv.spec("webshop"), Corridor) == "inline"


SECONDS = st.floats(0, 10)


@given(SECONDS, SECONDS, st.floats(0, 1))
def test_advice(reset: float, step: float, share: float) -> None:
    advice = advised(Cost(reset, step, step * share))
    if step > 200e-6 or reset > 2e-3:
        assert advice != "inline"  # nothing that long holds up the loop
    else:
        assert advice == "inline"
    if step * share < 1e-3 or share < 0.24:
        assert advice != "process"  # waiting needs no core of its own


def test_advice_by_hand() -> None:
    assert advised(Cost(100e-6, 50e-6, 50e-6)) == "inline"
    assert advised(Cost(0.1, 5e-3, 5e-3)) == "process"
    assert advised(Cost(1e-3, 5e-3, 0.2e-3)) == "thread"
    assert advised(Cost(1e-3, 0.5e-3, 0.5e-3)) == "thread"


def test_a_measurement_tells_computing_from_waiting() -> None:
    slow, patient = probe(worker_envs.Slow()), probe(worker_envs.Patient())
    assert slow is not None
    assert patient is not None
    assert slow.computing >= 0.003
    assert patient.step >= 0.003
    assert patient.computing < patient.step


def test_what_computes_gets_processes_if_it_can_be_made_there(monkeypatch: Any) -> None:
    monkeypatch.setattr(placement, "probe", lambda env: Cost(0.1, 5e-3, 4e-3))
    assert measured(EnvSpec("Slow-v0", worker_envs.Slow), worker_envs.Slow(), {}) == "process"
    assert measured(EnvSpec("Slow-v0", lambda: worker_envs.Slow()), worker_envs.Slow(), {}) == "thread"


def test_one_that_breaks_or_hangs_when_it_is_measured_gets_a_thread() -> None:
    freed = threading.Event()

    class Hangs(Corridor):
        def reset(self, **options: Any) -> Any:
            freed.wait(60)
            return super().reset(**options)

    class Breaks(Corridor):
        def step(self, action: str) -> Any:
            raise SystemExit(3)

    assert probe(Hangs(), seconds=0.1) is None
    freed.set()
    assert probe(Breaks()) is None
    assert measured(EnvSpec("Breaks-v0", Breaks), Breaks(), {}) == "thread"


# -- the one place where pools are made --------------------------------------------------------------------------


def config(**settings: Any) -> RolloutConfig:
    return RolloutConfig(**settings)


@pytest.fixture
def env_pool() -> Any:
    pytest.importorskip("torch")
    from rollenv.rollout.setup import env_pool

    return env_pool


def test_pools_are_made_as_declared(env_pool: Any) -> None:
    local = env_pool(EnvSpec("Corridor-v0", Corridor, placement="inline", max_concurrency=2), {}, config())
    assert isinstance(local, EnvPool)
    assert local.tasks.name == "corridor"
    assert local._idle[0].executor == "inline"
    local.close()
    spec = EnvSpec("Corridor-v0", "conformance.toy:Corridor", placement="process")
    remote = env_pool(spec, {}, config(env_workers=2, step_seconds=7.0))
    assert isinstance(remote, WorkerPool)
    assert len(remote.workers) == 2
    assert remote.tasks.sha256(remote.tasks.ids("train")) == local.tasks.sha256(local.tasks.ids("train"))
    assert remote._seconds == (60.0, 7.0)
    remote.close()
    assert remote.workers == []


def test_an_environment_that_was_measured_is_not_played_again(env_pool: Any) -> None:
    made: list[Corridor] = []

    def make() -> Corridor:
        made.append(Corridor())
        return made[-1]

    pool = env_pool(EnvSpec("Corridor-v0", make), {}, config())
    assert pool.tasks is made[1].tasks
    assert made[0].task is not None
    assert made[1].task is None
    pool.close()


def test_processes_that_are_asked_for_and_impossible_are_refused(env_pool: Any) -> None:
    spec = EnvSpec("Corridor-v0", lambda: Corridor())
    with pytest.raises(RollenvError, match=r"rollout.env_executor=thread"):
        env_pool(spec, {}, config(env_executor="process"))


def test_what_a_spec_may_say_is_checked(temp_registry: Any) -> None:
    spec = rollenv.register("Somewhere-v0", Corridor, placement="process", max_concurrency=4)
    assert (spec.placement, spec.max_concurrency) == ("process", 4)
    with pytest.raises(RollenvError, match=r"placement must be one of .* did you mean 'process'"):
        rollenv.register("Somewhere-v0", Corridor, placement="processes")  # type: ignore[arg-type]
    with pytest.raises(RollenvError, match="max_concurrency must be at least 1, not 0"):
        rollenv.register("Somewhere-v0", Corridor, max_concurrency=0)
