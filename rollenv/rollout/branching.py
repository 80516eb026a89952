"""Episodes that branch off others of their group: to value the states of one (`Vine`), or as members themselves
(`Tree`). `GroupBranches` is a state machine without clock or I/O; the scheduler carries its decisions out.

Invariant: which branches there are, where they start and with which seeds follows from the episodes they start from,
not from who was quick; an episode whose states are valued counts as ended when its last branch has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

from rollenv.rollout.branch_points import BranchPoints
from rollenv.rollout.episode import EpisodeRequest
from rollenv.rollout.groups import GroupRequest
from rollenv.seeding import derive_seed
from rollenv.trajectory import Trajectory

TreeTurn = Literal["random", "entropy"] | int
"""The turn at which an episode leaves its trunk, see `Tree`."""


@dataclass(frozen=True, slots=True)
class Vine:
    """Monte Carlo values of an episode's states: the mean return of episodes played on from each (VinePPO,
    arXiv 2410.01679).

    Attributes:
        branches: K, episodes for each state.
        worth: what a branch earned from its start on, as the trainer sees it.
        every: the states before turns 0, `every`, 2 `every`, ... are valued.
        budget: at most so many branches in all for an episode (but K at least): then fewer of these states, evenly
            spread, the first one always among them.
    """

    branches: int
    worth: Callable[[Trajectory], float]
    every: int = 1
    budget: int | None = None

    def chosen(self, n_turns: int) -> list[int]:
        """The turns of an episode whose states are valued.

        >>> Vine(3, lambda t: t.reward, every=2).chosen(5)
        [0, 2, 4]
        >>> Vine(3, lambda t: t.reward, budget=7).chosen(5)
        [0, 2]
        """
        turns = list(range(0, n_turns, self.every))
        most = len(turns) if self.budget is None else max(1, self.budget // self.branches)
        return turns if most >= len(turns) else [turns[i * len(turns) // most] for i in range(most)]


@dataclass(frozen=True, slots=True)
class Tree:
    """Groups as trees: some of a group's episodes begin with a reset, the others leave one of these at some turn and
    have its beginning in common (compare TreePO, arXiv 2508.17445, and Tree-GRPO, arXiv 2509.21240).

    Attributes:
        trunks: episodes of a group that begin with a reset; sample s leaves trunk s modulo `trunks`.
        turn: where: at a turn drawn from the sample's seed, each as likely as any other; at the turns of highest
            entropy, the first to leave at the highest; or at the turn of that number, the last one of a shorter trunk.
            The entropy of a turn is estimated by the mean of -log p over the tokens that were sampled in it.
    """

    trunks: int
    turn: TreeTurn = "random"

    def trunk_of(self, sample: int) -> int:
        """The sample that a sample leaves; a trunk itself."""
        return sample % self.trunks

    def leaves_at(self, trunk: Trajectory, leaf: EpisodeRequest) -> int:
        """The turn at which `leaf` leaves."""
        n_turns = len(trunk.turns)
        if self.turn == "entropy":
            order = sorted(range(n_turns), key=lambda i: (-_entropy(trunk.turns[i].logprobs), i))
            return order[(leaf.sample // self.trunks - 1) % n_turns]
        if self.turn == "random":
            return derive_seed(leaf.seed, "tree") % n_turns
        return min(self.turn, n_turns - 1)

    def torn(self, size: int, missing: Collection[int]) -> set[int]:
        """The samples of those trees of a group that are not whole. After a resume they are played again: the states
        where the missing ones would start are gone."""
        broken = {self.trunk_of(sample) for sample in missing}
        return {sample for sample in range(size) if self.trunk_of(sample) in broken}


def _entropy(logprobs: list[float]) -> float:
    return -sum(logprobs) / len(logprobs) if logprobs else 0.0


@dataclass(frozen=True, slots=True)
class Branching:
    """How the episodes of a run branch: values by environment, or trees; by default neither."""

    vines: Mapping[str, Vine] = field(default_factory=lambda: MappingProxyType({}))
    tree: Tree | None = None

    def of(self, request: GroupRequest) -> GroupBranches:
        """The branches of a group that begins."""
        return GroupBranches(self.vines.get(request.env), self.tree)


@dataclass(slots=True)
class Next:
    """What follows when an episode is over: `play` may start now, `ended` and `lost` count for the group, nobody will
    start at `free` any more, and `waste` has turned out not to be needed."""

    play: list[EpisodeRequest] = field(default_factory=list)
    ended: list[Trajectory] = field(default_factory=list)
    lost: list[Trajectory] = field(default_factory=list)
    free: list[BranchPoints] = field(default_factory=list)
    waste: list[Trajectory] = field(default_factory=list)


@dataclass(slots=True)
class _Stem:
    """An episode that others start from: which of them are not over, and what the branches earned that value it, by
    turn and number."""

    episode: Trajectory
    points: BranchPoints
    open: set[tuple[int, int]] = field(default_factory=set)
    returns: dict[tuple[int, int], float] = field(default_factory=dict)


class GroupBranches:
    """The branches of one group."""

    def __init__(self, vine: Vine | None = None, tree: Tree | None = None) -> None:
        self._vine, self._tree = vine, tree
        self._stems: dict[int, _Stem] = {}
        self._waiting: dict[int, list[EpisodeRequest]] = {}  # leaves, by trunk

    def begin(self, episodes: list[EpisodeRequest]) -> list[EpisodeRequest]:
        """Takes a group's requests; returns those that begin with a reset, the others wait for their trunks."""
        if self._tree is None:
            return episodes
        first = [e for e in episodes if self._tree.trunk_of(e.sample) == e.sample]
        for leaf in episodes:
            if leaf not in first:
                self._waiting.setdefault(self._tree.trunk_of(leaf.sample), []).append(leaf)
        return first

    def prepared(self, request: EpisodeRequest) -> EpisodeRequest:
        """A request as it is to be played: one that others will start from notes its states."""
        bears = self._vine is not None if request.branch is None else False
        if bears or self._waiting.get(request.sample):
            return replace(request, points=BranchPoints())
        return request

    def ended(self, request: EpisodeRequest, trajectory: Trajectory) -> Next:
        """An episode has ended well."""
        if request.branch is not None:
            return self._valued(request, trajectory)
        leaves = self._waiting.pop(request.sample, [])
        if request.points is None:
            return self._branched(request, Next(ended=[trajectory]))
        stem = self._stems[request.sample] = _Stem(trajectory, request.points)
        if self._vine is None:
            step = Next(self._leaves(stem, leaves), ended=[trajectory])
        else:
            step = Next(self._branches(request, stem, self._vine))
        if not stem.open:  # not a turn was played: nobody starts there
            del self._stems[request.sample]
            step.free.append(stem.points)
            step.ended = [trajectory]
        return step

    def lost(self, request: EpisodeRequest, trajectory: Trajectory) -> Next:
        """An episode has failed for good. Without its trunk a leaf begins with a reset."""
        if request.branch is not None:
            return self._valued(request, trajectory)
        leaves = self._waiting.pop(request.sample, [])
        return self._branched(request, Next(leaves, lost=[trajectory]))

    def close(self) -> Next:
        """Nothing more of the group is needed."""
        step = Next(free=[stem.points for stem in self._stems.values()])
        if self._vine is not None:
            step.waste = [stem.episode for stem in self._stems.values()]
        self._stems, self._waiting = {}, {}
        return step

    # -- leaves ----------------------------------------------------------------------------------------------

    def _leaves(self, stem: _Stem, leaves: list[EpisodeRequest]) -> list[EpisodeRequest]:
        assert self._tree is not None
        if not stem.episode.turns:
            return leaves
        started = []
        for leaf in leaves:
            turn = self._tree.leaves_at(stem.episode, leaf)
            stem.open.add((turn, leaf.sample))
            started.append(replace(leaf, start=stem.points[turn]))
        return started

    def _branched(self, request: EpisodeRequest, step: Next) -> Next:
        """A leaf is over: its trunk is free when it was the last one."""
        if request.start is not None and (stem := self._stems.get(request.start.sample)) is not None:
            stem.open.discard((request.start.turn, request.sample))
            if not stem.open:
                del self._stems[request.start.sample]
                step.free.append(stem.points)
        return step

    # -- values ----------------------------------------------------------------------------------------------

    def _branches(self, request: EpisodeRequest, stem: _Stem, vine: Vine) -> list[EpisodeRequest]:
        places = [(turn, k) for turn in vine.chosen(len(stem.episode.turns)) for k in range(vine.branches)]
        stem.open = set(places)
        return [
            replace(
                request,
                seed=derive_seed(request.seed, "branch", turn, k),
                attempt=0,
                collateral=0,
                start=stem.points[turn],
                branch=k,
                points=None,
            )
            for turn, k in places
        ]

    def _valued(self, request: EpisodeRequest, branch: Trajectory) -> Next:
        """A branch is over. When it has failed for good its state is valued by the others; when all have failed, the
        episode has failed with the last of them."""
        assert self._vine is not None
        assert request.start is not None
        assert request.branch is not None
        stem = self._stems.get(request.sample)
        if stem is None:
            return Next(waste=[branch] if branch.failure is None else [])
        place = (request.start.turn, request.branch)
        stem.open.discard(place)
        if branch.failure is None:
            stem.returns[place] = self._vine.worth(branch)
            _add_cost(stem.episode, branch)
        if stem.open:
            return Next()
        del self._stems[request.sample]
        if not stem.returns:
            lost = replace(stem.episode, stop=branch.stop, failure=branch.failure)
            return Next(lost=[lost], free=[stem.points], waste=[stem.episode])
        for (turn, _), value in sorted(stem.returns.items()):
            stem.episode.turns[turn].branch_returns.append(value)
        return Next(ended=[stem.episode], free=[stem.points])


def _add_cost(episode: Trajectory, branch: Trajectory) -> None:
    cost = episode.branch_cost
    spent = {
        "episodes": 1.0,
        "tokens": float(branch.n_spent_tokens),
        "env_seconds": sum(turn.seconds.get("env", 0.0) for turn in branch.own_turns),
    }
    for name, value in spent.items():
        cost[name] = cost.get(name, 0.0) + value
