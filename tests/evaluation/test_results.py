"""Result folders read back: what was written comes back, what is torn is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollenv.errors import RollenvError
from rollenv.evaluation.evaluate import summarize, write_results
from rollenv.evaluation.results import Outcome, read_results
from rollenv.tasks import TaskSet
from rollenv.trajectory import Failure, StopReason, Trajectory, Turn

PANEL = TaskSet("toy", {"test": ["t0", "t1"]}, str).panel("test")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    won = Turn("o", [], [], [], [], action="a", reward=0.5)
    episodes = [
        Trajectory("Toy-v0", "t0", 1, 0, 0, turns=[won, won], stop=StopReason.TERMINATED, success=True),
        Trajectory("Toy-v0", "t0", 2, 0, 1, turns=[won], stop=StopReason.TERMINATED, success=False),
        Trajectory("Toy-v0", "t1", 3, 1, 0, turns=[won], stop=StopReason.FAILED, failure=Failure("env", "crash", "x")),
    ]
    write_results(tmp_path, summarize("Toy-v0", PANEL, episodes), episodes, {"agent": "llm", "model": "m"})
    return tmp_path


def test_outcomes_by_task_and_a_failure_is_worth_nothing(folder: Path) -> None:
    results = read_results(folder)
    assert results.outcomes == {
        "t0": [Outcome(True, 1.0, 2), Outcome(False, 0.5, 1)],
        "t1": [Outcome(False, 0.0, 1)],
    }
    assert results.who == "llm with m"


def test_what_is_not_a_result_is_one_sentence(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(RollenvError, match=r"holds no summary.json: give a folder that 'rollenv eval --out DIR'"):
        read_results(tmp_path_factory.mktemp("empty"))
    file = folder / "trajectories.jsonl"
    whole = file.read_text()
    file.write_text(whole[: len(whole) - 20])
    with pytest.raises(RollenvError, match=r"trajectories.jsonl', line 3, is torn"):
        read_results(folder)
    lines = whole.splitlines()
    file.write_text(json.dumps(json.loads(lines[0]) | {"tasks_sha256": "0" * 64}))
    with pytest.raises(RollenvError, match=r"line 1, .*of another panel"):
        read_results(folder)
    (folder / "summary.json").write_text("{}")
    with pytest.raises(RollenvError, match=r"is not what an evaluation writes"):
        read_results(folder)
