"""The proxy over engines without a model: who serves, who waits, and what faults, drains, joins and updates do."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from inference.clock import run_jumping

from rollenv.inference import (
    Completion,
    EngineDead,
    EngineError,
    InvalidRequest,
    LLMProxy,
    SamplingParams,
    ScriptedEngine,
)
from rollenv.inference.base import made_before

LONG = SamplingParams(max_tokens=10**6)


def count_up(prompt: Sequence[int], sampling: SamplingParams) -> list[int]:
    return [prompt[-1] + 1 + i for i in range(min(sampling.max_tokens, 100_000))]


class Scripted(ScriptedEngine):
    """Counts up; says what it was asked; breaks on demand: `fault` is raised after so many ticks by each completion."""

    def __init__(self, **options: Any) -> None:
        super().__init__(count_up, **options)
        self.asked: list[str] = []
        self.released: list[str] = []
        self.fault: BaseException | None = None
        self.closed = False

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams, *, session: str) -> Completion:
        self.asked.append(session)
        if self.fault is not None:
            await asyncio.sleep(0)
            raise self.fault
        return await super().generate(prompt_ids, sampling, session=session)

    async def release(self, session: str) -> None:
        self.released.append(session)
        await super().release(session)

    async def close(self) -> None:
        self.closed = True
        await super().close()


class Silent(Scripted):
    """Takes requests, and never answers."""

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams, *, session: str) -> Completion:
        self.asked.append(session)
        await asyncio.Event().wait()
        raise AssertionError("unreachable")


class Hanging(Silent):
    """Does not even take weights."""

    async def update_weights(self, version: int, tensors: Mapping[str, Any]) -> None:
        await asyncio.Event().wait()


def engines(n: int, **options: Any) -> list[Scripted]:
    return [Scripted(**options) for _ in range(n)]


def tokens(n: int) -> SamplingParams:
    return SamplingParams(max_tokens=n)


def ask(proxy: LLMProxy, session: str, sampling: SamplingParams = LONG, prompt: Sequence[int] = (1,)) -> Any:
    return asyncio.create_task(proxy.generate(prompt, sampling, session=session))


async def ticks(n: int = 5) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


def in_flight(proxy: LLMProxy) -> list[int]:
    return [replica.tokens_in_flight for replica in proxy.stats().replicas.values()]


# -- who serves, who waits ---------------------------------------------------------------------------------------------


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


# -- faults ------------------------------------------------------------------------------------------------------------


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


# -- silence -----------------------------------------------------------------------------------------------------------


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


# -- weights -----------------------------------------------------------------------------------------------------------


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


# -- joining and draining ----------------------------------------------------------------------------------------------


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


# -- the end -----------------------------------------------------------------------------------------------------------


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


# -- everything at once ------------------------------------------------------------------------------------------------


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
