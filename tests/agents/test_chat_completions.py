"""A model behind an OpenAI-compatible server plays by that API's tool calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from chat_server import Answer, Server, serve, tool_call

from rollenv.agents.chat_completions import ChatCompletions
from rollenv.errors import RollenvError

__all__ = ["serve"]


def acted(agent: ChatCompletions, observation: str, info: dict[str, Any]) -> str:
    return asyncio.run(agent.act(observation, info))


def test_a_tool_call_is_the_action_and_its_answer_goes_back(serve: Callable[[Answer], Server]) -> None:
    server = serve(lambda body: tool_call("bash", command="ls"))
    agent = ChatCompletions(server.url, model="m", system="be brief")
    agent.reset(7)
    info = {"tools": [{"type": "function", "function": {"name": "bash"}}]}
    assert json.loads(acted(agent, "do it", info)) == {"name": "bash", "arguments": {"command": "ls"}}
    acted(agent, "a.py", info)
    first, second = server.asked
    assert [message["role"] for message in first["messages"]] == ["system", "user"]
    assert first["tools"] == info["tools"]
    assert (first["model"], first["seed"]) == ("m", 7)
    assert [message["role"] for message in second["messages"]] == ["system", "user", "assistant", "tool"]
    assert second["messages"][-1] == {"role": "tool", "tool_call_id": "c1", "content": "a.py"}


def test_an_answer_without_a_call_is_the_action_as_it_is(serve: Callable[[Answer], Server]) -> None:
    server = serve(lambda body: {"choices": [{"message": {"content": "go north"}}]})
    agent = ChatCompletions(server.url, system="")
    agent.reset(0)
    assert acted(agent, "a room", {}) == "go north"
    acted(agent, "another", {})
    assert [message["role"] for message in server.asked[1]["messages"]] == ["user", "assistant", "user"]
    assert "tools" not in server.asked[0]


def test_a_new_episode_begins_anew(serve: Callable[[Answer], Server]) -> None:
    server = serve(lambda body: tool_call("look"))
    agent = ChatCompletions(server.url)
    for _ in range(2):
        agent.reset(0)
        acted(agent, "begin", {})
    assert [len(body["messages"]) for body in server.asked] == [2, 2]


@pytest.mark.parametrize(
    ("answer", "says"),
    [({"error": "no such model"}, "answers 400: .*no such model"), ({"choices": []}, "no answer that can be used")],
)
def test_a_server_that_refuses_is_told_of(serve: Callable[[Answer], Server], answer: dict[str, Any], says: str) -> None:
    agent = ChatCompletions(serve(lambda body: answer).url, retries=0)
    agent.reset(0)
    with pytest.raises(RollenvError, match=says):
        acted(agent, "x", {})


def test_a_server_that_is_not_there_is_told_of() -> None:
    agent = ChatCompletions("http://127.0.0.1:9/v1")
    agent.reset(0)
    with pytest.raises(RollenvError, match="no answer that can be used"):
        acted(agent, "x", {})
    with pytest.raises(RollenvError, match="must begin with http"):
        ChatCompletions("localhost:8000")
