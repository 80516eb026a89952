"""ToolAgent: lets a language model act by calling tools, in any environment that lists them in `info["tools"]`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rollenv.agents.base import Step
from rollenv.agents.history import History, check_history, conversation, window_start
from rollenv.messages import Message

SYSTEM = "You solve tasks by calling tools. Think as long as you need, then call one tool; its answer comes next."

_FORMAT = """
<tools>
{tools}
</tools>

Write each call as a JSON object in tags, and nothing after it:
<tool_call>
{{"name": "tool", "arguments": {{"key": "value"}}}}
</tool_call>"""
_THOUGHT = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)


def with_tools(system: str, functions: Sequence[Mapping[str, Any]]) -> str:
    """A system prompt with tools after it, in the format of the Hermes and Qwen models.

    Args:
        functions: JSON-schema definitions: `{"name", "description", "parameters"}`.
    """
    tools = "\n".join(json.dumps(function) for function in functions)
    return f"{system}\n{_FORMAT.format(tools=tools)}"


class ToolAgent:
    """Shows the tools once, in the system prompt, and what they answer turn by turn.

    The format is that of the Hermes and Qwen models; what a model writes after its thoughts goes to the environment as
    it is.

    Args:
        system: what the system prompt begins with.
        history: `"full"`, or the number of turns the model sees.
    """

    def __init__(self, system: str = SYSTEM, history: History = "full") -> None:
        self.system = system
        self.history = check_history(history)

    def messages(self, history: Sequence[Step]) -> list[Message]:
        start = window_start(len(history), self.history)
        texts = [self._text_of(step) for step in history]
        return conversation(self._system(history[0]), texts, history, start)

    def action(self, text: str, step: Step) -> str:
        return _THOUGHT.sub("", text).strip()

    def text(self, action: str, step: Step) -> str:
        return f"<tool_call>\n{action}\n</tool_call>"

    def _system(self, first: Step) -> str:
        if "system" not in first.data:
            tools = [tool["function"] for tool in first.info.get("tools", ())]
            first.data["system"] = with_tools(self.system, tools) if tools else self.system
        return str(first.data["system"])

    @staticmethod
    def _text_of(step: Step) -> str:
        return str(step.data.setdefault("text", step.observation))
