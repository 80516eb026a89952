"""Texts are calls of tools, or say why they are not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollenv.envs.swe.tools import TOOLS, BadCall, parse_call, render_call
from rollenv.messages import ToolCall

LS = ToolCall("bash", {"command": "ls -l"})


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "bash", "arguments": {"command": "ls -l"}}',
        '{"name": "bash", "arguments": "{\\"command\\": \\"ls -l\\"}"}',
        'I look.\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls -l"}}\n</tool_call>',
        "I look.\n<function=bash>\n<parameter=command>\nls -l\n</parameter>\n</function>",
        "I look:\n```bash\nls -l\n```",
        "```sh\nls -l\n```\nand then\n```sh\nrm x\n```",
    ],
)
def test_forms_of_a_call(text: str) -> None:
    assert parse_call(text) == LS


def test_line_breaks_in_json_are_forgiven() -> None:
    call = parse_call('{"name": "create", "arguments": {"path": "a", "content": "x\ny"}}')
    assert call.arguments["content"] == "x\ny"


def test_numbers_may_be_text() -> None:
    text = "<function=view><parameter=path>a</parameter><parameter=start>3</parameter></function>"
    assert parse_call(text).arguments == {"path": "a", "start": 3}


@pytest.mark.parametrize("text", ["submit", " Submit() ", '{"name": "submit"}', "<function=submit></function>"])
def test_submission(text: str) -> None:
    assert parse_call(text) == ToolCall("submit", {})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("what shall I do?", "no call of a tool"),
        ("", "no call of a tool"),
        ('{"name": "bash"', "no call of a tool"),
        ('{"name": "bas", "arguments": {}}', "did you mean 'bash'"),
        ('{"name": "bash", "arguments": {}}', "needs 'command'"),
        ('{"name": "bash", "arguments": {"command": "ls", "cwd": "/"}}', "takes no 'cwd'"),
        ('{"name": "bash", "arguments": {"command": 3}}', "must be text"),
        ('{"name": "view", "arguments": {"path": "a", "start": "x"}}', "whole number"),
        ('{"name": "bash", "arguments": [1]}', "no call of a tool"),
    ],
)
def test_texts_that_are_no_calls(text: str, says: str) -> None:
    with pytest.raises(BadCall, match=says):
        parse_call(text)


@given(st.fixed_dictionaries({"path": st.text(), "old": st.text(), "new": st.text()}))
def test_a_rendered_call_is_read_back(arguments: dict[str, Any]) -> None:
    call = ToolCall("edit", arguments)
    assert parse_call(render_call(call)) == call


def test_schemas_are_openais() -> None:
    for tool in TOOLS:
        assert tool["type"] == "function"
        parameters = tool["function"]["parameters"]
        assert set(parameters["required"]) <= set(parameters["properties"])
    json.dumps(TOOLS)
