"""Which replica serves which request: the state machine of `LLMProxy`, without I/O, clock or event loop.

Events go in as method calls. Those that can end somebody's waiting return the requests that wait no longer; their
`status` says what became of them.

Invariant: a request that is not over either waits or counts with all its tokens on exactly one replica. The tokens in
flight of a replica stay within its budget, unless a single request that is larger than the budget has the replica to
itself. Of the requests that may go to a replica the oldest goes first. A session stays with the replica that holds its
cache as long as that replica serves and does not fail it.

What an event costs grows with the number of replicas, not with the number of sessions; only to drain or
to lose a replica costs as much as it held.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from rollenv.errors import did_you_mean
from rollenv.inference.base import InvalidRequest

Phase = Literal["joining", "serving", "draining"]
"""A joining replica takes no requests yet, a draining one takes no more."""

Status = Literal["waiting", "running", "aborted", "refused", "ended"]
"""The last three are final. "refused": no replica could serve it, `Request.refusal` says why."""


@dataclass(slots=True, eq=False)
class Request:
    """One completion that somebody asked for.

    Attributes:
        number: order of arrival.
        tokens: what it takes of a replica's budget while it runs.
        session: whose it is.
        status: see `Status`.
        replica: where it runs; "" while it does not.
        stopping: its session was aborted; it will not be begun again.
        restarts: how often it had to begin again on another replica.
        refusal: why it was refused.
        wave: how many waves of failures (see `ReplicaState`) its replica had seen when it began there.
    """

    number: int
    tokens: int
    session: SessionState
    status: Status = "waiting"
    replica: str = ""
    stopping: bool = False
    restarts: int = 0
    refusal: str = ""
    wave: int = 0


@dataclass(slots=True, eq=False)
class SessionState:
    """A session that has a request, or a home: the replica that holds its cache."""

    name: str
    home: ReplicaState | None = None
    request: Request | None = None


class Queue:
    """Waiting requests, oldest first. Any of them can be taken out at the cost of O(1)."""

    def __init__(self) -> None:
        self._requests: dict[int, Request] = {}
        self._numbers: list[int] = []  # a heap; it also has the numbers of some requests that were taken out

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request: Request) -> bool:
        return request.number in self._requests

    @property
    def oldest(self) -> Request | None:
        """The one that is next."""
        while self._numbers and self._numbers[0] not in self._requests:
            heapq.heappop(self._numbers)
        return self._requests[self._numbers[0]] if self._numbers else None

    def put(self, request: Request) -> None:
        """Adds a request, in its place by age."""
        self._requests[request.number] = request
        heapq.heappush(self._numbers, request.number)

    def take(self, request: Request) -> None:
        """Takes a request out."""
        del self._requests[request.number]
        if len(self._numbers) > 2 * len(self._requests) + 16:
            self._numbers = sorted(self._requests)

    def take_all(self) -> list[Request]:
        """Takes every request out, oldest first."""
        requests = [self._requests[number] for number in sorted(self._requests)]
        self._requests.clear()
        self._numbers.clear()
        return requests


@dataclass(slots=True, eq=False)
class ReplicaState:
    """A replica's books. `queue` has the requests that can only go here: their sessions' caches are here.

    A wave is a number of requests that failed side by side, `waves` is how many there were, and `failed_in_a_row` how
    many since the last completion.
    """

    name: str
    order: int
    budget: int | None
    phase: Phase = "joining"
    in_flight: int = 0
    running: dict[int, Request] = field(default_factory=dict)
    queue: Queue = field(default_factory=Queue)
    sessions: dict[str, SessionState] = field(default_factory=dict)
    completions: int = 0
    failures: int = 0
    moved: int = 0
    waves: int = 0
    failed_in_a_row: int = 0

    def has_room(self, request: Request) -> bool:
        """Whether the request may start now."""
        return self.budget is None or not self.running or self.in_flight + request.tokens <= self.budget

    @property
    def load(self) -> tuple[int, int, int]:
        """Orders replicas: tokens in flight, then sessions, then age."""
        return self.in_flight, len(self.sessions), self.order


@dataclass(frozen=True, slots=True)
class ReplicaStats:
    """One replica: its state now, and its counters since it joined.

    Attributes:
        phase: joining, serving or draining.
        token_budget: bound on tokens in flight; None: no bound.
        tokens_in_flight: tokens of the running completions: their prompts and the most they may add.
        running: completions under way.
        queued: completions that wait for room here, because their sessions' caches are here.
        sessions: sessions whose caches are here.
        completions: completions that ended well.
        failures: completions that failed, one by one.
        moved_sessions: sessions that had to leave.
    """

    phase: Phase
    token_budget: int | None
    tokens_in_flight: int
    running: int
    queued: int
    sessions: int
    completions: int
    failures: int
    moved_sessions: int


@dataclass(frozen=True, slots=True)
class RoutingStats:
    """All replicas by name, and totals that include those which have left.

    Attributes:
        queued: completions that wait, for whichever replica.
        sessions: sessions known.
        restarts: completions that were begun again on another replica.
    """

    replicas: dict[str, ReplicaStats]
    queued: int
    sessions: int
    completions: int
    failures: int
    moved_sessions: int
    restarts: int


class Router:
    """Deals requests out to replicas.

    A request of a session that has a home goes there, and waits for room if need be. Any other goes to the serving
    replica with the fewest tokens in flight that has room for it (then: with the fewest sessions, the oldest); when
    none has, it waits. Requests that wait block younger ones only where they could start themselves.

    Args:
        max_restarts: a request that has failed on one more replica than this is refused, so that a request that breaks
            whatever serves it does not break everything.
        max_failures: a replica that fails so often, with no completion in between, is given up. Requests that fail
            together count once.
    """

    def __init__(self, *, max_restarts: int = 2, max_failures: int = 3) -> None:
        if max_restarts < 0 or max_failures < 1:
            raise ValueError(
                f"max_restarts must be at least 0 and max_failures at least 1, not {max_restarts} and {max_failures}"
            )
        self._max_restarts, self._max_failures = max_restarts, max_failures
        self._replicas: dict[str, ReplicaState] = {}
        self._sessions: dict[str, SessionState] = {}
        self._queue = Queue()  # of requests that may go anywhere
        self._n_requests = 0
        self._n_replicas = 0
        self._expected = 0
        self._totals = {"completions": 0, "failures": 0, "moved_sessions": 0, "restarts": 0}

    # -- replicas ------------------------------------------------------------------------------------------------------

    def add(self, name: str, budget: int | None) -> None:
        """A replica joins; it takes requests when it is opened. Meanwhile requests may wait for it.

        Raises:
            ValueError: the name is taken, or the budget is less than one token.
        """
        if name in self._replicas:
            raise ValueError(f"there is a replica '{name}' already; give another name")
        if budget is not None and budget < 1:
            raise ValueError(f"the token budget of replica '{name}' must be at least 1, not {budget}")
        self._n_replicas += 1
        self._replicas[name] = ReplicaState(name, self._n_replicas, budget)

    def open(self, name: str) -> list[Request]:
        """From now on the replica serves."""
        self._replica(name).phase = "serving"
        return self._start()

    def drain(self, name: str) -> list[Request]:
        """The replica finishes what runs and takes nothing new; its idle and waiting sessions may go elsewhere.

        Raises:
            ValueError: no such replica, it is still joining, or no other one could take its sessions.
        """
        replica = self._replica(name)
        if replica.phase == "joining":
            raise ValueError(f"replica '{name}' is still joining; wait until it serves")
        if not any(r is not replica and r.phase != "draining" for r in self._replicas.values()):
            raise ValueError(f"replica '{name}' is the last one that serves; let another one join before it is drained")
        replica.phase = "draining"
        self._let_go(
            replica, [s for s in replica.sessions.values() if s.request is None or s.request.status == "waiting"]
        )
        return self._start()

    def remove(self, name: str) -> list[Request]:
        """The replica is gone: it was drained, or has died. What ran there is begun again elsewhere.

        When no replica is left that serves or will serve, everything that waits is refused.
        """
        replica = self._replica(name)
        del self._replicas[name]
        over = []
        for request in list(replica.running.values()):
            self._stop(request)
            if self._may_restart(request):
                self._totals["restarts"] += 1
                self._queue.put(request)
            else:
                over.append(request)
        self._let_go(replica, list(replica.sessions.values()))
        if not self.has_future:
            over += self._refuse_all()
        return over + self._start()

    def _refuse_all(self) -> list[Request]:
        waiting = self._queue.take_all()
        for request in waiting:
            self._refuse(request, "no replica is left")
        return waiting

    @property
    def has_future(self) -> bool:
        """Whether a request that waits will ever start."""
        return self._expected > 0 or any(replica.phase != "draining" for replica in self._replicas.values())

    def expect(self) -> None:
        """A replica is on its way: requests may wait for it."""
        self._expected += 1

    def expect_no_more(self) -> list[Request]:
        """It has joined, or will not come: then what nobody can serve is refused."""
        self._expected -= 1
        return self._refuse_all() if not self.has_future else []

    def sessions_of(self, name: str) -> list[str]:
        """The sessions whose caches the replica holds."""
        return list(self._replica(name).sessions)

    def is_busy(self, name: str) -> bool:
        """Whether anything runs on the replica."""
        return bool(self._replica(name).running)

    # -- requests ------------------------------------------------------------------------------------------------------

    def submit(self, session: str, tokens: int) -> tuple[Request, list[Request]]:
        """A new request that takes `tokens` of a replica's budget. It is refused when no replica is left.

        Raises:
            InvalidRequest: the session has a request already.
        """
        known = self._sessions.get(session)
        if known is not None and known.request is not None:
            raise InvalidRequest(f"session '{session}' is already generating; one completion at a time per session")
        owner = known or self._sessions.setdefault(session, SessionState(session))
        self._n_requests += 1
        request = owner.request = Request(self._n_requests, max(tokens, 1), owner)
        if not self.has_future:
            self._refuse(request, "no replica is left")
            return request, []
        self._queue_of(request).put(request)
        return request, self._start()

    def fork(self, source: str, session: str) -> str | None:
        """A new session that will begin like `source` has its home where that has it. Returns the replica; None when
        there is no such cache, or the session is known already."""
        known = self._sessions.get(source)
        if known is None or known.home is None or known.home.phase != "serving" or session in self._sessions:
            return None
        self._sessions[session] = new = SessionState(session)
        self._bind(new, known.home)
        return known.home.name

    def complete(self, request: Request) -> list[Request]:
        """A running request has its completion."""
        replica = self._replicas[request.replica]
        replica.completions += 1
        replica.failed_in_a_row = 0
        self._totals["completions"] += 1
        return self.end(request)

    def end(self, request: Request) -> list[Request]:
        """Nobody wants the request any more, or the replica has refused it. Nothing happens when it is over already."""
        if request.status == "running":
            self._stop(request)
        elif request.status == "waiting":
            self._queue_of(request).take(request)
        else:
            return []
        self._settle(request, "ended")
        return self._start()

    def fail(self, request: Request) -> bool:
        """Books that a running request has failed. True: its replica fails too often; remove it, else `restart` it."""
        replica = self._replicas[request.replica]
        replica.failures += 1
        self._totals["failures"] += 1
        if request.wave == replica.waves:  # it began after the last failure here
            replica.waves += 1
            replica.failed_in_a_row += 1
        return replica.failed_in_a_row >= self._max_failures

    def restart(self, request: Request) -> list[Request]:
        """A running request has failed on a replica that goes on: it and its session move to another one."""
        replica, session = self._replicas[request.replica], request.session
        self._stop(request)
        self._let_go(replica, [session])
        if not self._may_restart(request):
            return [request, *self._start()]
        others = [r for r in self._replicas.values() if r is not replica and r.phase == "serving"]
        if not others:
            self._refuse(request, "no other replica serves")
            return [request, *self._start()]
        self._totals["restarts"] += 1
        self._bind(session, min(others, key=lambda r: r.load))
        self._queue_of(request).put(request)
        return self._start()

    def abort(self, session: str) -> list[Request]:
        """Forgets the session: at once, or when its request that runs has ended."""
        known = self._sessions.get(session)
        if known is None:
            return []
        request = known.request
        if request is None:
            self._forget(known)
            return []
        request.stopping = True
        if request.status == "running":
            return []
        self._queue_of(request).take(request)
        self._settle(request, "aborted")
        return [request, *self._start()]

    def abort_all(self) -> list[Request]:
        """Aborts every request, whichever its session; returns those that waited."""
        queues = [self._queue, *(replica.queue for replica in self._replicas.values())]
        waiting = [request for queue in queues for request in queue.take_all()]
        running = [request for replica in self._replicas.values() for request in replica.running.values()]
        for request in waiting + running:
            request.stopping = True
        for request in waiting:
            self._settle(request, "aborted")
        return waiting

    def home_of(self, session: str) -> str | None:
        """The replica that holds the session's cache."""
        known = self._sessions.get(session)
        return known.home.name if known is not None and known.home is not None else None

    def request_of(self, session: str) -> Request | None:
        """What the session waits for, or is running."""
        known = self._sessions.get(session)
        return known.request if known is not None else None

    def stats(self) -> RoutingStats:
        """Counters and state now."""
        replicas = {
            r.name: ReplicaStats(
                phase=r.phase,
                token_budget=r.budget,
                tokens_in_flight=r.in_flight,
                running=len(r.running),
                queued=len(r.queue),
                sessions=len(r.sessions),
                completions=r.completions,
                failures=r.failures,
                moved_sessions=r.moved,
            )
            for r in self._replicas.values()
        }
        queued = len(self._queue) + sum(r.queued for r in replicas.values())
        return RoutingStats(replicas, queued, len(self._sessions), **self._totals)

    # -- who starts ----------------------------------------------------------------------------------------------------

    def _start(self) -> list[Request]:
        """Starts whatever can start, and returns it."""
        started = []
        while chosen := self._next():
            request, replica = chosen
            self._queue_of(request).take(request)
            if request.session.home is None:
                self._bind(request.session, replica)
            request.status, request.replica, request.wave = "running", replica.name, replica.waves
            replica.running[request.number] = request
            replica.in_flight += request.tokens
            started.append(request)
        return started

    def _next(self) -> tuple[Request, ReplicaState] | None:
        """A request that can start now, and where. At each replica only the oldest that may go there is looked at."""
        free, candidates = self._queue.oldest, []
        for replica in self._replicas.values():
            bound = replica.queue.oldest
            if bound is not None and (free is None or bound.number < free.number):
                if replica.has_room(bound):
                    return bound, replica
            elif free is not None and replica.phase == "serving" and replica.has_room(free):
                candidates.append(replica)
        if free is None or not candidates:
            return None
        return free, min(candidates, key=lambda r: r.load)

    def _queue_of(self, request: Request) -> Queue:
        home = request.session.home
        return self._queue if home is None else home.queue

    # -- books ---------------------------------------------------------------------------------------------------------

    def _replica(self, name: str) -> ReplicaState:
        if name not in self._replicas:
            raise ValueError(f"there is no replica '{name}'{did_you_mean(name, self._replicas)}")
        return self._replicas[name]

    def _stop(self, request: Request) -> None:
        """A running request runs no longer; it is as if it had just come."""
        replica = request.session.home
        assert replica is not None
        del replica.running[request.number]
        replica.in_flight -= request.tokens
        request.status, request.replica = "waiting", ""

    def _may_restart(self, request: Request) -> bool:
        """Counts a restart of a stopped request, or settles it when it must not begin again."""
        if request.stopping:
            self._settle(request, "aborted")
            return False
        request.restarts += 1
        if request.restarts > self._max_restarts:
            self._refuse(request, f"it has failed on {request.restarts} replicas")
            return False
        return True

    def _refuse(self, request: Request, why: str) -> None:
        request.refusal = why
        self._settle(request, "refused")

    def _settle(self, request: Request, status: Status) -> None:
        """The request is over. Its session is remembered if some replica that serves holds its cache."""
        session = request.session
        request.status, session.request = status, None
        if session.home is not None and session.home.phase == "draining":
            self._let_go(session.home, [session])
        elif request.stopping or session.home is None:
            self._forget(session)

    def _bind(self, session: SessionState, replica: ReplicaState) -> None:
        session.home = replica
        replica.sessions[session.name] = session

    def _let_go(self, replica: ReplicaState, sessions: Iterable[SessionState]) -> None:
        """Sessions leave a replica. Those that wait may go anywhere; those with nothing to do are forgotten."""
        for session in sessions:
            request = session.request
            if request is not None and request in replica.queue:
                replica.queue.take(request)
                self._queue.put(request)
            del replica.sessions[session.name]
            session.home = None
            if request is None:
                self._forget(session)
            replica.moved += 1
            self._totals["moved_sessions"] += 1

    def _forget(self, session: SessionState) -> None:
        if session.home is not None:
            del session.home.sessions[session.name]
            session.home = None
        del self._sessions[session.name]
