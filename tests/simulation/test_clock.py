"""The clock that jumps: order, time, ends and errors are those of asyncio's own loops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollenv.simulation.clock import Stalled, VirtualLoop, run_virtual

DELAYS = st.lists(st.integers(0, 20), min_size=1, max_size=30)


@given(DELAYS)
def test_sleepers_wake_in_the_order_of_their_times_and_those_of_one_moment_in_the_order_they_began(
    delays: list[int],
) -> None:
    woken: list[tuple[float, int]] = []

    async def sleeper(number: int, delay: int) -> None:
        await asyncio.sleep(delay)
        woken.append((asyncio.get_running_loop().time(), number))

    async def main() -> None:
        await asyncio.gather(*(sleeper(i, delay) for i, delay in enumerate(delays)))

    run_virtual(main())
    # A sleep of 0 is no timer: it only lets the others have a turn, which makes it no later than now.
    assert woken == sorted((float(delay), i) for i, delay in enumerate(delays))


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=40), st.integers(0, 9))
def test_cancelled_timers_never_ring_and_the_others_ring_once(timers: list[tuple[int, bool]], at: int) -> None:
    rung: list[int] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        handles = [loop.call_later(delay, rung.append, i) for i, (delay, _) in enumerate(timers)]
        await asyncio.sleep(at - 0.5)
        for handle, (_, cancel) in zip(handles, timers, strict=True):
            if cancel:
                handle.cancel()
        await asyncio.sleep(20)

    run_virtual(main())
    kept = [(delay, i) for i, (delay, cancel) in enumerate(timers) if not cancel or delay <= at - 0.5]
    assert rung == [i for _, i in sorted(kept)]


def test_many_cancelled_timers_do_not_stay_in_memory() -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        kept = [loop.call_later(5.0, lambda: None) for _ in range(10)]
        for _ in range(10_000):
            loop.call_later(1e6, lambda: None).cancel()
        assert all(not handle.cancelled() for handle in kept)
        return len(loop._timers)

    assert run_virtual(main()) < 1000


def test_a_year_passes_and_the_clock_stands_still_while_there_is_work() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert loop.time() == 0.0
        for _ in range(1000):
            await asyncio.sleep(0)
        assert loop.time() == 0.0
        await asyncio.sleep(365 * 86400)
        assert loop.time() == 365 * 86400

    run_virtual(main())


def test_timeouts_locks_queues_and_cancellation_work_as_ever() -> None:
    async def main() -> list[Any]:
        seen: list[Any] = []
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3):
                await asyncio.sleep(5)
        seen.append(asyncio.get_running_loop().time())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 2)
        seen.append(asyncio.get_running_loop().time())
        task = asyncio.ensure_future(asyncio.sleep(100))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        queue: asyncio.Queue[int] = asyncio.Queue()
        asyncio.get_running_loop().call_later(4, queue.put_nowait, 7)
        seen.append(await queue.get())
        seen.append(await asyncio.to_thread(lambda: 8))
        seen.append(asyncio.get_running_loop().time())
        return seen

    assert run_virtual(main()) == [3.0, 5.0, 7, 8, 10.0]


def test_waiting_for_nothing_is_an_error_not_a_hang() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Stalled, match="no timer is set"):
        run_virtual(main())


def test_errors_reach_the_caller_and_the_tasks_left_behind_are_cancelled() -> None:
    left: list[str] = []

    async def forever() -> None:
        try:
            await asyncio.sleep(1e9)
        finally:
            left.append("cancelled")

    async def main() -> None:
        task = asyncio.ensure_future(forever())
        await asyncio.sleep(1)
        assert not task.done()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_virtual(main())
    assert left == ["cancelled"]


def test_an_error_in_a_callback_goes_to_the_handler_and_the_loop_goes_on() -> None:
    told: list[Any] = []

    async def main() -> str:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: told.append(context["exception"]))
        loop.call_soon(lambda: 1 / 0)
        await asyncio.sleep(1)
        return "alive"

    assert run_virtual(main()) == "alive"
    assert [type(error) for error in told] == [ZeroDivisionError]


def test_generators_left_open_are_closed() -> None:
    closed: list[str] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.append("yes")

    async def main() -> None:
        async for _ in numbers():
            break

    run_virtual(main())
    assert closed == ["yes"]


def test_a_loop_is_not_run_inside_another() -> None:
    async def inner() -> None:
        return None

    async def main() -> None:
        work = inner()
        with pytest.raises(RuntimeError, match=r"cannot be called|another loop"):
            VirtualLoop().run_until_complete(work)
        work.close()

    asyncio.run(main())
