"""What an evaluation left in its folder, read back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollenv.errors import RollenvError


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one episode ended; one that failed for good is no success, and worth nothing."""

    success: bool
    reward: float
    turns: int


@dataclass(frozen=True, slots=True)
class Results:
    """`summary.json`, and the outcomes of `trajectories.jsonl` by task, in the panel's order."""

    folder: Path
    summary: dict[str, Any]
    outcomes: dict[str, list[Outcome]]

    @property
    def who(self) -> str:
        """Who played."""
        agent, model = self.summary.get("agent", "?"), self.summary.get("model")
        return f"{agent} with {model}" if model else str(agent)


def read_results(folder: Path) -> Results:
    """Reads what `rollenv eval --out` wrote.

    Raises:
        RollenvError: it is not such a folder, or a file of it is torn.
    """
    try:
        summary = json.loads((folder / "summary.json").read_text())
        tasks = summary["tasks_sha256"]
    except FileNotFoundError as error:
        raise RollenvError(
            f"'{folder}' holds no summary.json: give a folder that 'rollenv eval --out DIR' has written"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise RollenvError(f"'{folder / 'summary.json'}' is not what an evaluation writes ({error!r})") from error
    outcomes: dict[str, list[Outcome]] = {}
    file = folder / "trajectories.jsonl"
    try:
        with file.open() as lines:
            for number, line in enumerate(lines, 1):
                task, outcome = _outcome(file, number, line, tasks)
                outcomes.setdefault(task, []).append(outcome)
    except OSError as error:
        raise RollenvError(f"cannot read '{file}': {error.strerror}") from error
    if not outcomes:
        raise RollenvError(f"'{file}' holds no episodes: run the evaluation again")
    return Results(folder, summary, outcomes)


def _outcome(file: Path, number: int, line: str, tasks: str) -> tuple[str, Outcome]:
    try:
        episode = json.loads(line)
        if episode["tasks_sha256"] != tasks:
            raise ValueError("it is of another panel than summary.json says")
        failed = episode["stop"] == "failed"
        outcome = Outcome(
            bool(episode["success"]) and not failed, 0.0 if failed else float(episode["reward"]), len(episode["turns"])
        )
        return str(episode["task"]), outcome
    except (ValueError, KeyError, TypeError) as error:
        raise RollenvError(f"'{file}', line {number}, is torn or not an episode ({error!r})") from error
