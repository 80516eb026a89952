"""OpenAI's messages and ours: what a client sent as a conversation, and what a model wrote as an answer.

Tools are shown, called and answered as text, in the format of the Hermes and Qwen models (as `ToolAgent` does), so that
any model can be in front of which a client calls tools.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollenv.agents.tool_calls import with_tools
from rollenv.messages import Message

_CALL = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|\Z)", re.DOTALL)


class BadMessages(ValueError):
    """A conversation that cannot be shown to a model; the message says which part of it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A completion as the client sees it."""

    content: str
    tool_calls: tuple[dict[str, Any], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """OpenAI's assistant message."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content or None}
        if self.tool_calls:
            message["tool_calls"] = list(self.tool_calls)
        else:
            message["content"] = self.content
        return message

    def is_echoed_by(self, message: Mapping[str, Any]) -> bool:
        """Whether a client's assistant message is this answer, sent back: frameworks trim and reorder, so white space
        around it and the names of calls that they invent do not count."""
        return self.content.strip() == text_of(message.get("content"), "assistant").strip() and [
            _meaning(call) for call in self.tool_calls
        ] == [_meaning(call) for call in message.get("tool_calls") or ()]


def _meaning(call: Mapping[str, Any]) -> tuple[str, Any]:
    function = call.get("function") or {}
    arguments = function.get("arguments")
    try:
        return str(function.get("name")), json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return str(function.get("name")), arguments


def read_answer(text: str, call_id: str) -> Answer:
    """An answer from what a model wrote. A call that is no JSON object with a name stays part of the text."""
    calls: list[dict[str, Any]] = []

    def take(found: re.Match[str]) -> str:
        try:
            said = json.loads(found.group(1))
            name, arguments = said["name"], said.get("arguments", {})
        except (ValueError, KeyError, TypeError, AttributeError):
            return found.group(0)
        arguments = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        function = {"name": str(name), "arguments": arguments}
        calls.append({"id": f"{call_id}-{len(calls)}", "type": "function", "function": function})
        return ""

    content = _CALL.sub(take, text)
    return Answer(content.rstrip() if calls else content, tuple(calls))


def conversation(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], answers: Sequence[tuple[Answer, str]]
) -> list[Message]:
    """A client's conversation as ours.

    Args:
        messages: `{"role", "content", ...}`; what follows one another without an answer between becomes one message,
            as templates want it.
        tools: OpenAI's tool definitions.
        answers: what was answered in this session, turn by turn, with the text that the model wrote: an assistant
            message that is one of them stands for the very tokens that were sampled.

    Raises:
        BadMessages: they do not end with something to answer, or have a part that is not text.
    """
    system: list[str] = []
    said: list[Message] = []
    unmet = list(range(len(answers)))
    for message in messages:
        role = message.get("role")
        if role == "assistant":
            said.append(_own(message, answers, unmet))
            continue
        text = text_of(message.get("content"), str(role))
        if role in ("system", "developer") and not said:
            system.append(text)
            continue
        text = f"<tool_response>\n{text}\n</tool_response>" if role == "tool" else text
        if said and said[-1].role == "user":
            text = f"{said.pop().content}\n{text}"
        said.append(Message("user", text))
    if not said or said[-1].role != "user":
        raise BadMessages("the last message must be one to answer, of role 'user' or 'tool'")
    prompt = "\n\n".join(system)
    prompt = with_tools(prompt, [tool.get("function", tool) for tool in tools]) if tools else prompt
    return [Message("system", prompt), *said] if prompt else said


def _own(message: Mapping[str, Any], answers: Sequence[tuple[Answer, str]], unmet: list[int]) -> Message:
    for turn in unmet:
        answer, completion = answers[turn]
        if answer.is_echoed_by(message):
            unmet.remove(turn)
            return Message("assistant", completion, turn)
    written = []
    for name, arguments in map(_meaning, message.get("tool_calls") or ()):
        call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
        written.append(f"<tool_call>\n{call}\n</tool_call>")
    return Message("assistant", "\n".join(filter(None, [text_of(message.get("content"), "assistant"), *written])))


def text_of(content: Any, role: str) -> str:
    """The text of a message: a string, or a list of `{"type": "text", "text": ...}`; None is empty.

    Raises:
        BadMessages: it is something else.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        return "".join(str(part.get("text", "")) for part in content)
    raise BadMessages(f"the content of a message of role '{role}' is neither text nor a list of text parts")
