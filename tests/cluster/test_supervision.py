"""Engines that die are followed by others, sooner or later, and no completion is lost on the way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

from rollenv.cluster.engine import EngineWorker, RemoteEngine, start_engine
from rollenv.cluster.runtime import LocalRuntime, WorkerDied, WorkerSpec
from rollenv.cluster.supervision import Backoff, Supervisor
from rollenv.cluster.weights import Publisher
from rollenv.inference import EngineError, LLMProxy, SamplingParams, ScriptedEngine


@given(st.lists(st.floats(0, 300), max_size=40))
def test_waits_double_and_there_are_no_more_than_so_many_in_a_time(gaps: list[float]) -> None:
    backoff, now, begun = Backoff(first=1.0, longest=8.0, most=5, within=600.0), 0.0, []
    for gap in gaps:
        now += gap
        recent = [at for at in begun if now - at <= 600.0]
        wait = backoff.next(now)
        if len(recent) >= 5:
            assert wait is None
        else:
            assert wait == (0.0 if not recent else min(8.0, 2.0 ** (len(recent) - 1)))
            begun.append(now + wait)
            now += wait


class World:
    """Engines in a local runtime, all dead when their time has come."""

    def __init__(self, n: int, **options: Any) -> None:
        self.runtime, self.made, self.alive = LocalRuntime(), 0, {}
        self.supervisor = Supervisor(self.start, **options)
        self.names = [f"replica-{i}" for i in range(n)]

    async def start(self, name: str) -> RemoteEngine:
        self.made += 1

        def make() -> EngineWorker:
            return EngineWorker(
                lambda: ScriptedEngine(lambda prompt, sampling: [prompt[-1]] * 5, seconds_per_token=0.2)
            )

        engine = await start_engine(self.runtime, WorkerSpec(name, make), Publisher(self.runtime.put))
        self.alive[name] = engine
        return engine

    async def proxy(self) -> LLMProxy:
        engines = {name: await self.supervisor.begin(name) for name in self.names}
        return LLMProxy(engines, successor=self.supervisor.succeed)


async def ask(proxy: LLMProxy, i: int) -> list[int]:
    return (await proxy.generate([i], SamplingParams(), session=str(i))).ids


def test_the_only_engine_dies_and_its_completions_are_made_by_its_successor() -> None:
    async def test() -> None:
        world = World(1)
        proxy = await world.proxy()
        await proxy.update_weights(7, {})
        asked = [asyncio.ensure_future(ask(proxy, i)) for i in range(4)]
        await asyncio.sleep(0.3)
        world.alive["replica-0"].handle.kill()
        assert await asyncio.gather(*asked) == [[i] * 5 for i in range(4)]
        assert (world.made, world.supervisor.restarts, dict(proxy.dead)) == (2, 1, {})
        assert world.alive["replica-0"].version == 7, "the weights were sent again"
        await proxy.close()

    asyncio.run(test())


def test_who_dies_again_and_again_is_given_up_and_those_who_wait_are_told() -> None:
    async def test() -> None:
        world = World(1, backoff=lambda: Backoff(first=0.01, most=3))
        proxy = await world.proxy()

        async def killed() -> None:
            while True:
                await asyncio.sleep(0.1)
                world.alive["replica-0"].handle.kill()

        killer = asyncio.ensure_future(killed())
        while "began 3 times within 600 s" not in proxy.dead.get("replica-0", ""):
            with pytest.raises(EngineError):
                await ask(proxy, 1)
        killer.cancel()
        await proxy.close()

    asyncio.run(test())


def test_weights_that_come_while_the_only_engine_is_dead_are_its_successors() -> None:
    async def test() -> None:
        world = World(1)
        proxy = await world.proxy()
        start, may_begin = world.supervisor._start, asyncio.Event()

        async def late(name: str) -> RemoteEngine:
            await may_begin.wait()
            return await start(name)

        world.supervisor._start = late
        world.alive["replica-0"].handle.kill()
        await proxy.update_weights(7, {})
        assert proxy.version == 7
        assert not proxy.stats().replicas, "nobody is here yet"
        await proxy.update_weights(8, {})
        may_begin.set()
        assert await ask(proxy, 3) == [3] * 5
        assert world.alive["replica-0"].version == 8
        await proxy.close()

    asyncio.run(asyncio.wait_for(test(), 30))


def test_a_successor_that_does_not_begin_is_followed_by_another() -> None:
    async def test() -> None:
        world = World(1, backoff=lambda: Backoff(first=0.01, most=5))
        proxy = await world.proxy()
        start, fails = world.supervisor._start, 2

        async def broken(name: str) -> RemoteEngine:
            nonlocal fails
            fails -= 1
            if fails >= 0:
                raise WorkerDied(f"worker '{name}' died")
            return await start(name)

        world.supervisor._start = broken
        world.alive["replica-0"].handle.kill()
        assert await ask(proxy, 3) == [3] * 5
        fails = 100
        world.alive["replica-0"].handle.kill()
        with pytest.raises(EngineError):
            await ask(proxy, 3)
        assert "the last time of: it did not begin: worker 'replica-0' died" in proxy.dead["replica-0"]
        await proxy.close()

    asyncio.run(asyncio.wait_for(test(), 30))


def test_an_engine_that_dies_before_it_has_joined_does_not_end_the_watch() -> None:
    async def test() -> None:
        world = World(2, heartbeat=0.05, patience=0.5)
        proxy = await world.proxy()
        watch = asyncio.ensure_future(world.supervisor.watch(proxy))
        await proxy.update_weights(7, {})
        early = await world.supervisor.begin("early")
        world.alive["early"].handle.kill()
        await asyncio.sleep(0.5)
        assert not watch.done()
        with pytest.raises(EngineError):
            await proxy.join(early, name="early")
        watch.cancel()
        await proxy.close()

    asyncio.run(asyncio.wait_for(test(), 30))


def test_who_answers_no_ping_is_replaced_before_anybody_asks_it() -> None:
    async def test() -> None:
        world = World(2, heartbeat=0.1, patience=0.5)
        proxy = await world.proxy()
        watch = asyncio.ensure_future(world.supervisor.watch(proxy))
        deaf = world.alive["replica-1"]
        deaf.ping = asyncio.Event().wait  # type: ignore[method-assign,assignment]
        while world.made < 3:
            await asyncio.sleep(0.05)
        while "replica-1" in proxy.dead:
            await asyncio.sleep(0.01)
        assert await asyncio.gather(*(ask(proxy, i) for i in range(4))) == [[i] * 5 for i in range(4)]
        watch.cancel()
        await proxy.close()

    asyncio.run(asyncio.wait_for(test(), 30))


def test_who_is_about_to_leave_finishes_and_is_replaced() -> None:
    async def test() -> None:
        told = asyncio.Event()

        async def leaving() -> frozenset[str]:
            there = told.is_set() and world.alive["replica-1"] is old
            return frozenset({"replica-1"} if there else {})

        world = World(2, leaving=leaving, heartbeat=0.05)
        proxy = await world.proxy()
        await proxy.update_weights(7, {})
        watch = asyncio.ensure_future(world.supervisor.watch(proxy))
        old = world.alive["replica-1"]
        asked = [asyncio.ensure_future(ask(proxy, i)) for i in range(6)]
        await asyncio.sleep(0.3)
        told.set()
        assert await asyncio.gather(*asked) == [[i] * 5 for i in range(6)]
        assert proxy.stats().restarts == 0, "what ran there was finished there"
        while "replica-1" not in proxy.stats().replicas or world.alive["replica-1"] is old:
            await asyncio.sleep(0.05)
        assert (world.made, world.alive["replica-1"].version, dict(proxy.dead)) == (3, 7, {})
        watch.cancel()
        await proxy.close()

    asyncio.run(asyncio.wait_for(test(), 30))


def test_the_only_engine_stays_until_it_is_gone() -> None:
    async def test() -> None:
        async def leaving() -> frozenset[str]:
            return frozenset({"replica-0"})

        world = World(1, leaving=leaving, heartbeat=0.05)
        proxy = await world.proxy()
        watch = asyncio.ensure_future(world.supervisor.watch(proxy))
        await asyncio.sleep(0.3)
        assert await ask(proxy, 3) == [3] * 5
        assert world.made == 1
        watch.cancel()
        await proxy.close()

    asyncio.run(asyncio.wait_for(test(), 30))


def test_closing_waits_for_no_successor() -> None:
    async def test() -> None:
        world = World(1, backoff=lambda: Backoff(first=1e6))
        proxy = await world.proxy()
        for _ in range(2):
            world.alive["replica-0"].handle.kill()
            asked = asyncio.ensure_future(ask(proxy, 1))
            await asyncio.sleep(1.5)
        await proxy.close()
        assert await asyncio.gather(asked, return_exceptions=True)

    asyncio.run(asyncio.wait_for(test(), 30))
