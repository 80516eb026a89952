"""States of an episode that other episodes may be played from.

Invariant: a branch that starts at a point reads what the episode read there, token by token, and its environment is in
the state that the episode's was in; what it draws from then on follows from its own seed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from rollenv.agents.base import Step
from rollenv.inference.chat import Conversation
from rollenv.trajectory import Turn


@dataclass(frozen=True, slots=True, eq=False)
class BranchPoint:
    """The state of an episode right before one of its turns.

    Attributes:
        sample: which sample of its group the episode is.
        snapshot: of the environment.
        history: what the agent has seen, the observation that is yet to be answered last.
        turns: those before.
        shared: whose turns these are (`Trajectory.shared`).
        conversation: the model's tokens so far.
        session: in the engine, with the keys and values of these tokens if they are still there.
    """

    sample: int
    snapshot: bytes
    history: list[Step]
    turns: list[Turn]
    shared: list[int]
    conversation: Conversation
    session: str

    @property
    def turn(self) -> int:
        """The turn that comes next."""
        return len(self.turns)

    def seen(self) -> list[Step]:
        """A history that a branch may go on with. What agents and episodes note on the last step is its own."""
        return [*self.history[:-1], replace(self.history[-1], data={})]


class BranchPoints:
    """The points that one attempt at an episode leaves behind, in order. `close` them when nobody starts there any
    more: the engine keeps the episode's session until then."""

    def __init__(self) -> None:
        self._points: list[BranchPoint] = []
        self._leave: Callable[[], Awaitable[None]] | None = None

    def add(self, point: BranchPoint) -> None:
        """The episode has come to the turn after those of the last point."""
        self._points.append(point)

    def __getitem__(self, turn: int) -> BranchPoint:
        return next(point for point in self._points if point.turn == turn)

    def keep(self, leave: Callable[[], Awaitable[None]]) -> None:
        """The episode is over; `leave` frees its session."""
        self._leave = leave

    async def close(self) -> None:
        """Forgets the points and frees the session. Safe to call twice."""
        self._points, leave = [], self._leave
        self._leave = None
        if leave is not None:
            await leave()
