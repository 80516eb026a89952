"""Losses beyond PPO's and REINFORCE's: values by hand, gradients against autograd of the plain formula."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from rollenv.trainers.algorithms import losses  # noqa: E402
from rollenv.trainers.algorithms.sequences import sequence_mean, sequence_sum  # noqa: E402

PATIENT = settings(max_examples=60)
LOGP = st.floats(-4, -0.0078125, width=32)
ADVANTAGE = st.floats(-3, 3, width=32)
ROWS = st.lists(st.tuples(LOGP, LOGP, LOGP, ADVANTAGE, st.integers(0, 3)), min_size=1, max_size=10)


def t64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def columns(rows: list[tuple[float, float, float, float, int]]) -> tuple[Any, Any, Any, Any, Any]:
    """logp (with gradient), old, mu, advantages, units."""
    logp, old, mu, advantages = (t64(*column) for column in list(zip(*rows, strict=True))[:4])
    units = torch.unique(torch.tensor([row[4] for row in rows]), return_inverse=True)[1]
    return logp.requires_grad_(), old, mu, advantages, units


def gradient(loss: Callable[[Any], Any], logp: Any) -> Any:
    leaf = logp.detach().clone().requires_grad_()
    (result,) = torch.autograd.grad(loss(leaf).sum(), leaf)
    return result


# -- sequences -----------------------------------------------------------------------------------------------------


def test_sums_and_means_of_sequences() -> None:
    units = torch.tensor([1, 0, 1, 1])
    assert sequence_sum(t64(1, 2, 3, 5), units).tolist() == [9, 2, 9, 9]
    assert sequence_mean(t64(1, 2, 3, 5), units).tolist() == [3, 2, 3, 3]
    assert sequence_sum(t64(), torch.tensor([], dtype=torch.long)).tolist() == []


# -- GSPO ----------------------------------------------------------------------------------------------------------


def test_gspo_by_hand() -> None:
    """s = sqrt(4 * 1) = 2 for both tokens of the sequence, whatever each one's own ratio is."""
    old = torch.log(t64(0.1, 0.5))
    logp = torch.log(t64(0.4, 0.5)).requires_grad_()
    loss, clipped = losses.gspo(logp, old, t64(1, 1), torch.tensor([0, 0]), 0.5, 1.5)
    torch.testing.assert_close(loss.detach(), t64(-2, -2))
    assert clipped.tolist() == [False, False]
    loss, clipped = losses.gspo(logp, old, t64(1, 1), torch.tensor([0, 0]))
    torch.testing.assert_close(loss.detach(), t64(-1.0004, -1.0004))
    assert clipped.tolist() == [True, True]


@PATIENT
@given(ROWS)
def test_gspos_gradient_is_that_of_the_sequence_ratio(rows: list[Any]) -> None:
    """With one advantage per sequence and the mean over its tokens: d/d logp of -min(s A, clip(s) A)."""
    logp, old, _, advantages, units = columns(rows)
    advantages = sequence_mean(advantages, units)
    n = sequence_sum(torch.ones_like(old), units)

    def plain(leaf: Any) -> Any:
        s = torch.exp(sequence_mean(leaf - old, units))
        return -torch.min(s * advantages, s.clamp(0.7, 1.4) * advantages) / n

    ours = gradient(lambda leaf: losses.gspo(leaf, old, advantages, units, 0.3, 0.4)[0] / n, logp)
    s = torch.exp(sequence_mean(logp.detach() - old, units))
    at_the_edge = ((s - 0.7).abs() < 1e-6) | ((s - 1.4).abs() < 1e-6)
    torch.testing.assert_close(ours[~at_the_edge], gradient(plain, logp)[~at_the_edge])


# -- CISPO, TOPR, Kimi, decoupled PPO --------------------------------------------------------------------------------


def test_cispo_by_hand() -> None:
    """Ratios 10 and 0.5: the weight is cut to 5, and the gradient stays."""
    old = t64(-3.0, -1.0)
    logp = (old + t64(math.log(10), math.log(0.5))).requires_grad_()
    loss, clipped = losses.cispo(logp, old, t64(2, -1))
    loss.sum().backward()
    torch.testing.assert_close(logp.grad, t64(-5 * 2, 0.5))
    assert clipped.tolist() == [True, False]


@PATIENT
@given(ROWS)
def test_cispos_gradient_is_reinforce_with_a_clipped_weight(rows: list[Any]) -> None:
    logp, old, _, advantages, _ = columns(rows)
    weight = torch.exp(logp.detach() - old).clamp(0, 5)
    ours = gradient(lambda leaf: losses.cispo(leaf, old, advantages)[0], logp)
    torch.testing.assert_close(ours, -weight * advantages)


