"""A page that carries a run inside holds what the server would have said, as far as its bound goes."""

from __future__ import annotations

from pathlib import Path

import pytest
from viewer.folders import episode, evaluation, training

from rollenv.errors import RollenvError
from rollenv.viewer import index as index_module
from rollenv.viewer.export import gathered
from rollenv.viewer.index import Query
from rollenv.viewer.library import Library


def test_everything_is_in_it_where_it_fits(tmp_path: Path) -> None:
    training(tmp_path / "a", {step: [episode(i) for i in range(4)] for step in (1, 2)}, {"step": 1}, {"step": 2})
    evaluation(tmp_path / "b", [episode(i, success=i % 2 == 0) for i in range(6)])
    library = Library(tmp_path)
    data = gathered(library, 500)
    assert data["note"] == ""
    trained, evaluated = data["runs"]
    assert trained["metrics"] == library.metrics("a")
    assert {each["id"]: each for each in trained["episodes"]} == {
        row["id"]: library.episode("a", row["id"]) for row in library.index("a").rows(Query(), 0, 99)
    }
    for run, name in ((trained, "a"), (evaluated, "b")):
        assert [row["id"] for row in run["rows"]] == [each["id"] for each in run["episodes"]]
        assert run["details"]["counts"] == library.index(name).counts()
        assert run["details"]["kept_steps"] == library.index(name).steps()
    library.close()


def test_beyond_the_bound_whole_groups_are_left_out_the_oldest_steps_first(tmp_path: Path) -> None:
    training(tmp_path, {step: [episode(i, samples=4) for i in range(8)] for step in (1, 2, 3)}, {"step": 3})
    library = Library(tmp_path)
    data = gathered(library, 14)
    rows = data["runs"][0]["rows"]
    assert sorted((row["step"], row["group"], row["sample"]) for row in rows) == [
        *((2, 1, sample) for sample in range(4)),
        *((3, group, sample) for group in (0, 1) for sample in range(4)),
    ]
    assert data["note"].startswith("This file holds 12 of 24 episodes")
    assert data["runs"][0]["details"]["kept_steps"] == [2, 3]
    library.close()


def test_a_group_larger_than_the_bound_is_taken_whole(tmp_path: Path) -> None:
    evaluation(tmp_path, [episode(i, samples=6) for i in range(12)])
    library = Library(tmp_path)
    assert [row["sample"] for row in gathered(library, 2)["runs"][0]["rows"]] == list(range(6))
    library.close()


def test_episodes_that_cannot_be_read_are_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    evaluation(tmp_path, [episode(0)])
    monkeypatch.setattr(index_module, "lines_of", refuse)
    library = Library(tmp_path)
    with pytest.raises(RollenvError, match="cannot be indexed"):
        gathered(library, 10)
    library.close()
