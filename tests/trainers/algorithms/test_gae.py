"""Generalised advantage estimation over tokens, turns and both, against their definitions."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from rollenv.trainers.algorithms.gae import (  # noqa: E402
    bilevel_gae,
    branch_values,
    gae,
    rewards_to_go,
    turn_gae,
    vine,
    whiten,
)

PATIENT = settings(max_examples=60)
NUMBER = st.floats(-3, 3, width=32)
UNIT = st.floats(0, 1, width=32)


def t64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def plain_gae(rewards: list[float], values: list[float], gamma: float, lam: float) -> list[float]:
    """By its definition as a sum: A_t = sum over l of (gamma lam)^l delta_{t+l}."""
    after = [*values[1:], 0.0]
    deltas = [r + gamma * n - v for r, n, v in zip(rewards, after, values, strict=True)]
    n = len(deltas)
    return [sum((gamma * lam) ** (k - t) * deltas[k] for k in range(t, n)) for t in range(n)]


def test_gae_by_hand() -> None:
    # deltas: 0 + .5 * 2 - 1 = 0; 1 + .5 * 0 - 2 = -1; A_1 = -1, A_0 = 0 + .5 * .5 * -1.
    torch.testing.assert_close(gae(t64(0, 1), t64(1, 2), gamma=0.5, lam=0.5), t64(-0.25, -1))


@PATIENT
@given(st.lists(st.tuples(NUMBER, NUMBER), min_size=1, max_size=12), UNIT, UNIT)
def test_gae_equals_its_sum(rows: list[tuple[float, float]], gamma: float, lam: float) -> None:
    rewards, values = (list(column) for column in zip(*rows, strict=True))
    ours = gae(t64(*rewards), t64(*values), gamma, lam)
    torch.testing.assert_close(ours, t64(*plain_gae(rewards, values, gamma, lam)), rtol=1e-6, atol=1e-6)


@PATIENT
@given(st.lists(st.tuples(NUMBER, NUMBER), min_size=1, max_size=12))
def test_with_lambda_one_a_token_is_compared_with_what_was_earned_after_it(rows: list[tuple[float, float]]) -> None:
    rewards, values = (t64(*column) for column in zip(*rows, strict=True))
    torch.testing.assert_close(gae(rewards, values), rewards_to_go(rewards) - values)


def test_rewards_to_go_by_hand() -> None:
    torch.testing.assert_close(rewards_to_go(t64(1, 0, 2), gamma=0.5), t64(1.5, 1, 2))


def test_turn_gae_by_hand() -> None:
    """Two turns of two tokens: V is 1 before the first, 3 before the second (the values in mid-turn do not count)."""
    advantages, returns = turn_gae(t64(0, 1, 0, 4), t64(1, 9, 3, 9), torch.tensor([0, 0, 1, 1]), gamma=0.5, lam=0.5)
    # A_1 = 4 - 3 = 1; A_0 = 1 + .5 * 3 - 1 + .25 * 1 = 1.75
    torch.testing.assert_close(advantages, t64(1.75, 1.75, 1, 1))
    torch.testing.assert_close(returns, t64(2.75, 2.75, 4, 4))


def test_bilevel_gae_by_hand() -> None:
    """Turns of two tokens and one; over turns V(e) is 2 and 3; inside, the last token's reward is A + V(e)."""
    advantages = bilevel_gae(t64(0, 1, 5), t64(1, 2, 3), torch.tensor([4, 4, 7]), 0.5, 1.0, 1.0)
    # A_1 = 5 - 3 = 2; A_0 = 1 + .5 * 3 - 2 + .5 * 2 = 1.5, reward 3.5: last token 3.5 - 2, first 2 - 1 + 1.5.
    torch.testing.assert_close(advantages, t64(2.5, 1.5, 2))


def test_bilevel_gae_charges_a_tokens_cost_to_it_and_those_before_it() -> None:
    """A KL penalty of the first token is no cost of the two that follow it in the turn."""
    advantages = bilevel_gae(t64(-0.5, 0, 1), t64(0, 0, 0), torch.tensor([0, 0, 0]), 0.5, 1.0, 1.0)
    torch.testing.assert_close(advantages, t64(0.5, 1, 1))


