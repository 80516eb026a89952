"""ALFWorld: household tasks in text, played natively.

>>> import rollenv
>>> env = rollenv.make("alfworld")  # generated games; data="folder" or game="file" plays ALFWorld's own
>>> observation, info = env.reset(options={"task": env.tasks.ids("train")[0]})
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollenv.envs.alfworld.env import AlfworldEnv as AlfworldEnv

__all__ = ["AlfworldEnv", "register"]


def register() -> None:
    """Registers the environment with rollenv (and so with gymnasium)."""
    from rollenv.registration import register as add

    add(
        "ALFWorld-v1",
        "rollenv.envs.alfworld.env:AlfworldEnv",
        max_turns=50,
        placement="inline",
        eval_split="valid_unseen",
        description="Household tasks: find, clean, heat, cool and place things (generated, or ALFWorld's games).",
        train_config="rollenv.envs.alfworld:train.toml",
        imitate_config="rollenv.envs.alfworld:imitate.toml",
        agents={
            "llm": "rollenv.agents.alfworld:ALFWorldAgent",
            "oracle": "rollenv.agents.alfworld_oracle:ALFWorldOracle",
            "walkthrough": "rollenv.agents.alfworld_walkthrough:ALFWorldWalkthrough",
        },
    )


def __getattr__(name: str) -> Any:
    # Importing this package costs nothing: the engine is loaded when it is asked for.
    if name == "AlfworldEnv":
        from rollenv.envs.alfworld.env import AlfworldEnv

        return AlfworldEnv
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
