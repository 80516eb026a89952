"""The figures of a step, by hand and as laws; every one of them is documented."""

from __future__ import annotations

import fnmatch
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rollout.fakes import ended, failed, of

from rollenv.rollout.buffer import Batch
from rollenv.rollout.figures import (
    FIGURES,
    batch_figures,
    depends_on_speed,
    latency_figures,
    staleness_histogram,
    waste_figures,
)
from rollenv.rollout.groups import Group, GroupRequest
from rollenv.rollout.ledger import Ledger
from rollenv.trajectory import Failure, StopReason, Trajectory, Turn


def group(index: int, episodes: list[Trajectory], version: int = 0) -> Group:
    return Group(GroupRequest(index, f"t{index}", len(episodes), 0, version), episodes)


def request(index: int, sample: int = 0) -> Any:
    return GroupRequest(index, f"t{index}", sample + 1, 0).episodes()[sample]


def timed(*turns: tuple[float, float], stop: StopReason = StopReason.TERMINATED) -> Trajectory:
    played = [Turn("", completion_ids=[1], seconds={"generate": g, "env": e}) for g, e in turns]
    return of(request(0), stop, played)


def test_a_batch_by_hand() -> None:
    first, second = ended(request(0), reward=1.0, tokens=3, version=2), ended(request(0, 1), reward=0.0, tokens=2)
    second.success = False
    second.turns[0].valid_action = False
    idle = group(1, [ended(request(1), reward=1.0, version=3)])
    batch = Batch(3, [group(0, [first, second, failed(request(0, 2))])], [idle])
    assert batch_figures(batch) == {
        "success": 2 / 3,
        "reward": 2 / 3,
        "turns": 1.0,
        "invalid_actions": 1 / 3,
        "episodes": 3.0,
        "groups": 1.0,
        "groups_without_signal": 1.0,
        "tokens": 11.0,
        "completion_tokens": 8.0,
        "staleness_max": 3.0,
        "staleness_mean": 3.0,
        "stale_tokens/0": 0.0,
        "stale_tokens/1": 3.0,
        "stale_tokens/2": 0.0,
        "stale_tokens/3": 2.0,
    }


def test_nothing_played_is_no_error() -> None:
    assert batch_figures(Batch(0, []))["success"] == 0.0
    assert staleness_histogram([], 5) == []
    assert latency_figures([]) == {}
    assert latency_figures([failed(request(0))]) == {}


@given(st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=5), max_size=8), st.integers(6, 9))
def test_the_histogram_counts_every_trained_token_once(versions: list[list[int]], now: int) -> None:
    episodes = [
        of(request(0), StopReason.TERMINATED, [Turn("", [1], [2] * len(v), [-1.0] * len(v), v)]) for v in versions
    ]
    histogram = staleness_histogram([group(0, [*episodes, failed(request(0))])], now)
    assert Counter(dict(histogram)) == Counter(now - version for v in versions for version in v)
    assert [age for age, _ in histogram] == list(range(len(histogram)))


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), min_size=1, max_size=50))
def test_percentiles_are_numpys_and_in_order(turns: list[tuple[float, float]]) -> None:
    figures = latency_figures([timed(*turns)])
    for p in (50, 95, 99):
        assert figures[f"generate_seconds_p{p}"] == pytest.approx(np.percentile([g for g, _ in turns], p))
        assert figures[f"env_seconds_p{p}"] == pytest.approx(np.percentile([e for _, e in turns], p))
        assert figures[f"episode_seconds_p{p}"] == pytest.approx(sum(g + e for g, e in turns))
    assert figures["env_seconds_p50"] <= figures["env_seconds_p95"] <= figures["env_seconds_p99"]


def test_turns_that_came_to_nothing_have_no_time_and_those_that_failed_have() -> None:
    hung = timed((1.0, 60.0), stop=StopReason.FAILED)
    hung.turns.append(Turn("never acted"))
    figures = latency_figures([timed((1.0, 2.0)), hung])
    assert figures["env_seconds_p50"] == 31.0
    assert figures["episode_seconds_p50"] == 32.0


def test_waste_is_what_was_added_since_the_last_boundary() -> None:
    ledger = Ledger()
    spoilt = timed((1.0, 2.0), (1.0, 3.0), stop=StopReason.FAILED)
    spoilt.failure = Failure("env", "timeout", "too long")
    injected = failed(request(0))
    injected.failure = Failure("env", "timeout", "injected env_hang", injected="env_hang")
    for trajectory in (spoilt, ended(request(0))):
        ledger.dispatch()
        ledger.settle(trajectory)
    before = Ledger.from_dict(ledger.to_dict())
    for trajectory in (injected, spoilt, timed((1.0, 7.0), stop=StopReason.ABORTED), ended(request(0))):
        ledger.dispatch()
        ledger.settle(trajectory)
    ledger.retried += 2
    assert waste_figures(before, ledger) == {
        "failed": 2.0,
        "retried": 2.0,
        "cancelled": 1.0,
        "discarded": 0.0,
        "wasted_tokens": 3.0,
        "wasted_env_seconds": 12.0,
        "failed/env/timeout": 1.0,
        "failed/injected/env_hang": 1.0,
    }
    assert waste_figures(ledger, ledger) == dict.fromkeys(waste_figures(before, ledger), 0.0)
    assert waste_figures(Ledger(), before)["wasted_env_seconds"] == 5.0
    assert ledger.balanced


def test_what_branches_cost_and_trees_save_is_told_where_there_are_any() -> None:
    plain, valued, leaf = (ended(request(0)) for _ in range(3))
    assert not {"branch_tokens", "shared_tokens"} & set(batch_figures(Batch(0, [group(0, [plain])])))
    valued.branch_cost = {"episodes": 4.0, "tokens": 9.0, "env_seconds": 1.0}
    leaf.turns, leaf.shared = [*plain.turns, *leaf.turns], [0]
    figures = batch_figures(Batch(0, [group(0, [plain, valued, leaf])]))
    assert (figures["branch_episodes"], figures["branch_tokens"], figures["shared_tokens"]) == (4.0, 9.0, 3.0)
    assert figures["completion_tokens"] == 9.0
    assert figures["stale_tokens/0"] == 9.0


def test_every_figure_is_documented_and_those_of_the_clock_are_known() -> None:
    ledger = Ledger()
    ledger.dispatch()
    ledger.settle(failed(request(0)))
    elsewhere = ended(request(0))
    elsewhere.env = "another"
    elsewhere.branch_cost, elsewhere.shared = {"episodes": 4.0, "tokens": 9.0}, [0]
    stale = Batch(1, [group(0, [ended(request(0)), elsewhere])])
    figures = batch_figures(stale) | latency_figures([timed((1.0, 1.0))]) | waste_figures(Ledger(), ledger)
    for name in [*figures, "queue_begin", "queue_end"]:
        assert [key for key in FIGURES if fnmatch.fnmatchcase(name, key)], f"{name} is not in FIGURES"
    for pattern in FIGURES:
        assert [name for name in [*figures, "queue_begin", "queue_end"] if fnmatch.fnmatchcase(name, pattern)]
    assert {name for name in figures if depends_on_speed(name)} == {
        "wasted_env_seconds",
        *(f"{part}_seconds_p{p}" for part in ("generate", "env", "episode") for p in (50, 95, 99)),
    }
