"""What the verbs have in common on the screen: numbers, durations, and bars that also speak to a log."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

LOG_SECONDS = 10.0
"""Without a terminal, a bar writes a line this often."""


def duration(seconds: float) -> str:
    """A length of time in the two biggest units.

    >>> duration(7.4), duration(191), duration(7500)
    ('7s', '3m11s', '2h05m')
    """
    whole = round(max(0.0, seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def rate(per_second: float) -> str:
    """A rate with three digits.

    >>> rate(7.31), rate(12345.0)
    ('7.3', '12.3k')
    """
    if per_second >= 9999.5:
        return f"{per_second / 1000:.1f}k"
    return f"{per_second:.0f}" if per_second >= 100 else f"{per_second:.1f}"


def percent(share: float) -> str:
    """A share as a percentage with one decimal.

    >>> percent(0.3456)
    '34.6%'
    """
    return f"{100 * share:.1f}%"


def with_interval(share: float, interval: tuple[float, float] | list[float]) -> str:
    """A share with its 95% confidence interval.

    >>> with_interval(0.5, (0.4, 0.6))
    '50.0% (95% CI 40.0-60.0)'
    """
    low, high = interval
    return f"{percent(share)} (95% CI {100 * low:.1f}-{100 * high:.1f})"


class Bar:
    """One line of progress on stderr: a bar with rate and time left on a terminal, a line now and then elsewhere.

    Args:
        unit: what is counted, in the plural.
    """

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._console = Console(file=sys.stderr)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._task: TaskID | None = None
        self._what, self._done = "", 0
        self._began = self._updated = self._said = time.monotonic()

    def __enter__(self) -> Bar:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._progress.stop()

    def update(self, what: str, done: int, total: int, note: str = "", unit: str | None = None) -> None:
        """`done` of `total` of what is going on now; another `what` begins another line."""
        now = time.monotonic()
        if what != self._what or done < self._done:
            self._what, self._began, self._said = what, self._updated, now
            self._task = self._progress.add_task(what, total=total, note="")
        self._updated, self._done = now, done
        per_second = done / max(now - self._began, 1e-9)
        words = f"{rate(per_second)} {unit or self._unit}/s  {note}".strip()
        assert self._task is not None
        self._progress.update(self._task, completed=done, total=total, note=words)
        if not self._console.is_terminal and (now - self._said >= LOG_SECONDS or done == total):
            self._said = now
            left = duration((total - done) / per_second)
            print(f"{what}  {done}/{total}  {words}  eta {left}", file=sys.stderr, flush=True)
