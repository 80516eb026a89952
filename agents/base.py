"""Who acts: the two kinds of agent, and what they remember of an episode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from rollenv.messages import Message


@dataclass(slots=True)
class Step:
    """One turn as an agent remembers it: what it saw and, once it has acted, what it wrote and did."""

    observation: str
    info: dict[str, Any]
    completion: str = ""
    action: str = ""
    valid_action: bool = True
    data: dict[str, Any] = field(default_factory=dict)
    """Whatever the agent noted when it rendered the observation (the meaning of its numbers, say)."""


@runtime_checkable
class ScriptedAgent(Protocol):
    """An agent that is a program: oracle, random, replay. It is made anew, or reset, for each episode."""

    def reset(self, seed: int) -> None:
        """Forgets the last episode; `seed` decides all its draws in the next one."""
        ...

    def act(self, observation: str, info: dict[str, Any]) -> str:
        """The next action, from what is visible."""
        ...


@runtime_checkable
class ChatAgent(Protocol):
    """An agent that lets a language model act: it knows prompts, never tokens and never rewards.

    One instance serves many episodes at once: everything about an episode is in `history`.
    """

    def messages(self, history: Sequence[Step]) -> list[Message]:
        """The conversation that the model is to continue: `history[-1]` is yet to be answered.

        Messages about a past turn must not change between calls (an unchanged prefix is not encoded or computed
        again; a changed one forks the trajectory into a new segment).
        """
        ...

    def action(self, text: str, step: Step) -> str:
        """The environment's action that `text`, the model's answer at `step`, stands for.

        Text that means nothing comes back as it is: the environment will call it invalid.
        """
        ...

    def text(self, action: str, step: Step) -> str:
        """What a model would write at `step` to mean `action`: the inverse of `action`, for imitation."""
        ...
