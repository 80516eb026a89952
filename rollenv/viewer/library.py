"""All that a page asks for, of one run or of several: the runs, their episodes, their figures."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rollenv.errors import RollenvError
from rollenv.viewer.episode import shown
from rollenv.viewer.index import EpisodeIndex, Query
from rollenv.viewer.runs import Run, find_runs, read_metrics
from rollenv.viewer.tokens import FindModel, TokenTexts, tokenizer_file

SAMPLES = 32
"""Episodes of a group that are put side by side."""
PATIENCE = 0.4
"""Seconds that a question waits for the first episodes of an index that has just been begun."""


class Unknown(RollenvError):
    """A run or an episode that is not there."""


class Library:
    """The runs below a folder. Safe to be asked from several threads.

    Args:
        root: the folder of a run, or one with runs in it.
        find_model: see `rollenv.viewer.tokens`.

    Raises:
        RollenvError: there is no run.
    """

    def __init__(self, root: Path, find_model: FindModel = lambda config: None) -> None:
        self._root, self._find_model = root, find_model
        self._guard = threading.Lock()
        self._runs = {run.id: run for run in find_runs(root)}
        self._indexes: dict[str, EpisodeIndex] = {}

    def runs(self) -> list[dict[str, Any]]:
        """What there is now, each with what it says of itself."""
        with contextlib.suppress(RollenvError):  # all of them gone: what was there is still known
            found = {run.id: run for run in find_runs(self._root)}
            with self._guard:
                self._runs = found
        return [describe(run) for run in self._runs.values()]

    def run(self, name: str) -> Run:
        """A run by its id. Raises Unknown."""
        if name not in self._runs:
            self.runs()  # it may have begun since
        try:
            return self._runs[name]
        except KeyError:
            raise Unknown(f"there is no run '{name}' in '{self._root}'") from None

    def index(self, name: str) -> EpisodeIndex:
        """The index of a run's episodes, being brought up to date. Raises Unknown."""
        run = self.run(name)
        with self._guard:
            index = self._indexes.get(name)
            if index is None:
                index = self._indexes[name] = EpisodeIndex(run)
        index.refresh()
        return index

    def details(self, name: str) -> dict[str, Any]:
        """What a run says of itself, at length. Raises Unknown."""
        run, index = self.run(name), self.index(name)
        _first(lambda: index.rows(Query(), 0, 1), index)
        index.wait(0.05)  # a few new episodes are read at once
        return describe(run) | {
            "folder": str(run.folder),
            "summary": run.summary(),
            "config": run.config(),
            "counts": index.counts(),
            "kept_steps": index.steps(),
            "progress": index.progress(),
        }

    def episodes(self, name: str, query: Query, offset: int, limit: int) -> dict[str, Any]:
        """Some of a run's episodes, and how many there are. Raises Unknown."""
        index = self.index(name)
        rows = _first(lambda: index.rows(query, offset, limit), index)
        return {"rows": rows, "total": index.count(query), "offset": offset, "progress": index.progress()}

    def episode(self, name: str, number: int) -> dict[str, Any]:
        """One episode, whole. Raises Unknown."""
        index = self.index(name)
        row = _first(lambda: index.row(number), index)
        texts = TokenTexts(tokenizer_file(self.run(name), self._find_model))
        if row is None:
            raise Unknown(f"run '{name}' has no episode {number}")
        return self._whole(index, row, texts)

    def group(self, name: str, number: int) -> dict[str, Any]:
        """The episodes of its group, whole. Raises Unknown."""
        index = self.index(name)
        rows = _first(lambda: index.group(number, SAMPLES), index)
        if not rows:
            raise Unknown(f"run '{name}' has no episode {number}")
        texts = TokenTexts(tokenizer_file(self.run(name), self._find_model))
        return {"episodes": [self._whole(index, row, texts) for row in rows]}

    def metrics(self, name: str) -> list[dict[str, Any]]:
        """The figures of its steps. Raises Unknown."""
        return read_metrics(self.run(name))

    def close(self) -> None:
        """Gives the indexes back."""
        for index in self._indexes.values():
            index.close()

    @staticmethod
    def _whole(index: EpisodeIndex, row: dict[str, Any], texts: TokenTexts) -> dict[str, Any]:
        place = index.place(row["id"])
        try:
            if place is None:
                raise ValueError("it is not indexed any more")
            return shown(place.read(), texts) | {"id": row["id"], "above": row["above"]}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Unknown(f"episode {row['id']} has changed on the disk ({error}): load the page again") from error


def _first(ask: Callable[[], Any], index: EpisodeIndex) -> Any:
    """What `ask` finds; where that is nothing and there is more to be read, it is asked again, for a moment."""
    found, waited = ask(), 0.0
    while not found and waited < PATIENCE:
        whole = index.wait(0.02)
        found, waited = ask(), waited + 0.02
        if whole:
            break
    return found


def describe(run: Run) -> dict[str, Any]:
    """What a run says of itself, in short."""
    summary, config = run.summary(), run.config()
    facts = {"id": run.id, "name": run.name, "kind": run.kind, "env": summary.get("env") or config.get("env")}
    if run.kind == "evaluation":
        keys = ("agent", "model", "split", "success_rate", "ci95", "mean_reward", "mean_turns", "episodes", "failed")
        return facts | {key: summary.get(key) for key in keys}
    lines = read_metrics(run)
    measured = [line for line in lines if "eval_success" in line]
    last, panel = lines[-1] if lines else {}, measured[-1] if measured else {}
    return facts | {
        "model": config.get("model"),
        "steps": last.get("step"),
        "of_steps": config.get("steps"),
        "success_rate": panel.get("eval_success", last.get("success")),
        "ci95": panel.get("eval_ci95"),
        "mean_reward": panel.get("eval_reward", last.get("reward")),
        "mean_turns": panel.get("eval_turns", last.get("turns")),
    }
