"""Who may talk to a server, and how much at a time: an ASGI middleware."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

from starlette.responses import Response


class Gate:
    """Lets in who has the token, and nothing that is too long.

    Args:
        token: the bearer token; None lets everybody in.
        limit: bytes of a request's body.
        refuse: makes the answer from a status, a code and a sentence.
    """

    def __init__(self, app: Any, token: str | None, limit: int, refuse: Callable[[int, str, str], Response]) -> None:
        self._app, self._token, self._limit, self._refuse = app, token, limit, refuse

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
        elif not self._may_enter(scope):
            await self._turn_away(scope, receive, send)
        elif scope["type"] == "websocket":  # the server bounds its messages
            await self._app(scope, receive, send)
        else:
            await self._bounded(scope, receive, send)

    def _may_enter(self, scope: Any) -> bool:
        # The page to play by is the same for everybody; what it asks for needs the token.
        if self._token is None or scope["path"] == "/health" or scope["path"].endswith("/play"):
            return True
        given = dict(scope["headers"]).get(b"authorization", b"")
        if scope["type"] == "websocket" and not given:
            token = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
            given = f"Bearer {token}".encode()
        return hmac.compare_digest(given, f"Bearer {self._token}".encode())

    async def _turn_away(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})  # before it is accepted: 403
            return
        answer = self._refuse(401, "UNAUTHORIZED", "give the server's token: Authorization: Bearer TOKEN")
        answer.headers["WWW-Authenticate"] = "Bearer"
        await answer(scope, receive, send)

    async def _bounded(self, scope: Any, receive: Any, send: Any) -> None:
        """Reads the body here, as far as it is allowed to be long."""
        parts, size = [], 0
        while True:
            event = await receive()
            if event["type"] != "http.request":
                return  # gone
            parts.append(event.get("body", b""))
            size += len(parts[-1])
            if size > self._limit:
                answer = self._refuse(413, "TOO_LONG", f"a request body has at most {self._limit} bytes")
                answer.headers["Connection"] = "close"
                await answer(scope, receive, send)
                return
            if not event.get("more_body", False):
                break
        body: list[Any] = [{"type": "http.request", "body": b"".join(parts), "more_body": False}]

        async def replay() -> Any:
            return body.pop() if body else await receive()

        await self._app(scope, replay, send)
