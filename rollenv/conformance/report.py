"""What a check of an environment comes to: a report of what was checked, or the first fault."""

from __future__ import annotations

from dataclasses import dataclass, field

from rollenv.errors import RollenvError


class ConformanceError(RollenvError):
    """An environment breaks the contract. The message says how, where, and what to do about it.

    Attributes:
        check: name of the check that failed.
        task: the task that was played, if any.
        seed: the seed of the last `reset` that had one.
        step: 0 for `reset`, then 1, 2, ... for the steps after it; None outside an episode.
    """

    check: str = ""
    task: str | None = None
    seed: int | None = None
    step: int | None = None


class Skipped(Exception):
    """Raised inside a check that has nothing to check in this environment; its text is the reason."""


@dataclass(slots=True)
class CheckReport:
    """What `check_env` looked at.

    Attributes:
        env: what was checked.
        passed: names of the checks that were made.
        skipped: name -> reason, for checks that were not made, wholly or in part.
    """

    env: str
    passed: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{self.env}: {len(self.passed)} checks passed, {len(self.skipped)} skipped"]
        lines += [f"  passed   {name}" for name in self.passed]
        lines += [f"  skipped  {name}: {reason}" for name, reason in self.skipped.items()]
        return "\n".join(lines)
