"""Weights, rejections, the interpolated proximal policy, the adaptive KL coefficient, the overlong penalty."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from rollenv.trainers.algorithms import corrections  # noqa: E402
from rollenv.trainers.algorithms.advantages import liteppo, most_spread, raft, turn_returns  # noqa: E402
from rollenv.trainers.algorithms.kl import adapted  # noqa: E402
from rollenv.trainers.algorithms.proximal import log_linear  # noqa: E402
from rollenv.trainers.algorithms.rewards import overlong_penalty  # noqa: E402


def t64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def log(*values: float) -> torch.Tensor:
    return torch.log(t64(*values))


UNITS = torch.tensor([0, 0, 1])


def test_tis_of_a_sequence_by_hand() -> None:
    """rho is 2 * 0.25 = 0.5 for the first sequence, 3 cut to 2 for the second."""
    weight = corrections.tis_sequence(log(0.2, 0.1, 0.6).requires_grad_(), log(0.1, 0.4, 0.2), UNITS)
    torch.testing.assert_close(weight, t64(0.5, 0.5, 2))
    assert not weight.requires_grad


def test_icepop_by_hand() -> None:
    weight = corrections.icepop(log(0.1, 0.12, 0.5, 0.6).requires_grad_(), log(0.25, 0.2, 0.1, 0.1))
    torch.testing.assert_close(weight, t64(0, 0.6, 5, 0))
    assert not weight.requires_grad


def test_the_geometric_mask_looks_at_the_mean_of_a_sequence() -> None:
    """Ratios 2 and 1/2 cancel; 1.002 is out of the narrow band and in the wide one."""
    old, mu = log(0.2, 0.1, 0.3 * 1.002), log(0.1, 0.2, 0.3)
    assert corrections.geometric_mask(old, mu, UNITS).tolist() == [True, True, False]
    assert corrections.geometric_mask(old, mu, UNITS, 0.99, 1.01).tolist() == [True, True, True]


def test_opsm_drops_only_what_is_bad_and_has_been_moved_away_from() -> None:
    logp, old = log(0.1, 0.1, 0.1, 0.1), log(0.2, 0.2, 0.2, 0.1)
    units = torch.tensor([0, 1, 2, 3])
    assert corrections.opsm(logp, old, t64(-1, 1, 0, -1), units).tolist() == [False, True, True, True]
    # The drift is the sequence's, the advantage the token's.
    assert corrections.opsm(log(0.1, 0.4), log(0.2, 0.2), t64(-1, -1), torch.tensor([0, 0])).tolist() == [True, True]


@given(st.lists(st.tuples(st.floats(-600, 0), st.floats(-600, 0)), min_size=1, max_size=6))
def test_absurd_log_probabilities_stay_finite(rows: list[tuple[float, float]]) -> None:
    old, mu = (t64(*column) for column in zip(*rows, strict=True))
    units = torch.zeros(len(rows), dtype=torch.long)
    for weight in (
        corrections.tis(old, mu),
        corrections.tis_sequence(old, mu, units),
        corrections.icepop(old, mu),
        corrections.geometric_mask(old, mu, units).double(),
    ):
        assert bool(torch.isfinite(weight).all())
        assert float(weight.max()) <= 5


def test_the_interpolated_proximal_policy_by_age() -> None:
    """Sampled by the present weights: mu itself. One, three versions old: half way, three quarters of the way to pi."""
    logp = t64(-1, -1, -1).requires_grad_()
    old = log_linear(logp, t64(-3, -3, -3), torch.tensor([5, 4, 2]), version=5)
    torch.testing.assert_close(old, t64(-3, -2, -1.5))
    assert not old.requires_grad


def test_the_kl_coefficient_follows_its_target() -> None:
    assert adapted(0.1, kl=0.02, target=0.02, episodes=100) == 0.1
    assert adapted(0.1, kl=0.022, target=0.02, episodes=1000) == pytest.approx(0.1 * 1.01)
    assert adapted(0.1, kl=9.0, target=0.02, episodes=1000) == pytest.approx(0.1 * 1.02)  # the error is clipped
    assert adapted(0.1, kl=0.0, target=0.02, episodes=1000) == pytest.approx(0.1 * 0.98)


def test_the_overlong_penalty_rises_in_its_cache() -> None:
    lengths = (0, 80, 90, 100, 500)
    assert [overlong_penalty(n, max_length=100, cache=20) for n in lengths] == [0, 0, -0.5, -1, -1]


# -- advantages ------------------------------------------------------------------------------------------------------


def test_liteppo_divides_by_the_deviation_of_the_batch() -> None:
    torch.testing.assert_close(liteppo(t64(1, 0), batch_std=0.25), t64(0.5, -0.5) / (0.25 + 1e-6))


def test_raft_trains_on_the_best_and_nothing_else() -> None:
    assert raft(t64(1, 0, 1, 0.5)).tolist() == [1, 0, 1, 0]
    assert raft(t64(1, 1)).tolist() == raft(t64(0, 0)).tolist() == [0, 0]
    assert raft(t64(1)).tolist() == [0]


def test_turn_returns_compare_turns_at_the_same_place() -> None:
    """R at turn 0 is 0.5 and 1, at turn 1 it is 1 and 0; the third turn is one episode's alone."""
    assert turn_returns([[0, 1, 0], [1, 0]], gamma=0.5, scale=False) == [[-0.25, 0.5, 0], [0.25, -0.5]]
    scaled = turn_returns([[1.0], [0.0]])
    assert scaled == [[pytest.approx(0.5 / (math.sqrt(0.5) + 1e-6))], [pytest.approx(-0.5 / (math.sqrt(0.5) + 1e-6))]]


def test_the_most_spread_groups_by_hand() -> None:
    returns = [[1.0, 1.0], [0.0, 1.0], [0.4, 0.6], [0.0, 0.9]]
    assert most_spread(returns, 0.5) == [1, 3]
    assert most_spread(returns, 0.01) == [1]
    assert most_spread(returns, 1.0) == [0, 1, 2, 3]
