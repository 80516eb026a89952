"""A server that is busy is asked again, one that refuses is not, and nobody is asked more often than was said."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from rollenv.errors import RollenvError
from rollenv.inference import endpoint as module
from rollenv.inference.endpoint import Endpoint, Reply

Answers = Callable[[httpx.Request], httpx.Response]
SAID = {"choices": [{"message": {"content": "hello"}}], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits, which take no time here."""
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(module.asyncio, "sleep", sleep)
    return waits


def asked(answers: Answers, monkeypatch: pytest.MonkeyPatch, times: int = 1, **options: Any) -> list[Reply]:
    transport, client = httpx.MockTransport(answers), httpx.AsyncClient
    monkeypatch.setattr(module.httpx, "AsyncClient", lambda **words: client(**words | {"transport": transport}))
    endpoint = Endpoint("http://there/v1", "m", **options)

    async def ask() -> list[Reply]:
        replies = [await endpoint.ask({"messages": []}) for _ in range(times)]
        await endpoint.close()
        return replies

    return asyncio.run(ask())


def in_turn(*answers: httpx.Response | Exception) -> Answers:
    left = iter(answers)

    def answer(request: httpx.Request) -> httpx.Response:
        one = next(left)
        if isinstance(one, Exception):
            raise one
        return one

    return answer


def test_an_answer_comes_with_the_tokens_that_were_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "secret")
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json=SAID)

    assert asked(answer, monkeypatch, api_key_env="MY_KEY") == [Reply({"content": "hello"}, 5, 2)]
    assert (str(seen[0].url), seen[0].headers["authorization"]) == ("http://there/v1/chat/completions", "Bearer secret")
    assert json.loads(seen[0].content) == {"model": "m", "messages": []}


def test_a_busy_server_is_asked_again_when_it_says(monkeypatch: pytest.MonkeyPatch, slept: list[float]) -> None:
    busy = [httpx.Response(429, headers={"retry-after": "7"}), httpx.Response(503), httpx.ReadTimeout("slow")]
    (reply,) = asked(in_turn(*busy, httpx.Response(200, json=SAID)), monkeypatch)
    assert reply.message == {"content": "hello"}
    assert slept == [7.0, 1.0, 2.0]


def test_one_that_stays_busy_is_told_of(monkeypatch: pytest.MonkeyPatch, slept: list[float]) -> None:
    with pytest.raises(RollenvError, match="http://there/v1/chat/completions' answers 529: full"):
        asked(lambda request: httpx.Response(529, text="full"), monkeypatch, retries=2)
    assert slept == [0.5, 1.0]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (httpx.Response(401, text="no key"), "answers 401: no key"),
        (httpx.Response(200, text="<html>"), "no answer that can be used"),
        (httpx.Response(200, json={"choices": []}), "no answer that can be used"),
        (httpx.ConnectError("refused"), "no answer that can be used: refused"),
    ],
)
def test_what_will_not_change_is_not_asked_again(
    answer: httpx.Response | Exception, says: str, monkeypatch: pytest.MonkeyPatch, slept: list[float]
) -> None:
    with pytest.raises(RollenvError, match=says):
        asked(in_turn(answer), monkeypatch)
    assert slept == []


def test_one_that_went_away_is_waited_for(monkeypatch: pytest.MonkeyPatch, slept: list[float]) -> None:
    there = httpx.Response(200, json=SAID)
    assert len(asked(in_turn(there, httpx.ConnectError("gone"), there), monkeypatch, times=2)) == 2
    assert slept == [0.5]


def test_requests_are_spread_over_the_minute(monkeypatch: pytest.MonkeyPatch, slept: list[float]) -> None:
    clock = iter([100.0, 100.0, 100.5, 104.0])
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    answers = in_turn(*(httpx.Response(200, json=SAID) for _ in range(4)))
    asked(answers, monkeypatch, times=4, requests_per_minute=60)
    assert slept == [0.0, 1.0, 1.5, 0.0]
