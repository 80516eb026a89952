"""What the proxy builds on: calls that others can end, and how long a replica has been silent."""

from __future__ import annotations

import asyncio

import pytest

from rollenv.inference.replica import Call, Silence


def test_silence_is_time_with_work_and_without_an_answer() -> None:
    silence = Silence()
    assert silence.reaches(10) is None
    silence.begin(100)
    silence.begin(103)
    assert silence.reaches(10) == 110
    silence.end(104)
    silence.end(104)
    assert silence.reaches(10) is None
    silence.begin(200)
    assert silence.reaches(10) == 206  # 4 of the 10 have passed
    silence.answer(205)
    assert silence.reaches(10) == 215


async def for_ever() -> None:
    await asyncio.Event().wait()


def test_an_interrupted_call_ends_as_if_it_had_come_to_its_end_and_leaves_no_cancellation_behind() -> None:
    async def run() -> None:
        calls: set[Call] = set()

        async def caller() -> str:
            with Call(calls) as call:
                await for_ever()
            assert call.interrupted
            await asyncio.sleep(0)  # would raise, if the task were still being cancelled
            return "went on"

        task = asyncio.create_task(caller())
        await asyncio.sleep(0)
        (call,) = calls
        call.interrupt()
        call.interrupt()
        assert await task == "went on"
        assert task.cancelling() == 0
        assert not calls

    asyncio.run(run())


@pytest.mark.parametrize("what", ["raises", "returns"])
def test_an_engine_that_makes_something_else_of_an_interruption_does_not_matter(what: str) -> None:
    async def run() -> None:
        calls: set[Call] = set()

        async def stubborn() -> None:
            try:
                await for_ever()
            except asyncio.CancelledError:
                if what == "raises":
                    raise ConnectionError("connection lost") from None

        async def caller() -> bool:
            with Call(calls) as call:
                await stubborn()
            return call.interrupted

        task = asyncio.create_task(caller())
        await asyncio.sleep(0)
        calls.copy().pop().interrupt()
        assert await task
        assert task.cancelling() == 0

    asyncio.run(run())


@pytest.mark.parametrize("first", ["cancel", "interrupt"])
def test_a_cancellation_goes_through_also_together_with_an_interruption(first: str) -> None:
    async def run() -> None:
        calls: set[Call] = set()

        async def caller() -> None:
            with Call(calls):
                await for_ever()

        task = asyncio.create_task(caller())
        await asyncio.sleep(0)
        (call,) = calls
        for end in (task.cancel, call.interrupt) if first == "cancel" else (call.interrupt, task.cancel):
            end()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())


def test_a_cancellation_of_the_callers_is_told_from_the_engines_own() -> None:
    async def run() -> None:
        calls: set[Call] = set()
        cancelled: list[bool] = []

        async def caller(engine_cancels: bool) -> None:
            try:
                with Call(calls) as call:
                    if engine_cancels:
                        raise asyncio.CancelledError
                    await for_ever()
            except asyncio.CancelledError:
                cancelled.append(call.is_cancelled)

        await caller(engine_cancels=True)
        task = asyncio.create_task(caller(engine_cancels=False))
        await asyncio.sleep(0)
        task.cancel()
        await task
        assert cancelled == [False, True]

    asyncio.run(run())
