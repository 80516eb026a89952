"""LLMAgent: what the model reads in any text environment, and how its answer becomes an action."""

from __future__ import annotations

from typing import Any

import pytest

from rollenv.agents.base import ChatAgent, Step
from rollenv.agents.llm import LLMAgent, last_action


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("go north", "go north"),
        ("  go north \n", "go north"),
        ("I think\n\ngo north\n\n", "go north"),
        ("<action>go north</action>", "go north"),
        ("first <action>no</action> then <action>\ngo north\n</action> done", "go north"),
        ("", ""),
        ("\n \n", ""),
        ("<action>open", "<action>open"),
    ],
)
def test_last_action(text: str, action: str) -> None:
    assert last_action(text) == action


def steps(n: int, **info: Any) -> list[Step]:
    return [Step(f"page {i}", dict(info), f"said {i}", f"did {i}") for i in range(n)]


def test_observation_and_admissible_actions() -> None:
    agent = LLMAgent(system="", max_listed=2)
    (message,) = agent.messages(steps(1, admissible_actions=["a", "b", "c"]))
    assert message.content == "page 0\nActions: a | b"
    (message,) = LLMAgent(system="", list_actions=False).messages(steps(1, admissible_actions=["a"]))
    assert message.content == "page 0"
    assert LLMAgent().messages(steps(1))[0].role == "system"


def test_an_invalid_action_is_said_with_the_next_observation_only() -> None:
    history = steps(3)
    history[0].valid_action = False
    contents = [m.content for m in LLMAgent(system="").messages(history) if m.role == "user"]
    assert contents == ["page 0", "That action is not possible.\npage 1", "page 2"]


@pytest.mark.parametrize("history", ["full", 1, 2, 5])
def test_messages_of_a_past_turn_never_change(history: Any) -> None:
    """Else the trajectory would fork and its tokens would be encoded anew."""
    agent = LLMAgent(history=history)
    whole = steps(9, admissible_actions=["x"])
    for i in (1, 4):
        whole[i].valid_action = False
    seen: dict[tuple[str, int | None], str] = {}
    for n in range(1, 10):
        for message in agent.messages(whole[:n]):
            assert seen.setdefault((message.role, message.turn), message.content) == message.content
        assert agent.messages(whole[:n])[-1].turn == n - 1


def test_it_is_a_chat_agent_whose_text_means_the_action() -> None:
    agent = LLMAgent()
    assert isinstance(agent, ChatAgent)
    assert agent.action(agent.text("open door", steps(1)[0]), steps(1)[0]) == "open door"
