"""Trajectories on disk and back: every form gives what went in, whole or not at all."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollenv.errors import RollenvError
from rollenv.evaluation import export as module
from rollenv.evaluation.export import Exported, as_row, export, from_row, keep, kept_steps, read
from rollenv.trajectory import Failure, StopReason, Trajectory, Turn

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
IDS = st.lists(st.integers(0, 2**31 - 1), max_size=4)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
TURNS = st.builds(
    Turn,
    TEXT,
    IDS,
    IDS,
    st.lists(NUMBERS, max_size=4),
    IDS,
    st.booleans(),
    TEXT,
    TEXT,
    NUMBERS,
    st.booleans(),
    st.dictionaries(st.sampled_from(["generate", "env"]), NUMBERS),
    st.lists(NUMBERS, max_size=3),
)
TRAJECTORIES = st.builds(
    Trajectory,
    TEXT,
    TEXT,
    st.integers(0, 2**63 - 1),
    st.integers(0, 10**9),
    st.integers(0, 99),
    st.integers(0, 3),
    st.lists(TURNS, max_size=3),
    st.sampled_from(StopReason),
    st.none()
    | st.builds(Failure, st.just("env"), st.just("crash"), TEXT, st.none() | st.integers(0, 9), st.booleans()),
    st.none() | st.booleans(),
    st.dictionaries(TEXT, st.none() | NUMBERS | st.lists(st.integers(), max_size=2), max_size=2),
    st.lists(st.integers(0, 9), max_size=3),
    st.dictionaries(st.sampled_from(["episodes", "tokens"]), NUMBERS),
)
EXPORTED = st.builds(
    Exported,
    TRAJECTORIES,
    st.none() | st.integers(0, 10**6),
    st.none() | st.booleans(),
    st.none() | st.lists(st.lists(NUMBERS, max_size=2), max_size=3),
)


def episodes(n: int, step: int = 1) -> list[Exported]:
    turn = Turn("see ü\n", [1, 2], [3], [-0.123456789012345], [step], completion="go", reward=0.1, seconds={"env": 0.5})
    played = [
        Trajectory("shop", f"t{i}", i, i, 0, 0, [turn] * (i % 3), StopReason.TERMINATED, success=bool(i % 2))
        for i in range(n)
    ]
    return [Exported(t, step, i > 0, [[-0.5]] * (i % 3) if i else None) for i, t in enumerate(played)]


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    for step in (2, 10, 4):
        keep(tmp_path / "run", step, episodes(3, step))
    return tmp_path / "run"


@settings(max_examples=40, deadline=None)
@given(st.lists(EXPORTED, max_size=5))
def test_rows_come_back_equal_through_arrow(exported: list[Exported]) -> None:
    pa = pytest.importorskip("pyarrow", reason="pip install 'rollenv[export]'")
    table = pa.Table.from_pylist([as_row(each) for each in exported], module.schema())
    assert [from_row(row) for row in table.to_pylist()] == exported


def test_half_of_a_surrogate_pair_is_a_question_mark_in_parquet(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet", reason="pip install 'rollenv[export]'")
    half = "so \ud83d"
    turn = Turn(half, [1], [2], [-0.5], [0], completion=half, action=half, reward=0.0)
    failure = Failure("env", "crash", half, 0)
    played = Trajectory("shop", "t", 1, 0, 0, 0, [turn], StopReason.FAILED, failure, info={"said": half})
    keep(tmp_path / "run", 1, [Exported(played)])
    assert export(tmp_path / "run", "parquet", tmp_path / "it.parquet") == 1
    (found,) = [from_row(row).trajectory for row in pq.read_table(str(tmp_path / "it.parquet")).to_pylist()]
    (seen,) = found.turns
    assert {seen.observation, seen.completion, seen.action, found.failure.message} == {"so ?"}
    assert found.info == {"said": half}, "JSON text has a way to write it"


@pytest.mark.parametrize("form", ["parquet", "jsonl", "datasets"])
def test_every_form_holds_the_episodes_of_all_kept_steps_in_order(
    form: Any, run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if form != "jsonl":
        pytest.importorskip("pyarrow", reason="pip install 'rollenv[export]'")
    if form == "datasets":
        pytest.importorskip("datasets", reason="pip install 'rollenv[export]'")
    monkeypatch.setattr(module, "BATCH", 2)
    counts: list[int] = []
    out = tmp_path / "out" / "it"
    assert export(run_folder, form, out, counts.append) == 9
    assert counts == list(range(1, 10))
    expected = [exported for step in (2, 4, 10) for exported in episodes(3, step)]
    if form == "jsonl":
        found = list(read(out))
    elif form == "parquet":
        import pyarrow.parquet as pq

        found = [from_row(row) for row in pq.read_table(str(out)).to_pylist()]
        assert set(pq.read_schema(str(out)).names) == {n for names in module.ROW for n in names.split(", ")}
    else:
        from datasets import load_from_disk

        found = [from_row(row) for row in load_from_disk(str(out))]
    assert found == expected
    assert [path.name for path in out.parent.iterdir()] == ["it"], "nothing else is left"
    with pytest.raises(RollenvError, match="is there already"):
        export(run_folder, form, out)


@pytest.mark.parametrize("form", ["parquet", "jsonl", "datasets"])
def test_what_cannot_be_read_leaves_nothing(form: Any, run_folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="pip install 'rollenv[export]'")
    with (run_folder / "trajectories" / "step-000010.jsonl").open("a") as file:
        file.write('{"env": "torn')
    with pytest.raises(RollenvError, match=r"step-000010\.jsonl', line 4 is torn or no episode"):
        export(run_folder, form, tmp_path / "out" / "it")
    assert list((tmp_path / "out").iterdir()) == []


def test_an_evaluations_trajectories_are_exported_too(tmp_path: Path) -> None:
    lines = [json.dumps(each.trajectory.to_dict() | {"tasks_sha256": "x"}) + "\n" for each in episodes(4)]
    (tmp_path / "trajectories.jsonl").write_text("".join(lines))
    assert export(tmp_path, "jsonl", tmp_path / "export" / "a.jsonl") == 4
    found = [each.trajectory for each in read(tmp_path / "export" / "a.jsonl")]
    assert found == [each.trajectory for each in episodes(4)]


def test_a_folder_without_trajectories_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(RollenvError, match=r"holds no trajectories: .*trajectories=1 keeps those of every step"):
        export(tmp_path, "jsonl", tmp_path / "out")


@pytest.mark.parametrize(("form", "package"), [("parquet", "pyarrow"), ("datasets", "datasets")])
def test_a_missing_package_is_one_sentence(
    form: Any, package: str, run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(RollenvError, match=rf"--to {form} needs {package}, .* pip install 'rollenv\[export\]'"):
        export(run_folder, form, tmp_path / "it")
    assert not (tmp_path / "it").exists()


def test_steps_of_a_future_that_a_run_has_turned_away_from_are_dropped(run_folder: Path) -> None:
    pytest.importorskip("torch")
    from rollenv.trainers.metrics import MetricsWriter

    MetricsWriter(run_folder, 4).close()
    assert [step for step, _ in kept_steps(run_folder)] == [2, 4]
