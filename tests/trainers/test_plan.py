"""What travels to ranks: each token that is read to one of them, and what all need to know to all."""

from __future__ import annotations

import pickle
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

import toys  # noqa: E402
from batches import algo, episode, make_groups, optim  # noqa: E402

from rollenv.rollout.groups import Group, GroupRequest  # noqa: E402
from rollenv.trainers.plan import Plan, Planner, divided, united  # noqa: E402
from rollenv.trainers.step import PolicyTrainer  # noqa: E402

ALGORITHMS: dict[str, dict[str, Any]] = {
    "grpo": {},
    "gigpo with costs": {"advantage": "gigpo", "kl_coef": 0.1, "kl_in": "reward"},
    "baseline": {"advantage": "reinforce_pp_baseline", "overlong_length": 6, "overlong_cache": 4},
    "ppo": {"advantage": "gae", "whiten": True},
}


def long_groups(n: int, seed: int = 0) -> list[Group]:
    """Episodes that read much and write little, with texts."""
    import random

    draw = random.Random(seed)
    groups = []
    for index in range(n):
        trajectories = [episode(draw, index, sample, draw.random(), False) for sample in range(4)]
        for turn in (turn for t in trajectories for turn in t.turns):
            turn.prompt_ids = [draw.randrange(4, 280) for _ in range(draw.randint(100, 500))]
            turn.observation = " ".join(map(str, turn.prompt_ids))
        groups.append(Group(GroupRequest(index, f"t{index}", 4, 0), trajectories))
    return groups


def tokens_of(plan: Plan) -> list[tuple[int, list[list[int]], list[list[int]]]]:
    return [
        (micro.rank, micro.content.ids, micro.content.trained)
        for parts in plan
        for part in parts
        for micro in part.micros
        if micro.content is not None
    ]


@settings(max_examples=20)
@given(st.integers(1, 5), st.integers(1, 12), st.integers(0, 3))
def test_every_micro_batch_travels_to_one_rank(ranks: int, n: int, seed: int) -> None:
    planner = Planner(algo(), optim(microbatch_tokens=1500, minibatches=2))
    plan = planner.plan(long_groups(n, seed), ranks, ranks)
    bare, shards = divided(plan, ranks)
    assert tokens_of(bare) == []
    arrived = [tokens_of(united(bare, shard, rank)) for rank, shard in enumerate(shards)]
    assert all(owner == rank for rank, own in enumerate(arrived) for owner, *_ in own)
    assert sorted(one for own in arrived for one in own) == sorted(tokens_of(plan))
    assert tokens_of(planner.plan(long_groups(n, seed), ranks, ranks)) == tokens_of(plan), "the same every time"


def test_a_rank_gets_its_share_and_no_text() -> None:
    groups, ranks = long_groups(16), 4
    bare, shards = divided(Planner(algo(), optim(microbatch_tokens=8192)).plan(groups, ranks, ranks), ranks)
    whole, common = len(pickle.dumps(groups)), len(pickle.dumps(bare))
    mine = [len(pickle.dumps(shard)) for shard in shards]
    read = [len(shard.ids) for shard in shards]
    assert max(read) < 1.1 * min(read), "evenly by tokens"
    assert max(mine) < 1.15 * sum(mine) / ranks
    assert common + max(mine) < whole / 4


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_step_on_what_arrived_is_the_step_on_the_batch(name: str) -> None:
    a, o = algo(**ALGORITHMS[name]), optim(microbatch_tokens=64, minibatches=2)
    here, there = (PolicyTrainer(toys.policy(), a, o, 2) for _ in range(2))
    for seed in range(2):
        sent = divided(Planner(a, o).plan(make_groups(seed), there.shares), 1)
        plan, (shard,) = pickle.loads(pickle.dumps(sent))
        assert here.step(make_groups(seed)) == there.step_on(plan, shard)
    for ours, theirs in zip(here.policy.model.parameters(), there.policy.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_padding_is_counted_and_small() -> None:
    """In attention alone, where segments of similar length lie side by side."""
    trainer = PolicyTrainer(toys.policy(context=4096), algo(entropy_coef=0.01), optim(microbatch_tokens=8192), 1)
    share = trainer.step(long_groups(12))["padding_share"]
    assert 0 < share <= 0.05


def test_tokens_at_places_are_those_tokens() -> None:
    planner = Planner(algo(), optim(microbatch_tokens=64))
    for part in planner.plan(make_groups(0), 2)[0]:
        for micro in part.micros:
            chosen = part.tokens.at(micro.places_N)
            for field in fields(chosen):
                of_all, of_these = getattr(part.tokens, field.name), getattr(chosen, field.name)
                assert of_these.tolist() == [of_all.tolist()[place] for place in micro.places_N.tolist()]
