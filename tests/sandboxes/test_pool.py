"""A pool hands out sandboxes that are as new, no more than it may, to those who came first."""

from __future__ import annotations

import asyncio

import pytest
from in_loop import in_loop

from rollenv.errors import RollenvError
from rollenv.sandboxes import MiB, Pool, PoolBusy, SandboxError, SandboxSpec
from rollenv.sandboxes.ledger import Ledger
from rollenv.sandboxes.pool import Timings

SMALL = SandboxSpec(memory=64 * MiB, disk=4 * MiB, pids=32)
OTHER = SandboxSpec(memory=64 * MiB, disk=8 * MiB, pids=32)


@in_loop
async def test_a_sandbox_comes_back_as_it_was_made(containing: str) -> None:
    async with Pool(containing, max_live=1, warm=0) as pool:
        async with pool.sandbox(SMALL) as first:
            await first.exec("echo x >file; mkdir -p /tmp/d; echo y >/dev/shm/z; setsid sleep 300 &")
        async with pool.sandbox(SMALL) as second:
            assert second is first
            done = await second.exec("ls /workspace /tmp /dev/shm; for p in /proc/[0-9]*; do cat $p/cmdline; done")
            assert done.stdout.split("\0")[0].startswith("/dev/shm:\n\n/tmp:\n\n/workspace:\n")
            assert "sleep\x00300" not in done.stdout
        assert (pool.metrics.made, pool.metrics.reused, pool.metrics.reset.count) == (1, 1, 1)


@in_loop
async def test_no_more_than_max_live_are_out_and_all_are_served(bubblewrap: str) -> None:
    out = most = 0

    async def use(pool: Pool) -> str:
        nonlocal out, most
        async with pool.sandbox(SMALL) as sandbox:
            out += 1
            most = max(most, out)
            done = await sandbox.exec("ls; touch used; echo done")
            out -= 1
            return done.stdout

    async with Pool(bubblewrap, max_live=3) as pool:
        done = await asyncio.gather(*(use(pool) for _ in range(20)))
        assert done == ["done\n"] * 20
        assert most == 3
        assert pool.metrics.made == 3
        assert pool.metrics.wait.count == 20
        assert pool.metrics.wait.p95 >= pool.metrics.wait.p50 >= 0


@in_loop
async def test_those_who_came_first_are_served_first(bubblewrap: str) -> None:
    order: list[int] = []

    async def use(pool: Pool, number: int) -> None:
        async with pool.sandbox(SMALL if number % 2 else OTHER):
            order.append(number)

    async with Pool(bubblewrap, max_live=1, warm=0) as pool:
        await asyncio.gather(*(use(pool, number) for number in range(6)))
    assert order == list(range(6))


@in_loop
async def test_too_many_who_wait_are_turned_away(bubblewrap: str) -> None:
    async with Pool(bubblewrap, max_live=1, warm=0, max_waiting=1) as pool:
        held = await pool.acquire(SMALL)
        waits = asyncio.create_task(pool.acquire(SMALL))
        await asyncio.sleep(0)
        with pytest.raises(PoolBusy, match="1 already wait"):
            await pool.acquire(SMALL)
        pool.release(held)
        pool.release(await waits)


@in_loop
async def test_a_wait_that_is_cancelled_holds_up_nobody(bubblewrap: str) -> None:
    async with Pool(bubblewrap, max_live=1, warm=0) as pool:
        held = await pool.acquire(SMALL)
        first, second = (asyncio.create_task(pool.acquire(SMALL)) for _ in range(2))
        await asyncio.sleep(0.01)
        first.cancel()
        pool.release(held)
        pool.release(await second)
        assert first.cancelled()


@in_loop
async def test_sandboxes_are_made_ahead(bubblewrap: str) -> None:
    async with Pool(bubblewrap, max_live=4, warm=2) as pool:
        await pool.warm(SMALL)
        assert (pool.metrics.ready, pool.metrics.live) == (2, 2)
        await pool.acquire(SMALL)
        while pool.metrics.ready < 2:
            await asyncio.sleep(0.01)
        assert pool.metrics.live == 3


@in_loop
async def test_a_ready_one_of_another_spec_gives_way(bubblewrap: str) -> None:
    async with Pool(bubblewrap, max_live=1, warm=0) as pool:
        async with pool.sandbox(SMALL) as first:
            pass
        async with pool.sandbox(OTHER) as second:
            assert second.spec == OTHER
            assert second is not first
        assert pool.metrics.live == 1


@in_loop
async def test_an_unhealthy_one_is_replaced(bubblewrap: str) -> None:
    async with Pool(bubblewrap, max_live=1, warm=0) as pool:
        with pytest.raises(SandboxError):
            async with pool.sandbox(SMALL) as first:
                raise SandboxError("broken")
        async with pool.sandbox(SMALL) as second:
            assert second is not first
        assert (pool.metrics.discarded, pool.metrics.live) == (1, 1)


@in_loop
async def test_what_cannot_be_made_takes_no_place(bubblewrap: str) -> None:
    async with Pool(bubblewrap, max_live=1) as pool:
        for _ in range(2):
            with pytest.raises(SandboxError, match="no image"):
                await pool.acquire(SandboxSpec(image="no/such/image"))
        assert pool.metrics.live == 0


@in_loop
async def test_a_closed_pool_leaves_nothing(bubblewrap: str) -> None:
    before = Ledger.current().live()
    pool = Pool(bubblewrap, max_live=2, warm=2)
    held = [await pool.acquire(SMALL), await pool.acquire(SMALL)]
    waits = asyncio.create_task(pool.acquire(SMALL))
    await asyncio.sleep(0.01)
    pool.release(held[0])
    await pool.close()
    with pytest.raises(SandboxError, match="closed"):
        await waits
    assert Ledger.current().live() == before
    assert pool.metrics.live == 0


@in_loop
async def test_a_stranger_is_not_taken_back(bubblewrap: str) -> None:
    async with Pool(bubblewrap) as pool, Pool(bubblewrap) as another:
        theirs = await another.acquire(SMALL)
        with pytest.raises(RollenvError, match="not acquired from this pool"):
            pool.release(theirs)


def test_percentiles_are_nearest_ranks() -> None:
    timings = Timings()
    assert timings.seconds().count == 0
    for number in range(1, 101):
        timings.add(float(number))
    assert (timings.seconds().p50, timings.seconds().p95) == (50.0, 95.0)
