"""Software engineering tasks: a repository, an issue, tests that nobody sees, and a sandbox to work in.

>>> import rollenv
>>> env = rollenv.make("swe")  # tasks that come with rollenv; tasks=PATH plays SWE-bench, SWE-smith, R2E, folders
>>> len(env.tasks.splits)
2
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollenv.envs.swe.env import SweEnv as SweEnv
    from rollenv.envs.swe.grading import Grade as Grade
    from rollenv.envs.swe.grading import grade_log as grade_log

__all__ = ["Grade", "SweEnv", "grade_log", "register"]

_HOMES = {"Grade": "grading", "SweEnv": "env", "grade_log": "grading"}


def register() -> None:
    """Registers the environment with rollenv (and so with gymnasium)."""
    from rollenv.registration import register as add

    add(
        "SWE-v1",
        "rollenv.envs.swe.env:SweEnv",
        max_turns=50,
        placement="thread",
        description="Mend a repository in a sandbox until hidden tests pass (generated bugs, SWE-bench, your own).",
        train_config="rollenv.envs.swe:train.toml",
        agents={
            "llm": "rollenv.agents.tool_calls:ToolAgent",
            "oracle": "rollenv.agents.swe:GoldPatch",
            "noop": "rollenv.agents.swe:NoOp",
            "random-edit": "rollenv.agents.swe:RandomEdit",
            "harness": "rollenv.agents.harness:Harness",
        },
    )


def __getattr__(name: str) -> Any:
    # Importing this package costs nothing: its parts are loaded when something of them is asked for.
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
