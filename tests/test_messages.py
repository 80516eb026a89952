"""Chat messages in the form that chat templates read."""

from __future__ import annotations

import dataclasses
import json

import pytest

from rollenv import Message, ToolCall


def test_a_plain_message_has_role_and_content_only() -> None:
    assert Message("user", "hello", turn=3).as_dict() == {"role": "user", "content": "hello"}


def test_tool_calls_are_written_as_chat_templates_read_them() -> None:
    calls = ToolCall("search", {"query": "red shoes", "n": 3}, id="call-1"), ToolCall("stop", {})
    written = Message("assistant", "", tool_calls=calls).as_dict()
    assert written == {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "type": "function",
                "function": {"name": "search", "arguments": {"query": "red shoes", "n": 3}},
                "id": "call-1",
            },
            {"type": "function", "function": {"name": "stop", "arguments": {}}},
        ],
    }
    assert json.loads(json.dumps(written)) == written


def test_changing_what_was_written_does_not_change_the_message() -> None:
    arguments = {"query": "shoes"}
    message = Message("assistant", "", tool_calls=(ToolCall("search", arguments),))
    message.as_dict()["tool_calls"][0]["function"]["arguments"]["query"] = "changed"
    assert arguments == {"query": "shoes"}


def test_a_message_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Message("user", "hello").content = "changed"  # type: ignore[misc]
