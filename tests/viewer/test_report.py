"""What a report says of the runs that it is of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from viewer.folders import episode, evaluation, training

from rollenv.errors import RollenvError
from rollenv.evaluation.comparison import compare
from rollenv.evaluation.results import read_results
from rollenv.evaluation.statistics import wilson
from rollenv.viewer.document import Block, Charts, Heading, Share, Table, as_html, as_markdown
from rollenv.viewer.report import report


def evaluated(folder: Path, solved: int, tasks: int = 40, samples: int = 1, **facts: object) -> Path:
    """An evaluation of which the first `solved` episodes succeeded."""
    n = tasks * samples
    played = [episode(i, success=i < solved, reward=float(i < solved), samples=samples) for i in range(n)]
    said = {"success_rate": solved / n, "ci95": wilson(solved, n), "split": "test", "mean_reward": 0.5, "mean_turns": 2}
    return evaluation(folder, played, **(said | facts))


def after(blocks: Sequence[Block], title: str) -> Block:
    """The first table or chart under a heading."""
    start = next(i for i, block in enumerate(blocks) if isinstance(block, Heading) and block.text == title)
    return next(block for block in blocks[start:] if isinstance(block, Table | Charts))


def test_evaluations_of_a_panel_are_sorted_by_success_and_compared_with_the_best(tmp_path: Path) -> None:
    for name, solved in (("weak", 5), ("best", 36), ("good", 35)):
        evaluated(tmp_path / name, solved)
    blocks = report([tmp_path])
    board = after(blocks, "Shop-v0, test split")
    assert isinstance(board, Table)
    assert [row[1] for row in board.rows] == ["best", "good", "weak"]
    assert board.rows[0][3] == Share(0.9, list(wilson(36, 40)))
    against = after(blocks, "Against the best")
    assert isinstance(against, Table)
    assert [(row[0], row[-1]) for row in against.rows] == [("good", "no difference found"), ("weak", "best is better")]
    found = compare(read_results(tmp_path / "weak"), read_results(tmp_path / "best"))
    assert against.rows[1][1] == f"{-100 * found.success.difference:+.1f}"
    assert against.rows[1][3] == f"{found.p_value:.2g}"


def test_other_panels_have_boards_of_their_own_and_are_not_compared(tmp_path: Path) -> None:
    evaluated(tmp_path / "one", 30, env="Shop-v0")
    other = evaluated(tmp_path / "two", 3, tasks=6, env="House-v0")
    for name in ("summary.json", "trajectories.jsonl"):
        (other / name).write_text((other / name).read_text().replace('"sha"', '"other"'))
    said = as_markdown(report([tmp_path]))
    assert "## House-v0, test split" in said
    assert "## Shop-v0, test split" in said
    assert "Against the best" not in said


def test_several_samples_of_a_task_are_told_as_pass_at_k_and_pass_hat_k(tmp_path: Path) -> None:
    board = after(report([evaluated(tmp_path / "a", 30, tasks=20, samples=2)]), "Shop-v0, test split")
    assert isinstance(board, Table)
    row = dict(zip(board.head, board.rows[0], strict=True))
    assert (row["pass@2#"], row["pass^2#"]) == ("75.0%", "75.0%")


def test_success_by_type_has_a_column_for_each_run(tmp_path: Path) -> None:
    def parts(rate: float) -> dict:
        return {"type": [{"value": "heat", "episodes": 4, "success_rate": rate, "ci95": [0.1, 0.9]}]}

    evaluated(tmp_path / "a", 20, by=parts(0.25))
    evaluated(tmp_path / "b", 10, by=parts(0.75))
    table = after(report([tmp_path]), "By type")
    assert isinstance(table, Table)
    assert list(table.head) == ["type", "episodes#", "a", "b"]
    assert [str(cell) for cell in table.rows[0]] == ["heat", "4", "25.0% (10.0–90.0)", "75.0% (10.0–90.0)"]


def test_training_runs_are_drawn_together_and_told_by_where_they_stand(tmp_path: Path) -> None:
    def lines(last: float) -> list[dict]:
        panel = {"eval_success": 0.1, "eval_ci95": [0.0, 0.3]}
        steps = [{"step": n, "loss": 1 / n, "kl": float("nan")} for n in range(1, 9)]
        return [{"step": 0, **panel}, *steps, {"step": 9, "loss": 0.1, **panel, "eval_success": last}]

    training(tmp_path / "a", {}, *lines(0.4))
    training(tmp_path / "b", {}, *lines(0.6))
    blocks = report([tmp_path / "a", tmp_path / "b"])
    table = after(blocks, "Training")
    assert isinstance(table, Table)
    assert [(row[0], row[3], str(row[5])) for row in table.rows] == [
        ("b", "9 of 9", "60.0% (0.0–30.0)"),
        ("a", "9 of 9", "40.0% (0.0–30.0)"),
    ]
    charts = next(block for block in blocks if isinstance(block, Charts)).charts
    assert [chart.title for chart in charts] == ["success on the panel", "loss"]
    assert [series.name for series in charts[1].series] == ["a", "b"]
    assert charts[1].series[0].points[0] == (1.0, 1.0)


def test_the_same_folder_given_twice_is_one_run_and_equal_names_are_told_apart(tmp_path: Path) -> None:
    for place in ("x", "y"):
        evaluated(tmp_path / place / "same", 20)
    folders = [tmp_path / "x" / "same", tmp_path / "y" / "same", tmp_path / "x" / "same"]
    board = after(report(folders), "Shop-v0, test split")
    assert isinstance(board, Table)
    assert sorted(str(row[1]) for row in board.rows) == [str(tmp_path / place / "same") for place in ("x", "y")]


def test_the_same_runs_give_the_same_files(tmp_path: Path) -> None:
    evaluated(tmp_path / "a", 20)
    training(tmp_path / "b", {}, {"step": 0, "loss": 1.0})
    assert as_html(report([tmp_path])) == as_html(report([tmp_path]))


def test_an_unfinished_evaluation_alone_is_no_report(tmp_path: Path) -> None:
    (evaluated(tmp_path / "a", 20) / "summary.json").unlink()
    with pytest.raises(RollenvError, match=r"holds episodes and no summary\.json"):
        report([tmp_path])
