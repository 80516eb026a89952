"""TaskSet: ids found or refused, and a hash that is the same on every machine."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollenv import RollenvError, Task, TaskSet
from rollenv.tasks import canonical_json

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3),
    max_leaves=8,
)


def questions(**facts: Any) -> TaskSet:
    content = {"q1": {"text": "2+2", "answer": 4}, "q2": {"text": "größer?", "answer": None}, "q3": [1, 2.5]}
    return TaskSet("questions", {"train": ["q1", "q2"], "test": ["q3"]}, content.__getitem__, facts or None)


def test_a_set_knows_its_ids_and_their_splits() -> None:
    tasks = questions()
    assert len(tasks) == 3
    assert tasks.ids("train") == ("q1", "q2")
    assert tasks.split_of("q3") == "test"
    assert "q2" in tasks
    assert all(wrong not in tasks for wrong in ("q9", 7, None, ["q1"]))
    assert tasks.get("q1") == Task("q1", {"text": "2+2", "answer": 4})


def test_content_is_read_only_for_what_is_asked_for() -> None:
    read: list[str] = []
    tasks = TaskSet("lazy", {"train": ["a", "b", "c"]}, lambda task: read.append(task))
    tasks.ids("train")
    assert read == []
    tasks.panel("train", 2)
    assert read == ["a", "b"]


@pytest.mark.parametrize("wrong", ["q9", 7, None, ["q1"]])
def test_an_unknown_task_is_refused(wrong: Any) -> None:
    for ask in (questions().get, questions().split_of):
        with pytest.raises(RollenvError, match="task set 'questions' has no task"):
            ask(wrong)


def test_near_misses_are_suggested() -> None:
    with pytest.raises(RollenvError, match="did you mean 'q3'"):
        TaskSet("x", {"all": ["question-1", "q3"]}, str).get("q33")
    with pytest.raises(RollenvError, match=r"no split 'tets' \(it has train, test\); did you mean 'test'"):
        questions().ids("tets")


@pytest.mark.parametrize("splits", [{"train": ["a", "a"]}, {"train": ["a", "b"], "test": ["c", "a"]}])
def test_an_id_occurs_once(splits: dict[str, list[str]]) -> None:
    with pytest.raises(ValueError, match="an id occurs twice"):
        TaskSet("x", splits, str)


# -- panels and hashes -------------------------------------------------------------------------------------


def test_the_hash_is_pinned() -> None:
    # Results carry this hash: another value here makes every stored result incomparable.
    assert (
        questions(version=1).panel("train").sha256 == "920d641c5a2d35169ffcdd9b9281e7a99a35f19f7052b0fb9ba48ed988348e1d"
    )


def test_a_panel_is_the_first_tasks_of_a_split() -> None:
    panel = questions().panel("train", 1)
    assert (panel.split, panel.ids) == ("train", ("q1",))
    assert panel == questions().panel("train", 1)
    assert questions().panel("train") == questions().panel("train", 2)


@pytest.mark.parametrize("size", [0, -1, 3])
def test_a_panel_of_an_impossible_size_is_refused_with_the_possible_ones(size: int) -> None:
    with pytest.raises(RollenvError, match=rf"has 2 tasks: ask for 1 to 2, not {size}"):
        questions().panel("train", size)


@given(ids=st.lists(st.text(), min_size=1, max_size=4, unique=True), data=JSON, other=JSON)
def test_the_hash_depends_on_ids_their_order_content_and_facts_only(ids: list[str], data: Any, other: Any) -> None:
    def hashed(ids: list[str], data: Any, facts: Any, split: str = "train") -> str:
        return TaskSet("x", {split: ids}, lambda task: data, {"facts": facts}).panel(split).sha256

    base = hashed(ids, data, None)
    assert base == hashed(ids, json.loads(json.dumps(data)), None)
    assert (hashed(ids, other, None) == base) == (canonical_json(other) == canonical_json(data))
    assert (hashed(ids, data, other) == base) == (other is None)
    assert (hashed(ids[::-1], data, None) == base) == (len(ids) == 1)
    assert hashed([*ids, "".join(ids) + "+"], data, None) != base
    assert hashed(ids, data, None, split="test") == base


@given(JSON)
def test_canonical_json_is_json_and_does_not_depend_on_the_order_of_keys(value: Any) -> None:
    written = canonical_json(value)
    assert json.loads(written) == value
    assert b"\n" not in written
    assert canonical_json(reversed_keys(value)) == written


def reversed_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: reversed_keys(value[key]) for key in reversed(list(value))}
    return [reversed_keys(item) for item in value] if isinstance(value, list) else value


def test_canonical_json_form() -> None:
    assert canonical_json({"b": [1, "é\n"], "a": None}) == '{"a":null,"b":[1,"é\\n"]}'.encode()
