"""A model behind an OpenAI-compatible server plays by that API's tool calls."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from rollenv.agents.chat_completions import ChatCompletions
from rollenv.errors import RollenvError

Answer = Callable[[dict[str, Any]], dict[str, Any]]


class Server:
    """Answers every request with what a function makes of its body."""

    def __init__(self, answer: Answer) -> None:
        self.asked: list[dict[str, Any]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.asked.append(body)
                said = answer(body)
                data = json.dumps(said).encode()
                self.send_response(400 if "error" in said else 200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                return

        self._http = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], Server]]:
    servers: list[Server] = []

    def start(answer: Answer) -> Server:
        servers.append(Server(answer))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def tool_call(name: str, **arguments: Any) -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    return {"choices": [{"message": {"role": "assistant", "content": None, "tool_calls": [call]}}]}


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
    agent = ChatCompletions(serve(lambda body: answer).url)
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
