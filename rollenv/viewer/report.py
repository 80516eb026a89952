"""What one or several runs came to: leaderboards of evaluations by their panels, comparisons, curves of training."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rollenv.errors import RollenvError
from rollenv.evaluation.comparison import compare
from rollenv.evaluation.results import Outcome, Results, read_results
from rollenv.evaluation.statistics import pass_at_k, pass_hat_k
from rollenv.viewer.charts import Chart, Series
from rollenv.viewer.document import Block, Charts, Heading, Paragraph, Share, Table
from rollenv.viewer.runs import Run, find_runs, read_metrics

CURVES = {
    "eval_success": "success on the panel",
    "success": "success while training",
    "eval_reward": "reward on the panel",
    "reward": "reward while training",
    "loss": "loss",
    "entropy": "entropy, nats",
    "kl": "KL divergence to the reference",
    "grad_norm": "norm of the gradient",
    "tokens_per_second": "tokens per second",
    "staleness_mean": "staleness, versions",
    "turns": "turns per episode",
    "invalid_actions": "invalid actions",
}
"""Figures of a step that are drawn -> what the picture is called."""

Named = tuple[str, Results]


def report(folders: Sequence[Path], progress: Callable[[int, int], None] = lambda done, total: None) -> list[Block]:
    """The report on the runs in these folders, the evaluations first.

    Args:
        progress: gets the number of runs read so far, and of all.

    Raises:
        RollenvError: a folder holds no run, or an evaluation's files are torn.
    """
    runs = _named(folders)
    evaluations: list[Named] = []
    trainings: list[tuple[str, Run]] = []
    for number, (name, run) in enumerate(runs, 1):
        if run.kind == "training":
            trainings.append((name, run))
        elif run.summary():
            evaluations.append((name, read_results(run.folder)))
        progress(number, len(runs))
    if not evaluations and not trainings:
        raise RollenvError(f"'{folders[0]}' holds episodes and no summary.json: run 'rollenv eval --out' again")
    title = "Evaluations and training runs" if evaluations and trainings else None
    blocks: list[Block] = [Heading(1, title or ("Evaluations" if evaluations else "Training runs"))]
    evaluations.sort(key=lambda named: (named[1].summary["tasks_sha256"], -named[1].summary["success_rate"], named[0]))
    for _, panel in itertools.groupby(evaluations, key=lambda named: named[1].summary["tasks_sha256"]):
        blocks += _panel(list(panel))
    return blocks + (_trainings(trainings) if trainings else [])


def _named(folders: Sequence[Path]) -> list[tuple[str, Run]]:
    """The runs in the folders, each once, and what they are called: as short as tells them apart."""
    found: dict[Path, tuple[str, str, Run]] = {}
    for folder in folders:
        for run in find_runs(folder):
            found.setdefault(run.folder.resolve(), (run.name, run.folder.as_posix(), run))
    short = [name for name, _, _ in found.values()]
    return [(name if short.count(name) == 1 else path, run) for name, path, run in found.values()]


# -- evaluations ---------------------------------------------------------------------------------------------------


def _panel(results: list[Named]) -> list[Block]:
    """The evaluations of one panel, the best first."""
    first = results[0][1]
    said = first.summary
    blocks: list[Block] = [
        Heading(2, f"{said.get('env', '?')}, {said.get('split', '?')} split"),
        Paragraph(f"{len(first.outcomes)} tasks, panel {said['tasks_sha256'][:12]}. Intervals: 95% (Wilson)."),
        _leaderboard(results),
    ]
    if len(results) > 1:
        blocks += [
            Heading(3, "Against the best"),
            Paragraph(
                "Differences in points of success, task by task, with the interval of a paired bootstrap; p of "
                "McNemar's test, or of a sign-flip test where there are several samples of a task."
            ),
            _comparisons(results),
        ]
    for key in dict.fromkeys(key for _, each in results for key in each.summary.get("by", {})):
        blocks += [Heading(3, f"By {key}"), _by(key, results)]
    return blocks


def _leaderboard(results: list[Named]) -> Table:
    k = max(_samples(each) for _, each in results)
    chances = [f"pass@{k}#", f"pass^{k}#"] if k > 1 else []
    head = [
        "rank#",
        "run",
        "who",
        "success",
        *chances,
        "score#",
        "turns#",
        "episodes#",
        "failed#",
        "temperature#",
        "seed#",
    ]
    rows = []
    for rank, (name, each) in enumerate(results, 1):
        said = each.summary
        row: list[str | Share] = [str(rank), name, each.who, Share(said["success_rate"], said.get("ci95"))]
        if k > 1:
            row += [str(Share(_mean(each, chance, k))) for chance in (pass_at_k, pass_hat_k)]
        row += [f"{said.get('mean_reward', math.nan):.4f}", f"{said.get('mean_turns', math.nan):.2f}"]
        row += [str(said.get(key, "–")) for key in ("episodes", "failed", "temperature", "seed")]
        rows.append(row)
    return Table(head, rows)


def _samples(results: Results) -> int:
    """How often each task was played, at least."""
    return min(map(len, results.outcomes.values()))


def _mean(results: Results, chance: Callable[[int, int, int], float], k: int) -> float | None:
    """Over tasks; None: they were played less than `k` times."""
    if _samples(results) < k:
        return None
    tasks: list[list[Outcome]] = list(results.outcomes.values())
    return sum(chance(len(task), sum(each.success for each in task), k) for task in tasks) / len(tasks)


def _comparisons(results: list[Named]) -> Table:
    (best_name, best), *others = results
    rows: list[list[str | Share]] = []
    for name, each in others:
        try:
            found = compare(each, best)
        except RollenvError as error:
            rows.append([name, "–", "–", "–", str(error)])
            continue
        low, high = found.success.ci95
        winner = {"A": f"{name} is better", "B": f"{best_name} is better", None: "no difference found"}[found.winner]
        gap = f"{-100 * found.success.difference:+.1f}"
        rows.append([name, gap, f"{-100 * high:+.1f} to {-100 * low:+.1f}", f"{found.p_value:.2g}", winner])
    return Table(["run", f"less {best_name}#", "95% interval#", "p#", "verdict"], rows)


def _by(key: str, results: list[Named]) -> Table:
    """Success by a property of the tasks: a line for each of its values, a column for each run that knows it."""
    parts: dict[str, Mapping[str, Any]] = {
        name: {part["value"]: part for part in each.summary["by"][key]}
        for name, each in results
        if key in each.summary.get("by", {})
    }
    values = sorted({value for known in parts.values() for value in known})
    rows: list[list[str | Share]] = []
    for value in values:
        found = [known.get(value) for known in parts.values()]
        n = max(part["episodes"] for part in found if part)
        rows.append([value, str(n), *(Share(part["success_rate"], part["ci95"]) if part else "–" for part in found)])
    return Table([key, "episodes#", *parts], rows)


# -- training ------------------------------------------------------------------------------------------------------


def _trainings(runs: list[tuple[str, Run]]) -> list[Block]:
    """Where the training runs stand, and their curves."""
    figures = {name: read_metrics(run) for name, run in runs}
    series = {
        key: [Series(name, points) for name in figures if (points := _points(figures[name], key))] for key in CURVES
    }
    charts = [Chart(CURVES[key], found) for key, found in series.items() if found]
    blocks: list[Block] = [Heading(2, "Training"), _standing(runs, figures)]
    return [*blocks, Charts(charts)] if charts else blocks


def _standing(runs: list[tuple[str, Run]], figures: Mapping[str, list[dict[str, Any]]]) -> Table:
    rows: list[tuple[float, list[str | Share]]] = []
    for name, run in runs:
        config, lines = run.config(), figures[name]
        panels = [line for line in lines if isinstance(line.get("eval_success"), float | int)]
        before, after = (_panel_share(panels[i]) if panels else Share(None) for i in (0, -1))
        step = str(lines[-1].get("step", "–")) if lines else "–"
        row: list[str | Share] = [name, str(config.get("env", "–")), str(config.get("model", "–"))]
        row += [f"{step} of {config['steps']}" if "steps" in config else step, str(before), after]
        rows.append((-(after.value if after.value is not None else -1.0), [*row, str(config.get("seed", "–"))]))
    head = ["run", "environment", "model", "step#", "success at first", "success at last", "seed#"]
    return Table(head, [row for _, row in sorted(rows, key=lambda each: each[0])])


def _panel_share(line: Mapping[str, Any]) -> Share:
    return Share(line["eval_success"], line.get("eval_ci95"))


def _points(lines: Sequence[Mapping[str, Any]], key: str) -> list[tuple[float, float]]:
    return [
        (float(line.get("step", 0)), float(line[key]))
        for line in lines
        if isinstance(line.get(key), int | float) and math.isfinite(line[key])
    ]
