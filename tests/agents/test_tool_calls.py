"""A model that knows no tool API is told the tools in text, and its calls reach the environment."""

from __future__ import annotations

from rollenv.agents.base import ChatAgent, Step
from rollenv.agents.tool_calls import ToolAgent
from rollenv.envs.swe.tools import TOOLS, parse_call, render_call
from rollenv.messages import ToolCall

CALL = ToolCall("bash", {"command": "ls"})


def test_tools_are_in_the_system_prompt_and_the_past_does_not_change() -> None:
    agent = ToolAgent()
    assert isinstance(agent, ChatAgent)
    history = [Step("mend it", {"tools": TOOLS})]
    first = agent.messages(history)
    assert [message.role for message in first] == ["system", "user"]
    assert '"name": "bash"' in first[0].content
    assert "<tool_call>" in first[0].content
    history[0].completion = "I look.\n<tool_call>...</tool_call>"
    second = agent.messages([*history, Step("a.py", {})])
    assert second[:2] == first
    assert [message.role for message in second[2:]] == ["assistant", "user"]


def test_an_environment_without_tools_needs_no_format() -> None:
    assert ToolAgent("be brief").messages([Step("x", {})])[0].content == "be brief"


def test_what_is_written_reaches_the_environment() -> None:
    agent, step = ToolAgent(), Step("x", {})
    assert parse_call(agent.action(f"<think>rm?\n</think>\n{agent.text(render_call(CALL), step)}", step)) == CALL
    assert agent.action("<think>never ends", step) == ""
