"""A run, or several, as data that a page carries inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rollenv.errors import RollenvError
from rollenv.viewer.index import SHOW, EpisodeIndex, Query
from rollenv.viewer.library import Library

POLL_SECONDS = 0.2
LARGEST_GROUP = 10_000


def gathered(
    library: Library, limit: int, progress: Callable[[int, int], None] = lambda done, total: None
) -> dict[str, Any]:
    """The data of a library's runs for `rollenv.viewer.page.page`.

    Of the episodes, the latest of a training run and the first of an evaluation are taken, whole groups, `limit` of all
    runs together, and at least one group of each; `note` says in a sentence what was left out.

    Args:
        progress: gets the megabytes of episodes read so far, and how many there are.

    Raises:
        RollenvError: a run's episodes cannot be read.
    """
    runs = library.runs()
    found = [_run(library, run["id"], max(1, limit // len(runs)), progress) for run in runs]
    kept, total = sum(len(run["rows"]) for run in found), sum(run.pop("total") for run in found)
    note = f"This file holds {kept:,} of {total:,} episodes: 'rollenv view' shows all of them." if kept < total else ""
    return {"note": note, "runs": found}


def _run(library: Library, name: str, limit: int, progress: Callable[[int, int], None]) -> dict[str, Any]:
    index = library.index(name)
    _wait(index, progress)
    details = library.details(name)
    _wait(index, progress)
    order = "newest" if details["kind"] == "training" else "order"
    rows = _whole_groups(index, order, limit)
    details |= {"counts": _counts(rows), "kept_steps": sorted({row["step"] for row in rows if row["step"] is not None})}
    return {
        "details": details | {"folder": "", "progress": index.progress()},
        "rows": rows,
        "episodes": [library.episode(name, row["id"]) for row in rows],
        "metrics": library.metrics(name),
        "total": index.count(Query()),
    }


def _wait(index: EpisodeIndex, progress: Callable[[int, int], None]) -> None:
    while not index.wait(POLL_SECONDS):
        state = index.progress()
        progress(state["bytes"] // 10**6, max(1, state["total"] // 10**6))
    if problem := index.progress()["problem"]:
        raise RollenvError(problem)


def _whole_groups(index: EpisodeIndex, order: str, limit: int) -> list[dict[str, Any]]:
    """The first episodes in this order; a group that is cut by the limit is left out, unless it is the first."""
    rows = index.rows(Query(sort=order), 0, limit + 1)
    if len(rows) <= limit:
        return rows
    *rows, beyond = rows
    cut = [row for row in rows if _group(row) != _group(beyond)]
    return cut or index.group(beyond["id"], LARGEST_GROUP)


def _group(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["step"], row["group"], row["task"]


def _counts(rows: list[dict[str, Any]]) -> dict[str, int]:
    """As `EpisodeIndex.counts`, of some rows."""
    limits = ("max_turns", "max_tokens", "truncated")
    counted = {
        "all": len(rows),
        "successful": sum(row["success"] == 1 and row["stop"] != "failed" for row in rows),
        "unsuccessful": sum(row["success"] != 1 and row["stop"] not in ("failed", "aborted") for row in rows),
        "failed": sum(row["stop"] == "failed" for row in rows),
        "limit": sum(row["stop"] in limits for row in rows),
        "invalid": sum(row["invalid"] > 0 for row in rows),
        "torn": 0,
    }
    assert counted.keys() == {*SHOW, "torn"}
    return counted
