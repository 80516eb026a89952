"""Who plays on a server: sessions and their leases. A state machine without clock or I/O: time is passed in.

Invariants: there are never more sessions than `capacity`; a session lives as long as somebody is connected to it and
for a lease after that; of a session's numbered requests each is carried out once, in order, however often it is sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rollenv.errors import RollenvError


class SessionError(RollenvError):
    """A request that does not fit its session. `code` is what the wire calls it."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


class ServerFull(RollenvError):
    """No place for another session. `retry_after` is when to ask again, in seconds."""

    def __init__(self, sentence: str, retry_after: float) -> None:
        super().__init__(sentence)
        self.retry_after = retry_after


@dataclass(slots=True, eq=False)
class Session:
    """One client's environment.

    Attributes:
        id: what the client names it by; whoever knows it may play on, so it should be hard to guess.
        held: its environment and whatever else belongs to it.
        connections: how many connections it has now.
        lease_until: without a connection it ends then.
        last_step: number of its last numbered request, 0 before the first; `last_reply` is what that was answered.
    """

    id: str
    held: Any
    lease_until: float
    connections: int = 0
    last_step: int = 0
    last_reply: Any = None
    steps: int = 0

    def replay(self, step: int | None) -> Any:
        """The reply that a request repeats, or None when it is new.

        Raises:
            SessionError: its number is neither the last one nor the next.
        """
        if step is None or step == self.last_step + 1:
            return None
        if step == self.last_step and self.last_reply is not None:
            return self.last_reply
        raise SessionError(
            "STEP_ORDER",
            f"request {step} is out of order: the last one was {self.last_step}, so send {self.last_step + 1}, or "
            f"{self.last_step} again to have its answer again",
        )

    def answered(self, step: int | None, reply: Any) -> None:
        """Keeps the reply of a new numbered request."""
        if step is not None:
            self.last_step, self.last_reply = step, reply


@dataclass(slots=True)
class SessionTable:
    """All sessions of a server.

    Args:
        capacity: the most sessions at a time.
        lease: seconds that a session without a connection lives on after its last request.
    """

    capacity: int
    lease: float
    draining: bool = False
    refused: int = 0
    opened: int = 0
    _sessions: dict[str, Session] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, name: str, held: Any, now: float) -> Session:
        """A new session.

        Raises:
            ServerFull: there is no place, or the server takes no more.
        """
        self.ensure_room()
        session = self._sessions[name] = Session(name, held, now + self.lease)
        self.opened += 1
        return session

    def ensure_room(self) -> None:
        """Raises ServerFull when `open` would."""
        if self.draining:
            self.refused += 1
            raise ServerFull("the server is shutting down and takes no new sessions: ask another one", 30.0)
        if len(self._sessions) >= self.capacity:
            self.refused += 1
            raise ServerFull(f"all {self.capacity} sessions of the server are taken: try again later", 1.0)

    def get(self, name: str) -> Session:
        """The session of that name.

        Raises:
            SessionError: there is none.
        """
        session = self.find(name)
        if session is None:
            raise SessionError("SESSION_ERROR", f"there is no session '{name:.80}' (any more): begin a new one")
        return session

    def find(self, name: str) -> Session | None:
        """The session of that name, if there is one."""
        return self._sessions.get(name)

    def touch(self, session: Session, now: float) -> None:
        """A sign of life."""
        session.lease_until = max(session.lease_until, now + self.lease)

    def connect(self, session: Session) -> None:
        """Somebody is connected to it, as long as which it lives."""
        session.connections += 1

    def disconnect(self, session: Session, now: float) -> None:
        """The end of what `connect` began."""
        session.connections -= 1
        session.lease_until = now + self.lease

    def close(self, session: Session) -> bool:
        """Ends a session; whether there was one to end."""
        return self._sessions.pop(session.id, None) is not None

    def expired(self, now: float) -> list[Session]:
        """Those whose lease has run out; they are to be closed."""
        return [s for s in self._sessions.values() if s.connections == 0 and s.lease_until <= now]

    def all(self) -> list[Session]:
        """Every session, oldest first."""
        return list(self._sessions.values())
