"""Messages that are answered as they come in: they are answered as the long way would, in their order."""

from __future__ import annotations

import asyncio
import json
import struct
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import toys
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from server.serving import served, until
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

import rollenv
from rollenv.server.direct import DirectProtocol


class Dawdler(toys.Colours):
    """An environment of this thread that waits all the same when it is told `wait`."""

    async def astep(self, action: str) -> Any:
        if action == "wait":
            await asyncio.sleep(0.05)
            return "waited", 0.0, False, False, self._info()
        return await super().astep(action)


class Unspeakable(toys.Colours):
    """An environment whose `info` has what JSON has no form for, where it is told `red`."""

    def step(self, action: str) -> Any:
        text, reward, terminated, truncated, info = super().step(action)
        return text, reward, terminated, truncated, info | ({"thing": object()} if action == "red" else {})


class Quitter(toys.Colours):
    """An environment that ends its process where it is told `red`."""

    def step(self, action: str) -> Any:
        return sys.exit(3) if action == "red" else super().step(action)


class Bulky(toys.Colours):
    """An environment that says a lot."""

    def _see(self) -> str:
        return "again" * 20_000


@pytest.fixture
def servers(temp_registry: Any) -> Iterator[str]:
    for env in (toys.Colours, Dawdler, Unspeakable, Quitter, Bulky):
        rollenv.register(f"{env.__name__}-v0", env, max_turns=100)
    with served("colours", "dawdler", "unspeakable", "quitter", "bulky", capacity=64) as (address, _):
        yield address.replace("http", "ws")


