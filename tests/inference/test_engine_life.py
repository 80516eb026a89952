"""How the embedded engine's work ends: aborts, cancelled callers, failing steps, closing, idling."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from inference.engines import (  # noqa: E402
    build,
    greedy,
    in_engine,
    play,
    reference_generate,
    start,
    tokens,
    until,
)

from rollenv.inference import Completion, EngineDead, EngineError, TorchEngine  # noqa: E402
from rollenv.inference.base import made_before  # noqa: E402


def test_abort_returns_at_once_what_there_is_and_frees_the_cache() -> None:
    async def test(engine: TorchEngine) -> None:
        prompt = tokens(10, 0)
        long = start(engine.generate(prompt, greedy(400), session="a"))
        other = start(engine.generate(prompt, greedy(30), session="b"))
        await until(lambda: engine.stats().decoded_tokens >= 10)
        await engine.abort("a")
        got = await asyncio.wait_for(long, 1)
        assert got.finish_reason == "aborted"
        assert 0 < len(got.ids) == len(got.logprobs) == len(got.policy_versions) < 400
        kept = await other
        assert (kept.finish_reason, len(kept.ids)) == ("length", 30)
        assert got.ids[:30] == kept.ids[: len(got.ids)]
        assert engine.stats().sessions == 1
        await engine.abort("nobody")
        again = await engine.generate(prompt, greedy(5), session="a")
        assert again.ids == kept.ids[:5]

    in_engine(test)


def test_abort_of_a_queued_completion() -> None:
    async def test(engine: TorchEngine) -> None:
        first = start(engine.generate([1], greedy(300), session="a"))
        await until(lambda: engine.stats().running == 1)
        second = start(engine.generate([1], greedy(300), session="b"))
        await until(lambda: engine.stats().queued == 1)
        await engine.abort("b")
        assert await second == Completion([], [], [], "aborted")
        await engine.abort("a")
        assert (await first).finish_reason == "aborted"

    in_engine(test, max_batch=1)


def test_a_cancelled_caller_aborts_its_session() -> None:
    async def test(engine: TorchEngine) -> None:
        task = start(engine.generate([1], greedy(900), session="a"))
        await until(lambda: engine.stats().decoded_tokens > 3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        made = made_before(caught.value)
        assert made is not None
        assert len(made.ids) == len(made.logprobs) == len(made.policy_versions) == engine.stats().decoded_tokens > 3
        assert engine.stats().running == 0
        await engine.generate([1], greedy(2), session="b")
        assert engine.stats().sessions == 1

    in_engine(test)


def test_a_failing_step_fails_its_completions_only() -> None:
    model = build()

    async def test(engine: TorchEngine) -> None:
        prompt = tokens(20, 0)
        runner, failures = engine._runner, 1

        class Failing:
            def __call__(self, batch: Any) -> Any:
                nonlocal failures
                if failures:
                    failures -= 1
                    raise MemoryError("no memory left")
                return runner(batch)

        engine._runner = Failing()
        results = await asyncio.gather(
            *(engine.generate(prompt, greedy(), session=str(i)) for i in range(3)), return_exceptions=True
        )
        assert all(isinstance(r, EngineError) and "no memory left" in str(r) for r in results)
        assert engine.stats().sessions == 0
        completion = await engine.generate(prompt, greedy(), session="0")
        assert completion.ids == reference_generate(model, prompt, 8)

    in_engine(test, model)


def test_close_ends_what_runs_and_refuses_what_comes() -> None:
    async def test() -> None:
        engine = TorchEngine(build(), max_batch=1)
        tasks = [start(engine.generate([1], greedy(900), session=str(i))) for i in range(3)]
        await until(lambda: engine.stats().decoded_tokens > 3)
        await engine.close()
        await engine.close()
        assert [(await t).finish_reason for t in tasks] == ["aborted"] * 3
        with pytest.raises(EngineDead, match="closed"):
            await engine.generate([1], greedy(), session="x")
        with pytest.raises(EngineDead, match="closed"):
            await engine.update_weights(1, {})

    asyncio.run(test())


def test_an_engine_outlives_the_event_loop_it_was_first_used_in() -> None:
    engine = TorchEngine(build())
    prompt = tokens(12, 0)
    first = asyncio.run(engine.generate(prompt, greedy(), session="a"))

    async def leave_work_behind() -> None:
        task = start(engine.generate(prompt, greedy(900), session="left"))
        await until(lambda: engine.stats().running == 1)
        task.cancel()

    asyncio.run(leave_work_behind())
    assert asyncio.run(engine.generate(prompt, greedy(), session="a")) == first
    asyncio.run(engine.close())


def test_workers_that_share_use_one_core_each_and_leave_the_callers_threads_alone() -> None:
    before = torch.get_num_threads()

    async def test(engine: TorchEngine) -> None:
        await engine.generate([1], greedy(2), session="a")
        assert [w.submit(torch.get_num_threads).result() for w in engine._workers] == [1, 1]
        assert torch.get_num_threads() == before

    in_engine(test, workers=2)


def test_idle_engines_do_not_spin() -> None:
    async def test(engine: TorchEngine) -> None:
        await engine.generate([1], greedy(2), session="a")
        await until(lambda: not engine._work.is_set())
        steps = engine.stats().steps
        await asyncio.sleep(0.02)
        assert engine.stats().steps == steps
        assert not engine._work.is_set()

    in_engine(test)


def test_many_sessions_come_and_go_with_aborts_and_updates() -> None:
    """Whatever the timing, every completion that ran to its end under one version is what it would have been alone."""
    model, other = build(), build(seed=1)

    async def test(engine: TorchEngine) -> None:
        draw = random.Random(0)
        results: dict[int, tuple[list[int], list[Completion]]] = {}

        async def episode(i: int) -> None:
            await asyncio.sleep(draw.random() * 0.05)
            results[i] = await play(engine, i)
            await engine.release(f"s{i}")

        async def disturb() -> None:
            for n in range(10):
                await asyncio.sleep(draw.random() * 0.01)
                noise = start(engine.generate(tokens(40, n), greedy(200), session=f"noise{n}"))
                await asyncio.sleep(draw.random() * 0.01)
                await engine.abort(f"noise{n}")
                await noise

        await asyncio.gather(disturb(), *(episode(i) for i in range(12)))
        for i in range(12):
            assert results[i] == await play(engine, i, release=True)
        await engine.update_weights(1, other.state_dict())
        assert engine.stats().running == engine.stats().queued == 0

    in_engine(test, model, kv_budget_bytes=16 * 512 * 3 * 2 * 2 * 16 * 4, max_batch=10)
