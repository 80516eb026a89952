"""What one step of the embedded engine computes, who computes which part of it, and whom it waits for."""

from __future__ import annotations

from collections.abc import Sequence

from rollenv.inference.attention import Chunk
from rollenv.inference.sessions import Request

KEYS_PER_TOKEN = 128
"""Attending to so many keys takes about as long as all the rest that a small model does for a token."""

TOKENS_PER_WORKER = 64
"""A second worker is called when each has at least this much to do, in tokens without keys."""


def plan(running: Sequence[Request], max_tokens: int) -> dict[Chunk, Request]:
    """The step's chunks: one token of each completion that is under way, prompt tokens as far as the bound goes."""
    budget = max(max_tokens - sum(len(request.todo) == 1 for request in running), 1)
    work: dict[Chunk, Request] = {}
    for request in running:
        session = request.session
        n = 1 if len(request.todo) == 1 else min(len(request.todo), budget)
        if n == 0:
            continue
        if len(request.todo) > 1:
            budget -= n
        assert session.slot is not None
        work[Chunk(session.slot, len(session.ids), request.todo[:n], n == len(request.todo))] = request
    return work


def deal(chunks: Sequence[Chunk], n_workers: int) -> list[list[Chunk]]:
    """Deals the chunks out to workers, evenly by cost; a small step is not worth sharing."""
    costs = [len(chunk.ids) * (KEYS_PER_TOKEN + chunk.start + len(chunk.ids)) for chunk in chunks]
    n = min(n_workers, sum(costs) // (TOKENS_PER_WORKER * KEYS_PER_TOKEN), len(chunks))
    if n <= 1:
        return [list(chunks)]
    shares: list[list[Chunk]] = [[] for _ in range(n)]
    loads = [0] * n
    for i in sorted(range(len(chunks)), key=lambda i: -costs[i]):
        least = loads.index(min(loads))
        shares[least].append(chunks[i])
        loads[least] += costs[i]
    return shares


class Returns:
    """Whether sessions that are answered tend to be back within a tick of the event loop: then a step that waits for
    them is the fuller for it."""

    SLOWNESS = 0.9
    RARE = 0.1
    TRIED_EVERY = 32
    """Also where they never are: environments of a run differ, and change."""

    def __init__(self) -> None:
        self._rate = 1.0
        self._passed_over = 0

    def worth_waiting(self) -> bool:
        """Asked once after each step that answered somebody."""
        if self._rate > self.RARE or self._passed_over >= self.TRIED_EVERY:
            self._passed_over = 0
            return True
        self._passed_over += 1
        return False

    def note(self, came_back: bool) -> None:
        """What waiting has brought."""
        self._rate = self.SLOWNESS * self._rate + (1 - self.SLOWNESS) * came_back
