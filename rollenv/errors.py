"""Errors a user can act on: one sentence that says what, where and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class RollenvError(Exception):
    """A user's mistake or a broken input. The command line prints it without a traceback and exits with 2."""


class InvalidAction(RollenvError):
    """An action that is not even text, or that the environment cannot take at all (never a mere bad move)."""


class SnapshotError(RollenvError):
    """A snapshot that is not from this environment, this version or this data."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`"; did you mean 'x'?"` for the closest of `known`, or `""` when nothing is close."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else ""
