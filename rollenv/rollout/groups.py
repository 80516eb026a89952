"""Groups: the episodes of one task that are compared with each other."""

from __future__ import annotations

from dataclasses import dataclass, field

from rollenv.rollout.episode import EpisodeRequest
from rollenv.seeding import derive_seed
from rollenv.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """`size` episodes of `task`. `index` is the group's place in the run's order of tasks and decides its seeds."""

    index: int
    task: str
    size: int
    run_seed: int
    version: int = 0
    """Version of the weights when it was admitted."""

    def episodes(self) -> list[EpisodeRequest]:
        """Its episodes' requests, each with a seed of its own."""
        return [
            EpisodeRequest(self.task, derive_seed(self.run_seed, "episode", self.index, sample), self.index, sample)
            for sample in range(self.size)
        ]


@dataclass(slots=True)
class Group:
    """A finished group: all its trajectories, by sample. Those that failed for good are among them, labelled."""

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