def plain_bilevel(
    rewards: list[float], values: list[float], turns: list[int], gt: float, gamma: float, lam: float
) -> list[float]:
    places = [[i for i, turn in enumerate(turns) if turn == k] for k in sorted(set(turns))]
    ends = [values[p[-1]] for p in places]
    over = plain_gae([rewards[p[-1]] for p in places], ends, gt, lam)
    result: list[float] = []
    for p, a, v in zip(places, over, ends, strict=True):
        inside = [rewards[i] for i in p[:-1]] + [a + v]
        result += plain_gae(inside, [values[i] for i in p], gamma, lam)
    return result


@PATIENT
@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.integers(0, 2**31), UNIT, UNIT, UNIT)
def test_bilevel_gae_equals_its_two_levels(lengths: list[int], seed: int, gt: float, gamma: float, lam: float) -> None:
    draw = random.Random(seed)
    turns = [2 * k for k, n in enumerate(lengths) for _ in range(n)]
    rewards, values = ([draw.gauss(0, 1) for _ in turns] for _ in range(2))
    ours = bilevel_gae(t64(*rewards), t64(*values), torch.tensor(turns), gt, gamma, lam)
    torch.testing.assert_close(ours, t64(*plain_bilevel(rewards, values, turns, gt, gamma, lam)), rtol=1e-6, atol=1e-6)


@PATIENT
@given(st.lists(st.tuples(NUMBER, NUMBER), min_size=1, max_size=8), UNIT, UNIT)
def test_with_one_token_a_turn_all_three_are_the_same(
    rows: list[tuple[float, float]], gamma: float, lam: float
) -> None:
    rewards, values = (t64(*column) for column in zip(*rows, strict=True))
    turns = torch.arange(len(rows))
    expected = gae(rewards, values, gamma, lam)
    torch.testing.assert_close(turn_gae(rewards, values, turns, gamma, lam)[0], expected)
    torch.testing.assert_close(bilevel_gae(rewards, values, turns, gamma, 1.0, lam), expected)


def test_vine_compares_the_branches_of_a_state_with_those_of_the_next() -> None:
    values = branch_values([[1.0, 0.0, 0.0, 1.0], [1.0, 1.0], [0.0]])
    assert values == [0.5, 1.0, 0.0]
    assert vine([0.0, 0.0, 1.0], values) == [0.5, -1.0, 1.0]
    assert vine([0.0, 0.0, 1.0], values, gamma=0.5) == [0.0, -1.0, 1.0]


def test_turns_between_two_valued_states_are_one_action() -> None:
    values = branch_values([[0.5], [], [], [1.0, 0.0], []])
    assert values == [0.5, None, None, 0.5, None]
    first = 1.0 + 0.5 * 2.0 + 0.25 * 4.0 + 0.125 * 0.5 - 0.5
    last = 8.0 + 0.5 * 16.0 - 0.5
    assert vine([1.0, 2.0, 4.0, 8.0, 16.0], values, gamma=0.5) == [first] * 3 + [last] * 2
    assert vine([1.0, 2.0], [None, 0.5], gamma=0.5) == [0.0, 1.5], "of what came before the first nothing is known"


@PATIENT
@given(st.lists(NUMBER, min_size=2, max_size=20))
def test_whitened_values_have_mean_zero_and_deviation_one(values: list[float]) -> None:
    white = whiten(t64(*values))
    assert float(white.mean()) == pytest.approx(0, abs=1e-6)
    if float(t64(*values).std()) > 1e-3:
        assert float(white.std()) == pytest.approx(1, abs=1e-4)


def test_nothing_is_whitened_to_nothing() -> None:
    assert whiten(t64()).tolist() == []
    assert whiten(t64(3)).tolist() == [0]
    assert all(math.isfinite(x) for x in whiten(t64(2, 2, 2)).tolist())
