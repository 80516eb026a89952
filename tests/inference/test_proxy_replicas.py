"""Weights on their way to the replicas of a proxy; replicas that join and drain."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from inference.clock import run_jumping
from inference.proxied import Hanging, Scripted, ask, count_up, engines, ticks, tokens

from rollenv.inference import (
    EngineDead,
    EngineError,
    InvalidRequest,
    LLMProxy,
)


def test_an_update_returns_when_every_replica_has_it() -> None:
    async def run() -> None:
        replicas = engines(3, version=4)
        proxy = LLMProxy(replicas)
        gate = asyncio.Event()
        slow = replicas[1].update_weights

        async def wait_first(version: int, tensors: Mapping[str, Any]) -> None:
            await gate.wait()
            await slow(version, tensors)

        replicas[1].update_weights = wait_first  # type: ignore[method-assign]
        update = asyncio.create_task(proxy.update_weights(5, {}))
        await ticks(20)
        assert not update.done()
        assert [engine.version for engine in replicas] == [5, 4, 5]
        assert proxy.version == 4
        versions = [(await proxy.generate([1], tokens(1), session=str(i))).policy_versions for i in range(3)]
        assert versions == [[5], [4], [5]]  # nobody waits; each token says who made it
        gate.set()
        await update
        assert proxy.version == 5
        assert [engine.version for engine in replicas] == [5, 5, 5]

    asyncio.run(run())


def test_a_replica_that_fails_an_update_or_hangs_in_it_is_dead_and_its_work_goes_on_elsewhere() -> None:
    async def run() -> None:
        class Failing(Scripted):
            async def update_weights(self, version: int, tensors: Mapping[str, Any]) -> None:
                raise OSError("link down")

        replicas = [Failing(), Hanging(), *engines(1)]
        proxy = LLMProxy(replicas, stall_seconds=60)
        tasks = [ask(proxy, f"s{i}", tokens(30)) for i in range(3)]
        await ticks()
        await proxy.update_weights(1, {})
        assert proxy.dead["replica-0"] == "it did not take the weights of version 1: OSError: link down"
        assert list(proxy.dead) == ["replica-0", "replica-1"]
        assert [(await task).ids for task in tasks] == [count_up([1], tokens(30))] * 3
        assert proxy.version == 1

    run_jumping(run())


class Picky(Scripted):
    """Refuses weights of odd versions."""

    async def update_weights(self, version: int, tensors: Mapping[str, Any]) -> None:
        if version % 2:
            raise InvalidRequest("no such weight")
        await super().update_weights(version, tensors)


def test_weights_that_all_refuse_are_the_callers_mistake_and_change_nothing() -> None:
    async def run() -> None:
        proxy = LLMProxy([Picky(), Picky()])
        with pytest.raises(InvalidRequest, match="no such weight"):
            await proxy.update_weights(1, {})
        assert (proxy.version, dict(proxy.dead)) == (0, {})
        await proxy.update_weights(2, {})
        await proxy.join(Scripted())
        await proxy.update_weights(3, {})  # who refuses what another takes would serve other weights
        assert list(proxy.dead) == ["replica-0", "replica-1"]
        assert proxy.dead["replica-0"] == "it refused the weights of version 3: no such weight"
        assert proxy.version == 3

    asyncio.run(run())


def test_a_completion_that_begins_again_under_other_weights_is_of_these_alone() -> None:
    async def run() -> None:
        class Late(Scripted):
            async def update_weights(self, version: int, tensors: Mapping[str, Any]) -> None:
                await asyncio.Event().wait()

        proxy = LLMProxy([Late(), *engines(1)])
        task = ask(proxy, "s", tokens(40))
        update = asyncio.create_task(proxy.update_weights(1, {}))
        await ticks(20)
        proxy.declare_dead("replica-0", "gone")
        assert (await task).policy_versions == [1] * 40
        await update

    asyncio.run(run())


def test_an_update_whose_caller_is_cancelled_still_reaches_all() -> None:
    async def run() -> None:
        replicas = engines(3)
        proxy = LLMProxy(replicas)
        update = asyncio.create_task(proxy.update_weights(1, {}))
        await asyncio.sleep(0)
        update.cancel()
        with pytest.raises(asyncio.CancelledError):
            await update
        await proxy.update_weights(2, {})  # after the first
        assert [engine.version for engine in replicas] == [2, 2, 2]

    asyncio.run(run())


def test_a_replica_that_joins_has_the_present_weights_before_it_serves() -> None:
    async def run() -> None:
        torch = pytest.importorskip("torch")
        proxy = LLMProxy(engines(1, token_budget=10))
        weights = {"a": torch.ones(2), "b": torch.zeros(2)}
        await proxy.update_weights(1, weights)
        await proxy.update_weights(2, {"b": torch.full((2,), 5.0)})  # a stays
        weights["a"].fill_(-1.0)  # the trainer goes on
        running, waiting = ask(proxy, "s0", tokens(9)), ask(proxy, "s1", tokens(3))
        await asyncio.sleep(0)
        newcomer = Scripted(token_budget=4)
        assert await proxy.join(newcomer, name="new") == "new"
        assert (await waiting).policy_versions == [2, 2, 2]
        assert newcomer.asked in ([], ["s1"])
        assert newcomer.version == 2
        assert {name: tensor.tolist() for name, tensor in newcomer.weights.items()} == {"a": [1, 1], "b": [5, 5]}
        assert (await running).ids == count_up([1], tokens(9))
        with pytest.raises(ValueError, match="already"):
            await proxy.join(Scripted(), name="new")
        with pytest.raises(ValueError, match="each replica needs its own"):
            await proxy.join(newcomer)

    asyncio.run(run())


def test_who_waits_starts_on_the_replica_that_joins() -> None:
    async def run() -> None:
        proxy = LLMProxy([Hanging(token_budget=10)])
        running = ask(proxy, "s0", tokens(9))
        waiting = ask(proxy, "s1", tokens(9))
        await ticks()
        await proxy.join(Scripted())
        assert (await waiting).ids == count_up([1], tokens(9))
        running.cancel()

    asyncio.run(run())


def test_a_replica_that_cannot_join_does_not() -> None:
    async def run() -> None:
        proxy = LLMProxy([Scripted(max_length=100, version=3)])
        with pytest.raises(ValueError, match=r"version 0, the present ones are of 3 .* update_weights first"):
            await proxy.join(Scripted(max_length=100))
        with pytest.raises(ValueError, match="50 tokens at most, but the proxy has promised 100"):
            await proxy.join(Scripted(max_length=50, version=3))
        assert await proxy.join(Scripted(version=3)) == "replica-1"
        await proxy.update_weights(5, {"w": pytest.importorskip("torch").ones(1)})
        picky = Picky()
        with pytest.raises(EngineError, match="'replica-2' could not join: it refused the weights of version 5"):
            await proxy.join(picky)
        assert list(proxy.stats().replicas) == ["replica-0", "replica-1"]
        await ticks()
        assert picky.closed

    asyncio.run(run())


def test_a_drained_replica_finishes_what_it_runs_hands_over_the_rest_and_may_join_again() -> None:
    async def run() -> None:
        leaving, staying = replicas = engines(2)
        proxy = LLMProxy(replicas)
        await proxy.generate([1], tokens(1), session="idle")
        filler = ask(proxy, "filler", tokens(20))
        running = ask(proxy, "running", tokens(10))
        await ticks()
        assert leaving.asked == ["idle", "running"]
        drains = [asyncio.create_task(proxy.drain("replica-0")) for _ in range(3)]
        await ticks()
        assert proxy.stats().replicas["replica-0"].phase == "draining"
        drains[0].cancel()  # nobody's change of mind stops it
        assert (await proxy.generate([1, 2], tokens(1), session="idle")).ids == [3]
        assert staying.asked == ["filler", "idle"]
        assert await drains[1] is await drains[2] is leaving
        assert (await running).ids == count_up([1], tokens(10))
        assert sorted(leaving.released) == ["idle", "running"]
        assert not leaving.closed
        assert list(proxy.stats().replicas) == ["replica-1"]
        await proxy.generate([1], tokens(1), session="running")
        assert staying.asked[-1] == "running"
        await proxy.join(leaving, name="replica-0")
        await filler
        with pytest.raises(ValueError, match="no replica 'replica-7'"):
            await proxy.drain("replica-7")

    asyncio.run(run())


def test_a_replica_that_dies_while_it_drains_says_so_and_loses_nothing() -> None:
    async def run() -> None:
        proxy = LLMProxy([Hanging(), Scripted()])
        task = ask(proxy, "s", tokens(5))
        await ticks()
        drain = asyncio.create_task(proxy.drain("replica-0"))
        await ticks()
        proxy.declare_dead("replica-0", "gone")
        with pytest.raises(EngineDead, match="'replica-0' died: gone"):
            await drain
        assert (await task).ids == count_up([1], tokens(5))
        with pytest.raises(ValueError, match="last one that serves"):
            await proxy.drain("replica-1")

    asyncio.run(run())
