"""What one step of the embedded engine computes, and who computes which part of it."""

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
