"""Advantages that need divergences or the whole batch, and algorithms by environment, in whole training steps."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("colours")

import toys  # noqa: E402
from batches import algo, episode, fresh, make_groups, optim, plain_model  # noqa: E402
from runs import assert_equal_runs, config, figures, interrupted, train  # noqa: E402

import rollenv  # noqa: E402
from rollenv.config.presets import PRESETS  # noqa: E402
from rollenv.errors import RollenvError  # noqa: E402
from rollenv.rollout.groups import Group, GroupRequest  # noqa: E402
from rollenv.trainers import checkpoint  # noqa: E402
from rollenv.trainers.credit import chosen, comes_late, credit, return_std  # noqa: E402
from rollenv.trainers.data import samples_of, train_tokens, trained_return, turn_advantages  # noqa: E402
from rollenv.trainers.policy import Policy  # noqa: E402
from rollenv.trainers.step import PolicyTrainer  # noqa: E402

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def origin() -> Policy:
    return toys.policy(seed=3)


def streams(seed: int, sizes: list[int]) -> list[Group]:
    draw = random.Random(seed)
    return [
        Group(
            GroupRequest(index, f"t{index}", size, 0),
            [episode(draw, index, sample, draw.choice((0.0, 0.5, 1.0)), forks=True) for sample in range(size)],
        )
        for index, size in enumerate(sizes)
    ]


SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=4)


@settings(max_examples=40)
@given(st.integers(0, 2**31), SIZES, st.sampled_from(["grpo", "gigpo", "turn_return", "liteppo", "raft", "return"]))
def test_costs_of_tokens_are_taken_from_their_turns_before_returns_are_compared(
    seed: int, sizes: list[int], advantage: str
) -> None:
    groups = streams(seed, sizes)
    a = algo(advantage=advantage)
    tokens = train_tokens(samples_of(groups, a))
    draw = random.Random(seed)
    costs = torch.tensor([draw.uniform(-1, 1) for _ in range(len(tokens.targets_N))])
    given_N = credit(groups, tokens, a, return_std(groups, a), costs).advantages_N
    cheaper = copy.deepcopy(groups)
    sequence = -1
    for group in cheaper:
        for trajectory in group.trainable:
            sequence += 1
            for number, turn in enumerate(trajectory.turns):
                here = (tokens.sequence_N == sequence) & (tokens.turn_N == number)
                turn.reward -= float(costs[here].double().sum())
    expected = train_tokens(samples_of(cheaper, a, return_std(groups, a))).advantages_N
    torch.testing.assert_close(given_N, expected, rtol=2e-3, atol=2e-3)


@settings(max_examples=40)
@given(st.integers(0, 2**31), SIZES, st.floats(0.5, 1))
def test_reinforce_pp_gives_each_token_what_came_after_it(seed: int, sizes: list[int], gamma: float) -> None:
    groups = streams(seed, sizes)
    for name in ("reinforce_pp", "reinforce_pp_baseline"):
        a = algo(advantage=name, gamma_token=gamma)
        tokens = train_tokens(samples_of(groups, a))
        expected = []
        for group in groups:
            returns = [trained_return(t, a) for t in group.trainable]
            for trajectory, value in zip(group.trainable, returns, strict=True):
                n = trajectory.n_completion_tokens
                if name == "reinforce_pp_baseline":
                    value = value - sum(returns) / len(returns) if len(returns) > 1 else 0.0
                expected += [gamma ** (n - 1 - t) * value for t in range(n)]
        torch.testing.assert_close(credit(groups, tokens, a).advantages_N, torch.tensor(expected), atol=1e-5, rtol=1e-5)


def test_the_batchs_deviation_and_the_most_spread_groups() -> None:
    groups = make_groups()
    assert return_std(groups, algo()) == pytest.approx(
        float(torch.tensor([0, 1, 0.3, 1, 0, 0.5, 0.5, 1, 0, 1], dtype=torch.float64).std())
    )
    assert [g.request.index for g in chosen(groups, lambda env: algo(train_share=0.4))] == [1, 4]
    assert chosen([], lambda env: algo(train_share=0.4)) == []


def test_branches_are_asked_for_where_there_are_none() -> None:
    groups = make_groups()
    with pytest.raises(RollenvError, match=r"algo\.advantage=vine .* an episode of task 't0' has none"):
        samples_of(groups, algo(advantage="vine"))
    for trajectory in groups[1].trainable:
        for number, turn in enumerate(trajectory.turns):
            turn.branch_returns = [0.25 * number, 0.25 * number + 0.5]
    values = turn_advantages(groups[1].trainable, algo(advantage="vine", gamma=1.0))
    for trajectory, advantages in zip(groups[1].trainable, values, strict=True):
        assert sum(advantages) == pytest.approx(trajectory.reward - 0.25)  # all but the first value cancel


# -- whole steps -----------------------------------------------------------------------------------------------------


def test_kl_in_the_reward_equals_a_slow_step(origin: Policy) -> None:
    """REINFORCE++ by its definition: token reward 1[t = T] R - beta k1, summed to the end, whitened over the batch."""
    a = algo(advantage="reinforce_pp", whiten=True, kl_coef=0.3, kl_estimator="k1", kl_in="reward")
    groups = make_groups(forks=False)
    policy = fresh(origin)
    trainer = PolicyTrainer(policy, a, optim(microbatch_tokens=64), total_steps=1)
    trainer.set_reference(toys.policy(seed=8))
    trainer.step(groups)
    slow, ref = fresh(origin), toys.policy(seed=8)
    plain_model(slow)
    plain_model(ref)
    logps, advantages = [], []
    for trajectory in [t for g in groups for t in g.trainable]:
        (segment,) = trajectory.segments()
        ids = torch.tensor([segment.ids])
        logp = slow.model(ids).logits[0].log_softmax(-1)
        ref_logp = ref.model(ids).logits[0].log_softmax(-1).detach()
        places = [i for i in range(1, len(segment.ids)) if segment.mask[i]]
        own = torch.stack([logp[i - 1, segment.ids[i]] for i in places])
        other = torch.stack([ref_logp[i - 1, segment.ids[i]] for i in places])
        rewards = -0.3 * (own.detach() - other)
        rewards[-1] += trajectory.reward
        logps.append(own)
        advantages.append(rewards.flip(0).cumsum(0).flip(0))
    white = torch.cat(advantages)
    white = (white - white.mean()) / white.std()
    (-(white * torch.cat(logps)).mean()).backward()
    optimizer = torch.optim.AdamW(slow.model.parameters(), lr=1e-2, betas=(0.9, 0.99), eps=1e-4, weight_decay=0.0)
    optimizer.step()
    for name, tensor in policy.state().items():
        torch.testing.assert_close(tensor, slow.state()[name], rtol=0, atol=1e-4, msg=name)


@pytest.mark.parametrize("name", PRESETS)
def test_micro_batch_size_changes_nothing_with_any_preset(origin: Policy, name: str) -> None:
    """Forks, sequence ratios, values and whitening included: 64 tokens at a time or all at once."""
    keys = {key.split(".")[1]: value for key, value in PRESETS[name].settings.items() if key.startswith("algo.")}
    a = algo(**keys)
    states = []
    for tokens in (64, 100_000):
        policy = fresh(origin)
        trainer = PolicyTrainer(policy, a, optim(microbatch_tokens=tokens, minibatches=2), total_steps=2)
        for seed in range(2):
            groups = make_groups(seed)
            for trajectory in (t for g in groups for t in g.trajectories):
                for turn in trajectory.turns:
                    turn.branch_returns = [0.2, 0.6]
            metrics = trainer.step(groups)
        states.append(policy.state())
    assert metrics["grad_norm"] > 0
    assert any(not torch.equal(tensor, origin.state()[key]) for key, tensor in states[0].items())
    for key, tensor in states[0].items():
        torch.testing.assert_close(tensor, states[1][key], rtol=0, atol=2e-4, msg=key)


def test_only_what_must_wait_for_the_batch_comes_late() -> None:
    """The others skip the forward pass of tokens without an advantage."""
    assert not comes_late(algo(advantage="gigpo"))
    assert not comes_late(algo(advantage="grpo", kl_coef=0.1))
    for settings_ in ({"advantage": "gae"}, {"advantage": "reinforce_pp"}, {"whiten": True}):
        assert comes_late(algo(**settings_))
    assert comes_late(algo(kl_coef=0.1, kl_in="reward"))


# -- by environment --------------------------------------------------------------------------------------------------


def test_two_environments_with_equal_algorithms_are_trained_as_with_one(origin: Policy) -> None:
    states = []
    for by_env in (
        {},
        {"b": algo(clip_high=0.28)},
        {"b": algo(clip_high=0.28, tau=0.9)},
    ):
        policy = fresh(origin)
        trainer = PolicyTrainer(policy, algo(clip_high=0.28), optim(epochs=2), total_steps=1, by_env=by_env)
        groups = make_groups()
        for group in groups[1::2]:
            group.request = GroupRequest(group.request.index, group.request.task, group.request.size, 0, env="b")
        trainer.step(groups)
        states.append(policy.state())
    for name, tensor in states[0].items():
        assert torch.equal(tensor, states[1][name])
        torch.testing.assert_close(tensor, states[2][name], rtol=0, atol=1e-5, msg=name)


def test_an_environments_own_algorithm_trains_its_groups_and_no_others(origin: Policy) -> None:
    """One that rejects everything leaves the gradient of the other's groups, over all tokens of the minibatch."""

    def stepped(groups: list[Group], **by_env: Any) -> Any:
        policy = fresh(origin)
        trainer = PolicyTrainer(policy, algo(), optim(), total_steps=1, by_env=by_env)
        kept: dict[str, Any] = {}
        trainer.optimizer.step = lambda: kept.update(  # type: ignore[method-assign]
            {name: p.grad.clone() for name, p in policy.model.named_parameters() if p.grad is not None}
        )
        return kept, trainer.step(groups)

    groups = make_groups()
    groups[0].request = GroupRequest(0, "t0", 3, 0, env="b")
    nothing = algo(rejection="geometric", reject_low=1e-6, reject_high=2e-6)
    ours, metrics = stepped(groups, b=nothing)
    others, _ = stepped(groups[1:])
    n = len(train_tokens(samples_of(groups[1:], algo())).targets_N)
    more = len(train_tokens(samples_of(groups, algo())).targets_N)
    assert metrics["masked_share"] > 0
    for name, grad in ours.items():
        torch.testing.assert_close(grad * more / n, others[name], rtol=1e-3, atol=1e-6, msg=name)


def test_a_mixture_with_an_algorithm_of_its_own_runs_and_resumes(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollenv.register("Shades-v0", toys.Colours, kwargs={"say": "say"}, max_turns=4)
    terse = {"name": "llm", "system": "", "list_actions": False}
    beside = {"env": "shades", "agent": terse, "algo": {"advantage": "gae", "whiten": True, "loss": "gspo"}}
    settings_: dict[str, Any] = {"mixture": [beside], "rollout": {"filter": "keep"}, "critic": {"value_lr": 1e-3}}
    train(config(tmp_path / "whole", **settings_), model)
    lines = figures(tmp_path / "whole")
    assert {"value_loss", "success/Shades-v0"} <= lines[-1].keys()
    c = config(tmp_path / "broken", **settings_)
    assert interrupted(c, model, monkeypatch, 100) is not None
    train(c, model, checkpoint.newest(tmp_path / "broken"))
    assert_equal_runs(tmp_path / "whole", tmp_path / "broken")
