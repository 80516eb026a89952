"""Which runs are found, and how a run's figures are followed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from viewer.folders import episode, evaluation, training

from rollenv.errors import RollenvError
from rollenv.files import write_atomically
from rollenv.viewer.runs import MetricsTail, as_json, find_runs


def test_runs_are_found_below_a_folder_and_a_run_is_itself(tmp_path: Path) -> None:
    evaluation(tmp_path / "b" / "eval", [episode(0)])
    training(tmp_path / "a", {}, {"step": 0})
    evaluation(tmp_path / "a" / "inside", [episode(0)])  # of the run, not beside it
    evaluation(tmp_path / ".hidden", [episode(0)])
    assert [(run.id, run.kind) for run in find_runs(tmp_path)] == [("a", "training"), ("b/eval", "evaluation")]
    (one,) = find_runs(tmp_path / "a")
    assert (one.id, one.name) == (".", "a")


@pytest.mark.parametrize("there", [True, False])
def test_a_folder_without_runs_is_refused(there: bool, tmp_path: Path) -> None:
    with pytest.raises(RollenvError, match="holds no run" if there else "there is no folder"):
        find_runs(tmp_path if there else tmp_path / "none")


def test_lines_of_figures_are_given_once_and_whole(tmp_path: Path) -> None:
    training(tmp_path, {}, {"step": 1})
    tail = MetricsTail(tmp_path)
    assert tail.new() == (True, [{"step": 1}])
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2}\n{"st')
        file.flush()
        assert tail.new() == (False, [{"step": 2}])
        assert tail.new() == (False, [])
        file.write('ep": 3}\n')
        file.flush()
        assert tail.new() == (False, [{"step": 3}])


def test_a_run_that_was_taken_back_is_told_from_its_beginning(tmp_path: Path) -> None:
    training(tmp_path, {}, {"step": 1}, {"step": 2})
    tail = MetricsTail(tmp_path)
    tail.new()
    write_atomically(tmp_path / "metrics.jsonl", ['{"step": 1}\n'])  # as a resumed run does
    assert tail.new() == (True, [{"step": 1}])


def test_a_run_without_figures_has_none(tmp_path: Path) -> None:
    assert MetricsTail(tmp_path).new() == (False, [])


def test_numbers_that_json_has_no_word_for_become_null() -> None:
    said = as_json({"a": [float("nan"), (float("inf"), 1.5)], "b": "\ud800ü"})
    assert json.loads(said, parse_constant=lambda word: pytest.fail(word)) == {"a": [None, [None, 1.5]], "b": "\ud800ü"}
    assert said.isascii()
