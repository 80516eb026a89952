"""Episodes that branch off others: values of states, trees, and what becomes of branches when things go wrong."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout.fakes import Letters, Recorder, model_play, run
from rollout.walks import MAX_TURNS, START, Walk, value, wanders

from rollenv.rollout.branching import Branching, Tree, Vine
from rollenv.rollout.controller import collect
from rollenv.rollout.episode import EpisodeRequest
from rollenv.rollout.groups import Group, GroupProgress, GroupRequest
from rollenv.rollout.ledger import Ledger
from rollenv.rollout.play import Play
from rollenv.rollout.scheduler import Scheduler
from rollenv.trajectory import Failure, StopReason, Trajectory, Turn

FEW = settings(max_examples=15, deadline=None)


def worth(branch: Trajectory) -> float:
    return sum(turn.reward for turn in branch.own_turns)


def vine(branches: int = 3, **options: Any) -> Branching:
    return Branching({"": Vine(branches, worth, **options)})


def walk(engine: Any = None) -> Play:
    return model_play(Walk, engine or Recorder(wanders), max_turns=MAX_TURNS)


def play(branching: Branching, size: int = 2, concurrency: int = 4, how: Play | None = None) -> tuple[Group, Scheduler]:
    async def main() -> tuple[Group, Scheduler]:
        scheduler = Scheduler(how or walk(), concurrency, branching=branching)
        [group] = await collect(scheduler, [GroupRequest(0, "w0", size, run_seed=5)])
        await scheduler.close()
        return group, scheduler

    return run(main())


def told(group: Group) -> list[Any]:
    """What an episode was, without its clocks."""
    return [
        (t.sample, t.shared, [(u.observation, u.completion_ids, u.prompt_ids, u.reward) for u in t.turns], t.stop)
        for t in group.trajectories
    ]


# -- values ------------------------------------------------------------------------------------------------------


def test_the_values_of_branches_converge_to_the_true_values() -> None:
    """A walk with random steps under a random policy, and the closed form: within 4.5 standard errors everywhere. A
    restored environment that repeated the steps of its snapshot would miss them."""
    k = 250
    group, _ = play(vine(k), size=3, concurrency=64)
    seen = 0
    for trajectory in group.trajectories:
        for number, turn in enumerate(trajectory.turns):
            returns, true = turn.branch_returns, value(int(turn.observation.split()[1]), MAX_TURNS - number)
            assert len(returns) == k
            mean = sum(returns) / k
            deviation = (sum((r - mean) ** 2 for r in returns) / (k - 1)) ** 0.5
            assert abs(mean - true) <= 4.5 * deviation / k**0.5 + 1e-9
            seen += 1
    assert seen >= 9
    assert value(START, MAX_TURNS) == pytest.approx(0.45, abs=0.15)  # nothing trivial


@FEW
@given(st.integers(1, 9), st.integers(1, 4), st.none() | st.integers(3, 30), st.integers(0, 12))
def test_the_chosen_states_are_spread_within_the_budget(k: int, every: int, budget: int | None, n: int) -> None:
    chosen = Vine(k, worth, every, budget).chosen(n)
    assert chosen == sorted(set(chosen))
    assert all(0 <= turn < n and turn % every == 0 for turn in chosen)
    assert bool(chosen) == bool(n)
    assert not n or chosen[0] == 0
    if budget is None:
        assert len(chosen) == len(range(0, n, every))
    else:
        assert k * len(chosen) <= max(k, budget)


def test_branches_depend_on_the_seed_and_on_nothing_else() -> None:
    draw = random.Random(0)

    class Late(Recorder):
        async def generate(self, *args: Any, **options: Any) -> Any:
            for _ in range(draw.randrange(5)):
                await asyncio.sleep(0)
            return await super().generate(*args, **options)

    values = []
    for concurrency in (1, 3, 50):
        group, scheduler = play(vine(4), 3, concurrency, walk(Late(wanders)))
        values.append([[turn.branch_returns for turn in t.turns] for t in group.trajectories])
        assert scheduler.ledger.balanced
    assert values[0] == values[1] == values[2]
    assert len({tuple(turn) for episode in values[0] for turn in episode}) > 1


def test_a_branch_reads_what_the_episode_read_and_shares_its_session() -> None:
    forks: list[tuple[str, str]] = []

    class Sharing(Recorder):
        async def fork(self, source: str, session: str) -> None:
            forks.append((source, session))

    engine = Sharing(wanders)
    group, _ = play(vine(2), 1, 4, walk(engine))
    main = [prompt for session, prompt in engine.prompts if session == "train/0/0/0"]
    assert len(main) == len(group.trajectories[0].turns)
    for source, session in forks:
        assert source == "train/0/0/0"
        turn = int(session.split("/")[2].split(".")[1])
        assert next(p for s, p in engine.prompts if s == session) == main[turn]
    assert len(forks) == 2 * len(main)
    released = engine.released.index("train/0/0/0")
    assert released == len(engine.released) - 1, "the episode's session is kept until its last branch is over"
    assert set(engine.released) == {session for session, _ in engine.prompts}


def test_branches_take_places_and_are_in_the_books() -> None:
    most = 0

    class Counting(Recorder):
        async def generate(self, *args: Any, **options: Any) -> Any:
            nonlocal most
            most = max(most, self.running + 1)
            return await super().generate(*args, **options)

    group, scheduler = play(vine(5), 2, 3, walk(engine := Counting(wanders)))
    branches = sum(len(turn.branch_returns) for t in group.trajectories for turn in t.turns)
    ledger = scheduler.ledger
    assert most <= 3
    assert ledger.finished == ledger.dispatched == 2 + branches
    assert ledger.wasted_tokens == 0
    assert sum(t.branch_cost["episodes"] for t in group.trajectories) == branches
    spent = sum(t.branch_cost["tokens"] + t.n_spent_tokens for t in group.trajectories)
    assert spent == ledger.tokens == 2 * len(engine.prompts)
    ledger.discard(group.trajectories[0])
    assert ledger.wasted_tokens == group.trajectories[0].branch_cost["tokens"] + 2 * len(group.trajectories[0].turns)


class Breaking:
    """Lets attempts at branches fail, as `fails(request)` says."""

    def __init__(self, fails: Any) -> None:
        self._play, self._fails = walk(), fails

    async def __call__(self, request: EpisodeRequest) -> Trajectory:
        trajectory = await self._play(request)
        if self._fails(request):
            trajectory.stop, trajectory.failure = StopReason.FAILED, Failure("env", "crash", "broken")
        return trajectory


def test_a_branch_that_fails_is_tried_again_and_then_left_out() -> None:
    plain, _ = play(vine(3), 1)
    again, scheduler = play(vine(3), 1, how=Breaking(lambda r: r.branch == 1 and r.attempt < 2))
    assert [t.branch_returns for t in again.trajectories[0].turns] == [
        t.branch_returns for t in plain.trajectories[0].turns
    ]
    assert scheduler.ledger.retried == 2 * len(again.trajectories[0].turns)
    without, _ = play(vine(3), 1, how=Breaking(lambda r: r.branch == 1))
    for ours, theirs in zip(without.trajectories[0].turns, plain.trajectories[0].turns, strict=True):
        assert ours.branch_returns == [theirs.branch_returns[0], theirs.branch_returns[2]]


def test_an_episode_none_of_whose_branches_ends_has_failed() -> None:
    group, scheduler = play(vine(2), 1, how=Breaking(lambda r: r.branch is not None))
    [lost] = group.trajectories
    assert (lost.stop, lost.failure is not None) == (StopReason.FAILED, True)
    assert group.trainable == []
    assert scheduler.ledger.discarded == 1
    assert scheduler.ledger.balanced


@FEW
@given(st.integers(0, 60), st.integers(0, 3), st.sampled_from(["vine", "tree"]))
def test_cancelled_at_any_moment_nothing_is_left(ticks: int, seed: int, kind: str) -> None:
    engine = Recorder(wanders)
    branching = vine(3) if kind == "vine" else Branching(tree=Tree(2))

    async def main() -> Scheduler:
        scheduler = Scheduler(walk(engine), 4, branching=branching)
        scheduler.submit(GroupRequest(0, "w0", 6, run_seed=seed))
        for _ in range(ticks):
            await asyncio.sleep(0)
        before = scheduler.ledger.tokens
        done = scheduler.pending
        await scheduler.cancel([0])
        assert scheduler.ledger.in_flight == 0
        assert scheduler.ledger.balanced
        if not done:
            assert scheduler.ledger.wasted_tokens == scheduler.ledger.tokens >= before
        await scheduler.close()
        return scheduler

    run(main())
    assert {session for session, _ in engine.prompts} <= set(engine.released)


# -- trees -------------------------------------------------------------------------------------------------------


def test_a_tree_that_branches_at_its_first_turn_is_the_ordinary_group() -> None:
    ordinary, _ = play(Branching(), 6)
    tree, _ = play(Branching(tree=Tree(2, turn=0)), 6)
    assert [t.shared for t in tree.trajectories] == [[]] * 6
    assert told(tree) == told(ordinary)


@FEW
@given(st.integers(1, 3), st.sampled_from(["random", "entropy", 1, 3]), st.integers(1, 9))
def test_members_of_a_tree_have_their_trunks_beginning(trunks: int, turn: Any, concurrency: int) -> None:
    engine = Recorder(wanders)
    group, scheduler = play(Branching(tree=Tree(trunks, turn)), 7, concurrency, walk(engine))
    assert [t.sample for t in group.trajectories] == list(range(7))
    for leaf in group.trajectories:
        trunk, at = group.trajectories[leaf.sample % trunks], len(leaf.shared)
        assert leaf.shared == [trunk.sample] * at
        if leaf.sample < trunks:
            assert at == 0
            continue
        assert at < len(trunk.turns)
        assert leaf.turns[:at] == trunk.turns[:at]
        assert leaf.turns[at].observation == trunk.turns[at].observation
        if isinstance(turn, int):
            assert at == min(turn, len(trunk.turns) - 1)
    assert scheduler.ledger.tokens == sum(t.n_spent_tokens for t in group.trajectories) == 2 * len(engine.prompts)
    assert set(engine.released) == {session for session, _ in engine.prompts}
    again, _ = play(Branching(tree=Tree(trunks, turn)), 7, 3)
    assert told(again) == told(group)


def test_branches_leave_at_the_turns_of_highest_entropy() -> None:
    tree, trunk = Tree(1, "entropy"), Trajectory("", "t", 0)
    trunk.turns = [Turn("", logprobs=[-p]) for p in (0.5, 2.0, 0.1, 1.0)]
    assert [tree.leaves_at(trunk, EpisodeRequest("t", 0, sample=s)) for s in range(1, 7)] == [1, 3, 0, 2, 1, 3]


def test_without_its_trunk_a_member_begins_with_a_reset() -> None:
    ordinary, _ = play(Branching(), 4)
    group, _ = play(Branching(tree=Tree(1)), 4, how=Breaking(lambda r: r.sample == 0))
    assert [t.stop is StopReason.FAILED for t in group.trajectories] == [True, False, False, False]
    assert told(group)[1:] == told(ordinary)[1:]


def test_a_torn_tree_is_played_again_whole_after_a_resume() -> None:
    branching = Branching(tree=Tree(2))
    whole, _ = play(branching, 6)
    progress = GroupProgress(GroupRequest(0, "w0", 6, run_seed=5))
    for sample in (0, 1, 3, 5):  # the tree of trunk 0 lacks 2 and 4, that of trunk 1 is whole
        progress.ended(whole.trajectories[sample])
    resumed = GroupProgress.from_dict(json.loads(json.dumps(progress.to_dict())))

    async def main() -> tuple[Group, Scheduler]:
        scheduler = Scheduler(walk(), 4, ledger=Ledger(dispatched=4, finished=4), branching=branching)
        scheduler.submit(resumed.request, resumed)
        return await scheduler.next_group(), scheduler

    group, scheduler = run(main())
    assert told(group) == told(whole)
    ledger = scheduler.ledger
    assert (ledger.dispatched, ledger.finished, ledger.discarded) == (6, 6, 0), "trunk 0 counts once"
    assert ledger.balanced


def test_what_an_episode_has_encoded_its_branches_do_not_encode_again() -> None:
    calls: list[str] = []

    class Counting(Letters):
        def user_block(self, content: str) -> list[int]:
            calls.append(content)
            return super().user_block(content)

    how: Any = walk()
    _, scheduler = play(vine(2), 1, how=replace(how, chat=Counting()))
    assert len(calls) == scheduler.ledger.tokens // 2  # one for each turn that was played
