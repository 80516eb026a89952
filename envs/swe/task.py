"""What a task is: an issue, a repository to work in, the patch that solves it, and how a solution is checked.

Invariant: a task is data. Two tasks with the same `content()` are the same task, wherever their files came from.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rollenv.sandboxes.spec import DEFAULT_IMAGE

WORKDIR = "/testbed"
"""Where the repository lies in a sandbox, as in SWE-bench's images."""

R2E_RUNNER, R2E_TESTS = "run_tests.sh", "r2e_tests"
"""Where R2E's images have what runs the tests, and the tests: in the repository, but not of it."""

Files = Mapping[str, bytes]
"""A tree: path relative to the repository -> content."""


@dataclass(frozen=True, slots=True)
class PytestChecks:
    """Tests that are run by pytest and judged by name, out of band.

    Attributes:
        fail_to_pass: ids that fail before and have to pass.
        pass_to_pass: ids that pass before and have to pass still.
        files: the test files, laid over whatever the agent left.
        timeout: seconds for the run.
    """

    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    files: Files
    timeout: float = 60.0


@dataclass(frozen=True, slots=True)
class ScriptChecks:
    """SWE-bench's way: a script restores the tests and runs them; its log is graded by the rules of the instance."""

    script: str
    instance: Mapping[str, Any]
    timeout: float = 1800.0


@dataclass(frozen=True, slots=True)
class StatusChecks:
    """R2E's way: a command whose log has to show a given status for each test."""

    command: str
    expected: Mapping[str, str]
    timeout: float = 1800.0


@dataclass(frozen=True, slots=True)
class RewardChecks:
    """Harbor's way: a program, laid out in the sandbox after the agent's end, leaves the reward in a file.

    Attributes:
        files: what is laid out, by absolute path.
        command: what is run.
        timeout: seconds for the run.
        log: for Terminal-Bench, whose verdict is read off pytest's summary: the tests are the log's own.
    """

    files: Files
    command: str
    timeout: float = 600.0
    log: bool = False


Checks = PytestChecks | ScriptChecks | StatusChecks | RewardChecks


@dataclass(frozen=True)
class SweTask:
    """One task.

    Attributes:
        id: stable, unique in its set.
        issue: what the agent is told.
        checks: how a solution is judged.
        gold: the patch that solves it, as a unified diff; empty where there is none.
        files: the repository as the agent finds it; None: it is in the image.
        image: what the sandbox is made of.
        workdir: where the repository lies.
        repo: the repository's name.
        solution: a program that solves it, for tasks that have one instead of a patch.
        memory: bytes, in all.
        user: who runs commands.
        writable: folders that can be written, beside the working folder.
        facts: more about it, for people.
    """

    id: str
    issue: str
    checks: Checks
    gold: str = ""
    files: Files | None = None
    image: str = DEFAULT_IMAGE
    workdir: str = WORKDIR
    repo: str = ""
    solution: str = ""
    memory: int = 1 << 30
    user: str = "1000:1000"
    writable: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    def content(self) -> dict[str, Any]:
        """Everything that decides the outcome, for hashes: JSON, files by their sha256."""
        return {
            "issue": self.issue,
            "image": self.image,
            "workdir": self.workdir,
            "repo": self.repo,
            "gold": self.gold,
            "solution": self.solution,
            "files": None if self.files is None else sums(self.files),
            "checks": [type(self.checks).__name__, _plain(self.checks)],
        }


def sums(files: Files) -> dict[str, str]:
    """The sha256 of each file."""
    return {path: hashlib.sha256(content).hexdigest() for path, content in sorted(files.items())}


def _plain(checks: Checks) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in checks.__slots__:
        value = getattr(checks, name)
        if name == "files":
            found[name] = sums(value)
        elif isinstance(value, Mapping):
            found[name] = {str(key): str(inner) for key, inner in value.items()}
        else:
            found[name] = list(value) if isinstance(value, tuple) else value
    return found
