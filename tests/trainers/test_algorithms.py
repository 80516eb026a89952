"""Advantages, losses, KL estimators, aggregations and corrections against closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from rollenv.config.algo import AlgoConfig  # noqa: E402
from rollenv.rollout.groups import Group, GroupRequest  # noqa: E402
from rollenv.trainers.algorithms import advantages, corrections, losses  # noqa: E402
from rollenv.trainers.algorithms.advantages import ADVANTAGES, dr_grpo, grpo, rloo  # noqa: E402
from rollenv.trainers.algorithms.aggregation import token_weights  # noqa: E402
from rollenv.trainers.algorithms.kl import KL, k1, k2, k3  # noqa: E402
from rollenv.trainers.data import samples_of  # noqa: E402
from rollenv.trajectory import StopReason, Trajectory, Turn  # noqa: E402

RETURNS = st.lists(st.floats(-10, 10, width=32), min_size=2, max_size=12)
LOGP = st.floats(-8, -0.0078125, width=32)
PATIENT = settings(max_examples=50)


def t64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


# -- advantages ------------------------------------------------------------------------------------------------


def test_grpo_by_hand() -> None:
    # mean 0.5, std of (1, 0, 0, 1) with Bessel's correction sqrt(1/3).
    expected = 0.5 / (math.sqrt(1 / 3) + 1e-6)
    torch.testing.assert_close(grpo(t64(1, 0, 0, 1)), t64(expected, -expected, -expected, expected))


def test_dr_grpo_and_rloo_by_hand() -> None:
    torch.testing.assert_close(dr_grpo(t64(3, 0, 0)), t64(2, -1, -1))
    # RLOO: each return minus the mean of the two others.
    torch.testing.assert_close(rloo(t64(3, 0, 0)), t64(3, -1.5, -1.5))


@PATIENT
@given(RETURNS)
def test_advantages_equal_numpy_formulas(returns: list[float]) -> None:
    values = np.array(returns, dtype=np.float64)
    tensor = torch.from_numpy(values)
    centred = values - values.mean()
    np.testing.assert_allclose(grpo(tensor), centred / (values.std(ddof=1) + 1e-6), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(dr_grpo(tensor), centred, rtol=1e-9, atol=1e-9)
    others = [np.delete(values, i).mean() for i in range(len(values))]
    np.testing.assert_allclose(rloo(tensor), values - others, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ADVANTAGES)
def test_singleton_group_gives_zero_not_its_raw_reward(name: str) -> None:
    assert ADVANTAGES[name](t64(7.0)).tolist() == [0.0]


@pytest.mark.parametrize("name", ADVANTAGES)
def test_empty_group_gives_nothing(name: str) -> None:
    assert ADVANTAGES[name](t64()).tolist() == []


@pytest.mark.parametrize("name", ADVANTAGES)
def test_equal_returns_give_zero(name: str) -> None:
    assert ADVANTAGES[name](t64(0.5, 0.5, 0.5)).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("name", ADVANTAGES)
@PATIENT
@given(returns=RETURNS, shift=st.floats(-5, 5))
def test_advantages_sum_to_zero_and_ignore_a_shift(name: str, returns: list[float], shift: float) -> None:
    values = t64(*returns)
    advantages = ADVANTAGES[name](values)
    # GRPO divides by a standard deviation that may be as small as rounding itself.
    scale = 1e-9 / (float(values.std()) + 1e-6) if name == "grpo" else 1e-8
    assert abs(float(advantages.sum())) <= scale * len(returns) * 10
    torch.testing.assert_close(ADVANTAGES[name](values + shift), advantages, rtol=1e-6, atol=scale * 10)


# -- losses ----------------------------------------------------------------------------------------------------

CASES = [  # ratio, advantage, clip_low, clip_high, dual -> loss, d loss / d logp, clipped
    (1.0, 2.0, 0.2, 0.2, None, -2.0, -2.0, False),
    (1.1, 2.0, 0.2, 0.2, None, -2.2, -2.2, False),
    (1.5, 2.0, 0.2, 0.2, None, -2.4, 0.0, True),
    (1.25, 2.0, 0.2, 0.28, None, -2.5, -2.5, False),  # clip-higher lets it through
    (1.5, 2.0, 0.2, 0.28, None, -2.56, 0.0, True),
    (0.5, 2.0, 0.2, 0.2, None, -1.0, -1.0, False),  # the pessimistic branch: not clipped
    (0.5, -2.0, 0.2, 0.2, None, 1.6, 0.0, True),
    (1.5, -2.0, 0.2, 0.2, None, 3.0, 3.0, False),
    (5.0, -2.0, 0.2, 0.2, None, 10.0, 10.0, False),
    (5.0, -2.0, 0.2, 0.2, 3.0, 6.0, 0.0, True),  # dual clip: at most 3 |A|
    (2.0, -2.0, 0.2, 0.2, 3.0, 4.0, 4.0, False),
    (1.5, 0.0, 0.2, 0.2, 3.0, 0.0, 0.0, False),
]


@pytest.mark.parametrize(("ratio", "advantage", "low", "high", "dual", "loss", "gradient", "clipped"), CASES)
def test_ppo_clip_by_hand(
    ratio: float,
    advantage: float,
    low: float,
    high: float,
    dual: float | None,
    loss: float,
    gradient: float,
    clipped: bool,
) -> None:
    old = t64(-1.0)
    logp = (old + math.log(ratio)).requires_grad_()
    loss_N, clipped_N = losses.ppo_clip(logp, old, t64(advantage), low, high, dual)
    loss_N.sum().backward()
    torch.testing.assert_close(loss_N.detach(), t64(loss))
    torch.testing.assert_close(logp.grad, t64(gradient))
    assert clipped_N.tolist() == [clipped]


@PATIENT
@given(st.lists(st.tuples(LOGP, LOGP, st.floats(-3, 3, width=32)), min_size=1, max_size=8))
def test_ppo_clip_equals_numpy(rows: list[tuple[float, float, float]]) -> None:
    logp, old, advantages = (np.array(column, dtype=np.float64) for column in zip(*rows, strict=True))
    r = np.exp(logp - old)
    expected = -np.minimum(r * advantages, np.clip(r, 0.8, 1.28) * advantages)
    loss, _ = losses.ppo_clip(*(torch.from_numpy(x) for x in (logp, old, advantages)), 0.2, 0.28)
    np.testing.assert_allclose(loss, expected, rtol=1e-9, atol=1e-12)


@PATIENT
@given(st.lists(st.tuples(LOGP, st.floats(-3, 3, width=32)), min_size=1, max_size=8))
def test_ppo_gradient_at_ratio_one_is_reinforce(rows: list[tuple[float, float]]) -> None:
    values, advantages = zip(*rows, strict=True)
    gradients = []
    for loss_of in (
        lambda logp: losses.ppo_clip(logp, logp.detach(), t64(*advantages))[0],
        lambda logp: losses.plain(logp, t64(*advantages)),
    ):
        logp = t64(*values).requires_grad_()
        loss_of(logp).sum().backward()
        gradients.append(logp.grad)
    torch.testing.assert_close(gradients[0], gradients[1])
    torch.testing.assert_close(gradients[0], -t64(*advantages))


@pytest.mark.parametrize("gap", [500.0, -500.0])
def test_ratio_of_absurd_log_probabilities_stays_finite(gap: float) -> None:
    logp = t64(-1.0 + gap).requires_grad_()
    r = losses.ratio(logp, t64(-1.0))
    torch.testing.assert_close(r.detach(), t64(math.exp(math.copysign(20.0, gap))))
    r.sum().backward()
    assert logp.grad.tolist() == [0.0]


# -- KL --------------------------------------------------------------------------------------------------------


def test_kl_estimators_by_hand() -> None:
    logp, ref = t64(math.log(0.5)), t64(math.log(0.25))
    torch.testing.assert_close(k1(logp, ref), t64(math.log(2)))
    torch.testing.assert_close(k2(logp, ref), t64(math.log(2) ** 2 / 2))
    torch.testing.assert_close(k3(logp, ref), t64(0.5 - 1 + math.log(2)))


@PATIENT
@given(st.lists(st.tuples(LOGP, LOGP), min_size=1, max_size=8))
def test_k2_and_k3_are_never_negative(rows: list[tuple[float, float]]) -> None:
    logp, ref = (t64(*column) for column in zip(*rows, strict=True))
    assert bool((k2(logp, ref) >= 0).all())
    assert bool((k3(logp, ref) >= -1e-12).all())


@PATIENT
@given(st.integers(0, 2**32 - 1), st.integers(2, 6))
def test_k1_and_k3_are_unbiased_by_enumeration(seed: int, n: int) -> None:
    """The expectation under pi, summed over every outcome of a categorical, is KL(pi || ref)."""
    draw = np.random.default_rng(seed)
    pi, ref = draw.dirichlet(np.ones(n)) + 1e-4, draw.dirichlet(np.ones(n)) + 1e-4
    pi, ref = pi / pi.sum(), ref / ref.sum()
    exact = float((pi * np.log(pi / ref)).sum())
    for name in ("k1", "k3"):
        values = KL[name](torch.from_numpy(np.log(pi)), torch.from_numpy(np.log(ref))).numpy()
        assert float((pi * values).sum()) == pytest.approx(exact, abs=1e-9)


@PATIENT
@given(st.integers(0, 2**32 - 1))
def test_expected_gradient_of_k2_is_that_of_the_divergence(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(5, generator=draw, dtype=torch.float64).requires_grad_()
    ref = torch.randn(5, generator=draw, dtype=torch.float64).log_softmax(-1)
    logp = logits.log_softmax(-1)
    (exact,) = torch.autograd.grad((logp.exp() * (logp - ref)).sum(), logits, retain_graph=True)
    (sampled,) = torch.autograd.grad((logp.exp().detach() * k2(logp, ref)).sum(), logits)
    torch.testing.assert_close(sampled, exact)


# -- aggregation -----------------------------------------------------------------------------------------------

SEQUENCES = torch.tensor([0, 0, 0, 2, 2, 1])  # three sequences of 3, 1 and 2 tokens, in any order


@pytest.mark.parametrize(
    ("how", "length", "expected"),
    [
        ("token_mean", None, [1 / 6] * 6),
        ("seq_mean_token_sum", None, [1 / 3] * 6),
        ("seq_mean_token_mean", None, [1 / 9, 1 / 9, 1 / 9, 1 / 6, 1 / 6, 1 / 3]),
        ("constant", 10, [1 / 30] * 6),
    ],
)
def test_token_weights_by_hand(how: str, length: int | None, expected: list[float]) -> None:
    torch.testing.assert_close(token_weights(SEQUENCES, 3, how, length), torch.tensor(expected))


@PATIENT
@given(st.lists(st.integers(0, 4), min_size=1, max_size=20), st.integers(0, 2**31))
def test_weighted_sums_are_the_named_means(sequence: list[int], seed: int) -> None:
    n = max(sequence) + 1
    losses_N = np.random.default_rng(seed).normal(size=len(sequence))
    rows = [losses_N[np.array(sequence) == s] for s in range(n)]
    expected = {
        "token_mean": losses_N.mean(),
        "seq_mean_token_sum": np.mean([row.sum() for row in rows]),
        "seq_mean_token_mean": np.mean([row.mean() if len(row) else 0.0 for row in rows]),
        "constant": sum(row.sum() for row in rows) / (n * 7),
    }
    for how, value in expected.items():
        weights = token_weights(torch.tensor(sequence), n, how, 7).double().numpy()
        assert float((weights * losses_N).sum()) == pytest.approx(value, abs=1e-5)


def test_constant_without_length_is_refused() -> None:
    with pytest.raises(ValueError, match="constant_length"):
        token_weights(SEQUENCES, 3, "constant")


# -- corrections -----------------------------------------------------------------------------------------------


def test_tis_by_hand_and_without_gradient() -> None:
    old = torch.log(t64(0.5, 0.9, 0.2)).requires_grad_()
    weight = corrections.tis(old, torch.log(t64(0.25, 0.1, 0.4)), cap=2.0)
    torch.testing.assert_close(weight, t64(2.0, 2.0, 0.5))  # 2 is at the cap, 9 is cut to it
    assert not weight.requires_grad


def test_mismatch_by_hand() -> None:
    figures = corrections.mismatch(t64(-1.0, -2.0), t64(-1.5, -2.0))
    assert figures["mismatch_mean"] == pytest.approx(0.25)
    assert figures["mismatch_p99"] == pytest.approx(0.5 * 0.99)
    assert figures["mismatch_kl"] == pytest.approx((math.exp(0.5) - 1 - 0.5) / 2)
    assert corrections.mismatch(t64(), t64())["mismatch_kl"] == 0.0


def test_the_mismatch_of_more_tokens_than_torchs_quantile_takes() -> None:
    log_rho = torch.zeros(2**24 + 1)
    log_rho[: 2**20] = -0.25
    assert corrections.mismatch(log_rho, torch.zeros(1))["mismatch_p99"] == 0.25


@PATIENT
@given(st.integers(0, 2**32 - 1))
def test_mismatch_kl_is_the_divergence_by_enumeration(seed: int) -> None:
    """E_mu[rho - 1 - log rho] = KL(mu || pi_old): with mu uniform a plain mean over all outcomes is the expectation."""
    old = np.random.default_rng(seed).dirichlet(np.ones(8)) + 1e-3
    old /= old.sum()
    exact = float((np.log(1 / 8) - np.log(old)).mean())
    figures = corrections.mismatch(torch.from_numpy(np.log(old)), torch.full((8,), math.log(1 / 8)))
    assert figures["mismatch_kl"] == pytest.approx(exact, abs=1e-5)


# -- GiGPO's step part -----------------------------------------------------------------------------------------


def test_gigpo_compares_discounted_returns_of_turns_in_the_same_state() -> None:
    """Two episodes meet in state "b": R there is 0.5 * 1 = 0.5 and 0; elsewhere each state was seen once."""
    steps = advantages.gigpo_steps([[0.0, 0.0, 1.0], [0.0, 0.0]], [["a", "b", "c"], ["d", "b"]], gamma=0.5, scale=False)
    assert steps == [[0.0, 0.25, 0.0], [0.0, -0.25]]


def test_gigpo_sees_a_state_twice_in_one_episode() -> None:
    """The same state at turns 0 and 1 of one episode is compared with itself: R is 0.5 and 1."""
    assert advantages.gigpo_steps([[0.0, 1.0]], [["a", "a"]], gamma=0.5, scale=False) == [[-0.25, 0.25]]


def test_gigpo_scales_by_the_deviation_within_the_state() -> None:
    steps = advantages.gigpo_steps([[1.0], [0.0], [0.0]], [["s"], ["s"], ["t"]])
    half = 0.5 / (0.5**0.5 + 1e-6)
    assert steps == [[pytest.approx(half)], [pytest.approx(-half)], [0.0]]


def test_gigpo_never_compares_states_across_tasks() -> None:
    """Two groups that pass through the same state get what each gets alone."""
    groups = [
        Group(
            GroupRequest(g, f"task {g}", 2, 0),
            [
                Trajectory(
                    "e",
                    f"task {g}",
                    0,
                    g,
                    sample,
                    turns=[Turn("same", [1, 2], [3], [-1.0], [0], reward=float(reward))],
                    stop=StopReason.TERMINATED,
                )
                for sample, reward in enumerate(rewards)
            ],
        )
        for g, rewards in enumerate([(0.0, 1.0), (5.0, 5.0)])
    ]
    algo = AlgoConfig(advantage="gigpo")
    together = [s.advantages for s in samples_of(groups, algo)]
    alone = [s.advantages for group in groups for s in samples_of([group], algo)]
    assert together == alone
    assert together[2] == [0.0, 0.0, 0.0]
    assert together[1][2] > 0 > together[0][2]
