"""Statistics against published values, properties, and their definitions played out."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollenv.evaluation.statistics import mcnemar, pass_at_k, pass_hat_k, wilson

# -- Wilson's interval -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [
        # Newcombe, Statistics in Medicine 17 (1998), table I, method 3.
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_against_published_intervals(successes: int, trials: int, low: float, high: float) -> None:
    assert wilson(successes, trials) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(1, 500), st.data())
def test_wilson_bounds_are_where_the_score_test_is_just_significant(trials: int, data: st.DataObject) -> None:
    """(p - q)^2 = z^2 q (1 - q) / n at both ends q; mirrored for failures; the proportion lies inside."""
    successes = data.draw(st.integers(0, trials))
    low, high = wilson(successes, trials)
    p, z = successes / trials, 1.959963984540054
    assert 0 <= low <= p <= high <= 1 or math.isclose(low, p, abs_tol=1e-12) or math.isclose(high, p, abs_tol=1e-12)
    for q in (low, high):
        assert (p - q) ** 2 == pytest.approx(z * z * q * (1 - q) / trials, abs=1e-12)
    assert wilson(trials - successes, trials) == pytest.approx((1 - high, 1 - low), abs=1e-12)


def test_without_trials_nothing_is_known() -> None:
    assert wilson(0, 0) == (0.0, 1.0)


# -- several samples of a task -----------------------------------------------------------------------------------


@given(st.integers(1, 8), st.data())
def test_pass_figures_are_shares_of_all_ways_to_draw_k_samples(samples: int, data: st.DataObject) -> None:
    successes, k = data.draw(st.integers(0, samples)), data.draw(st.integers(1, samples))
    outcomes = [i < successes for i in range(samples)]
    draws = list(itertools.combinations(outcomes, k))
    assert pass_at_k(samples, successes, k) == pytest.approx(sum(map(any, draws)) / len(draws))
    assert pass_hat_k(samples, successes, k) == pytest.approx(sum(map(all, draws)) / len(draws))


def test_fewer_samples_than_k_say_nothing() -> None:
    with pytest.raises(ValueError, match=r"pass@5 needs at least 5 samples of each task, not 4"):
        pass_at_k(4, 2, 5)
    with pytest.raises(ValueError, match=r"pass\^5 needs at least 5"):
        pass_hat_k(4, 2, 5)


# -- McNemar -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("only_a", "only_b", "p"),
    [
        # Tables of the two-sided sign test.
        (5, 15, 0.0414),
        (10, 10, 1.0),
        (0, 6, 0.0312),
        (2, 10, 0.0386),
    ],
)
def test_mcnemar_against_the_sign_test(only_a: int, only_b: int, p: float) -> None:
    assert mcnemar(only_a, only_b) == pytest.approx(p, abs=5.1e-5)


@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_counts_the_outcomes_that_are_at_least_as_uneven(only_a: int, only_b: int) -> None:
    n, gap = only_a + only_b, abs(only_a - only_b)
    uneven = sum(math.comb(n, i) for i in range(n + 1) if abs(n - 2 * i) >= gap)
    assert mcnemar(only_a, only_b) == pytest.approx(uneven / 2**n)
    assert mcnemar(only_a, only_b) == mcnemar(only_b, only_a)
