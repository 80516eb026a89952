"""Sessions of the embedded engine: who holds a slot of the cache, what it holds, and who loses it when memory is short.

Invariant: `Session.slot`, when there is one, has the keys and values of exactly `Session.ids`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from rollenv.inference.base import Completion, EngineError, FinishReason, SamplingParams
from rollenv.inference.kv_cache import KVCache, Slot


@dataclass(slots=True, eq=False)
class Session:
    """What a session holds. Weights `version` made the first of its keys and values; `used` orders by last use. One
    that holds nothing yet may begin with what `source` holds."""

    name: str
    slot: Slot | None = None
    ids: list[int] = field(default_factory=list)
    version: int = -1
    used: int = 0
    request: Request | None = None
    gone: bool = False
    source: Session | None = None


@dataclass(slots=True, eq=False)
class Request:
    """One `generate` call. `todo` are the tokens that the model has yet to read before it can sample the next.
    It was asked at `asked` (the loop's time) and waited `waited` seconds for a place in the batch."""

    session: Session
    prompt: list[int]
    sampling: SamplingParams
    limit: int
    future: asyncio.Future[Completion]
    asked: float = 0.0
    waited: float = 0.0
    todo: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def finish(self, reason: FinishReason) -> None:
        """Answers the caller, once."""
        self.session.request = None
        if not self.future.done():
            self.future.set_result(Completion(self.ids, self.logprobs, self.versions, reason, self.waited))

    def fail(self, error: EngineError) -> None:
        """Answers the caller with an error, once."""
        self.session.request = None
        if not self.future.done():
            self.future.set_exception(error)


class Sessions:
    """The sessions of one engine, by name.

    Args:
        cache: where slots come from.
        max_holders: sessions that may hold a slot, idle ones included.
    """

    def __init__(self, cache: KVCache, max_holders: int) -> None:
        self._cache, self._max_holders = cache, max_holders
        self._by_name: dict[str, Session] = {}
        self._clock = 0
        self.in_step: set[Session] = set()
        """Sessions whose slots a step is using: they are freed when it is over."""
        self.evictions = 0

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._by_name.values()))

    def get(self, name: str) -> Session | None:
        """The session of that name, if there is one."""
        return self._by_name.get(name)

    def open(self, name: str) -> Session:
        """The session of that name, new if need be."""
        return self._by_name.setdefault(name, Session(name))

    def fork(self, source: str, name: str) -> None:
        """The session `name`, if it holds nothing yet, begins with what `source` holds by then."""
        if (other := self._by_name.get(source)) is not None and name not in self._by_name:
            self.open(name).source = other

    @property
    def n_holders(self) -> int:
        """Sessions that hold a slot."""
        return sum(1 for session in self._by_name.values() if session.slot is not None)

    def touch(self, session: Session) -> None:
        """It was used just now."""
        self._clock += 1
        session.used = self._clock

    def forget(self, session: Session) -> None:
        """Frees the session's slot, after the step when it is part of one."""
        if self._by_name.get(session.name) is session:
            del self._by_name[session.name]
        session.gone = True
        if session not in self.in_step:
            self.free(session)

    def free(self, session: Session) -> None:
        """Takes the slot from a session; what it held has to be computed again."""
        if session.slot is not None:
            self._cache.release(session.slot)
        session.slot = None
        session.ids = []

    def place(self, request: Request, running: Collection[Session], version: int, keep_stale: bool) -> int | None:
        """Gives a request's session a slot for the longest possible completion, and finds what the slot already holds.

        Args:
            running: sessions in the batch: they are not evicted.
            version: of the present weights.
            keep_stale: whether keys and values made by other weights may be used.

        Returns:
            How many prompt tokens need not be computed; None when there is no room before others finish.

        Raises:
            EngineError: there will never be room.
        """
        session, prompt = request.session, request.prompt
        if session.version != version and not keep_stale:
            session.ids = []
        need = len(prompt) + request.limit
        if session.source is not None and (reused := self._begin_like_source(request, running, version, keep_stale)):
            return reused
        reused = min(common_prefix(session.ids, prompt), len(prompt) - 1)
        if session.slot is None or session.slot.capacity < need:
            slot = self._acquire(need, session, running)
            if slot is None and not running and session.slot is not None:
                self.free(session)  # its own old slot may be what is in the way
                reused = 0
                slot = self._acquire(need, session, running)
            if slot is None:
                if running:
                    return None
                raise EngineError(f"{need} tokens do not fit into kv_budget_bytes = {self._cache.budget_bytes}")
            if session.slot is not None:
                self._cache.move(session.slot, slot, reused)
                self._cache.release(session.slot)
            session.slot = slot
        session.ids = session.ids[:reused]
        if not reused:
            session.version = version
        request.todo = prompt[reused:]
        return reused

    def _begin_like_source(self, request: Request, running: Collection[Session], version: int, keep_stale: bool) -> int:
        """Copies what the source of a new session holds of its prompt; returns how many tokens that are. 0: the source
        has been evicted, or has other weights' keys and values, or there is no room for both."""
        session, source = request.session, request.session.source
        assert source is not None
        reused = min(common_prefix(source.ids, request.prompt), len(request.prompt) - 1)
        fresh = source.version == version or keep_stale
        slot = None
        if source.slot is not None and session.slot is None and reused > 0 and fresh:
            slot = self._acquire(len(request.prompt) + request.limit, session, {*running, source})
        if slot is None or source.slot is None:
            return 0
        self._cache.move(source.slot, slot, reused)
        session.slot, session.ids, session.version = slot, source.ids[:reused], source.version
        session.source = None
        self.touch(source)
        request.todo = request.prompt[reused:]
        return reused

    def _acquire(self, n_tokens: int, asking: Session, running: Collection[Session]) -> Slot | None:
        """A slot, if need be after evicting: idle sessions, those unused for longest first, then queued ones."""
        capacity = self._cache.class_of(n_tokens)
        while True:
            holders = [s for s in self._by_name.values() if s.slot is not None and s is not asking]
            slot = self._cache.acquire(n_tokens) if len(holders) < self._max_holders else None
            evictable = [s for s in holders if s not in running]
            if slot is not None or not evictable:
                return slot
            same_class = [s for s in evictable if s.slot is not None and s.slot.capacity == capacity]
            self._evict(min(same_class or evictable, key=lambda s: (s.request is not None, s.used)))

    def _evict(self, session: Session) -> None:
        """Takes an idle or queued session's cache away; its next turn is computed from the whole prompt."""
        self.free(session)
        self.evictions += 1
        if session.request is None:
            del self._by_name[session.name]


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading elements are equal."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    return next(i for i in range(n) if a[i] != b[i])
