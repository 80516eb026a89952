"""Models behind OpenAI-compatible servers: who asks, how often at most, and what is done when a server is busy."""

from __future__ import annotations

import asyncio
import os
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from rollenv.errors import RollenvError

BUSY = (408, 409, 425, 429, 500, 502, 503, 504, 529)
"""Statuses after which it is asked again."""
FIRST_WAIT, LONGEST_WAIT = 0.5, 60.0


@dataclass(frozen=True, slots=True)
class Reply:
    """What a server answered: OpenAI's message, and the tokens that it counted (0: it does not say)."""

    message: dict[str, Any]
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Endpoint:
    """Asks `POST {base_url}/chat/completions`, for any number of episodes at the same time.

    Args:
        base_url: such as `http://localhost:8000/v1`.
        model: name of the model there.
        api_key_env: environment variable that has the key; none is sent where it is not set.
        timeout: seconds for an answer.
        retries: how often a request is sent again that finds the server busy, broken or away; after half a second, a
            second, two, ... or when the server says (`Retry-After`). One that has never been there is not waited for.
        requests_per_minute: spread evenly; 0: no bound.

    Raises:
        RollenvError: `base_url` is no address.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key_env: str = "OPENAI_API_KEY",
        timeout: float = 120.0,
        retries: int = 6,
        requests_per_minute: float = 0.0,
    ) -> None:
        if not base_url.startswith(("http://", "https://")):
            raise RollenvError(f"base_url must begin with http:// or https://, not '{base_url}'")
        self.base_url = base_url
        self._url = base_url.rstrip("/") + "/chat/completions"
        key = os.environ.get(api_key_env, "")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._model, self._timeout, self._retries = model, timeout, retries
        self._pause = 60.0 / requests_per_minute if requests_per_minute else 0.0
        self._next, self._has_answered = 0.0, False
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient]
        self._clients = weakref.WeakKeyDictionary()

    async def ask(self, body: Mapping[str, Any]) -> Reply:
        """The answer to `body` (`messages` and whatever else the API knows; `model` is added).

        Raises:
            RollenvError: the server refuses, cannot be reached, stays busy, or answers with something else.
        """
        for attempt in range(self._retries + 1):
            await self._turn()
            try:
                answer = await self._client().post(self._url, json={"model": self._model, **body})
            except httpx.HTTPError as error:
                failure, wait = f"gives no answer that can be used: {str(error) or type(error).__name__}", None
                if isinstance(error, httpx.ConnectError) and not self._has_answered:
                    break  # there is none
            else:
                self._has_answered = True
                if answer.status_code not in BUSY:
                    return self._read(answer)
                failure, wait = self._refusal(answer), _retry_after(answer)
            if attempt < self._retries:
                await asyncio.sleep(wait if wait is not None else min(LONGEST_WAIT, FIRST_WAIT * 2**attempt))
        raise RollenvError(f"'{self._url}' {failure}")

    async def close(self) -> None:
        """Closes the connections of this event loop."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()

    def _client(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            bounds = httpx.Limits(max_connections=None, max_keepalive_connections=64)
            timeout = httpx.Timeout(self._timeout, connect=min(10.0, self._timeout))
            self._clients[loop] = httpx.AsyncClient(headers=self._headers, timeout=timeout, limits=bounds)
        return self._clients[loop]

    async def _turn(self) -> None:
        """Waits until a request may be sent."""
        if self._pause:
            now = time.monotonic()
            mine = max(now, self._next)
            self._next = mine + self._pause
            await asyncio.sleep(mine - now)

    def _read(self, answer: httpx.Response) -> Reply:
        if answer.is_error:
            raise RollenvError(f"'{self._url}' {self._refusal(answer)}")
        try:
            said = answer.json()
            usage = said.get("usage") or {}
            read, wrote = (int(usage.get(f"{kind}_tokens") or 0) for kind in ("prompt", "completion"))
            return Reply(dict(said["choices"][0]["message"]), read, wrote)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise RollenvError(f"'{self._url}' gives no answer that can be used: {error!r}") from error

    @staticmethod
    def _refusal(answer: httpx.Response) -> str:
        return f"answers {answer.status_code}: {answer.text[:300].strip() or answer.reason_phrase}"


def _retry_after(answer: httpx.Response) -> float | None:
    try:
        return min(LONGEST_WAIT, max(0.0, float(answer.headers["retry-after"])))
    except (KeyError, ValueError):  # not said, or as a date
        return None
