"""Where tasks come from: shares that hold, a curriculum that only passes over, states that continue."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollenv.errors import RollenvError
from rollenv.rollout.sources import Curriculum, Draw, InOrder, Mixture, TaskSource
from rollenv.seeding import TaskOrder

TASKS = [f"t{i}" for i in range(8)]


def in_order(seed: int = 1) -> InOrder:
    return InOrder(TaskOrder(TASKS, seed))


def curriculum(seed: int = 1, floor: float = 0.2) -> Curriculum:
    return Curriculum(TaskOrder(TASKS, 1), seed, floor)


def test_in_order_gives_every_task_once_per_epoch() -> None:
    source = in_order()
    assert sorted(source.draw().task for _ in TASKS) == TASKS


def test_a_curriculum_without_results_is_the_order() -> None:
    a, b = curriculum(), in_order()
    assert [a.draw() for _ in range(30)] == [b.draw() for _ in range(30)]


def test_a_curriculum_plays_more_of_what_is_uncertain() -> None:
    source = curriculum()
    success = {"t0": 0, "t1": 8, "t2": 4}
    counts: Counter[str] = Counter()
    for _ in range(4000):
        draw = source.draw()
        counts[draw.task] += 1
        source.report(draw, success.get(draw.task, 2), 8)
    # 4 p (1 - p) is 1 for t2 and 0.75 for the others; t0 and t1 are left with the floor.
    for task, share in {"t0": 0.2, "t1": 0.2, "t3": 0.75}.items():
        assert counts[task] / counts["t2"] == pytest.approx(share, abs=0.1)


def test_running_success_fades() -> None:
    source = curriculum()
    source.report(Draw("t0"), 8, 8)
    assert source.chance("t0") == 0.2
    source.report(Draw("t0"), 0, 8)  # running success 0.5
    assert source.chance("t0") == 1.0
    source.report(Draw("t0"), 0, 0)  # all failed: nothing is known
    assert source.chance("t0") == 1.0


@settings(max_examples=60)
@given(st.lists(st.floats(0.05, 5), min_size=1, max_size=5), st.integers(1, 120))
def test_a_mixture_holds_its_shares(weights: list[float], n: int) -> None:
    names = [f"env{i}" for i in range(len(weights))]
    source = Mixture({name: in_order(i) for i, name in enumerate(names)}, dict(zip(names, weights, strict=True)))
    drawn = Counter(source.draw().env for _ in range(n))
    for name, weight in zip(names, weights, strict=True):
        assert abs(drawn[name] - n * weight / sum(weights)) <= max(1.0, len(weights) / 2)


@pytest.mark.parametrize("weights", [{}, {"a": 1.0}, {"a": 1.0, "b": 0.0}, {"a": 1.0, "b": float("nan")}])
def test_a_mixture_refuses_weights_that_do_not_fit(weights: dict[str, float]) -> None:
    with pytest.raises(RollenvError, match="mixture"):
        Mixture({"a": in_order(), "b": in_order()}, weights)


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.integers(0, 60), st.booleans())
def test_a_source_continues_from_its_state(seed: int, n: int, mixed: bool) -> None:
    def make() -> TaskSource:
        if not mixed:
            return curriculum(seed)
        return Mixture({"a": curriculum(seed), "b": in_order()}, {"a": 2.0, "b": 1.0})

    def play(source: TaskSource, rounds: range) -> list[Draw]:
        drawn = []
        for i in rounds:
            drawn.append(source.draw())
            source.report(drawn[-1], random.Random(i).randint(0, 4), 4)
        return drawn

    whole, first, second = make(), make(), make()
    expected = play(whole, range(n + 20))
    begun = play(first, range(n))
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert begun + play(second, range(n, n + 20)) == expected
