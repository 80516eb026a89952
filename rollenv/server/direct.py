"""A WebSocket whose messages are answered as they come in.

uvicorn hands each message to the application by a queue and a task, and has the kernel stop reading meanwhile: more
work than a step of a fast environment. So the application may leave a function here that answers at once. Everything
else is uvicorn's: handshake, pings, fragments, the end, and messages whose answer has to be waited for.
"""

from __future__ import annotations

from collections.abc import Callable

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Request

Answer = Callable[[str], bytes | None]
"""The answer to a message, UTF-8; None when the message has to go the long way. It does not raise."""
STATE = "rollenv.direct"
"""Where an application finds its connection's `DirectProtocol`: in the `state` of the ASGI scope."""


class DirectProtocol(WebSocketsSansIOProtocol):
    """uvicorn's protocol, which asks `answer` first. Answers keep the order of their messages: while one goes the long
    way, so do those that come after it, and while the client does not read, none is written."""

    answer: Answer | None = None

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if self.response.status_code == 101:
            self.scope["state"][STATE] = self

    def handle_text(self, event: Frame) -> None:
        reply = self._reply(bytes(event.data)) if event.fin else None
        if reply is None:
            super().handle_text(event)
            return
        self.conn.send_text(reply)
        self.transport.write(b"".join(self.conn.data_to_send()))

    def _reply(self, data: bytes) -> bytes | None:
        waiting = not self.queue.empty() or not self.writable.is_set()
        if self.answer is None or waiting or self.close_sent:
            return None
        try:
            return self.answer(data.decode())
        except UnicodeDecodeError:
            return None
