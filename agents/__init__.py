"""Agents: who acts. `make_agent` finds one by name, those made for an environment first."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Mapping
from typing import Any

from rollenv.agents.base import ChatAgent
from rollenv.errors import RollenvError, did_you_mean
from rollenv.registration import EnvSpec, keyword_names, load_attribute, takes_keyword


def agent_names(spec: EnvSpec) -> dict[str, str]:
    """The agents that can act in an environment: name -> `module:attribute`."""
    return {**_general_agents(), **spec.agents}


@functools.cache
def _general_agents() -> dict[str, str]:
    """Those that packages bring. Read once: an agent is made per episode, and metadata lie in files."""
    return {entry.name: entry.value for entry in importlib.metadata.entry_points(group="rollenv.agents")}


def make_agent(spec: EnvSpec, name: str, arguments: Mapping[str, Any] | None = None) -> Any:
    """An agent (a `ChatAgent` or a `ScriptedAgent`) for the environment of `spec`.

    Raises:
        RollenvError: no such agent, or arguments that it does not take.
    """
    names = agent_names(spec)
    if name not in names:
        raise RollenvError(
            f"no agent '{name}' for '{spec.name}'{did_you_mean(name, names)} (known: {', '.join(names)})"
        )
    factory = load_attribute(names[name], f"agent '{name}'")
    for key in arguments or {}:
        if not takes_keyword(factory, key):
            known = keyword_names(factory)
            raise RollenvError(
                f"agent '{name}' takes no argument '{key}'{did_you_mean(key, known)} "
                f"(it takes: {', '.join(known) or 'none'})"
            )
    return factory(**(arguments or {}))


def chat_agent(agent: Any, name: str) -> ChatAgent:
    """An agent that a language model is to act through, as it is.

    Raises:
        RollenvError: it is a program.
    """
    if not isinstance(agent, ChatAgent):
        raise RollenvError(f"agent '{name}' is a program, through which no model can act: say agent.name=llm")
    return agent
