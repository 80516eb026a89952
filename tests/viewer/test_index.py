"""The index of a run's episodes says what the episodes say, and follows their files."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from viewer.folders import EPISODES, episode, evaluation, training

from rollenv.evaluation.export import Exported, step_file
from rollenv.trajectory import Failure, StopReason, Trajectory
from rollenv.viewer import index as module
from rollenv.viewer.index import SHOW, SORT, EpisodeIndex, Query
from rollenv.viewer.runs import find_runs

FAILED = {"stop": StopReason.FAILED, "success": None, "failure": Failure("env", "timeout", "no answer", 1)}
HERE = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


def opened(folder: Path) -> EpisodeIndex:
    """The index of a run, when all has been read."""
    index = EpisodeIndex(find_runs(folder)[0])
    index.refresh()
    assert index.wait(60)
    return index


@pytest.fixture
def indexed() -> Iterator[Callable[[Path], EpisodeIndex]]:
    made: list[EpisodeIndex] = []

    def make(folder: Path) -> EpisodeIndex:
        made.append(opened(folder))
        return made[-1]

    yield make
    for each in made:
        each.close()


@HERE
@given(st.lists(EPISODES, max_size=8), st.booleans())
def test_every_episode_is_found_and_read_back_as_it_was_played(played: list[Trajectory], trained: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        training(folder, {7: played}, {"step": 7}) if trained else evaluation(folder, played)
        index = opened(folder)
        rows = index.rows(Query(), 0, 100)
        assert len(rows) == len(played)
        for row, one in zip(rows, played, strict=True):
            assert (row["env"], row["group"], row["sample"], row["turns"]) == (
                *(one.env, one.group, one.sample),
                len(one.turns),
            )
            assert (row["stop"], row["success"], row["reward"]) == (one.stop, one.success, one.reward)
            assert row["tokens"] == one.n_completion_tokens
            assert row["invalid"] == sum(not turn.valid_action for turn in one.turns)
            assert row["failure"] == (one.failure and one.failure.label)
            assert row["step"] == (7 if trained else None)
            place = index.place(row["id"])
            assert place is not None
            assert Exported.from_dict(place.read()).trajectory == one
        index.close()


NAIVE_SHOW: dict[str, Callable[[Trajectory], bool]] = {
    "all": lambda t: True,
    "successful": lambda t: t.success is True and t.stop != "failed",
    "unsuccessful": lambda t: t.success is not True and t.stop not in ("failed", "aborted"),
    "failed": lambda t: t.stop == "failed",
    "limit": lambda t: t.stop in ("max_turns", "max_tokens", "truncated"),
    "invalid": lambda t: any(not turn.valid_action for turn in t.turns),
}
NAIVE_SORT: dict[str, Callable[[Trajectory], float]] = {
    "order": lambda t: 0,
    "turns": lambda t: -len(t.turns),
    "tokens": lambda t: -t.n_completion_tokens,
    "reward": lambda t: -t.reward,
    "low": lambda t: t.reward,
}


@HERE
@given(
    st.lists(EPISODES, max_size=12), st.sampled_from([*NAIVE_SHOW]), st.sampled_from([*NAIVE_SORT]), st.integers(1, 5)
)
def test_filters_orders_and_pages_are_those_of_a_plain_list(
    played: list[Trajectory], show: str, sort: str, size: int
) -> None:
    assert NAIVE_SHOW.keys() == SHOW.keys()
    with tempfile.TemporaryDirectory() as name:
        index = opened(evaluation(Path(name), played))
        query = Query(show, sort)
        pages = [index.rows(query, at, size) for at in range(0, len(played) + 1, size)]
        expected = sorted(
            (i for i, one in enumerate(played) if NAIVE_SHOW[show](one)), key=lambda i: (NAIVE_SORT[sort](played[i]), i)
        )
        assert [row["id"] for page in pages for row in page] == expected
        assert index.count(query) == index.counts()[show] == len(expected)
        index.close()


def test_every_order_is_an_order(tmp_path: Path, indexed: Any) -> None:
    index = indexed(evaluation(tmp_path, [episode(i, turns=i % 3, reward=i % 4) for i in range(8)]))
    assert all(len(index.rows(Query(sort=sort), 0, 9)) == 8 for sort in SORT)
    assert [row["id"] for row in index.rows(Query(sort="newest"), 0, 2)] == [7, 6]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("thing 1", [2, 3]),
        ("THING turn", [0, 1, 2, 3]),
        ("task-0", [0, 1]),
        ("%", []),
        ("_", []),
        ("\\", []),
        ("'", []),
    ],
)
def test_text_is_looked_for_in_tasks_and_first_observations(
    text: str, found: list[int], tmp_path: Path, indexed: Any
) -> None:
    index = indexed(evaluation(tmp_path, [episode(i) for i in range(4)]))
    assert [row["id"] for row in index.rows(Query(text=text), 0, 9)] == found
    assert index.count(Query(text=text)) == len(found)


def test_a_reward_is_measured_against_the_samples_of_the_same_task_that_ended(tmp_path: Path, indexed: Any) -> None:
    rewards = [episode(i, reward=reward, samples=4) for i, reward in enumerate((1.0, 0.0, 0.5))]
    played = [*rewards, episode(3, samples=4, **FAILED), episode(4, samples=4)]
    index = indexed(evaluation(tmp_path, played))
    assert [row["above"] for row in index.rows(Query(), 0, 9)] == [0.5, -0.5, 0.0, None, None]
    assert [row["id"] for row in index.group(1, 9)] == [0, 1, 2, 3]


def test_groups_of_different_steps_are_different(tmp_path: Path, indexed: Any) -> None:
    index = indexed(training(tmp_path, {1: [episode(0), episode(1)], 2: [episode(0), episode(1)]}))
    of_two = [row["id"] for row in index.rows(Query(step=2), 0, 9)]
    assert [row["id"] for row in index.group(of_two[0], 9)] == of_two
    assert index.steps() == [1, 2]


def test_what_has_been_read_can_be_asked_for_while_the_rest_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluation(tmp_path, [episode(i) for i in range(100)])
    read, go_on, here = module.lines_of, threading.Event(), threading.Event()

    def slowly(path: Path) -> Iterator[Any]:
        for number, each in enumerate(read(path)):
            if number == 60:
                here.set()
                assert go_on.wait(60)
            yield each

    monkeypatch.setattr(module, "lines_of", slowly)
    index = EpisodeIndex(find_runs(tmp_path)[0])
    index.refresh()
    assert here.wait(60)
    state = index.progress()
    assert state["reading"]
    assert 0 < state["bytes"] < state["total"]
    assert module.FIRST <= len(index.rows(Query(), 0, 100)) <= 60
    go_on.set()
    assert index.wait(60)
    assert index.count(Query()) == 100
    assert index.progress()["bytes"] == state["total"]
    index.close()


def test_the_first_ones_have_a_head_start_which_closing_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEAD_START", 3600.0)
    evaluation(tmp_path, [episode(i) for i in range(3 * module.FIRST)])
    index = EpisodeIndex(find_runs(tmp_path)[0])
    index.refresh()
    while not index.count(Query()):
        assert not index.wait(0.01)
    assert not index.wait(0.5)
    assert index.count(Query()) == module.FIRST
    index.close()
    assert index.wait(0)


def test_files_are_read_once_also_by_the_next_viewer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training(tmp_path, {1: [episode(0)], 2: [episode(1)]})
    opened(tmp_path).close()
    read: list[str] = []
    original = module.lines_of
    monkeypatch.setattr(module, "lines_of", lambda path: read.append(path.name) or original(path))
    index = opened(tmp_path)
    assert index.count(Query()) == 2
    training(tmp_path, {3: [episode(2)]})
    index.refresh()
    assert index.wait(60)
    assert index.count(Query()) == 3
    assert read == ["step-000003.jsonl"]
    index.close()


def test_a_file_that_was_written_again_is_read_again_and_one_that_is_gone_is_forgotten(
    tmp_path: Path, indexed: Any
) -> None:
    index = indexed(training(tmp_path, {1: [episode(0)], 2: [episode(1), episode(2)], 3: [episode(3)]}))
    training(tmp_path, {2: [episode(1, turns=5)]})
    step_file(tmp_path, 3).unlink()
    index.refresh()
    assert index.wait(60)
    assert [(row["step"], row["turns"]) for row in index.rows(Query(), 0, 9)] == [(1, 2), (2, 5)]


def test_torn_lines_are_counted_and_the_others_are_shown(tmp_path: Path, indexed: Any) -> None:
    file = evaluation(tmp_path, [episode(i) for i in range(3)]) / "trajectories.jsonl"
    first, second, third = file.read_text().splitlines()
    file.write_text("\n".join([first, second[:80], '{"turns": 3}', "[]", third]))
    (tmp_path / "timings.jsonl").unlink()
    index = indexed(tmp_path)
    assert [row["id"] for row in index.rows(Query(), 0, 9)] == [0, 4]
    assert index.counts()["torn"] == 3


def test_a_damaged_index_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLENV_CACHE", str(tmp_path / "cache"))
    folder = evaluation(tmp_path / "run", [episode(0)])
    opened(folder).close()
    (database,) = (tmp_path / "cache" / "viewer").glob("*.sqlite")
    database.write_bytes(b"no database" * 1000)
    index = opened(folder)
    assert index.count(Query()) == 1
    index.close()


def test_two_viewers_of_one_run_do_not_share_an_index(tmp_path: Path, indexed: Any) -> None:
    folder = evaluation(tmp_path, [episode(i) for i in range(4)])
    assert [indexed(folder).count(Query()) for _ in range(2)] == [4, 4]


def test_a_file_that_cannot_be_read_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, indexed: Any) -> None:
    def refuse(path: Path) -> Iterator[Any]:
        raise PermissionError(13, "Permission denied", str(path))
        yield

    evaluation(tmp_path, [episode(0)])
    monkeypatch.setattr(module, "lines_of", refuse)
    assert "cannot be indexed: [Errno 13] Permission denied" in indexed(tmp_path).progress()["problem"]
