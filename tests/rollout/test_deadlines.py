"""Deadlines that share a timer end what asyncio's own timeouts would end, at the same moment."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollenv.rollout.deadlines import Watch, own_watch, watching
from rollenv.simulation.clock import run_virtual

BLOCKS = st.lists(st.tuples(st.integers(0, 6), st.sampled_from([None, 1.5, 2.5, 4.5])), min_size=1, max_size=8)
"""How long each block takes, and its deadline (never at the same moment)."""


async def lived(blocks: list[tuple[int, float | None]], whole: float | None, shared: bool, stop: float) -> list[Any]:
    """What an episode of `blocks` goes through, cancelled from outside at `stop`."""
    seen: list[Any] = []
    clock = asyncio.get_running_loop().time

    async def inside() -> None:
        for seconds, limit in blocks:
            try:
                if shared:
                    with own_watch().within(limit):
                        await asyncio.sleep(seconds)
                else:
                    async with asyncio.timeout(limit):
                        await asyncio.sleep(seconds)
                seen.append(("done", clock()))
            except TimeoutError:
                seen.append(("late", clock()))

    async def episode() -> None:
        try:
            if shared:
                with watching() as watch, watch.within(whole):
                    await inside()
            else:
                async with asyncio.timeout(whole):
                    await inside()
        except TimeoutError:
            seen.append(("too long", clock()))
        except asyncio.CancelledError:
            seen.append(("cancelled", clock()))

    task = asyncio.ensure_future(episode())
    asyncio.get_running_loop().call_later(stop, task.cancel)
    await task
    seen.append(task.cancelling())
    return seen


@given(BLOCKS, st.sampled_from([None, 3.75, 8.75, 20.75]), st.sampled_from([2.125, 7.125, 1000.0]))
def test_they_behave_as_asyncio_timeouts_do(
    blocks: list[tuple[int, float | None]], whole: float | None, stop: float
) -> None:
    ours = run_virtual(lived(blocks, whole, True, stop))
    assert ours == run_virtual(lived(blocks, whole, False, stop))


def test_blocks_that_end_in_time_set_one_timer_for_all() -> None:
    class Counting:
        def __init__(self) -> None:
            self.timers = 0

    counted = Counting()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        plain = loop.call_at

        def call_at(*args: Any, **options: Any) -> Any:
            counted.timers += 1
            return plain(*args, **options)

        loop.call_at = call_at  # type: ignore[method-assign]
        with watching():
            for _ in range(100):
                with own_watch().within(60):
                    await asyncio.sleep(0)

    run_virtual(main())
    assert counted.timers == 1


def test_a_task_within_an_episode_has_deadlines_of_its_own() -> None:
    async def child() -> str:
        with pytest.raises(TimeoutError), own_watch().within(1):
            await asyncio.sleep(5)
        return "alone"

    async def main() -> list[Any]:
        with watching() as watch, watch.within(10):
            return [await asyncio.ensure_future(child()), asyncio.get_running_loop().time(), len(watch.open)]

    assert run_virtual(main()) == ["alone", 1.0, 1]


def test_a_swallowed_cancellation_leaves_the_block_as_it_is() -> None:
    async def main() -> tuple[str, bool]:
        with own_watch().within(1) as deadline, contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(5)
        return "went on", deadline.expired

    assert run_virtual(main()) == ("went on", True)


def test_no_timer_is_left_behind() -> None:
    async def main() -> None:
        with watching() as watch, watch.within(3600):
            await asyncio.sleep(1)
        assert watch._timer is None

    run_virtual(main())


def test_a_watch_is_for_a_task() -> None:
    with pytest.raises(RuntimeError):
        Watch()
