"""The worlds of a run: each environment that it trains on, with its tasks, its agent, its panel and its quarantine.

Invariant: a run of one world is what it would be if there were no mixtures: no name, no share, the same seeds.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from rollenv.agents import chat_agent, make_agent
from rollenv.agents.base import ChatAgent
from rollenv.agents.harness import Harness
from rollenv.config.algo import AlgoConfig
from rollenv.config.train import MixtureConfig, TrainConfig
from rollenv.errors import RollenvError
from rollenv.registration import EnvSpec, spec
from rollenv.rollout.branching import Branching, Tree, Vine
from rollenv.rollout.buffer import Batch
from rollenv.rollout.env_pool import Environments
from rollenv.rollout.episode import EpisodeRequest
from rollenv.rollout.play import Play
from rollenv.rollout.quarantine import Quarantine, Quarantined
from rollenv.rollout.setup import env_pool, task_source
from rollenv.rollout.sources import Mixture, TaskSource
from rollenv.seeding import TaskOrder, derive_seed
from rollenv.tasks import Panel
from rollenv.trainers.data import branch_worth
from rollenv.trajectory import Trajectory

if TYPE_CHECKING:
    from rollenv.gateway.harness import Door


@dataclass(slots=True)
class World:
    """One environment of a run. `name` is empty where it is the only one; `door` is where an agent that is a program in
    the sandbox finds the model."""

    name: str
    spec: EnvSpec
    pool: Environments
    agent: ChatAgent | Harness
    split: str
    weight: float
    panel: Panel
    quarantine: Quarantine
    algo: AlgoConfig
    door: Door | None = None

    @property
    def tasks_sha256(self) -> str:
        """Hash over the content of the training split's first thousand tasks (and of the whole set's facts)."""
        return self.pool.tasks.sha256(self.pool.tasks.ids(self.split)[:1000])

    def source(self, config: TrainConfig) -> TaskSource:
        """Its tasks, in the order in which the run plays them."""
        ids = self.pool.tasks.ids(self.split)
        names = ("tasks", self.name) if self.name else ("tasks",)
        order = TaskOrder(ids, derive_seed(config.seed, *names))
        return Quarantined(task_source(config.rollout, order, config.seed), self.quarantine, ids)


class Worlds:
    """All worlds of a run.

    Raises:
        RollenvError: one cannot be made, or two are the same environment.
    """

    def __init__(self, config: TrainConfig) -> None:
        main = MixtureConfig(
            env=config.env,
            env_args=config.env_args,
            agent=config.agent,
            split=config.split,
            weight=config.weight,
            algo=config.algo,
        )
        parts = [main, *config.mixture]
        specs = [spec(part.env) for part in parts]
        for place, one in enumerate(specs):
            if one in specs[:place]:
                raise RollenvError(f"mixture: '{one.id}' is there twice; give it once, with the sum of the weights")
        self.all: list[World] = []
        try:
            for part, one in zip(parts, specs, strict=True):
                self.all.append(_world(part, one, config, one.id if len(parts) > 1 else ""))
        except BaseException:
            self.close()
            raise

    def source(self, config: TrainConfig) -> TaskSource:
        """Tasks of all worlds, each with its share."""
        if len(self.all) == 1:
            return self.all[0].source(config)
        sources = {world.name: world.source(config) for world in self.all}
        return Mixture(sources, {world.name: world.weight for world in self.all})

    def play(self, make: Callable[[World], Play]) -> Play:
        """Plays an episode in the world that it belongs to."""
        plays = {world.name: make(world) for world in self.all}
        return plays[""] if "" in plays else _Mixed(plays)

    def concurrency(self, wanted: int) -> int:
        """Episodes in flight at most. Where the environments allow fewer, more would only wait at their door, and
        count as stragglers there."""
        bounds = [world.spec.max_concurrency for world in self.all]
        return min(wanted, sum(bound if bound is not None else wanted for bound in bounds))

    def book(self, batch: Batch) -> list[str]:
        """Counts the final failures of a batch; returns the tasks that are in quarantine from now on."""
        gone = []
        for world in self.all:
            gone += world.quarantine.book(group for group in batch.played if group.request.env == world.name)
        return gone

    @property
    def in_quarantine(self) -> int:
        """Tasks that are played no more."""
        return sum(len(world.quarantine) for world in self.all)

    @property
    def tasks_sha256(self) -> str:
        """Hash over what is trained on."""
        hashes = [world.tasks_sha256 for world in self.all]
        return hashes[0] if len(hashes) == 1 else hashlib.sha256("\n".join(hashes).encode()).hexdigest()

    async def close_doors(self) -> None:
        """Programs in sandboxes are not answered any more."""
        await asyncio.gather(*(world.door.close() for world in self.all if world.door is not None))

    def close(self) -> None:
        """Closes all environments."""
        for world in self.all:
            world.pool.close()


def algorithms(config: TrainConfig) -> dict[str, AlgoConfig]:
    """The algorithm of each environment of a run, by the name that its groups have."""
    if not config.mixture:
        return {"": config.algo}
    own = {spec(part.env).id: part.algo or config.algo for part in config.mixture}
    return {spec(config.env).id: config.algo} | own


def branching(config: TrainConfig) -> Branching:
    """How the episodes of a run branch."""
    vines = {
        env: Vine(algo.branches, partial(branch_worth, algo=algo), algo.branch_every, algo.branch_budget)
        for env, algo in algorithms(config).items()
        if algo.advantage == "vine"
    }
    rollout = config.rollout
    return Branching(vines, Tree(rollout.trees, rollout.tree_turn) if rollout.trees else None)


class _Mixed:
    """Plays each request with the play of its environment."""

    def __init__(self, plays: Mapping[str, Play]) -> None:
        self._plays = plays

    async def __call__(self, request: EpisodeRequest) -> Trajectory:
        return await self._plays[request.env](request)


def _agent(part: MixtureConfig, env_spec: EnvSpec) -> ChatAgent | Harness:
    agent = make_agent(env_spec, part.agent.name, part.agent.arguments)
    return agent if isinstance(agent, Harness) else chat_agent(agent, part.agent.name)


def _world(part: MixtureConfig, env_spec: EnvSpec, config: TrainConfig, name: str) -> World:
    algo = part.algo or config.algo
    agent, door, env_args, rollout = _agent(part, env_spec), None, dict(part.env_args), config.rollout
    if isinstance(agent, Harness):
        from rollenv.gateway.harness import Door  # a web server: for these runs only

        door = Door()
        env_args, rollout = agent.environment(env_args, door.port), agent.patience(rollout)
    pool = env_pool(env_spec, env_args, rollout, algo.advantage == "vine" or config.rollout.trees > 0)
    try:
        size = min(config.eval.episodes, len(pool.tasks.ids(config.eval.split)))
        panel = pool.tasks.panel(config.eval.split, size)
    except BaseException:
        pool.close()  # its processes are running already
        raise
    quarantine = Quarantine(config.rollout.quarantine_after)
    return World(name, env_spec, pool, agent, part.split, part.weight, panel, quarantine, algo, door)
