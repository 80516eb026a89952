"""The sample buffer: which groups may start, which have finished, which make up the batch, which are surplus.

A state machine without clock, loop or I/O: events go in, decisions come out. Invariants: a group that starts can train
within the staleness bound, unless it is surplus; every group that was drawn is running, finished, trained, idle or
waits to be played again, exactly one of them; with eta = 0 and no redundancy, batches do not depend on the order of
events.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from rollenv.rollout.groups import Group, GroupRequest, Selection, planned
from rollenv.rollout.selection import FilterMode, Worth, episode_return, has_signal
from rollenv.rollout.sources import Draw, TaskSource
from rollenv.rollout.staleness import admissible, last_version, overdue
from rollenv.trajectory import fields_of

Choice: TypeAlias = Callable[[Sequence[Group]], list[Group]]
"""Some of the groups, in their order."""


@dataclass(slots=True)
class Batch:
    """The groups of one training step, by index; `idle` are those without signal, or that the trainer does not want:
    played but not trained."""

    version: int
    groups: list[Group]
    idle: list[Group] = field(default_factory=list)

    @property
    def played(self) -> list[Group]:
        """Every group that was finished for this batch."""
        return sorted([*self.groups, *self.idle], key=lambda group: group.request.index)

    @property
    def staleness(self) -> list[int]:
        """Per trained group, how many versions old its oldest token is."""
        return [self.version - group.oldest_version for group in self.groups]


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """What makes up a batch.

    Attributes:
        groups: B, groups per training step.
        size: n, episodes per group.
        eta: bound on staleness in versions; 0 is synchronous.
        filter_mode: what to do with groups without signal.
        max_refills: with `refill`, at most so many groups are replaced per batch.
        extra_groups: so many groups more than B are begun for a batch; the surplus is cancelled when it is full.
        extra_samples: so many episodes more than n are begun for a group.
        selection: which of redundant rollouts count.
        worth: what an episode is worth to the trainer; a group whose episodes are all worth the same has no signal.
        choice: which of the groups with signal the trainer wants.
    """

    groups: int
    size: int
    eta: float = 0.0
    filter_mode: FilterMode = "drop"
    max_refills: int = 32
    extra_groups: int = 0
    extra_samples: int = 0
    selection: Selection = "first"
    worth: Worth = episode_return
    choice: Choice = list


@dataclass(slots=True)
class Surplus:
    """What nobody needs now that the batch is full. Its tasks are played again later."""

    running: list[int]
    """Groups to cancel."""
    finished: list[Group]
    """Groups that would be too old for the next batch."""


class SampleBuffer:
    """Groups between their admission and their training.

    Args:
        source: gives the tasks.
        run_seed: decides every episode's seed.
    """

    def __init__(self, plan: BatchPlan, source: TaskSource, run_seed: int) -> None:
        self.plan, self._source, self._seed = plan, source, run_seed
        self.version = 0
        self.discarded_groups = 0
        self._next_index = 0
        self._accepted = 0  # trained or ready
        self._closed = False  # from a full batch to the weights made of it: nothing extra is begun
        self._running: dict[int, GroupRequest] = {}  # in the order of admission
        self._late: set[int] = set()
        self._ready: list[Group] = []
        self._idle: list[Group] = []
        self._again: list[GroupRequest] = []

    # -- events ---------------------------------------------------------------------------------------------

    def admit(self) -> list[GroupRequest]:
        """The groups that start now: as many as the bound allows, and the extra ones of the batch.

        Raises:
            RollenvError: the source has no task left; nothing has changed.
        """
        extra = 0 if self._closed else self.plan.extra_groups
        n = admissible(self.plan.eta, self.version, self.plan.groups, self._taken, extra)
        requests: list[GroupRequest] = []
        try:
            requests.extend(self._request() for _ in range(n))
        except BaseException:  # no task is left: those that were drawn wait for a better day
            self._again = requests + self._again
            raise
        self._running |= {request.index: request for request in requests}
        return requests

    def finished(self, group: Group) -> None:
        """A running group has finished."""
        request = group.request
        del self._running[request.index]
        self._late.discard(request.index)
        refill = self.plan.filter_mode == "refill" and len(self._idle) < self.plan.max_refills
        if refill and not has_signal(group, self.plan.worth):
            self._idle.append(group)  # its place is free again: admit() fills it
            return
        self._accepted += 1
        self._ready.append(group)

    def straggles(self, index: int) -> None:
        """A running group waits for an episode that takes too long, with no spare left."""
        if index in self._running:
            self._late.add(index)

    def weights_updated(self, version: int) -> list[Group]:
        """The weights have a new version. Returns finished groups that are now too old; they are played again.

        With admission by the same bound there are none; there may be on resume with a smaller one.
        """
        self.version = version
        self._closed = False
        return self._discard([group for group in self._ready if self._deadline(group.request) < version])

    # -- the batch ------------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """Whether the batch of the current version can be taken: enough groups are ready, and what is left can train
        in time, but for the surplus."""
        if len(self._ready) < self.plan.groups or not self._counting_ready():
            return False
        return self._overdue(self._left()) <= self._excess

    def close(self) -> Surplus:
        """Ends the admission for the full batch, and lets go what exceeds the bound.

        Raises:
            ValueError: the batch is not full.
        """
        self._require_full()
        self._closed = True
        surplus = set(self._surplus())
        finished = self._discard([group for group in self._ready if group.request.index in surplus])
        running = [index for index in self._running if index in surplus]
        for index in running:
            self._play_again(self._running.pop(index))
        self._late -= surplus
        return Surplus(running, finished)

    def take(self) -> Batch:
        """The batch of the current version.

        Raises:
            ValueError: it is not full, or not closed.
        """
        self._require_full()
        if not self._closed:
            raise ValueError("the batch is taken before it is closed: what is surplus would run on")
        chosen, idle = self._chosen(), self._idle
        gone = {group.request.index for group in chosen}
        self._ready, self._idle = [g for g in self._ready if g.request.index not in gone], []
        chosen.sort(key=lambda group: group.request.index)
        keeps_all = self.plan.filter_mode == "keep"
        wanted = self.plan.choice([g for g in chosen if keeps_all or has_signal(g, self.plan.worth)])
        trained = {group.request.index for group in wanted}
        batch = Batch(self.version, wanted, [*idle, *(g for g in chosen if g.request.index not in trained)])
        for group in batch.played:  # in an order that does not depend on who was quick
            request, ended = group.request, group.trainable
            self._source.report(Draw(request.task, request.env), sum(bool(t.success) for t in ended), len(ended))
        return batch

    def _require_full(self) -> None:
        if not self.full:
            raise ValueError("the batch is not full")

    def _chosen(self) -> list[Group]:
        """The ready groups that make up the batch."""
        counting = set(self._counting())
        # The oldest first: what is left can wait longer.
        self._ready.sort(key=lambda g: (g.request.index not in counting, g.request.version, g.request.index))
        return self._ready[: self.plan.groups]

    @property
    def _taken(self) -> int:
        return self._accepted + len(self._running)

    @property
    def _excess(self) -> int:
        """Groups begun beyond the bound without redundancy."""
        return max(0, self._taken - admissible(self.plan.eta, self.version, self.plan.groups, 0))

    def _deadline(self, request: GroupRequest) -> int:
        return last_version(self.plan.eta, request.version)

    def _left(self) -> list[GroupRequest]:
        """What would be left of the ready and the running, were the batch taken now."""
        chosen = {group.request.index for group in self._chosen()}
        ready = [group.request for group in self._ready if group.request.index not in chosen]
        return [*ready, *self._running.values()]

    def _overdue(self, requests: Collection[GroupRequest]) -> int:
        return overdue(map(self._deadline, requests), self.version, self.plan.groups)

    def _counting(self) -> list[int]:
        """The groups that count when redundancy may not prefer the quick ones."""
        if self.plan.selection == "first":
            return []
        here = {**{g.request.index: g.request for g in self._ready}, **self._running}
        order = sorted(here, key=lambda index: (here[index].version, index))
        return planned(order, self.plan.groups, (), self._late)

    def _counting_ready(self) -> bool:
        return not any(index in self._running for index in self._counting())

    def _surplus(self) -> list[int]:
        """What to let go: as many as exceed the bound, the running ones first, and of those stragglers, then the
        newest, which have come the least far; but always so that the rest can train in time."""
        left = self._left()
        surplus: list[int] = []
        left.sort(key=lambda request: (request.index in self._running, request.index in self._late, request.version))
        while len(surplus) < self._excess:
            overdue = self._overdue(left)
            for place in reversed(range(len(left))):
                rest = left[:place] + left[place + 1 :]
                if not overdue or self._overdue(rest) < overdue:
                    surplus.append(left[place].index)
                    left = rest
                    break
        return surplus

    def _discard(self, groups: Collection[Group]) -> list[Group]:
        gone = sorted(groups, key=lambda group: group.request.index)
        indices = {group.request.index for group in gone}
        self._ready = [group for group in self._ready if group.request.index not in indices]
        self._accepted -= len(gone)
        self.discarded_groups += len(gone)
        for group in gone:
            self._play_again(group.request)
        return gone

    def _play_again(self, request: GroupRequest) -> None:
        self._again.append(replace(request, life=request.life + 1))
        self._again.sort(key=lambda again: again.index)

    def _request(self) -> GroupRequest:
        if self._again:
            return replace(self._again.pop(0), version=self.version)
        draw, index = self._source.draw(), self._next_index
        self._next_index += 1
        plan = self.plan
        return GroupRequest(
            index,
            draw.task,
            plan.size,
            self._seed,
            self.version,
            extra=plan.extra_samples,
            selection=plan.selection,
            env=draw.env,
        )

    # -- state ----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything, JSON-serialisable. `load_state_dict` reads it back; what ran is listed, to be submitted again."""
        return {
            "version": self.version,
            "next_index": self._next_index,
            "accepted": self._accepted,
            "closed": self._closed,
            "late": sorted(self._late),
            "discarded_groups": self.discarded_groups,
            "source": self._source.state_dict(),
            "running": [fields_of(request) for request in self._running.values()],
            "ready": [group.to_dict() for group in self._ready],
            "idle": [group.to_dict() for group in self._idle],
            "again": [fields_of(request) for request in self._again],
        }

    def load_state_dict(self, state: dict[str, Any]) -> list[GroupRequest]:
        """Continues from `state_dict`. Returns the groups that ran then, which have to be submitted again.

        What was begun under another `eta` and is too old for this one is played again later.
        """
        self._closed, self._late = bool(state["closed"]), set(state["late"])
        self.version, self._next_index = int(state["version"]), int(state["next_index"])
        self._accepted, self.discarded_groups = int(state["accepted"]), int(state["discarded_groups"])
        self._source.load_state_dict(state["source"])
        self._ready = [Group.from_dict(data) for data in state["ready"]]
        self._idle = [Group.from_dict(data) for data in state["idle"]]
        self._again = [GroupRequest(**data) for data in state["again"]]
        running = [GroupRequest(**data) for data in state["running"]]
        for request in running:
            if self._deadline(request) < self.version:
                self._play_again(request)
            else:
                self._running[request.index] = request
        self._discard([group for group in self._ready if self._deadline(group.request) < self.version])
        return list(self._running.values())
