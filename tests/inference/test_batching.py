"""A step computes every running completion's next token within its bound, and no chunk is dealt twice or lost."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

from rollenv.inference.attention import Chunk
from rollenv.inference.base import SamplingParams
from rollenv.inference.batching import KEYS_PER_TOKEN, TOKENS_PER_WORKER, Returns, deal, plan
from rollenv.inference.sessions import Request, Session

NO_SLOT: Any = object()


def request(cached: int, todo: int) -> Request:
    session = Session("s", NO_SLOT, list(range(cached)))
    future: Any = None
    return Request(session, [0] * (cached + todo), SamplingParams(), 8, future, todo=list(range(todo)))


lengths = st.lists(st.tuples(st.integers(0, 900), st.one_of(st.just(1), st.integers(1, 700))), max_size=40)


@given(lengths, st.integers(1, 1024))
def test_a_plan_takes_every_single_token_and_prompts_as_far_as_the_bound_goes(lengths: Any, bound: int) -> None:
    running = [request(cached, todo) for cached, todo in lengths]
    work = plan(running, bound)
    decoding = [r for r in running if len(r.todo) == 1]
    assert all(any(owner is r for owner in work.values()) for r in decoding)
    prefilled = sum(len(chunk.ids) for chunk, owner in work.items() if len(owner.todo) > 1)
    assert prefilled <= max(bound - len(decoding), 1)
    waiting = sum(len(r.todo) for r in running if len(r.todo) > 1)
    assert prefilled == min(waiting, max(bound - len(decoding), 1))
    for chunk, owner in work.items():
        assert chunk.start == len(owner.session.ids)
        assert chunk.ids == owner.todo[: len(chunk.ids)]
        assert chunk.sample == (len(chunk.ids) == len(owner.todo))


@given(lengths.filter(bool), st.integers(1, 4))
def test_chunks_are_dealt_out_once_each_and_evenly(lengths: Any, n_workers: int) -> None:
    chunks = [Chunk(NO_SLOT, cached, list(range(todo)), True) for cached, todo in lengths]
    shares = deal(chunks, n_workers)
    assert sorted(map(id, chunks)) == sorted(id(chunk) for share in shares for chunk in share)
    assert 1 <= len(shares) <= n_workers
    if len(shares) > 1:
        costs = {id(c): len(c.ids) * (KEYS_PER_TOKEN + c.start + len(c.ids)) for c in chunks}
        loads = [sum(costs[id(c)] for c in share) for share in shares]
        assert max(loads) - min(loads) <= max(costs.values())
        assert sum(loads) >= len(shares) * TOKENS_PER_WORKER * KEYS_PER_TOKEN


def waits(returns: Returns, came_back: bool, asked: int) -> int:
    """How often it was worth waiting, when what waiting brings is always the same."""
    waited = 0
    for _ in range(asked):
        if returns.worth_waiting():
            waited += 1
            returns.note(came_back)
    return waited


def test_sessions_that_come_back_at_once_are_waited_for_and_others_soon_are_not() -> None:
    returns = Returns()
    assert waits(returns, True, 100) == 100
    assert waits(returns, False, 100) < 30
    assert waits(returns, False, 330) == 10
    assert waits(returns, True, 40) >= 1
    assert waits(returns, True, 100) == 100
