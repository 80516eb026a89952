"""The tools of an agent: their schemas, and the calls that a text stands for.

A call may come as JSON, alone or in `<tool_call>` tags; as `<function=bash><parameter=command>...`, which SWE-smith's
trajectories are written in; or as one fenced block of shell commands, which is `bash`.
"""

from __future__ import annotations

import json
import re
from typing import Any

from rollenv.errors import RollenvError, did_you_mean
from rollenv.messages import ToolCall


def _tool(
    name: str, description: str, required: dict[str, str], optional: dict[str, str] | None = None
) -> dict[str, Any]:
    properties = {
        key: {"type": "integer" if key in _NUMBERS else "string", "description": text}
        for key, text in {**required, **(optional or {})}.items()
    }
    parameters = {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


_NUMBERS = {"start", "end"}

TOOLS: list[dict[str, Any]] = [
    _tool(
        "bash",
        "Run a command in a shell that remembers its folder and variables from call to call.",
        {"command": "The command."},
    ),
    _tool(
        "view",
        "Show a file with line numbers, or list a folder.",
        {"path": "File or folder."},
        {"start": "First line to show, from 1.", "end": "Last line to show."},
    ),
    _tool(
        "edit",
        "Replace text in a file. The old text must be there exactly once, white space included.",
        {"path": "The file.", "old": "Text to replace.", "new": "Text to put in its place."},
    ),
    _tool(
        "create",
        "Write a file with this content; one that is there is replaced.",
        {"path": "The file.", "content": "All of its content."},
    ),
    _tool(
        "search",
        "Find lines that match a regular expression, in a file or in all files of a folder.",
        {"pattern": "An extended regular expression."},
        {"path": "File or folder; the repository if not said."},
    ),
    _tool("submit", "End the work and have it checked. Nothing can be done after it.", {}),
]
"""In OpenAI's schema."""

_SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
_TAGGED = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
_FUNCTION = re.compile(r"<function=([\w.-]+)>(.*?)(?:</function>|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([\w.-]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_FENCED = re.compile(r"```(?:bash|sh|shell)\n(.*?)```", re.DOTALL)

HELP = (
    'A call is one JSON object, such as {"name": "bash", "arguments": {"command": "ls"}}, or one ```bash block. '
    f"Tools: {', '.join(_SCHEMAS)}."
)


class BadCall(RollenvError):
    """A text that is no call of a tool; the message tells the agent why."""


def parse_call(text: str) -> ToolCall:
    """The call that a text stands for: the first, if it has several.

    Raises:
        BadCall: it is none, or no tool takes it.
    """
    return _checked(_found(text))


def render_call(call: ToolCall) -> str:
    """A call as text that `parse_call` takes back."""
    return json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)


def _found(text: str) -> ToolCall:
    stripped = text.strip()
    if tagged := _TAGGED.search(text):
        return _from_json(tagged[1])
    if function := _FUNCTION.search(text):
        return ToolCall(function[1], dict(_PARAMETER.findall(function[2])))
    if stripped.startswith("{"):
        return _from_json(stripped)
    if fenced := _FENCED.search(text):
        return ToolCall("bash", {"command": fenced[1].strip()})
    if stripped.lower() in ("submit", "submit()"):
        return ToolCall("submit", {})
    raise BadCall(f"That is no call of a tool. {HELP}")


def _from_json(text: str) -> ToolCall:
    try:
        said, _ = json.JSONDecoder(strict=False).raw_decode(text)
        arguments = said.get("arguments", said.get("parameters", {}))
        if isinstance(arguments, str):
            arguments = json.loads(arguments or "{}")
        return ToolCall(str(said["name"]), dict(arguments))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadCall(f"That is no call of a tool: {error}. {HELP}") from error


def _checked(call: ToolCall) -> ToolCall:
    schema = _SCHEMAS.get(call.name)
    if schema is None:
        raise BadCall(f"There is no tool '{call.name}'{did_you_mean(call.name, _SCHEMAS)}. {HELP}")
    arguments = {}
    for key, value in call.arguments.items():
        if key not in schema["properties"]:
            known = ", ".join(schema["properties"]) or "nothing"
            raise BadCall(f"'{call.name}' takes no '{key}': it takes {known}.")
        arguments[key] = _typed(call.name, key, value)
    missing = [key for key in schema["required"] if key not in arguments]
    if missing:
        raise BadCall(f"'{call.name}' needs '{missing[0]}'.")
    return ToolCall(call.name, arguments, call.id)


def _typed(name: str, key: str, value: Any) -> Any:
    if key in _NUMBERS:
        if isinstance(value, str) and value.strip().lstrip("-").isdigit():
            return int(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        raise BadCall(f"'{key}' of '{name}' must be a whole number, not {value!r:.60}.")
    if not isinstance(value, str):
        raise BadCall(f"'{key}' of '{name}' must be text, not {value!r:.60}.")
    return value
