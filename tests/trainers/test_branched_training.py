"""What trains on episodes that branch: a tree's tokens once, with what its leaves were worth; a run with branches."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import toys  # noqa: E402
from batches import algo, episode, fresh, optim  # noqa: E402
from runs import config, figures, train  # noqa: E402

from rollenv.errors import RollenvError  # noqa: E402
from rollenv.rollout.groups import Group, GroupRequest  # noqa: E402
from rollenv.trainers.credit import credit  # noqa: E402
from rollenv.trainers.data import branch_worth, samples_of, train_tokens, turn_advantages  # noqa: E402
from rollenv.trainers.step import PolicyTrainer  # noqa: E402
from rollenv.trajectory import Trajectory  # noqa: E402


def tree_group(seed: int = 0, forks: bool = False) -> Group:
    """A trunk of at least two turns (sample 0), two leaves that leave it at its turns 1 and 1, and a leaf of the
    first of these: 0 -> 2, 4 and 2 -> 6; sample 1 is a trunk without leaves."""
    draw = random.Random(seed)

    def of(sample: int, reward: float) -> Trajectory:
        while len((t := episode(draw, 0, sample, reward, forks)).turns) < 2:
            pass
        return t

    def leaf(source: Trajectory, at: int, sample: int, reward: float) -> Trajectory:
        own = of(sample, reward)
        own.shared = [*source.shared, *[source.sample] * 9][:at]
        own.turns = source.turns[:at] + own.turns
        return own

    trunk, alone = of(0, 1.0), of(1, 0.0)
    first = leaf(trunk, 1, 2, 0.5)
    second = leaf(trunk, 1, 4, 0.0)
    deep = leaf(first, 2, 6, 1.0)
    return Group(GroupRequest(0, "t0", 5, 0), [trunk, alone, first, second, deep])


def test_common_turns_have_the_mean_advantage_of_those_that_went_on_from_them() -> None:
    group = tree_group()
    trunk, alone, first, second, deep = turn_advantages(group.trainable, algo(advantage="dr_grpo"))
    mean = 2.5 / 5
    assert alone == pytest.approx([0.0 - mean] * len(alone))
    root = (1.0 + 0.5 + 0.0 + 1.0) / 4 - mean
    assert [trunk[0], first[0], second[0], deep[0]] == pytest.approx([root] * 4)
    assert trunk[1] == pytest.approx(1.0 - mean)
    assert first[1] == deep[1] == pytest.approx((0.5 + 1.0) / 2 - mean)
    assert first[2:] == pytest.approx([0.5 - mean] * len(first[2:]))
    assert deep[2:] == pytest.approx([1.0 - mean] * len(deep[2:]))


@pytest.mark.parametrize("forks", [False, True])
@pytest.mark.parametrize("without", [None, 0])
def test_common_tokens_train_once_also_when_who_sampled_them_is_not_there(forks: bool, without: int | None) -> None:
    group = tree_group(3, forks)
    group.trajectories = [t for t in group.trajectories if t.sample != without]
    samples = samples_of([group], algo())
    turns: dict[Any, int] = {}
    for t in group.trajectories:
        for number, turn in enumerate(t.turns):
            owner = t.shared[number] if number < len(t.shared) else t.sample
            turns[owner, number] = len(turn.completion_ids)
    assert sum(len(sample.trained) for sample in samples) == sum(turns.values())
    assert all(sample.trained for sample in samples)
    tokens = train_tokens(samples)
    assert int(tokens.sequence_N.max()) < len(group.trajectories)


def test_a_kl_penalty_on_common_turns_is_paid_by_all_who_have_them() -> None:
    group = tree_group()
    a = algo(advantage="dr_grpo", kl_coef=0.1, kl_in="reward")
    tokens = train_tokens(samples_of([group], a))
    costs_N = ((tokens.sequence_N == 0) & (tokens.turn_N == 0)).float()
    n = float(costs_N.sum())
    given = credit([group], tokens, a, costs_N=costs_N).advantages_N
    assert n > 0
    returns = torch.tensor([1.0 - n, 0.0, 0.5 - n, 0.0 - n, 1.0 - n])
    expected = returns[3] - returns.mean()
    assert given[(tokens.sequence_N == 3)].tolist() == pytest.approx(
        [float(expected)] * int((tokens.sequence_N == 3).sum())
    )


def test_the_gradient_is_that_of_each_token_once() -> None:
    """One update under REINFORCE and a token mean, against autograd of the formula over the tree's tokens."""
    group, origin = tree_group(5), toys.policy()
    a = algo(advantage="dr_grpo", loss="plain")
    policy = fresh(origin)
    trainer = PolicyTrainer(policy, a, optim(), total_steps=1)
    trainer.step([group])
    grads = {name: p.grad for name, p in policy.model.named_parameters()}

    model = fresh(origin).model
    model.config._attn_implementation = "eager"
    advantages, terms, seen = turn_advantages(group.trainable, a), [], set()
    for t, of_turn in zip(group.trainable, advantages, strict=True):
        [segment] = t.segments()
        logp = model(torch.tensor([segment.ids])).logits[0].float().log_softmax(-1)
        for i, (sampled, turn) in enumerate(zip(segment.mask, segment.turns, strict=True)):
            owner = t.shared[turn] if turn < len(t.shared) else t.sample
            if sampled and (owner, turn, i) not in seen:
                seen.add((owner, turn, i))
                terms.append(-of_turn[turn] * logp[i - 1, segment.ids[i]])
    torch.stack(terms).mean().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(grads[name], parameter.grad, rtol=1e-3, atol=1e-5, msg=name)


