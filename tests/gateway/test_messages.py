"""From OpenAI's messages to a conversation, and from what a model wrote to an answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollenv.gateway.messages import BadMessages, conversation, read_answer
from rollenv.messages import Message

TOOL = {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {"type": "object"}}}
CALL = '<tool_call>\n{"name": "look", "arguments": {"where": "here"}}\n</tool_call>'


def said(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def test_a_conversation_keeps_its_order_and_merges_what_has_no_answer_between() -> None:
    messages = [said("developer", "Be brief."), said("user", "a"), said("user", [{"type": "text", "text": "b"}])]
    assert conversation(messages, [], []) == [Message("system", "Be brief."), Message("user", "a\nb")]


def test_tools_are_shown_and_their_answers_are_the_users() -> None:
    answer = read_answer(f"I look.\n{CALL}", "call-s-0")
    messages = [said("user", "go"), answer.as_dict(), said("tool", "a door", tool_call_id="call-s-0-0")]
    system, go, own, door = conversation(messages, [TOOL], [(answer, f"I look.\n{CALL}")])
    assert json.dumps(TOOL["function"]) in system.content
    assert (go.content, own.turn, own.content) == ("go", 0, f"I look.\n{CALL}")
    assert door == Message("user", "<tool_response>\na door\n</tool_response>")


def test_calls_are_read_and_what_is_no_call_stays_text() -> None:
    answer = read_answer(f"I look.\n{CALL}\n{CALL}", "c")
    assert answer.content == "I look."
    assert [(call["id"], call["function"]["name"]) for call in answer.tool_calls] == [("c-0", "look"), ("c-1", "look")]
    assert json.loads(answer.tool_calls[0]["function"]["arguments"]) == {"where": "here"}
    for text in ("<tool_call>nonsense</tool_call>", '<tool_call>{"arguments": {}}</tool_call>', "<tool_call>[1]"):
        assert read_answer(text, "c").content == text
        assert read_answer(text, "c").tool_calls == ()


@given(st.lists(st.sampled_from(["yes", "no", f"hm {CALL}", CALL, " spaced "]), min_size=1, max_size=6), st.booleans())
def test_answers_sent_back_are_known_again_turn_by_turn(completions: list[str], trimmed: bool) -> None:
    """Also when two are equal, and when a framework trims them or drops empty contents."""
    answers = [(read_answer(text, f"call-{i}"), text) for i, text in enumerate(completions)]
    messages: list[dict[str, Any]] = []
    for answer, _ in answers:
        message = answer.as_dict()
        if trimmed:
            message["content"] = (message["content"] or "").strip() or None
        messages += [said("user", "?"), message]
    ours = conversation([*messages, said("user", "?")], [], answers)
    assert [m.turn for m in ours if m.role == "assistant"] == list(range(len(completions)))
    assert [m.content for m in ours if m.role == "assistant"] == completions


def test_an_answer_of_somebody_else_is_text() -> None:
    other = said("assistant", "Mine.", tool_calls=[{"function": {"name": "look", "arguments": '{"where": "here"}'}}])
    ours = conversation([said("user", "a"), other, said("user", "b")], [], [(read_answer("Yours.", "c"), "Yours.")])
    assert ours[1] == Message("assistant", f"Mine.\n{CALL}")


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([said("user", "a"), said("assistant", "b")], "must be one to answer"),
        ([said("system", "a")], "must be one to answer"),
        ([said("user", [{"type": "image_url", "image_url": {}}])], "neither text nor a list of text parts"),
    ],
)
def test_what_cannot_be_answered_is_refused(messages: list[dict[str, Any]], why: str) -> None:
    with pytest.raises(BadMessages, match=why):
        conversation(messages, [], [])
