"""Who holds the cache of the embedded engine: budgets, evictions, and what is refused."""

from __future__ import annotations

import asyncio

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from inference.engines import (  # noqa: E402
    VOCAB,
    build,
    greedy,
    in_engine,
    reference_generate,
    start,
    tokens,
)

from rollenv.inference import InvalidRequest, SamplingParams, TorchEngine  # noqa: E402


def test_the_budget_holds_and_evicted_sessions_come_back_unchanged() -> None:
    per_slot = 512 * 3 * 2 * 2 * 16 * 4
    model = build()

    async def test(engine: TorchEngine) -> None:
        histories = {i: tokens(20 + i, i) for i in range(6)}
        for turn in range(2):
            for i, history in histories.items():
                completion = await engine.generate(history, greedy(4), session=str(i))
                assert completion.ids == reference_generate(model, history, 4)
                assert engine.stats().kv_bytes <= 4 * per_slot
                histories[i] = history + completion.ids + tokens(3, 10 * turn + i)
        stats = engine.stats()
        assert stats.evictions == 12 - 4
        assert stats.reused_tokens == 0  # round robin over six with room for four: always the wrong one is there
        kept = await engine.generate(histories[5], greedy(4), session="5")
        assert engine.stats().reused_tokens > 0
        assert kept.ids == reference_generate(model, histories[5], 4)

    in_engine(test, model, kv_budget_bytes=4 * per_slot)


@pytest.mark.parametrize("stale_kv", ["drop", "keep"])
def test_a_forked_session_computes_only_what_it_does_not_share(stale_kv: str) -> None:
    model, prompt = build(), tokens(200, 1)
    other = build(seed=1).state_dict()

    async def test(engine: TorchEngine) -> None:
        first = await engine.generate(prompt, greedy(6), session="a")
        await engine.fork("a", "b")
        await engine.fork("nobody", "c")
        before = engine.stats()
        longer = [*prompt, *first.ids, *tokens(5, 2)]
        branched = await engine.generate(longer, greedy(6), session="b")
        assert engine.stats().prefilled_tokens - before.prefilled_tokens <= 6
        alone = await engine.generate(longer, greedy(6), session="c")
        assert engine.stats().prefilled_tokens - before.prefilled_tokens >= len(longer)
        assert (branched.ids, branched.logprobs) == (alone.ids, alone.logprobs)
        assert branched.ids == reference_generate(model, longer, 6)
        back = await engine.generate([*prompt, *first.ids], greedy(6), session="a")  # the source is as it was
        assert back.ids == reference_generate(model, [*prompt, *first.ids], 6)
        await engine.fork("a", "d")
        await engine.update_weights(1, other)
        shared = engine.stats().reused_tokens
        await engine.generate(longer, greedy(2), session="d")
        assert (engine.stats().reused_tokens > shared) is (stale_kv == "keep")

    in_engine(test, model, stale_kv=stale_kv)


def test_a_source_that_is_evicted_or_in_the_way_costs_only_time() -> None:
    per_slot = 512 * 3 * 2 * 2 * 16 * 4
    model, prompt = build(), tokens(60, 3)

    async def test(engine: TorchEngine) -> None:
        await engine.generate(prompt, greedy(4), session="a")
        for name in ("b", "c"):
            await engine.fork("a", name)
        for name in ("b", "c"):
            made = await engine.generate(prompt, greedy(4), session=name)
            assert made.ids == reference_generate(model, prompt, 4)
        await engine.fork("a", "d")
        await engine.release("d")
        assert engine.stats().sessions <= 1

    in_engine(test, model, kv_budget_bytes=per_slot)


def test_a_long_session_pushes_out_short_idle_ones() -> None:
    per_slot = 512 * 3 * 2 * 2 * 16 * 4
    model = build()

    async def test(engine: TorchEngine) -> None:
        for i in range(4):
            await engine.generate(tokens(20, i), greedy(4), session=str(i))
        prompt = tokens(600, 9)
        completion = await engine.generate(prompt, greedy(4), session="long")
        assert completion.ids == reference_generate(model, prompt, 4)
        assert engine.stats().kv_bytes <= 4 * per_slot

    in_engine(test, model, kv_budget_bytes=4 * per_slot)


def test_what_cannot_be_served_is_refused_with_a_sentence() -> None:
    async def test(engine: TorchEngine) -> None:
        for prompt, match in [
            ([], "empty"),
            ([1] * 1024, "model's context ends at 1024"),
            ([VOCAB], "outside"),
            ([-1], "outside"),
        ]:
            with pytest.raises(InvalidRequest, match=match):
                await engine.generate(prompt, greedy(), session="a")
        for params in (SamplingParams(max_tokens=0), SamplingParams(temperature=-1), SamplingParams(top_p=0)):
            with pytest.raises(InvalidRequest):
                await engine.generate([1], params, session="a")
        assert (await engine.generate([1] * 1020, greedy(), session="a")).finish_reason == "length"
        busy = start(engine.generate([1], greedy(200), session="b"))
        await asyncio.sleep(0)
        with pytest.raises(InvalidRequest, match="already generating"):
            await engine.generate([1], greedy(), session="b")
        await busy

    in_engine(test)


def test_a_budget_shorter_than_the_context_is_the_bound() -> None:
    async def test(engine: TorchEngine) -> None:
        assert engine.max_length == engine.token_budget == 512
        with pytest.raises(InvalidRequest, match="kv_budget_bytes"):
            await engine.generate([1] * 600, greedy(), session="a")
        assert len((await engine.generate([1] * 510, greedy(), session="a")).ids) == 2

    in_engine(test, kv_budget_bytes=512 * 3 * 2 * 2 * 16 * 4)
    with pytest.raises(ValueError, match="kv_budget_bytes"):
        TorchEngine(build(), kv_budget_bytes=1000)