def test_a_branch_is_worth_what_came_after_its_start_discounted() -> None:
    branch = tree_group().trajectories[2]
    n = len(branch.turns) - 1
    for turn in branch.turns:
        turn.valid_action = True
    branch.turns[0].reward = 5.0
    assert branch_worth(branch, algo(gamma=0.5)) == pytest.approx(0.5 * 0.5 ** (n - 1))
    branch.turns[1].valid_action = False
    assert branch_worth(branch, algo(gamma=1.0, invalid_penalty=0.1)) == pytest.approx(0.4)


# -- runs --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("colours")
def test_a_run_of_vineppo_values_every_turn_and_says_what_it_cost(model: Path, tmp_path: Path) -> None:
    c = config(tmp_path, algo={"advantage": "vine", "branches": 3, "gamma": 1.0}, rollout={"filter": "keep"}, steps=2)
    run = train(c, model)
    steps = figures(tmp_path)[1:]
    for line in steps:
        assert line["branch_episodes"] == 3 * round(line["turns"] * line["episodes"])
        assert line["branch_tokens"] > 0
        assert line["advantage_std"] > 0
        assert line["wasted_tokens"] == 0
    assert run.scheduler.ledger.balanced
    assert run.scheduler.ledger.finished >= sum(line["episodes"] + line["branch_episodes"] for line in steps)


@pytest.mark.usefixtures("colours")
def test_a_run_of_trees_samples_common_turns_once(model: Path, tmp_path: Path) -> None:
    c = config(tmp_path / "trees", rollout={"trees": 1, "tree_turn": 1}, steps=1, eval={"every": 0})
    train(c, model)
    line = figures(tmp_path / "trees")[1]
    assert line["shared_tokens"] > 0
    assert line["trained_tokens"] <= line["completion_tokens"]
    train(config(tmp_path / "plain", steps=1, eval={"every": 0}), model)
    train(config(tmp_path / "first", rollout={"trees": 1, "tree_turn": 0}, steps=1, eval={"every": 0}), model)
    assert figures(tmp_path / "plain") == figures(tmp_path / "first"), "trees that branch at once are ordinary groups"


class NoSnapshots(toys.Colours):
    snapshot = toys.rollenv.TextEnv.snapshot


@pytest.mark.usefixtures("colours")
@pytest.mark.parametrize("settings", [{"algo": {"advantage": "vine"}}, {"rollout": {"trees": 2}}])
def test_an_environment_without_snapshots_is_refused_before_anything_starts(
    settings: dict[str, Any], model: Path, tmp_path: Path
) -> None:
    toys.rollenv.register("Forgetful-v0", NoSnapshots, max_turns=4)
    with pytest.raises(RollenvError, match=r"'Forgetful-v0' has no snapshots, .* give it snapshot\(\) and restore\(\)"):
        train(config(tmp_path / "run", env="Forgetful-v0", **settings), model)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rollout": {"trees": 4}}, "below rollout.group_size"),
        ({"rollout": {"trees": 2, "extra_samples": 1}}, "do not go together"),
        ({"rollout": {"trees": 2}, "algo": {"advantage": "vine"}}, "do not go together"),
        ({"algo": {"advantage": "vine", "kl_in": "reward", "kl_coef": 0.1}}, "branches pay no KL penalty"),
        ({"algo": {"advantage": "vine", "branch_budget": 5}}, "must allow the 9 algo.branches"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        config(tmp_path, **settings)
