"""What the proxy does when engines fail, die or fall silent: nothing is lost, and who is told what."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from inference.clock import run_jumping
from inference.proxied import Hanging, Scripted, Silent, ask, count_up, engines, in_flight, ticks, tokens

from rollenv.inference import (
    Completion,
    EngineDead,
    EngineError,
    InvalidRequest,
    LLMProxy,
    SamplingParams,
)


def test_what_is_refused_reaches_the_caller_and_is_tried_once() -> None:
    async def run() -> None:
        replicas = engines(3)
        proxy = LLMProxy(replicas)
        with pytest.raises(InvalidRequest, match="tokenizer"):
            await proxy.generate([1], SamplingParams(stop=("x",)), session="s")
        assert sum(len(engine.asked) for engine in replicas) == 1
        assert proxy.stats().failures == 0
        assert (await proxy.generate([1], tokens(1), session="s")).ids == [2]

    asyncio.run(run())


@pytest.mark.parametrize(
    "fault",
    [EngineError("a step failed"), ConnectionError("gone"), asyncio.CancelledError(), EngineDead("it is closed")],
)
def test_a_completion_that_fails_begins_again_elsewhere(fault: BaseException) -> None:
    async def run() -> None:
        bad, good = replicas = engines(2)
        proxy = LLMProxy(replicas)
        await proxy.generate([1], tokens(1), session="s")
        bad.fault = fault
        assert (await proxy.generate([1, 2, 3], tokens(2), session="s")).ids == [4, 5]
        assert good.asked == ["s"]
        stats = proxy.stats()
        assert (stats.failures, stats.restarts, stats.moved_sessions) == (1, 1, 1)
        dies = isinstance(fault, EngineDead)
        assert dict(proxy.dead) == ({"replica-0": "it is closed"} if dies else {})
        await ticks()
        assert bad.closed == dies
        assert (await proxy.generate([1, 2, 3, 4], tokens(1), session="s")).ids == [5]
        assert good.asked == ["s", "s"]  # where its cache is now

    asyncio.run(run())


def test_an_engine_closed_under_the_proxy_loses_nothing() -> None:
    async def run() -> None:
        replicas = engines(2)
        proxy = LLMProxy(replicas)
        tasks = [ask(proxy, f"s{i}", tokens(50)) for i in range(6)]
        await ticks(10)
        await replicas[0].close()  # its completions end as aborted, which nobody has asked for
        assert [(await task).ids for task in tasks] == [count_up([1], tokens(50))] * 6
        await proxy.generate([1], tokens(1), session="new")
        assert list(proxy.dead) == ["replica-0"]

    asyncio.run(run())


def test_a_replica_that_fails_in_a_row_is_given_up_and_one_that_recovers_is_not() -> None:
    async def run() -> None:
        bad, _ = replicas = engines(2)
        proxy = LLMProxy(replicas, max_failures=2)
        bad.fault = EngineError("a step failed")
        assert len(await asyncio.gather(*(proxy.generate([1], tokens(1), session=f"a{i}") for i in range(8)))) == 8
        assert not proxy.dead  # four failed together: that is one failure
        bad.fault = None
        await asyncio.gather(*(proxy.generate([1], tokens(1), session=f"b{i}") for i in range(9)))
        bad.fault = EngineError("a step failed")
        for i in range(4):
            for j in range(20):
                await proxy.generate([1], tokens(1), session=f"c{i}/{j}")
        assert dict(proxy.dead) == {"replica-0": "a step failed"}
        assert proxy.stats().failures == 6

    asyncio.run(run())


def test_a_request_that_breaks_every_replica_fails_before_all_are_broken() -> None:
    async def run() -> None:
        replicas = engines(5)
        proxy = LLMProxy(replicas, max_restarts=2)
        for engine in replicas:
            engine.fault = EngineDead("out of memory")
        with pytest.raises(EngineError, match=r"it has failed on 3 replicas; replica '.*' failed: out of memory"):
            await proxy.generate([1], tokens(1), session="poison")
        assert len(proxy.stats().replicas) == 2

    asyncio.run(run())


def test_without_another_replica_the_fault_reaches_the_caller() -> None:
    async def run() -> None:
        engine = Scripted()
        proxy = LLMProxy([engine])
        engine.fault = MemoryError("no memory left")
        with pytest.raises(EngineError, match=r"no other replica serves; .* MemoryError: no memory left") as caught:
            await proxy.generate([1], tokens(1), session="s")
        assert isinstance(caught.value.__cause__.__cause__, MemoryError)
        engine.fault = None
        assert (await proxy.generate([1], tokens(1), session="s")).ids == [2]

    asyncio.run(run())


def test_when_no_replica_is_left_who_waits_and_who_comes_is_told_why() -> None:
    async def run() -> None:
        proxy = LLMProxy(engines(2, token_budget=10))
        tasks = [ask(proxy, f"s{i}", tokens(9)) for i in range(6)]
        await ticks()
        proxy.declare_dead("replica-0", "its machine is gone")
        proxy.declare_dead("replica-1", "this one, too")
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(outcome, EngineDead)
            assert "no replica is left; replica 'replica-" in str(outcome)
        with pytest.raises(EngineDead, match="'replica-1' died: this one, too"):
            await proxy.generate([1], tokens(1), session="late")
        with pytest.raises(EngineDead, match="no replica is left"):
            await proxy.update_weights(1, {})
        with pytest.raises(ValueError, match="no replica 'replica-0'"):
            proxy.declare_dead("replica-0", "again")
        await proxy.release("s0")

    asyncio.run(run())


def test_declared_dead_in_the_middle_of_completions() -> None:
    async def run() -> None:
        replicas = [Hanging(), *engines(2)]
        proxy = LLMProxy(replicas)
        tasks = [ask(proxy, f"s{i}", tokens(30)) for i in range(9)]
        await ticks(10)
        proxy.declare_dead("replica-0", "the supervisor says so")
        assert [(await task).ids for task in tasks] == [count_up([1], tokens(30))] * 9
        stats = proxy.stats()
        assert (stats.completions, stats.restarts, stats.failures) == (9, 3, 0)
        assert replicas[0].closed

    asyncio.run(run())


def test_a_caller_cancelled_together_with_the_death_of_its_replica_is_cancelled() -> None:
    async def run() -> None:
        proxy = LLMProxy([Hanging(), Hanging()])
        for victim in ("replica-0", "replica-1"):
            task = ask(proxy, "s")
            await ticks()
            if victim == "replica-0":
                task.cancel()
                proxy.declare_dead(victim, "gone")
            else:
                await proxy.join(Hanging())
                proxy.declare_dead(victim, "gone")
                task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert set(in_flight(proxy)) == {0}

    asyncio.run(run())


def test_an_abort_that_the_replica_does_not_survive_still_aborts() -> None:
    async def run() -> None:
        class Unkind(Hanging):
            async def abort(self, session: str) -> None:
                raise ConnectionError("gone")

        proxy = LLMProxy([Unkind(), *engines(1)])
        task = ask(proxy, "s")
        await ticks()
        await proxy.abort("s")
        assert await task == Completion([], [], [], "aborted")
        assert dict(proxy.dead) == {"replica-0": "ConnectionError: gone"}

    asyncio.run(run())


def test_a_replica_that_answers_nothing_is_given_up_and_one_that_is_busy_is_not() -> None:
    async def run() -> None:
        replicas = [Hanging(), Scripted(seconds_per_token=1.0)]
        proxy = LLMProxy(replicas, stall_seconds=60)
        tasks = [ask(proxy, f"s{i}", tokens(50)) for i in range(4)]
        for turn in range(5):
            for i in (1, 3):
                await tasks[i]
                tasks[i] = ask(proxy, f"s{i}", tokens(50))
            assert list(proxy.dead) == (["replica-0"] if turn else [])
        assert [(await task).ids for task in tasks] == [count_up([1], tokens(50))] * 4
        assert proxy.dead["replica-0"] == "it was asked and gave no answer for 60 s"

    run_jumping(run())


def test_callers_that_lose_patience_do_not_hide_a_replica_that_hangs() -> None:
    async def run() -> None:
        proxy = LLMProxy([Hanging(), *engines(1)], stall_seconds=60)
        for attempt in range(3):
            try:
                async with asyncio.timeout(25):
                    await proxy.generate([1], tokens(1), session=f"s{attempt}")
            except TimeoutError:
                await proxy.abort(f"s{attempt}")
            await asyncio.sleep(1000)  # without work it may be silent
        assert list(proxy.dead) == ["replica-0"]
        assert proxy.stats().completions == 1  # the third attempt's, at the other replica

    run_jumping(run())


def test_a_replica_that_takes_weights_but_makes_no_completions_is_given_up() -> None:
    async def run() -> None:
        proxy = LLMProxy([Silent(), *engines(1)], stall_seconds=60)
        task = ask(proxy, "s", tokens(3))
        for version in range(1, 9):
            await asyncio.sleep(11)
            await proxy.update_weights(version, {})
            assert list(proxy.dead) == (["replica-0"] if version > 5 else [])
        assert (await task).policy_versions == [5, 5, 5]

    run_jumping(run())


@pytest.mark.parametrize("seed", range(5))
def test_whatever_happens_to_replicas_each_session_gets_what_one_undisturbed_engine_says(seed: int) -> None:
    """150 sessions, and every few moments a replica joins, hangs, is drained, dies, or all get new weights."""

    async def run() -> None:
        proxy = LLMProxy(engines(3, token_budget=400, seconds_per_token=0.05), stall_seconds=30, max_restarts=99)
        drains: list[asyncio.Task[Any]] = []
        disturbance = asyncio.create_task(disturb(proxy, random.Random(seed), drains))
        aborted = await asyncio.gather(*(episode(proxy, f"s{i}", random.Random(f"{seed}/{i}")) for i in range(150)))
        disturbance.cancel()
        with pytest.raises(asyncio.CancelledError):
            await disturbance
        for outcome in await asyncio.gather(*drains, return_exceptions=True):
            assert isinstance(outcome, (Scripted, EngineDead))
        assert 0 < sum(aborted) < 150
        stats = proxy.stats()
        assert (stats.queued, stats.sessions) == (0, 0)
        assert {r.tokens_in_flight for r in stats.replicas.values()} == {0}
        assert stats.moved_sessions > 0
        await proxy.close()

    run_jumping(run())


async def episode(proxy: LLMProxy, session: str, luck: random.Random) -> int:
    """Plays some turns; returns how many of them were aborted."""
    history, n_aborted = [luck.randrange(100)], 0
    for _ in range(luck.randint(1, 5)):
        sampling = tokens(luck.randint(1, 40))
        task = ask(proxy, session, sampling, list(history))
        await asyncio.sleep(luck.random())
        if luck.random() < 0.1:
            await proxy.abort(session)
        completion = await task
        assert completion.ids == count_up(history, sampling)[: len(completion.ids)]
        assert completion.finish_reason == "aborted" or len(completion.ids) == sampling.max_tokens
        n_aborted += completion.finish_reason == "aborted"
        history += [*completion.ids, luck.randrange(100)]
    await proxy.release(session)
    return n_aborted


async def disturb(proxy: LLMProxy, luck: random.Random, drains: list[asyncio.Task[Any]]) -> None:
    """What happens to the replicas, until it is cancelled."""
    version = 0
    while True:
        await asyncio.sleep(luck.random())
        serving = [name for name, replica in proxy.stats().replicas.items() if replica.phase == "serving"]
        match luck.choice(["join", "join", "hang", "drain", "die", "update"]):
            case "join" if len(serving) < 5:
                await proxy.join(Scripted(token_budget=400, seconds_per_token=luck.choice([0, 0.01, 0.1])))
            case "hang" if len(serving) < 5:
                await proxy.join(Silent(token_budget=50))
            case "drain" if len(serving) > 2:
                drains.append(asyncio.create_task(proxy.drain(luck.choice(serving))))
            case "die" if len(serving) > 2:
                proxy.declare_dead(luck.choice(serving), "bad luck")
            case "update":
                version += 1
                await proxy.update_weights(version, {})
