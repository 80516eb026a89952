"""The loops that asynchronous rollouts are compared with, on the same engine and the same episodes.

Both play whole groups of a batch, wait for the last one, and begin again while groups without signal leave it short.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from rollenv.config.simulate import ScenarioConfig
from rollenv.rollout.buffer import Batch
from rollenv.rollout.episode import EpisodeRequest
from rollenv.rollout.groups import Group, GroupRequest
from rollenv.rollout.selection import has_signal
from rollenv.seeding import TaskOrder
from rollenv.simulation.play import SimulatedPlay
from rollenv.trajectory import StopReason, Trajectory, Turn

Rollout = Callable[[Sequence[GroupRequest]], Awaitable[list[Group]]]
"""Plays groups and returns when all of them are over."""


class BatchLoop:
    """Batches one after another, as a synchronous trainer without a scheduler takes them.

    Args:
        rollout: how the groups of a batch are played.
        config: batch size, group size and filter are those of its `rollout`.
        order: group i plays `order[i]`.
    """

    def __init__(self, rollout: Rollout, config: ScenarioConfig, order: TaskOrder) -> None:
        self._rollout, self._config, self._order = rollout, config, order
        self._cursor = 0
        self.version = 0

    async def next_batch(self) -> Batch:
        """The batch of the current version. With `refill` whole batches are played until there are enough groups with a
        signal, and the surplus is thrown away, as it would be stale in the next step."""
        config = self._config.rollout
        good: list[Group] = []
        idle: list[Group] = []
        while True:
            groups = await self._rollout(self._requests())
            for group in groups:
                kept = config.filter == "keep" or has_signal(group)
                (good if kept else idle).append(group)
            if config.filter != "refill" or len(good) >= config.groups or len(idle) > config.max_refills:
                return Batch(self.version, good[: config.groups], idle)

    def weights_updated(self, version: int) -> None:
        """The next batch is of this version."""
        self.version = version

    def _requests(self) -> list[GroupRequest]:
        config, first = self._config.rollout, self._cursor
        self._cursor += config.groups
        seed = self._config.seed
        indices = range(first, self._cursor)
        return [GroupRequest(i, self._order[i], config.group_size, seed, self.version) for i in indices]


def lock_step(play: SimulatedPlay) -> Rollout:
    """All episodes take each turn together: the engine works for all, then all environments step, and each time
    everybody waits for the slowest. Episodes that are over wait as well."""

    async def rollout(requests: Sequence[GroupRequest]) -> list[Group]:
        episodes = [request for group in requests for request in group.episodes()]
        plans = [play.world.plan(episode) for episode in episodes]
        ended = [_begin(episode) for episode in episodes]
        clock = asyncio.get_running_loop().time
        began = clock()
        await asyncio.sleep(max((plan.reset for plan in plans), default=0.0))
        for turn in range(max(plan.turns for plan in plans)):
            alive = [i for i, plan in enumerate(plans) if turn < plan.turns]
            versions = await asyncio.gather(*(play.engine.generate(plans[i].generate[turn]) for i in alive))
            await asyncio.sleep(max(plans[i].steps[turn] for i in alive))
            for i, version in zip(alive, versions, strict=True):
                reward = float(plans[i].success and turn + 1 == plans[i].turns)
                tokens: list[int] = range(plans[i].tokens[turn])  # type: ignore[assignment] # only its length counts
                ended[i].turns.append(Turn("", completion_ids=tokens, policy_versions=version, reward=reward))
        for trajectory in ended:
            play.costs.add(trajectory, clock() - began)
        return _grouped(requests, ended)

    return rollout


def _begin(request: EpisodeRequest) -> Trajectory:
    place = (request.group, request.sample, request.attempt)
    return Trajectory("simulated", request.task, request.seed, *place, stop=StopReason.TERMINATED)


def batch_by_device(play: SimulatedPlay, devices: int, slots: int) -> Rollout:
    """Prompts are dealt out to the devices beforehand, and a prompt's episodes run there together: their slots are free
    again when the longest is over. A device has room for as many prompts at a time as fit into its slots, at least one.
    """

    async def lane(requests: Sequence[GroupRequest]) -> list[list[Trajectory]]:
        return [await asyncio.gather(*(play(episode) for episode in request.episodes())) for request in requests]

    async def rollout(requests: Sequence[GroupRequest]) -> list[Group]:
        lanes = devices * max(1, slots // requests[0].size)
        dealt = [requests[first::lanes] for first in range(min(lanes, len(requests)))]
        played = await asyncio.gather(*(lane(part) for part in dealt))
        return _grouped(requests, [t for part in played for trajectories in part for t in trajectories])

    return rollout


def _grouped(requests: Sequence[GroupRequest], trajectories: Sequence[Trajectory]) -> list[Group]:
    members: dict[int, list[Trajectory]] = {request.index: [] for request in requests}
    for trajectory in trajectories:
        members[trajectory.group].append(trajectory)
    return [Group(request, sorted(members[request.index], key=lambda t: t.sample)) for request in requests]
