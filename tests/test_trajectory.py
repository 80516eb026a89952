"""Trajectories: the token streams a trainer reads, and the way to JSON and back."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollenv import Failure, Segment, StopReason, Trajectory, Turn

IDS = st.lists(st.integers(0, 50_000), max_size=5)


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    completion_ids = draw(IDS)
    size = len(completion_ids)
    return Turn(
        observation=draw(st.text(max_size=8)),
        prompt_ids=draw(IDS),
        completion_ids=completion_ids,
        logprobs=draw(st.lists(st.floats(-20, 0), min_size=size, max_size=size)),
        policy_versions=draw(st.lists(st.integers(0, 9), min_size=size, max_size=size)),
        fork=draw(st.booleans()),
        completion=draw(st.text(max_size=8)),
        action=draw(st.text(max_size=8)),
        reward=draw(st.floats(-1, 1)),
        valid_action=draw(st.booleans()),
        seconds=draw(st.dictionaries(st.sampled_from(["generate", "env"]), st.floats(0, 10))),
    )


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    failure = st.builds(
        Failure,
        where=st.sampled_from(["env", "agent", "engine", "sandbox", "reward"]),
        kind=st.sampled_from(["timeout", "crash", "bad_output"]),
        message=st.text(),
        turn=st.none() | st.integers(0, 5),
    )
    return Trajectory(
        env=draw(st.text()),
        task=draw(st.text()),
        seed=draw(st.integers()),
        group=draw(st.integers(0, 9)),
        sample=draw(st.integers(0, 9)),
        attempt=draw(st.integers(0, 9)),
        turns=draw(st.lists(turns(), max_size=5)),
        stop=draw(st.sampled_from(StopReason)),
        failure=draw(st.none() | failure),
        success=draw(st.none() | st.booleans()),
        info=draw(st.dictionaries(st.text(), st.integers() | st.text())),
    )


def turn(
    prompt: list[int], completion: list[int], *, fork: bool = False, version: int = 0, reward: float = 0.0
) -> Turn:
    logprobs = [-0.1 * token for token in completion]
    return Turn("", prompt, completion, logprobs, [version] * len(completion), fork=fork, reward=reward)


def trajectory(*turns: Turn, **fields: Any) -> Trajectory:
    return Trajectory("Corridor-v0", "chest-1", 7, turns=list(turns), **fields)


# -- segments ----------------------------------------------------------------------------------------------


def test_turns_are_one_stream_with_a_mask_over_what_was_sampled() -> None:
    [segment] = trajectory(turn([1, 2], [3]), turn([4], [5, 6], version=2)).segments()
    assert segment == Segment(
        ids=[1, 2, 3, 4, 5, 6],
        mask=[0, 0, 1, 0, 1, 1],
        logprobs=[0.0, 0.0, pytest.approx(-0.3), 0.0, pytest.approx(-0.5), pytest.approx(-0.6)],  # type: ignore[list-item]
        policy_versions=[-1, -1, 0, -1, 2, 2],
        turns=[0, 0, 0, 1, 1, 1],
    )


def test_a_fork_begins_a_new_stream() -> None:
    forked = trajectory(turn([1], [2]), turn([3], [4]), turn([1, 3], [5], fork=True), turn([6], [7]))
    assert [segment.ids for segment in forked.segments()] == [[1, 2, 3, 4], [1, 3, 5, 6, 7]]
    assert [segment.turns for segment in forked.segments()] == [[0, 0, 1, 1], [2, 2, 2, 3, 3]]


def test_a_fork_at_the_first_turn_begins_no_empty_stream() -> None:
    assert [segment.ids for segment in trajectory(turn([1], [2], fork=True)).segments()] == [[1, 2]]


def test_turns_without_tokens_add_nothing() -> None:
    assert trajectory(turn([], []), turn([], [])).segments() == []
    assert [s.turns for s in trajectory(turn([], []), turn([1], [2]), turn([], [])).segments()] == [[1, 1]]


@given(trajectories())
def test_segments_hold_every_token_once_and_in_order(played: Trajectory) -> None:
    segments = played.segments()
    assert [i for s in segments for i in s.ids] == [i for t in played.turns for i in t.prompt_ids + t.completion_ids]
    sampled = [
        (token, logprob, version, turn_index)
        for s in segments
        for token, mask, logprob, version, turn_index in zip(
            s.ids, s.mask, s.logprobs, s.policy_versions, s.turns, strict=True
        )
        if mask
    ]
    assert sampled == [
        (*token, index)
        for index, t in enumerate(played.turns)
        for token in zip(t.completion_ids, t.logprobs, t.policy_versions, strict=True)
    ]
    assert played.n_completion_tokens == sum(sum(s.mask) for s in segments) == len(sampled)
    assert played.n_prompt_tokens == sum(len(s.ids) for s in segments) - len(sampled)
    assert all(s.ids for s in segments)


@given(trajectories())
def test_a_new_segment_begins_at_each_fork_that_has_tokens(played: Trajectory) -> None:
    with_tokens = [t for t in played.turns if t.prompt_ids or t.completion_ids]
    forks = sum(t.fork for t in with_tokens[1:])
    assert len(played.segments()) == (forks + 1 if with_tokens else 0)


@given(trajectories())
def test_reading_segments_changes_nothing(played: Trajectory) -> None:
    before = json.dumps(played.to_dict())
    first, second = played.segments(), played.segments()
    assert first == second
    for segment in first:
        segment.ids.append(-1)
    assert json.dumps(played.to_dict()) == before


# -- what became of it -------------------------------------------------------------------------------------


def test_the_reward_is_the_sum_of_the_turns() -> None:
    assert trajectory().reward == 0.0
    assert trajectory(turn([1], [2], reward=0.25), turn([3], [4], reward=0.5)).reward == 0.75


@pytest.mark.parametrize("stop", StopReason)
def test_faults_and_aborted_episodes_are_never_trained_on(stop: StopReason) -> None:
    ended = stop in (StopReason.TERMINATED, StopReason.TRUNCATED, StopReason.MAX_TURNS, StopReason.MAX_TOKENS)
    assert trajectory(turn([1], [2]), stop=stop).trainable == ended
    assert not trajectory(turn([1], []), stop=stop).trainable
    assert not trajectory(stop=stop).trainable


# -- JSON --------------------------------------------------------------------------------------------------


@given(trajectories())
def test_a_trajectory_survives_json(played: Trajectory) -> None:
    written = json.dumps(played.to_dict())
    again = Trajectory.from_dict(json.loads(written))
    assert again == played
    assert json.dumps(again.to_dict()) == written


@given(trajectories())
def test_the_written_form_is_its_fields_and_changing_it_changes_nothing(played: Trajectory) -> None:
    written = played.to_dict()
    assert written == asdict(played) | {"stop": played.stop.value, "reward": played.reward}
    before = json.dumps(written)
    written["info"]["later"] = 1
    written["turns"].append({})
    for turn in written["turns"][:-1]:
        turn["completion_ids"].append(7)
    assert json.dumps(played.to_dict()) == before


def test_the_written_form_can_be_read_without_rollenv() -> None:
    failed = trajectory(
        turn([1], [2], reward=0.5), stop=StopReason.FAILED, failure=Failure("env", "timeout", "no answer", 0)
    )
    written = json.loads(json.dumps(failed.to_dict()))
    assert written["stop"] == "failed"
    assert written["reward"] == 0.5
    fault = {"where": "env", "kind": "timeout", "message": "no answer", "turn": 0}
    assert written["failure"] == fault | {"collateral": False, "injected": ""}
    assert written["turns"][0]["completion_ids"] == [2]


def test_reading_does_not_consume_what_it_reads() -> None:
    written = trajectory(turn([1], [2])).to_dict()
    before = json.dumps(written)
    Trajectory.from_dict(written)
    assert json.dumps(written) == before
