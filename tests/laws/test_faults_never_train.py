"""Law 3: a fault is not a reward. It is labelled, tried again on a fresh environment, and never trains."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout.fakes import Fragile, Recorder, babbles, model_play, run

from rollenv.inference import Completion, LLMProxy
from rollenv.rollout.controller import collect
from rollenv.rollout.groups import Group, GroupRequest
from rollenv.rollout.scheduler import Scheduler
from rollenv.trajectory import StopReason

REQUESTS = [GroupRequest(i, f"t{i}", 2, 1) for i in range(3)]


@pytest.fixture
def freed() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def collected(scheduler: Scheduler) -> list[Group]:
    async def main() -> list[Group]:
        groups = await collect(scheduler, REQUESTS)
        await scheduler.close()
        return groups

    return run(main())


@pytest.mark.parametrize("fault", ["step crash", "step hang", "reset crash", "nan", "bytes"])
def test_a_fault_is_retried_on_a_fresh_environment_and_leaves_no_trace(freed: threading.Event, fault: str) -> None:
    """The first try of every task breaks; what is delivered equals what a world without faults delivers."""
    made: list[Fragile] = []
    tries: Counter[str] = Counter()

    def make(broken: bool) -> Fragile:
        made.append(Fragile(lambda task, tried: fault if broken and tried == 0 else "", tries, freed))
        return made[-1]

    seconds = {"reset_seconds": 30.0, "step_seconds": 0.5 if fault == "step hang" else 30.0}
    clean = collected(Scheduler(model_play(lambda: make(False), Recorder(babbles)), 4))
    tries.clear()
    engine = Recorder(babbles)
    scheduler = Scheduler(model_play(lambda: make(True), engine, **seconds), 4)
    groups = collected(scheduler)
    ledger = scheduler.ledger
    assert (ledger.failed, ledger.retried, ledger.finished, ledger.in_flight) == (3, 3, 6, 0)
    assert ledger.balanced
    (label,) = ledger.failures
    assert label.startswith("env/")
    assert len(engine.aborted) == 3
    for ours, theirs in zip(groups, clean, strict=True):
        assert len(ours.trainable) == 2
        for a, b in zip(ours.trajectories, theirs.trajectories, strict=True):
            assert (a.stop, a.reward, a.seed) == (b.stop, b.reward, b.seed)
            assert [t.completion_ids for t in a.turns] == [t.completion_ids for t in b.turns]
    assert sum(t.attempt for g in groups for t in g.trajectories) == 3


class Moody(Recorder):
    """Fails in the given way whenever a session's first attempt asks for its second turn."""

    def __init__(self, how: str) -> None:
        super().__init__(babbles)
        self.how = how

    async def generate(self, prompt_ids: Any, sampling: Any, *, session: str) -> Completion:
        completion = await super().generate(prompt_ids, sampling, session=session)
        if session.endswith("/0") and len([s for s, _ in self.prompts if s == session]) == 2:
            if self.how == "crash":
                raise MemoryError("the device")
            completion.logprobs[0] = float("nan")
        return completion


@pytest.mark.parametrize(("how", "label"), [("crash", "engine/crash"), ("nan", "engine/bad_output")])
def test_an_engine_error_is_labelled_retried_and_never_trains(freed: threading.Event, how: str, label: str) -> None:
    scheduler = Scheduler(model_play(lambda: Fragile(lambda task, tried: "", Counter(), freed), Moody(how)), 3)
    groups = collected(scheduler)
    assert scheduler.ledger.failures == {label: 6}
    assert all(t.attempt == 1 and t.stop is StopReason.TERMINATED for g in groups for t in g.trajectories)
    assert scheduler.ledger.wasted_tokens > 0


def test_episodes_do_not_notice_that_a_replica_behind_the_proxy_breaks(freed: threading.Event) -> None:
    """No attempt is lost, and what they say is what they would have said to a single engine."""

    def play(engine: Any) -> tuple[Scheduler, list[list[list[int]]]]:
        scheduler = Scheduler(model_play(lambda: Fragile(lambda task, tried: "", Counter(), freed), engine), 6)
        groups = collected(scheduler)
        return scheduler, [[turn.completion_ids for turn in t.turns] for g in groups for t in g.trajectories]

    proxy = LLMProxy([Moody("crash"), Recorder(babbles), Recorder(babbles)])
    scheduler, said = play(proxy)
    assert said == play(Recorder(babbles))[1]
    assert (scheduler.ledger.failed, scheduler.ledger.retried) == (0, 0)
    assert proxy.stats().restarts > 0
    assert proxy.stats().sessions == 0


@settings(max_examples=15)
@given(st.integers(0, 10**6), st.integers(1, 6))
def test_what_fails_for_good_is_delivered_labelled_and_never_trains(seed: int, concurrency: int) -> None:
    """Any mixture of faults: no trajectory trains that did not end by itself, none ends in silence."""
    import random

    faults = [f for f in Fragile.FAULTS if "hang" not in f]

    def fault(task: str, tried: int) -> str:
        draw = random.Random(f"{seed} {task} {tried}")
        return draw.choice(faults) if draw.random() < 0.6 else ""

    tries: Counter[str] = Counter()
    play = model_play(lambda: Fragile(fault, tries, threading.Event()), Recorder(babbles))
    scheduler = Scheduler(play, concurrency, max_attempts=2, give_up_after=10**6)
    groups = collected(scheduler)
    play.pool.close()
    ledger = scheduler.ledger
    assert ledger.balanced
    assert ledger.in_flight == ledger.cancelled == 0
    trajectories = [t for g in groups for t in g.trajectories]
    assert len(trajectories) == 6
    for t in trajectories:
        assert (t.stop is StopReason.FAILED) == (t.failure is not None) == (not t.trainable)
        assert t.stop is StopReason.FAILED or t.reward == 0.75
    assert [t for g in groups for t in g.trainable] == [t for t in trajectories if t.failure is None]
    assert ledger.failed == ledger.retried + sum(t.failure is not None for t in trajectories)