@pytest.fixture
def long_ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every message that went the long way."""
    gone: list[str] = []
    usual = WebSocketsSansIOProtocol.handle_text

    def handle_text(self: Any, event: Any) -> None:
        gone.append(bytes(event.data).decode("utf-8", "replace"))
        usual(self, event)

    monkeypatch.setattr(WebSocketsSansIOProtocol, "handle_text", handle_text)
    return gone


def message(kind: str, **data: Any) -> str:
    return json.dumps({"type": kind, "data": data})


def test_steps_and_resets_go_the_short_way_and_the_end_the_long_one(servers: str, long_ways: list[str]) -> None:
    with connect(f"{servers}/colours/ws", proxy=None) as ws:
        said = [message("reset", seed=1), message("step", action="red"), message("state"), message("snapshot")]
        ws.send(message("state"))  # may be there before the application is
        ws.recv(10)
        long_ways.clear()
        for one in said:
            ws.send(one)
            assert json.loads(ws.recv(10))["type"] != "error"
        assert long_ways == []
        ws.send(message("close"))
        with pytest.raises(ConnectionClosed) as closed:
            ws.recv(10)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1000
    assert [json.loads(one)["type"] for one in long_ways] == ["close"]


MESSAGES = st.one_of(
    st.builds(lambda seed: message("reset", seed=seed), st.integers(-1, 3)),
    st.builds(lambda action: message("step", action=action), st.sampled_from([*toys.COLOURS, "", "é", "wait"])),
    st.builds(lambda n: message("step", action="red", step_id=n), st.integers(0, 3)),
    st.builds(lambda seed: message("reseed", seed=seed), st.integers(0, 3)),
    st.sampled_from([message("snapshot"), message("state"), message("restore", snapshot="x"), message("dance")]),
    st.sampled_from(["", "{", "[]", "null", '{"type": "step"}', '{"type": "step", "data": 3}', "\ud7ff"]),
    st.binary(max_size=4),
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(messages=st.lists(MESSAGES, min_size=1, max_size=12))
@pytest.mark.parametrize("env", ["colours", "dawdler"])
def test_any_conversation_is_the_same_both_ways(
    servers: str, monkeypatch: pytest.MonkeyPatch, env: str, messages: list[str | bytes]
) -> None:
    """Also where the client does not wait for answers before it goes on."""

    def answers() -> list[Any]:
        with connect(f"{servers}/{env}/ws", proxy=None, compression=None) as ws:
            for one in messages:
                ws.send(one)
            heard = [json.loads(ws.recv(10)) for _ in messages]
        for one in heard:
            one["data"].pop("session_id", None)
        return heard

    short = answers()
    with monkeypatch.context() as patch:
        patch.setattr(DirectProtocol, "_reply", lambda self, data: None)
        assert answers() == short


def test_what_goes_the_long_way_is_not_overtaken(servers: str, long_ways: list[str]) -> None:
    """In one piece with what would be answered at once."""
    with connect(f"{servers}/colours/ws", proxy=None) as ws:
        ws.send(message("reset", seed=1))
        ws.recv(10)
        ws.send(message("state"))
        ws.recv(10)
        long_ways.clear()
        ws.socket.sendall(_masked(b"{") + _masked(message("state").encode()))
        assert [json.loads(ws.recv(10))["type"] for _ in range(2)] == ["error", "state"]
    assert long_ways[0] == "{"


def test_text_that_is_no_text_ends_the_connection_as_rfc_6455_says(servers: str) -> None:
    with connect(f"{servers}/colours/ws", proxy=None) as ws:
        ws.send(b"\xff\xfe", text=True)
        with pytest.raises(ConnectionClosed) as closed:
            ws.recv(10)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1007


def test_a_message_in_pieces_is_one_message(servers: str) -> None:
    with connect(f"{servers}/colours/ws", proxy=None) as ws:
        whole = message("reset", seed=1)
        ws.send(whole)
        expected = ws.recv(10)
        ws.send(iter([whole[:5], whole[5:9], whole[9:]]))
        assert ws.recv(10) == expected


def test_what_has_no_form_in_json_is_an_error_and_the_session_goes_on(servers: str) -> None:
    with connect(f"{servers}/unspeakable/ws", proxy=None) as ws:
        ws.send(message("reset", seed=1))
        ws.recv(10)
        ws.send(message("step", action="red"))
        error = json.loads(ws.recv(10))["data"]
        assert error["code"] == "EXECUTION_ERROR"
        assert "object has no JSON form" in error["message"]
        ws.send(message("step", action="blue"))
        assert json.loads(ws.recv(10))["data"]["done"]


def test_an_environment_does_not_end_the_server(servers: str) -> None:
    with connect(f"{servers}/quitter/ws", proxy=None) as ws:
        ws.send(message("reset", seed=1))
        ws.recv(10)
        ws.send(message("step", action="red"))
        assert "failed with SystemExit" in json.loads(ws.recv(10))["data"]["message"]
        ws.send(message("step", action="blue"))
        assert json.loads(ws.recv(10))["type"] == "observation"


def test_who_does_not_read_is_not_written_to_without_bounds(servers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hundred answers of 100 kB are asked for, and none is read."""
    connections: list[DirectProtocol] = []
    made = DirectProtocol.connection_made

    def connection_made(self: DirectProtocol, transport: Any) -> None:
        connections.append(self)
        made(self, transport)

    monkeypatch.setattr(DirectProtocol, "connection_made", connection_made)
    with connect(f"{servers}/bulky/ws", proxy=None, compression=None, ping_interval=None, close_timeout=0.1) as ws:
        ws.send(message("reset", seed=1))
        ws.recv(10)
        frame = _masked(message("step", action="?").encode())
        ws.socket.sendall(frame * 200)
        until(lambda: not connections[0].writable.is_set() or not connections[0].queue.empty())
        time.sleep(0.5)  # what the server would go on to write is written by then
        assert connections[0].transport.get_write_buffer_size() < 1_000_000


def _masked(payload: bytes) -> bytes:
    """A client's text frame, masked with zeros."""
    assert len(payload) < 126
    return struct.pack("!BB4x", 0x81, 0x80 | len(payload)) + payload