def test_topr_by_hand() -> None:
    """A good trajectory trains whole; a bad one as far as the policy would still do it: ratio 0.5 * 0.4 = 0.2."""
    mu = torch.log(t64(0.4, 0.5, 0.5))
    logp = torch.log(t64(0.2, 0.2, 0.1)).requires_grad_()
    loss, clipped = losses.topr(logp, mu, t64(-1, -1, 2), torch.tensor([0, 0, 1]))
    loss.sum().backward()
    torch.testing.assert_close(logp.grad, t64(0.2, 0.2, -2))
    assert clipped.tolist() == [False, False, False]


@PATIENT
@given(ROWS)
def test_toprs_gradient_by_its_two_cases(rows: list[Any]) -> None:
    logp, _, mu, advantages, units = columns(rows)
    returns = sequence_mean(advantages, units)
    expected = []
    for i, value in enumerate(returns.tolist()):
        whole = math.exp(sum(float(logp[j].detach() - mu[j]) for j in range(len(units)) if units[j] == units[i]))
        expected.append(-value * (1.0 if value >= 0 else min(whole, 1.0)))
    ours = gradient(lambda leaf: losses.topr(leaf, mu, returns, units)[0], logp)
    torch.testing.assert_close(ours, t64(*expected), rtol=1e-6, atol=1e-8)


def test_kimi_by_hand() -> None:
    logp, old = t64(-1.0).requires_grad_(), t64(-1.5)
    loss = losses.kimi(logp, old, t64(2), tau=0.4)
    loss.sum().backward()
    torch.testing.assert_close(loss.detach(), t64(2 + 0.2 * 0.25))
    torch.testing.assert_close(logp.grad, t64(-2 + 0.4 * 0.5))


@PATIENT
@given(ROWS)
def test_decoupled_ppo_is_ppo_around_pi_old_weighted_by_pi_old_over_mu(rows: list[Any]) -> None:
    logp, old, mu, advantages, _ = columns(rows)

    def plain(leaf: Any) -> Any:
        r = torch.exp(leaf - old)
        return -torch.exp(old - mu) * torch.min(r * advantages, r.clamp(0.8, 1.2) * advantages)

    loss, _ = losses.decoupled_ppo(logp, old, mu, advantages)
    torch.testing.assert_close(loss, plain(logp))
    torch.testing.assert_close(
        gradient(lambda leaf: losses.decoupled_ppo(leaf, old, mu, advantages)[0], logp), gradient(plain, logp)
    )


@PATIENT
@given(ROWS)
def test_decoupled_ppo_on_policy_is_ppo(rows: list[Any]) -> None:
    logp, old, _, advantages, _ = columns(rows)
    torch.testing.assert_close(losses.decoupled_ppo(logp, old, old, advantages), losses.ppo_clip(logp, old, advantages))


# -- the value loss --------------------------------------------------------------------------------------------------


def test_the_value_loss_by_hand() -> None:
    """V moved from 0 to 1 although it may move by 0.2; what counts is the worse of the two errors."""
    values = t64(1, 1, 0.1).requires_grad_()
    loss, clipped = losses.value_loss(values, t64(0, 0, 0), t64(2, 0.9, 3), clip=0.2)
    loss.sum().backward()
    torch.testing.assert_close(loss.detach(), t64(1.8**2 / 2, 0.7**2 / 2, 2.9**2 / 2))
    torch.testing.assert_close(values.grad, t64(0, 0, -2.9))
    assert clipped.tolist() == [True, True, False]
    torch.testing.assert_close(
        losses.value_loss(values, t64(0, 0, 0), t64(2, 0.9, 3), None)[0], (values - t64(2, 0.9, 3)) ** 2 / 2
    )


@PATIENT
@given(st.lists(st.tuples(ADVANTAGE, ADVANTAGE, ADVANTAGE), min_size=1, max_size=8))
def test_the_value_loss_is_never_below_the_squared_error(rows: list[tuple[float, float, float]]) -> None:
    values, old, returns = (t64(*column) for column in zip(*rows, strict=True))
    clipped = losses.value_loss(values, old, returns)[0]
    plain = losses.value_loss(values, old, returns, None)[0]
    assert bool((clipped >= plain).all())
    near = (values - old).abs() <= 0.2
    torch.testing.assert_close(clipped[near], plain[near])
