"""The proxy over engines without a model: who serves, who waits, how it ends."""

from __future__ import annotations

import asyncio

import pytest
from inference.clock import run_jumping
from inference.proxied import LONG, Hanging, Scripted, ask, count_up, engines, in_flight, ticks, tokens

from rollenv.inference import (
    Completion,
    EngineDead,
    EngineError,
    InvalidRequest,
    LLMProxy,
)
from rollenv.inference.base import made_before


def test_sessions_spread_over_replicas_and_come_back_to_theirs() -> None:
    async def run() -> None:
        replicas = engines(3)
        proxy = LLMProxy(replicas)
        for turn in range(3):
            got = await asyncio.gather(*(proxy.generate([turn], tokens(2), session=f"s{i}") for i in range(6)))
            assert [c.ids for c in got] == [[turn + 1, turn + 2]] * 6
        assert [engine.asked for engine in replicas] == [["s0", "s3"] * 3, ["s1", "s4"] * 3, ["s2", "s5"] * 3]
        stats = proxy.stats()
        assert [(r.sessions, r.completions, r.tokens_in_flight) for r in stats.replicas.values()] == [(2, 6, 0)] * 3
        assert (stats.completions, stats.sessions, stats.queued, stats.moved_sessions) == (18, 6, 0, 0)
        for i in range(6):
            await proxy.release(f"s{i}")
        assert proxy.stats().sessions == 0
        assert sorted(replicas[0].released) == ["s0", "s3"]

    asyncio.run(run())


def test_without_room_requests_wait_in_order_and_no_budget_is_exceeded() -> None:
    async def run() -> None:
        proxy = LLMProxy(engines(2, token_budget=30))
        order: list[int] = []
        most = 0

        async def one(i: int) -> None:
            nonlocal most
            completion = asyncio.create_task(proxy.generate([1, 1], tokens(8), session=f"s{i}"))
            await asyncio.sleep(0)
            most = max(most, *in_flight(proxy))
            await completion
            order.append(i)

        await asyncio.gather(*(one(i) for i in range(20)))
        assert order == list(range(20))
        assert most == 30
        assert in_flight(proxy) == [0, 0]
        assert proxy.token_budget == 60

    asyncio.run(run())


def test_the_given_budget_counts_and_a_completion_takes_no_more_than_a_session_can_have() -> None:
    async def run() -> None:
        proxy = LLMProxy([Scripted(max_length=10, token_budget=99), Scripted(max_length=12)], token_budget=20)
        assert (proxy.max_length, proxy.token_budget) == (10, 40)
        tasks = [ask(proxy, f"s{i}") for i in range(5)]
        await ticks()
        assert in_flight(proxy) == [20, 20]
        assert proxy.stats().queued == 1
        with pytest.raises(InvalidRequest, match="prompt has 10 tokens, but the replicas' context ends at 10"):
            await proxy.generate([1] * 10, tokens(1), session="long")
        await proxy.close()
        await asyncio.gather(*tasks)

    asyncio.run(run())


@pytest.mark.parametrize("end", ["abort", "release", "cancel"])
def test_what_waits_can_be_ended_at_once(end: str) -> None:
    """Also when the replica it waits for does nothing any more; who is behind it moves up."""

    async def run() -> None:
        hanging = Hanging(token_budget=10)
        proxy = LLMProxy([hanging])
        running = ask(proxy, "running", tokens(7))
        waiting, behind = ask(proxy, "waiting", tokens(9)), ask(proxy, "behind", tokens(1))
        await ticks()
        assert (proxy.stats().queued, hanging.asked) == (2, ["running"])
        if end == "cancel":
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        else:
            await getattr(proxy, end)("waiting")
            assert await waiting == Completion([], [], [], "aborted")
        await ticks()
        assert (proxy.stats().queued, hanging.asked) == (0, ["running", "behind"])
        for task in (running, behind):
            task.cancel()
        await asyncio.gather(running, behind, return_exceptions=True)
        assert in_flight(proxy) == [0]

    asyncio.run(run())


def test_abort_of_what_runs_returns_what_there_is_and_the_session_may_begin_anew_at_once() -> None:
    async def run() -> None:
        proxy = LLMProxy(engines(2))
        task = ask(proxy, "s")
        await ticks(20)
        await proxy.abort("s")
        completion = await proxy.generate([7], tokens(1), session="s")
        assert completion.ids == [8]
        aborted = await task
        assert aborted.finish_reason == "aborted"
        assert aborted.ids == count_up([1], LONG)[: len(aborted.ids)] != []
        await proxy.abort("nobody")
        assert proxy.stats().completions == 1

    asyncio.run(run())


