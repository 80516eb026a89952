"""The files of an evaluation: the same bytes for the same evaluation, and a journal that survives a kill."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollenv.errors import RollenvError
from rollenv.evaluation.records import Journal, episode_lines, write_episodes
from rollenv.trajectory import Failure, StopReason, Trajectory, Turn

ORDER = {"env": "Toy-v0", "seed": 5, "ci": (1, 2)}


def episode(task: str, seconds: float) -> Trajectory:
    turns = [Turn("o", [1], [2], [-0.1], [0], action=f"say {task}", reward=0.1, seconds={"env": seconds})]
    made = Trajectory("Toy-v0", task, 2**62 + 1, turns=turns, stop=StopReason.FAILED, info={"x": [1, None]})
    made.failure = Failure("env", "crash", "broken")
    return made


def journalled(folder: Path, order: dict[str, object] = ORDER) -> dict[int, list[Trajectory]]:
    with Journal.opened(folder, order) as journal:
        return journal.finished


def test_the_same_episodes_leave_the_same_bytes_however_long_they_took(tmp_path: Path) -> None:
    for folder, seconds in ((tmp_path / "a", 1.0), (tmp_path / "b", 2.0)):
        write_episodes(folder, [episode("t0", seconds), episode("t1", seconds)], "sha")
    first, second = (folder / "trajectories.jsonl" for folder in (tmp_path / "a", tmp_path / "b"))
    assert first.read_bytes() == second.read_bytes()
    read = [line["turns"][0]["seconds"] for line in episode_lines(second)]
    assert read == [{"env": 2.0}, {"env": 2.0}]


def test_files_of_different_evaluations_are_not_joined(tmp_path: Path) -> None:
    write_episodes(tmp_path, [episode("t0", 1.0)], "sha")
    (tmp_path / "timings.jsonl").write_text('[{"env": 1.0}]\n[{"env": 1.0}]\n')
    with pytest.raises(ValueError, match="line 2 is torn or no episode"):
        list(episode_lines(tmp_path / "trajectories.jsonl"))


def test_a_journal_gives_back_what_was_noted(tmp_path: Path) -> None:
    with Journal.opened(tmp_path, ORDER) as journal:
        assert journal.finished == {}
        journal.add(3, [episode("t3", 1.0), episode("t3", 2.0)])
        journal.add(0, [episode("t0", 1.0)])
    assert journalled(tmp_path) == {3: [episode("t3", 1.0), episode("t3", 2.0)], 0: [episode("t0", 1.0)]}


@pytest.mark.parametrize("torn", [1, 2, 40, 300])
def test_a_torn_line_is_forgotten_and_written_over(tmp_path: Path, torn: int) -> None:
    with Journal.opened(tmp_path, ORDER) as journal:
        journal.add(0, [episode("t0", 1.0)])
        journal.add(1, [episode("t1", 1.0)])
    file = tmp_path / Journal.NAME
    file.write_bytes(file.read_bytes()[:-torn])
    with Journal.opened(tmp_path, ORDER) as journal:
        assert list(journal.finished) == [0]
        journal.add(2, [episode("t2", 1.0)])
    assert list(journalled(tmp_path)) == [0, 2]
    assert [len(json.loads(line)) for line in file.read_text().splitlines()] == [3, 2, 2]


def test_a_journal_of_something_else_is_refused(tmp_path: Path) -> None:
    journalled(tmp_path)
    with pytest.raises(RollenvError, match=r"unfinished evaluation of another kind \(seed: 5, now 6\)"):
        journalled(tmp_path, ORDER | {"seed": 6})
    (tmp_path / Journal.NAME).write_text("[]\nx\n")
    with pytest.raises(RollenvError, match="is not what an evaluation writes"):
        journalled(tmp_path)


def test_two_evaluations_do_not_write_into_the_same_folder(tmp_path: Path) -> None:
    with (
        Journal.opened(tmp_path, ORDER),
        pytest.raises(RollenvError, match="another evaluation is writing"),
        Journal.opened(tmp_path, ORDER),
    ):
        pass
