"""Comparing evaluations: equal agents are rarely called different, a real difference is found, order is no matter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollenv.errors import RollenvError
from rollenv.evaluation.comparison import Comparison, compare, sign_flip
from rollenv.evaluation.results import Outcome, Results

DIFFICULTY = np.random.default_rng(7).beta(2, 1, size=500)
"""How likely an agent is to solve each of 500 tasks: some are easy, some are hard."""


def played(chances: np.ndarray, seed: int, samples: int = 1, panel: str = "p" * 64) -> Results:
    draw = np.random.default_rng(seed)
    hits = draw.random((samples, len(chances))) < chances
    outcomes = {
        f"task-{i}": [Outcome(bool(hit), float(hit), 3 + int(hit)) for hit in hits[:, i]] for i in range(len(chances))
    }
    return Results(Path(f"run-{seed}"), {"tasks_sha256": panel, "agent": "toy"}, outcomes)


def different(found: Comparison) -> bool:
    return "is better" in found.verdict


@pytest.mark.parametrize("samples", [1, 4])
def test_the_same_policy_under_other_seeds_is_rarely_called_different(samples: int) -> None:
    pairs = [(played(DIFFICULTY, 2 * i, samples), played(DIFFICULTY, 2 * i + 1, samples)) for i in range(20)]
    assert sum(not different(compare(a, b)) for a, b in pairs) >= 18


@pytest.mark.parametrize("seed", range(5))
def test_ten_points_over_five_hundred_tasks_are_found(seed: int) -> None:
    found = compare(played(DIFFICULTY - 0.1, seed), played(DIFFICULTY, 100 + seed))
    assert found.verdict.startswith("B is better by")
    low, high = found.success.ci95
    assert low < found.success.difference < high


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40),
    st.integers(0, 100),
)
def test_the_other_way_round_is_the_other_way_round(pairs: list[tuple[bool, bool]], seed: int) -> None:
    def side(k: int) -> Results:
        outcomes = {f"t{i}": [Outcome(pair[k], float(pair[k]), 1)] for i, pair in enumerate(pairs)}
        return Results(Path("x"), {"tasks_sha256": "p", "agent": "toy"}, outcomes)

    one, other = compare(side(0), side(1)), compare(side(1), side(0))
    assert one.success.difference == pytest.approx(-other.success.difference)
    assert one.success.ci95 == pytest.approx((-other.success.ci95[1], -other.success.ci95[0]))
    assert (one.p_value, one.only_a, one.only_b) == (other.p_value, other.only_b, other.only_a)
    assert different(one) == different(other)


def test_an_agent_does_not_differ_from_itself() -> None:
    a = played(DIFFICULTY, 1)
    found = compare(a, a)
    assert found.success.difference == 0
    assert found.verdict.startswith("no difference found over 500 tasks")


def test_other_tasks_cannot_be_compared() -> None:
    a = played(DIFFICULTY, 1)
    with pytest.raises(RollenvError, match="are of different panels"):
        compare(a, played(DIFFICULTY, 2, panel="q" * 64))
    with pytest.raises(RollenvError, match="are of different panels"):
        compare(a, played(DIFFICULTY[:400], 2))


def test_sign_flips_agree_with_all_of_them_counted() -> None:
    gains = np.array([0.5, 0.25, -0.25, 0.75, 0.5, -0.5, 0.25, 1.0])
    signs = np.array(np.meshgrid(*[[-1, 1]] * len(gains))).reshape(len(gains), -1).T
    exact = np.mean(np.abs(signs @ gains) >= abs(gains.sum()) - 1e-12)
    assert sign_flip(gains) == pytest.approx(exact, abs=0.02)