def test_abort_between_getting_a_place_and_beginning_reaches_the_completion() -> None:
    async def run() -> None:
        engine = Scripted(token_budget=10)
        proxy = LLMProxy([engine])
        second = None

        async def first() -> None:
            nonlocal second
            second = ask(proxy, "second", tokens(9))
            await proxy.generate([1], tokens(8), session="first")
            assert in_flight(proxy) == [10]  # second has its place now, but not yet had its turn of the loop
            await proxy.abort("second")

        await asyncio.create_task(first())
        assert await second == Completion([], [], [], "aborted")
        assert engine.asked == ["first"]
        assert in_flight(proxy) == [0]

    asyncio.run(run())


def test_a_cancelled_caller_has_stopped_the_engine_when_it_returns() -> None:
    async def run() -> None:
        engine = Scripted()
        proxy = LLMProxy([engine])
        task = ask(proxy, "s")
        await ticks()
        assert engine.running == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (engine.running, in_flight(proxy)) == (0, [0])

    asyncio.run(run())


def test_a_cancelled_caller_learns_what_was_made_of_its_completion() -> None:
    async def main() -> None:
        proxy = LLMProxy(engines(2, seconds_per_token=1.0))
        task = ask(proxy, "a", prompt=[7])
        await asyncio.sleep(3.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        made = made_before(caught.value)
        assert made is not None
        assert made.ids == [8, 9, 10]
        await proxy.close()

    run_jumping(main())


def test_a_session_makes_one_completion_at_a_time() -> None:
    async def run() -> None:
        proxy = LLMProxy(engines(2))
        task = ask(proxy, "s")
        await ticks()
        with pytest.raises(InvalidRequest, match="'s' is already generating"):
            await proxy.generate([1], LONG, session="s")
        await proxy.abort("s")
        await task

    asyncio.run(run())


def test_close_ends_everything_and_closes_every_engine_even_when_one_hangs() -> None:
    async def run() -> None:
        class Stuck(Hanging):
            async def close(self) -> None:
                await asyncio.Event().wait()

        replicas = [Stuck(token_budget=10), Scripted(token_budget=10)]
        proxy = LLMProxy(replicas)
        tasks = [ask(proxy, f"s{i}", tokens(9)) for i in range(6)]
        update = asyncio.create_task(proxy.update_weights(1, {}))
        await asyncio.sleep(0)
        await proxy.close()
        await proxy.close()
        outcomes = await asyncio.gather(*tasks)
        assert [completion.finish_reason for completion in outcomes] == ["aborted"] * 6
        with pytest.raises(EngineDead):
            await update
        assert replicas[1].closed
        for call in (proxy.generate([1], LONG, session="s"), proxy.update_weights(1, {}), proxy.join(Scripted())):
            with pytest.raises(EngineDead, match="the proxy is closed"):
                await call
        await proxy.release("s0")

    run_jumping(run())


def test_a_proxy_outlives_the_event_loop_it_was_first_used_in() -> None:
    engine = Scripted(token_budget=10)
    proxy = LLMProxy([engine])

    async def leave_work_behind() -> None:
        await proxy.generate([1], tokens(1), session="s")
        tasks = [ask(proxy, f"left{i}", tokens(9)) for i in range(3)]
        await ticks()
        assert proxy.stats().queued == 2
        del tasks

    asyncio.run(leave_work_behind())
    assert in_flight(proxy) == [0]
    assert asyncio.run(proxy.generate([1, 2], tokens(1), session="s")).ids == [3]

    async def from_two_loops() -> None:
        running = ask(proxy, "here")
        await ticks()
        with pytest.raises(EngineError, match="another event loop"):
            await asyncio.to_thread(asyncio.run, proxy.generate([1], LONG, session="there"))
        running.cancel()

    asyncio.run(from_two_loops())
    asyncio.run(proxy.close())
    assert engine.closed


def test_what_makes_no_sense_is_refused_when_the_proxy_is_made() -> None:
    twice = Scripted()
    for replicas, options, match in [
        ([], {}, "at least one replica"),
        ([Scripted(version=1), Scripted(version=2)], {}, r"same version .* not \[1, 2\]"),
        ([twice, twice], {}, "each replica needs its own"),
        ([Scripted()], {"token_budget": 0}, "at least 1"),
        ([Scripted()], {"stall_seconds": 0}, "more than 0"),
        ([Scripted()], {"max_failures": 0}, "max_failures"),
    ]:
        with pytest.raises(ValueError, match=match):
            LLMProxy(replicas, **options)
    assert list(LLMProxy({"gpu0": Scripted(), "gpu1": Scripted()}).stats().replicas) == ["gpu0", "gpu1"]
