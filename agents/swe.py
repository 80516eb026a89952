"""Programs for SWE tasks: the solution itself, nothing at all, and a change that makes no sense."""

from __future__ import annotations

import base64
import json
import random
import re
from typing import Any

from rollenv.errors import RollenvError

_EXIT = re.compile(r"\[exit code \d+\]\s*$")
_LINE = re.compile(r"^(\S+?):(\d+):", re.MULTILINE)


def _call(name: str, **arguments: str) -> str:
    return json.dumps({"name": name, "arguments": arguments})


SUBMIT = _call("submit")


class GoldPatch:
    """Applies the task's own patch (or runs its own solution) and submits: what proves that a task can be solved.

    Args:
        tasks: where the tasks are from; None: as the environment says in `info["source"]`.
    """

    def __init__(self, tasks: str | None = None) -> None:
        self._tasks = tasks
        self._applied = False

    def reset(self, seed: int) -> None:
        """Starts again."""
        self._applied = False

    def act(self, observation: str, info: dict[str, Any]) -> str:
        """The patch, then `submit`.

        Raises:
            RollenvError: the task has no solution, or its patch does not apply.
        """
        if self._applied:
            if _EXIT.search(observation):
                said = observation.strip().splitlines()[0]
                raise RollenvError(
                    f"task '{info['task']}': its gold patch does not apply ({said}): make it against the repository "
                    "as the agent finds it"
                )
            return SUBMIT
        self._applied = True
        return _call("bash", command=self._command(info))

    def _command(self, info: dict[str, Any]) -> str:
        from rollenv.envs.swe.library import open_library

        task = open_library(self._tasks or info.get("source")).task(info["task"])
        if task.gold:
            return f"echo {_encoded(task.gold)} | base64 -d | git apply -"
        if task.solution:
            return f"echo {_encoded(task.solution)} | base64 -d >/tmp/solution.sh && bash /tmp/solution.sh"
        raise RollenvError(f"task '{task.id}' has no solution: choose tasks with a gold patch, or another agent")


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


class NoOp:
    """Submits at once."""

    def reset(self, seed: int) -> None:
        """Nothing to forget."""

    def act(self, observation: str, info: dict[str, Any]) -> str:
        """`submit`."""
        return SUBMIT


class RandomEdit:
    """Deletes or doubles some lines of the code at random, and submits.

    Args:
        edits: how many lines.
    """

    def __init__(self, edits: int = 1) -> None:
        if edits < 1:
            raise RollenvError(f"edits must be at least 1, not {edits}")
        self._edits = edits
        self._plan: list[str] | None = None
        self._rng = random.Random(0)

    def reset(self, seed: int) -> None:
        """A new episode, whose draws `seed` decides."""
        self._rng = random.Random(f"random edit {seed}")
        self._plan = None

    def act(self, observation: str, info: dict[str, Any]) -> str:
        """A search for lines, the edits, `submit`."""
        if self._plan is None:
            self._plan = [SUBMIT]
            return _call("search", pattern="^ +[a-z]")
        if self._plan == [SUBMIT] and self._edits and (lines := self._code(observation)):
            chosen = self._rng.sample(lines, min(self._edits, len(lines)))
            self._plan = [*map(self._edit, chosen), SUBMIT]
        return self._plan.pop(0)

    @staticmethod
    def _code(observation: str) -> list[tuple[str, str]]:
        return [
            (path, line) for path, line in _LINE.findall(observation) if path.endswith(".py") and "test" not in path
        ]

    def _edit(self, place: tuple[str, str]) -> str:
        path, line = place
        return _call("bash", command=f"sed -i '{line}{self._rng.choice('dp')}' {path}")
