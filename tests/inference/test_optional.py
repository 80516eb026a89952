"""What engines may offer on top reaches them through proxies, layers and workers; those that do not are left alone."""

from __future__ import annotations

import asyncio

import pytest
from in_loop import in_loop

from rollenv.inference import EngineDead, LLMProxy, ScriptedEngine, optional
from rollenv.rollout.layers import EngineLayer


class Sleeper(ScriptedEngine):
    """Notes what it is told."""

    def __init__(self) -> None:
        super().__init__(lambda prompt, sampling: [1])
        self.told: list[str] = []

    async def check(self) -> None:
        self.told.append("check")

    async def sleep(self) -> None:
        self.told.append("sleep")

    async def wake(self) -> None:
        self.told.append("wake")


class Insomniac(Sleeper):
    """Dies of sleeping."""

    async def sleep(self) -> None:
        raise EngineDead("it was killed in its sleep")


@in_loop
async def test_all_replicas_sleep_and_wake_and_those_that_cannot_go_on() -> None:
    sleepers, plain = [Sleeper(), Sleeper()], ScriptedEngine(lambda prompt, sampling: [1])
    proxy = LLMProxy([*(EngineLayer(one) for one in sleepers), plain])
    await optional.sleep(proxy)
    await optional.wake(proxy)
    assert [one.told for one in sleepers] == [["sleep", "wake"]] * 2
    assert dict(proxy.dead) == {}
    await proxy.close()


@in_loop
async def test_a_replica_that_dies_asleep_is_given_up() -> None:
    proxy = LLMProxy({"good": Sleeper(), "bad": Insomniac()})
    await optional.sleep(proxy)
    assert list(proxy.dead) == ["bad"]
    await proxy.close()


@in_loop
async def test_an_engine_is_asked_how_it_is_only_if_it_can_tell() -> None:
    engine = Sleeper()
    await optional.check(EngineLayer(engine))
    await optional.check(ScriptedEngine(lambda prompt, sampling: [1]))
    assert engine.told == ["check"]


def test_a_worker_passes_on_what_its_engine_can() -> None:
    pytest.importorskip("torch")
    from rollenv.cluster.engine import EngineWorker, start_engine
    from rollenv.cluster.runtime import LocalRuntime, WorkerSpec
    from rollenv.cluster.weights import Publisher

    inside = Sleeper()

    async def test() -> None:
        runtime = LocalRuntime()
        engine = await start_engine(runtime, WorkerSpec("one", lambda: EngineWorker(lambda: inside)), Publisher(id))
        await engine.ping()
        await optional.sleep(engine)
        await optional.wake(engine)
        await runtime.close()

    asyncio.run(test())
    assert inside.told == ["check", "sleep", "wake"]
