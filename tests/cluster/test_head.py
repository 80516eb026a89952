"""A cluster whose head goes away is given up after its time, and whoever waits for it hears of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from rollenv.cluster.head import Replies, watch_head
from rollenv.cluster.runtime import WorkerDied


@asynccontextmanager
async def head(port: int = 0) -> AsyncIterator[str]:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", port)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()


async def until_silent(replies: Replies) -> None:
    while not replies.silent:
        await asyncio.sleep(0.01)


def test_who_waits_hears_that_the_cluster_is_gone() -> None:
    async def test() -> None:
        replies = Replies()
        asking = [asyncio.ensure_future(replies.wait(asyncio.get_running_loop().create_future())) for _ in range(3)]
        async with head() as address:
            guard = asyncio.ensure_future(watch_head(address, replies, 0.3))
            await asyncio.sleep(0.5)
            assert not replies.lost
        outcomes = await asyncio.wait_for(asyncio.gather(*asking, return_exceptions=True), 30)
        assert [str(outcome).partition(" for ")[0] for outcome in outcomes] == [
            f"the Ray cluster at {address} has been away"
        ] * 3
        await guard
        with pytest.raises(WorkerDied, match="has been away"):
            await replies.wait(asyncio.get_running_loop().create_future())

    asyncio.run(test())


def test_a_head_that_comes_back_in_time_is_waited_for() -> None:
    async def test() -> None:
        replies, reply = Replies(), asyncio.get_running_loop().create_future()
        asking = asyncio.ensure_future(replies.wait(reply))
        async with head() as address:
            guard = asyncio.ensure_future(watch_head(address, replies, 3.0))
            await asyncio.sleep(1.5)  # it has been seen
        await asyncio.wait_for(until_silent(replies), 30)
        async with head(int(address.rpartition(":")[2])):
            while replies.silent:
                await asyncio.sleep(0.01)
            reply.set_result("here")
            assert await asking == "here"
        guard.cancel()

    asyncio.run(test())


def test_one_that_never_answered_is_not_missed() -> None:
    async def test() -> None:
        replies = Replies()
        guard = asyncio.ensure_future(watch_head("127.0.0.1:1", replies, 0.03))
        await asyncio.sleep(0.5)
        assert not replies.lost
        guard.cancel()

    asyncio.run(test())


def test_a_caller_that_is_cancelled_is_cancelled() -> None:
    async def test() -> None:
        replies = Replies()
        asking = asyncio.ensure_future(replies.wait(asyncio.get_running_loop().create_future()))
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    asyncio.run(test())
