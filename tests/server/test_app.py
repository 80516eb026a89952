"""The server as strangers see it: status codes, sizes, tokens, broken messages, and sessions that end."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import toys
from server.serving import served, until
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect


def say(socket: Any, kind: str, **data: Any) -> dict[str, Any]:
    socket.send(json.dumps({"type": kind, "data": data}))
    return dict(json.loads(socket.recv(timeout=20)))


def socket_of(address: str, query: str = "") -> Any:
    return connect(f"{address.replace('http', 'ws')}/ws{query}", proxy=None)


# -- HTTP --------------------------------------------------------------------------------------------------------


def test_an_episode_by_http(colours: Any) -> None:
    address, hosts = colours
    task = toys.Colours().tasks.ids("test")[0]
    colour = toys.Colours().tasks.get(task).data["colour"]
    with httpx.Client(base_url=address) as http:
        begun = http.post("/reset", json={"task": task}).json()
        session = begun["session_id"]
        assert begun["observation"]["text"] == f"say {colour}"
        assert (begun["reward"], begun["done"]) == (None, False)
        first = http.post("/step", json={"session_id": session, "action": colour, "step_id": 1}).json()
        again = http.post("/step", json={"session_id": session, "action": "red", "step_id": 1}).json()
        assert again == first
        last = http.post("/step", json={"session_id": session, "action": {"action": colour}, "step_id": 2}).json()
        assert (last["reward"], last["done"], last["observation"]["info"]["success"]) == (1.0, True, True)
        state = http.get("/state", params={"session_id": session}).json()
        assert (state["step_count"], state["task"], state["done"]) == (2, task, True)
        assert http.post("/step", json={"session_id": session, "action": "red", "step_id": 7}).status_code == 409
        assert http.post("/close", json={"session_id": session}).status_code == 200
        assert http.get("/state", params={"session_id": session}).status_code == 404
    assert not len(hosts["colours"].sessions)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/step", {"session_id": "nobody", "action": "red"}, 404),
        ("/step", {"action": "red"}, 422),
        ("/step", {"session_id": "x", "action": 3}, 422),
        ("/reset", {"seed": -1}, 422),
        ("/reset", {"task": "nowhere"}, 400),
        ("/reset", {"options": {"tusk": 1}, "task": 4}, 422),
        ("/reset", [1], 422),
        ("/nowhere", {}, 404),
    ],
)
def test_what_is_wrong_is_said_and_leaves_no_session(colours: Any, path: str, body: Any, status: int) -> None:
    address, hosts = colours
    answer = httpx.post(address + path, json=body)
    assert answer.status_code == status
    assert not len(hosts["colours"].sessions)


def test_the_server_tells_what_it_has(colours: Any) -> None:
    address, _ = colours
    root = address.removesuffix("/colours")
    assert httpx.get(f"{root}/health").json() == {"status": "healthy"}
    assert [env["id"] for env in httpx.get(f"{root}/envs").json()] == ["Colours-v0"]
    assert httpx.get(f"{root}/metadata").json() == httpx.get(f"{address}/metadata").json()
    assert httpx.get(f"{address}/metadata").json()["name"] == "colours"
    assert set(httpx.get(f"{address}/schema").json()) == {"action", "observation", "state"}
    assert httpx.get(f"{address}/tasks/colour-0").json()["data"]["colour"] in toys.COLOURS
    assert httpx.get(f"{address}/tasks/nowhere").status_code == 400
    assert "/colours/step" in httpx.get(f"{root}/openapi.json").json()["paths"]
    httpx.post(f"{address}/reset", json={})
    figures = httpx.get(f"{root}/metrics").text
    assert 'rollenv_sessions{env="colours"} 1.0' in figures
    assert 'rollenv_requests_total{env="colours"} 1.0' in figures


def test_a_full_server_says_when_to_come_again(colours: Any) -> None:
    address, hosts = colours
    now = [0.0]
    hosts["colours"]._clock = lambda: now[0]
    for _ in range(8):
        assert httpx.post(f"{address}/reset", json={}).status_code == 200
    full = httpx.post(f"{address}/reset", json={})
    assert (full.status_code, full.headers["retry-after"]) == (429, "1")
    with socket_of(address) as socket:
        assert json.loads(socket.recv(timeout=20))["data"]["code"] == "CAPACITY_REACHED"
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=20)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1013
    now[0] += 61.0
    until(lambda: not len(hosts["colours"].sessions))  # their leases have run out
    assert httpx.post(f"{address}/reset", json={}).status_code == 200


def test_long_bodies_and_messages_are_refused(temp_registry: Any) -> None:
    toys.register()
    with served("colours", message_bytes=2000) as (root, hosts):
        address = f"{root}/colours"
        assert httpx.post(f"{address}/reset", json={"task": "x" * 3000}).status_code == 413
        with socket_of(address) as socket:
            say(socket, "reset")
            with pytest.raises(ConnectionClosed) as closed:
                say(socket, "step", action="x" * 3000)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009
        until(lambda: not len(hosts["colours"].sessions))


def test_without_the_token_nothing_but_health(temp_registry: Any) -> None:
    toys.register()
    token = "s3cret+/ö"
    with served("colours", token=token) as (root, _):
        assert httpx.get(f"{root}/health").status_code == 200
        for wrong in ({}, {"Authorization": "Bearer other"}, {"Authorization": "s3cret"}):
            answer = httpx.post(f"{root}/colours/reset", json={}, headers=wrong)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        right = {"Authorization": f"Bearer {token}".encode()}
        assert httpx.post(f"{root}/colours/reset", json={}, headers=right).status_code == 200
        with pytest.raises(InvalidStatus) as refused:
            socket_of(f"{root}/colours")
        assert refused.value.response.status_code == 403
        with socket_of(f"{root}/colours", f"?token={quote(token, safe='')}") as socket:
            assert say(socket, "reset")["type"] == "observation"


# -- WebSocket ---------------------------------------------------------------------------------------------------


def test_broken_messages_are_answered_and_the_session_goes_on(colours: Any) -> None:
    with socket_of(colours[0]) as socket:
        before = say(socket, "reset", seed=4)
        broken = {
            "{": "INVALID_JSON",
            "[" * 100_000: "INVALID_JSON",
            "7": "VALIDATION_ERROR",
            '{"type": "jump"}': "UNKNOWN_TYPE",
            '{"type": ["step"]}': "UNKNOWN_TYPE",
            '{"type": "step", "data": 3}': "VALIDATION_ERROR",
            '{"type": "step", "data": {}}': "VALIDATION_ERROR",
            '{"type": "step", "data": {"action": "red", "step_id": "1"}}': "VALIDATION_ERROR",
            '{"type": "step", "data": {"action": "red", "step_id": 9}}': "STEP_ORDER",
            '{"type": "reset", "data": {"seed": 1e400}}': "VALIDATION_ERROR",
            '{"type": "reset", "data": {"task": {}}}': "EXECUTION_ERROR",
            '{"type": "restore", "data": {"snapshot": 3}}': "SNAPSHOT_ERROR",
            '{"type": "restore", "data": {"snapshot": "AAAA"}}': "SNAPSHOT_ERROR",
        }
        for text, code in broken.items():
            socket.send(text)
            answer = json.loads(socket.recv(timeout=20))
            assert (answer["type"], answer["data"]["code"]) == ("error", code), text[:80]
        socket.send(b"\xff\x00")
        assert json.loads(socket.recv(timeout=20))["data"]["code"] == "INVALID_JSON"
        assert say(socket, "reset", seed=4) == before


def test_a_session_ends_with_its_connection_and_a_named_one_with_its_lease(colours: Any) -> None:
    address, hosts = colours
    sessions, now = hosts["colours"].sessions, [0.0]
    hosts["colours"]._clock = lambda: now[0]
    with socket_of(address) as socket:
        say(socket, "reset")
        assert len(sessions) == 1
    until(lambda: not len(sessions))
    with socket_of(address, "?session=mine") as socket:
        begun = say(socket, "reset", seed=2)
    with socket_of(address, "?session=mine&resume=true") as socket:
        state = say(socket, "state")["data"]
        assert (state["task"], state["session_id"]) == (begun["data"]["observation"]["info"]["task"], "mine")
    until(lambda: sessions.get("mine").connections == 0)
    now[0] += 61.0
    until(lambda: not len(sessions))
    with socket_of(address, "?session=mine&resume=true") as socket:
        assert json.loads(socket.recv(timeout=20))["data"]["code"] == "SESSION_ERROR"


def test_close_ends_a_session_at_once(colours: Any) -> None:
    address, hosts = colours
    with socket_of(address, "?session=mine") as socket:
        say(socket, "reset")
        socket.send('{"type": "close"}')
        with pytest.raises(ConnectionClosed):
            socket.recv(timeout=20)
    assert not len(hosts["colours"].sessions)


class Sleepy(toys.Colours):
    """Takes its time for `black`."""

    async def astep(self, action: str) -> Any:
        await asyncio.sleep(30 if action == "black" else 0)
        return await super().astep(action)


def test_a_step_beyond_its_deadline_ends_its_session_alone(temp_registry: Any) -> None:
    import rollenv

    rollenv.register("Sleepy-v0", Sleepy)
    with served("sleepy", step_seconds=0.3) as (root, hosts):
        with socket_of(f"{root}/sleepy") as socket, socket_of(f"{root}/sleepy") as other:
            say(socket, "reset")
            say(other, "reset")
            answer = say(socket, "step", action="black")
            assert answer["data"]["code"] == "DEADLINE"
            assert "took more than 0.3 s for a step" in answer["data"]["message"]
            assert say(other, "step", action="red")["type"] == "observation"
        until(lambda: not len(hosts["sleepy"].sessions))


class Broken(toys.Colours):
    def step(self, action: str) -> Any:
        raise KeyError("secret insides")


def test_an_environment_that_breaks_tells_its_kind_and_no_more(temp_registry: Any) -> None:
    import rollenv

    rollenv.register("Broken-v0", Broken)
    with served("broken") as (root, _), socket_of(f"{root}/broken") as socket:
        say(socket, "reset")
        answer = say(socket, "step", action="red")
        assert answer["data"] == {"message": "the environment failed with KeyError", "code": "EXECUTION_ERROR"}
