"""Software engineering tasks: a repository, an issue, tests that nobody sees, and a sandbox to work in.

>>> import rollenv
>>> env = rollenv.make("swe")  # tasks that come with rollenv; tasks=PATH plays SWE-bench, SWE-smith, R2E, folders
>>> len(env.tasks.splits)
2
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollenv.envs.swe.grading import Grade as Grade
    from rollenv.envs.swe.grading import grade_log as grade_log

__all__ = ["Grade", "grade_log"]

_HOMES = {"Grade": "grading", "grade_log": "grading"}


def __getattr__(name: str) -> Any:
    # Importing this package costs nothing: its parts are loaded when something of them is asked for.
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
