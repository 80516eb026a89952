"""How loss, proximal policy, correction, rejection, KL and entropy go together, against the plain formula per token."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from batches import algo  # noqa: E402

from rollenv.config.algo import AlgoConfig  # noqa: E402
from rollenv.trainers.objective import Stream, token_loss  # noqa: E402

VERSION, KL_COEF = 6, 0.3


def stream(seed: int, n: int) -> Stream:
    draw = random.Random(seed)

    def column(low: float, high: float) -> Any:
        return torch.tensor([draw.uniform(low, high) for _ in range(n)], dtype=torch.float64)

    logp = column(-2, -0.1)
    units = torch.unique(torch.tensor([draw.randrange(3) for _ in range(n)]), return_inverse=True)[1]
    return Stream(
        logp_N=logp.clone().requires_grad_(),
        entropy_N=column(0, 1).requires_grad_(),
        mu_logp_N=logp + column(-0.6, 0.6),
        advantages_N=column(-2, 2),
        versions_N=torch.tensor([draw.randint(VERSION - 4, VERSION) for _ in range(n)]),
        old_logp_N=logp + column(-0.4, 0.4),
        ref_logp_N=logp + column(-0.5, 0.5),
        unit_N=units,
    )


def plain(s: Stream, a: AlgoConfig) -> tuple[list[Any], list[bool]]:
    """Loss and mask of each token, one at a time."""
    assert s.old_logp_N is not None
    assert s.ref_logp_N is not None
    assert s.unit_N is not None
    n = len(s.logp_N)
    old = []
    for i in range(n):
        now, mu, age = float(s.logp_N[i].detach()), float(s.mu_logp_N[i]), VERSION - int(s.versions_N[i])
        alpha = age / (age + 1)
        old.append(
            {
                "recompute": float(s.old_logp_N[i]),
                "sampler": mu,
                "interpolate": (1 - alpha) * mu + alpha * now,
            }[a.proximal]
        )
    losses, masked = [], []
    for i in range(n):
        mates = [j for j in range(n) if s.unit_N[j] == s.unit_N[i]]
        advantage, mu = float(s.advantages_N[i]), float(s.mu_logp_N[i])
        log_rho = [old[j] - float(s.mu_logp_N[j]) for j in mates]
        r = torch.exp(s.logp_N[i] - old[i])
        if a.loss == "gspo":
            mean = sum(float(s.logp_N[j].detach()) - old[j] for j in mates) / len(mates)
            r = torch.exp(s.logp_N[i] - s.logp_N[i].detach() + mean)
        clipped = -torch.min(r * advantage, r.clamp(1 - a.clip_low, 1 + a.clip_high) * advantage)
        whole = math.exp(sum(float(s.logp_N[j].detach() - s.mu_logp_N[j]) for j in mates))
        loss = {
            "ppo_clip": clipped,
            "gspo": clipped,
            "decoupled_ppo": math.exp(old[i] - mu) * clipped,
            "cispo": -float(r.detach().clamp(1 - a.clip_low, 1 + a.clip_high)) * advantage * s.logp_N[i],
            "topr": -(1.0 if advantage >= 0 else min(1.0, whole)) * advantage * s.logp_N[i],
            "kimi": -advantage * s.logp_N[i] + a.tau / 2 * (s.logp_N[i] - old[i]) ** 2,
            "plain": -advantage * s.logp_N[i],
        }[a.loss]
        rho = math.exp(old[i] - mu)
        weight = {
            "none": 1.0,
            "tis": min(rho, a.tis_cap),
            "tis_sequence": min(math.exp(sum(log_rho)), a.tis_cap),
            "icepop": rho if a.icepop_low <= rho <= a.icepop_high else 0.0,
        }[a.correction]
        loss = weight * loss
        k1 = s.logp_N[i] - s.ref_logp_N[i]
        if a.kl_in == "loss":
            loss = loss + KL_COEF * {"k1": k1, "k2": k1**2 / 2, "k3": torch.exp(-k1) - 1 + k1}[a.kl_estimator]
        loss = loss - a.entropy_coef * s.entropy_N[i]
        drift = sum(float(s.mu_logp_N[j] - s.logp_N[j].detach()) for j in mates) / len(mates)
        kept = {
            "none": True,
            "geometric": a.reject_low <= math.exp(sum(log_rho) / len(mates)) <= a.reject_high,
            "opsm": not (advantage < 0 and drift > a.opsm_threshold),
        }[a.rejection]
        losses.append(loss if kept else 0 * loss)
        masked.append(not kept or weight == 0)
    return losses, masked


@settings(max_examples=200)
@given(
    seed=st.integers(0, 2**31),
    n=st.integers(1, 9),
    loss=st.sampled_from(["ppo_clip", "decoupled_ppo", "gspo", "cispo", "topr", "kimi", "plain"]),
    proximal=st.sampled_from(["recompute", "interpolate", "sampler"]),
    correction=st.sampled_from(["none", "tis", "tis_sequence", "icepop"]),
    rejection=st.sampled_from(["none", "geometric", "opsm"]),
    kl=st.sampled_from([("k1", "loss"), ("k2", "loss"), ("k3", "loss"), ("k1", "reward")]),
)
def test_a_tokens_loss_and_gradient_equal_the_plain_formula(
    seed: int, n: int, loss: str, proximal: str, correction: str, rejection: str, kl: tuple[str, str]
) -> None:
    if loss == "decoupled_ppo":
        correction, proximal = "none", "recompute" if proximal == "sampler" else proximal
    if proximal == "sampler":  # nothing to correct
        correction, rejection = "none", "none" if rejection == "geometric" else rejection
    a = algo(
        loss=loss,
        proximal=proximal,
        correction=correction,
        rejection=rejection,
        kl_coef=KL_COEF,
        kl_estimator=kl[0],
        kl_in=kl[1],
        entropy_coef=0.05,
        tis_cap=1.2,
        icepop_low=0.8,
        icepop_high=1.3,
        reject_low=0.9,
        reject_high=1.1,
    )
    s = stream(seed, n)
    made = token_loss(s, a, VERSION, KL_COEF)
    losses, masked = plain(s, a)
    torch.testing.assert_close(made.loss_N, torch.stack(losses), rtol=1e-9, atol=1e-9)
    assert made.masked_N.tolist() == masked
    ours = torch.autograd.grad(made.loss_N.sum(), (s.logp_N, s.entropy_N), retain_graph=True)
    theirs = torch.autograd.grad(sum(losses), (s.logp_N, s.entropy_N))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("proximal", ["recompute", "interpolate", "sampler"])
@pytest.mark.parametrize("before", [True, False])
def test_how_far_sampler_and_trainer_are_apart_does_not_depend_on_the_proximal_policy(
    proximal: str, before: bool
) -> None:
    s = stream(5, 20)
    old = s.old_logp_N
    if not before:
        s.old_logp_N = None
        old = s.logp_N.detach()
    made = token_loss(s, algo(proximal=proximal), VERSION, KL_COEF)
    assert not made.mismatch_N.requires_grad
    assert torch.equal(made.mismatch_N, old - s.mu_logp_N)
