"""The ledger: where every dispatched episode went.

Invariant, at all times: dispatched = finished + failed + cancelled + in flight.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from rollenv.trajectory import StopReason, Trajectory


@dataclass(slots=True)
class Ledger:
    """Counts of episodes (each attempt is one), and what was spent on those that came to nothing.

    `wasted_tokens` are completion tokens, and `wasted_env_seconds` the environment's time, of episodes that failed,
    were cancelled or were discarded; `failures` counts by `Failure.label`; `discarded` are finished ones that nobody
    needs.
    """

    dispatched: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    in_flight: int = 0
    retried: int = 0
    tokens: int = 0
    wasted_tokens: int = 0
    wasted_env_seconds: float = 0.0
    discarded: int = 0
    failures: Counter[str] = field(default_factory=Counter)

    def dispatch(self) -> None:
        """An episode starts."""
        self.dispatched += 1
        self.in_flight += 1

    def settle(self, trajectory: Trajectory) -> None:
        """An episode that was dispatched has ended."""
        self.in_flight -= 1
        self.tokens += trajectory.n_spent_tokens
        if trajectory.stop is StopReason.ABORTED:
            self.cancelled += 1
            self._waste(trajectory)
        elif trajectory.stop is StopReason.FAILED:
            self.failed += 1
            self._waste(trajectory)
            if trajectory.failure is not None:
                self.failures[trajectory.failure.label] += 1
        else:
            self.finished += 1

    def discard(self, trajectory: Trajectory) -> None:
        """A finished episode turned out not to be needed, and with it the branches that valued its turns."""
        cost = trajectory.branch_cost
        self.discarded += 1 + int(cost.get("episodes", 0))
        self._waste(trajectory)
        self.wasted_tokens += int(cost.get("tokens", 0))
        self.wasted_env_seconds += cost.get("env_seconds", 0.0)

    def _waste(self, trajectory: Trajectory) -> None:
        self.wasted_tokens += trajectory.n_spent_tokens
        self.wasted_env_seconds += sum(turn.seconds.get("env", 0.0) for turn in trajectory.own_turns)

    def abandon(self) -> None:
        """What was in flight died with its process (or its loop): it counts as cancelled."""
        self.cancelled += self.in_flight
        self.in_flight = 0

    def take_back(self, trajectory: Trajectory) -> None:
        """A finished episode of the last process is to be played again, because others that were to start from it died
        with the process: it is dispatched anew, and no step has cancelled or discarded it."""
        self.dispatched -= 1
        self.finished -= 1
        self.tokens -= trajectory.n_spent_tokens

    @property
    def balanced(self) -> bool:
        """The invariant."""
        return self.dispatched == self.finished + self.failed + self.cancelled + self.in_flight

    def to_dict(self) -> dict[str, Any]:
        """JSON-serialisable; `from_dict` reads it back."""
        return {name: getattr(self, name) for name in self.__slots__} | {"failures": dict(self.failures)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Ledger:
        """The inverse of `to_dict`."""
        return cls(**{**data, "failures": Counter(data["failures"])})
