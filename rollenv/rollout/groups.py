"""Groups: the episodes of one task that are compared with each other, and how far a group has come.

Invariant: which episodes of a group count is a function of what has ended so far; a group that is complete stays so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from rollenv.rollout.episode import EpisodeRequest
from rollenv.seeding import derive_seed
from rollenv.trajectory import Trajectory, fields_of

Selection = Literal["first", "unbiased"]
"""Which of redundant rollouts count: those that finish first, or those that were planned, where a spare takes the
place of one that failed or straggles."""


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """`size` episodes of `task`. `index` is the group's place in the run's order of tasks and decides its seeds."""

    index: int
    task: str
    size: int
    run_seed: int
    version: int = 0
    """Version of the weights when it was admitted."""
    extra: int = 0
    """Spare episodes, played beside the others."""
    selection: Selection = "first"
    life: int = 0
    """How often it was begun and cancelled before: keeps its sessions apart from those that are still ending."""
    env: str = ""
    """Which environment of a mixture; empty where there is only one."""

    def episodes(self) -> list[EpisodeRequest]:
        """Its episodes' requests, spares last, each with a seed of its own."""
        return [
            EpisodeRequest(
                self.task,
                derive_seed(self.run_seed, "episode", self.index, sample),
                self.index,
                sample,
                life=self.life,
                env=self.env,
            )
            for sample in range(self.size + self.extra)
        ]


@dataclass(slots=True)
class Group:
    """A finished group: the trajectories that count, by sample. Those that failed for good are among them, labelled."""

    request: GroupRequest
    trajectories: list[Trajectory] = field(default_factory=list)

    @property
    def trainable(self) -> list[Trajectory]:
        """The trajectories that count: ended, not failed."""
        return [t for t in self.trajectories if t.trainable]

    @property
    def oldest_version(self) -> int:
        """The lowest version among its sampled tokens (the version at admission when there are none)."""
        versions = [min(turn.policy_versions) for t in self.trainable for turn in t.turns if turn.policy_versions]
        return min(versions, default=self.request.version)

    def to_dict(self) -> dict[str, Any]:
        """JSON-serialisable; `from_dict` reads it back."""
        return {"request": fields_of(self.request), "trajectories": [t.to_dict() for t in self.trajectories]}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Group:
        """The inverse of `to_dict`."""
        return cls(GroupRequest(**data["request"]), [Trajectory.from_dict(t) for t in data["trajectories"]])


def planned(order: Iterable[int], n: int, lost: Collection[int], late: Collection[int]) -> list[int]:
    """The `n` of `order` that count when nobody may be preferred for being quick: the first n that are not `lost`,
    a `late` one only where nothing else is left to take its place."""
    here = [i for i in order if i not in lost]
    punctual = [i for i in here if i not in late]
    return [*punctual[:n], *[i for i in here if i in late][: max(0, n - len(punctual))]]


class GroupProgress:
    """How far one group has come: episodes ended, failed for good, and late. No clock and no I/O."""

    def __init__(self, request: GroupRequest) -> None:
        self.request = request
        self.attempts: dict[int, int] = {}
        """Attempts that failed so far, by sample."""
        self._done: dict[int, Trajectory] = {}  # in the order in which they ended
        self._lost: dict[int, Trajectory] = {}
        self._late: set[int] = set()

    def ended(self, trajectory: Trajectory) -> None:
        """An episode has ended well."""
        self._done[trajectory.sample] = trajectory

    def lost(self, trajectory: Trajectory) -> None:
        """An episode has failed for good."""
        self._lost[trajectory.sample] = trajectory

    def forget(self, samples: Collection[int]) -> list[Trajectory]:
        """These are to be played again; returns what had ended of them."""
        gone = [self._done.pop(sample) for sample in sorted(samples) if sample in self._done]
        for sample in samples:
            self._lost.pop(sample, None)
        return gone

    def late(self, sample: int) -> None:
        """An episode takes longer than a straggler may."""
        if sample not in self._done and sample not in self._lost:
            self._late.add(sample)

    @property
    def open(self) -> list[int]:
        """Samples that have not ended."""
        samples = range(self.request.size + self.request.extra)
        return [s for s in samples if s not in self._done and s not in self._lost]

    @property
    def counting(self) -> list[int]:
        """The samples that count as things stand; fewer than the group's size when too many were lost."""
        if self.request.selection == "first":
            return sorted([*self._done, *self.open][: self.request.size])
        samples = range(self.request.size + self.request.extra)
        return sorted(planned(samples, self.request.size, self._lost, self._late - set(self._done)))

    @property
    def complete(self) -> bool:
        """Whether all that count have ended."""
        return all(sample in self._done for sample in self.counting)

    @property
    def straggles(self) -> bool:
        """Whether it waits for a late episode, with no spare left."""
        return any(sample in self._late and sample not in self._done for sample in self.counting)

    @property
    def ended_episodes(self) -> list[Trajectory]:
        """The episodes that have ended well so far, by sample."""
        return [self._done[sample] for sample in sorted(self._done)]

    def group(self) -> Group:
        """The group, when it is complete. Places for which no episode is left hold the failures."""
        chosen = [self._done[sample] for sample in self.counting]
        chosen += [self._lost[s] for s in sorted(self._lost)][: self.request.size - len(chosen)]
        return Group(self.request, sorted(chosen, key=lambda t: t.sample))

    def to_dict(self) -> dict[str, Any]:
        """JSON-serialisable; `from_dict` reads it back (what was late has its time again)."""
        return {
            "request": fields_of(self.request),
            "attempts": [[sample, n] for sample, n in self.attempts.items()],
            "ended": [t.to_dict() for t in self._done.values()],
            "lost": [t.to_dict() for t in self._lost.values()],
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> GroupProgress:
        """The inverse of `to_dict`."""
        progress = cls(GroupRequest(**data["request"]))
        progress.attempts = dict(data["attempts"])
        for ended in data["ended"]:
            progress.ended(Trajectory.from_dict(ended))
        for lost in data["lost"]:
            progress.lost(Trajectory.from_dict(lost))
        return progress
