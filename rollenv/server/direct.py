"""A WebSocket whose messages are answered as they come in.

uvicorn hands each message to the application by a queue and a task, and has the kernel stop reading meanwhile: more
work than a step of a fast environment. So the application may leave a function here that answers at once. Everything
else is uvicorn's: handshake, pings, fragments, the end, and messages whose answer has to be waited for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State

Answer = Callable[[str], bytes | None]
"""The answer to a message, UTF-8; None when the message has to go the long way. It does not raise."""
STATE = "rollenv.direct"
"""Where an application finds its connection's `DirectProtocol`: in the `state` of the ASGI scope."""


class DirectProtocol(WebSocketsSansIOProtocol):
    """uvicorn's protocol, which asks `answer` first. Answers keep the order of their messages: while one goes the long
    way, so do those that come after it, until the application asks for more and there is none. While the client does
    not read, nothing is written."""

    answer: Answer | None = None
    _away = False
    """Whether the application has messages that it has not answered yet."""

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if self.response.status_code == 101:
            self.scope["state"][STATE] = self

    def handle_text(self, event: Frame) -> None:
        reply = self._reply(bytes(event.data)) if event.fin else None
        if reply is None:
            super().handle_text(event)
        elif self.conn.state is State.OPEN:
            # As `send_text` would, but for what that notes down for the next call to `data_to_send`.
            self.transport.write(Frame(Opcode.TEXT, reply).serialize(mask=False, extensions=self.conn.extensions))

    def _reply(self, data: bytes) -> bytes | None:
        if self.answer is None or self._away or self.close_sent or not self.writable.is_set():
            return None
        try:
            return self.answer(data.decode())
        except UnicodeDecodeError:
            return None

    def send_receive_event_to_app(self) -> None:
        self._away = True
        super().send_receive_event_to_app()

    async def receive(self) -> Any:
        self._away = not self.queue.empty()
        return await super().receive()
