"""The embedded engine's results, against transformers' own generate and forward, and in other company."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from inference.engines import (  # noqa: E402
    ARCHITECTURES,
    VOCAB,
    build,
    greedy,
    in_engine,
    play,
    reference_generate,
    reference_logprobs,
    tokens,
)

from rollenv.inference import EngineError, SamplingParams, TorchEngine  # noqa: E402


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_greedy_turns_equal_transformers_generate(name: str, fused: bool) -> None:
    model = build(name)

    async def test(engine: TorchEngine) -> None:
        histories: list[list[int]] = [[] for _ in range(3)]
        for turn in range(3):
            histories = [h + tokens(3 + 45 * i, 10 * turn + i) for i, h in enumerate(histories)]
            got = await asyncio.gather(*(engine.generate(h, greedy(), session=str(i)) for i, h in enumerate(histories)))
            for history, completion in zip(histories, got, strict=True):
                assert completion.ids == reference_generate(model, history, 8)
                assert completion.finish_reason == "length"
                assert completion.logprobs == pytest.approx(
                    reference_logprobs(model, history, completion.ids), abs=1e-5
                )
            histories = [h + c.ids for h, c in zip(histories, got, strict=True)]

    in_engine(test, model, fused=fused)


@pytest.mark.parametrize("name", ["llama", "qwen3"])
@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.5])
def test_logprobs_are_those_of_a_full_forward(name: str, temperature: float) -> None:
    model = build(name)

    async def test(engine: TorchEngine) -> None:
        sampling = SamplingParams(max_tokens=20, temperature=temperature, seed=3)
        prompt = tokens(40, 1)
        completion = await engine.generate(prompt, sampling, session="a")
        expected = reference_logprobs(model, prompt, completion.ids, temperature)
        assert completion.logprobs == pytest.approx(expected, abs=2e-5)
        assert completion.policy_versions == [0] * 20

    in_engine(test, model)


def test_each_turn_computes_only_what_is_new() -> None:
    async def test(engine: TorchEngine) -> None:
        history = tokens(50, 0)
        first = await engine.generate(history, greedy(6), session="a")
        assert engine.stats().prefilled_tokens == 50
        await engine.generate(history + first.ids + tokens(7, 1), greedy(6), session="a")
        stats = engine.stats()
        assert stats.prefilled_tokens == 50 + 1 + 7  # the last sampled token had not been read yet
        assert stats.reused_tokens == 55
        assert stats.decoded_tokens == 12

    in_engine(test)


def test_a_prompt_that_does_not_extend_the_cache_keeps_the_common_prefix() -> None:
    model = build()

    async def test(engine: TorchEngine) -> None:
        head = tokens(30, 0)
        await engine.generate(head + tokens(20, 1), greedy(), session="a")
        other = [*head, VOCAB - 1, *tokens(9, 2)]
        completion = await engine.generate(other, greedy(), session="a")
        assert engine.stats().reused_tokens == 30
        assert completion.ids == reference_generate(model, other, 8)
        again = await engine.generate(other[:25], greedy(), session="a")
        assert again.ids == reference_generate(model, other[:25], 8)

    in_engine(test, model)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("llama-biased", "float32"), ("qwen2", "float32"), ("granite", "float32"), ("qwen3", "bfloat16")],
)
def test_results_are_the_same_bits_alone_and_in_any_batch(name: str, dtype: str) -> None:
    model = build(name).to(getattr(torch, dtype))

    def mixed(turn: int) -> SamplingParams:
        kinds = [{}, {"temperature": 0.0}, {"temperature": 0.6, "top_k": 20}, {"top_p": 0.8}]
        return SamplingParams(max_tokens=7 - turn, seed=turn, **kinds[turn % 4])

    async def test(engine: TorchEngine) -> None:
        assert engine.exact
        alone = [await play(engine, i, sampling=mixed, release=True) for i in range(8)]
        together = await asyncio.gather(*(play(engine, i, sampling=mixed) for i in range(8)))
        assert alone == together  # ids and log-probabilities; nothing cached against everything cached
        order = list(range(8))
        random.Random(1).shuffle(order)
        for i in range(8):
            await engine.release(f"s{i}")
        shuffled = await asyncio.gather(*(play(engine, i, sampling=mixed) for i in order))
        assert [shuffled[order.index(i)] for i in range(8)] == alone

    in_engine(test, model)


@pytest.mark.parametrize(
    "options",
    [
        {"workers": 1},
        {"workers": 2},
        {"workers": 3},
        {"workers": 2, "max_step_tokens": 70},
        {"max_step_tokens": 16},
        {"max_batch": 2},
        {"max_sessions": 3},
        {"kv_budget_bytes": 3 * 512 * 3 * 2 * 2 * 16 * 4},
    ],
    ids=str,
)
def test_results_do_not_depend_on_the_engines_limits(options: dict[str, Any]) -> None:
    async def test(engine: TorchEngine) -> Any:
        return await asyncio.gather(*(play(engine, i) for i in range(6)))

    assert in_engine(test, **options) == in_engine(test, workers=1)


def test_long_histories_outgrow_their_slot_and_stay_exact() -> None:
    model = build()

    async def test(engine: TorchEngine) -> None:
        history = tokens(480, 0)
        for turn in range(4):
            completion = await engine.generate(history, greedy(), session="a")
            assert completion.ids == reference_generate(model, history, 8)
            fresh = await engine.generate(history, greedy(), session=f"fresh{turn}")
            assert fresh == completion
            history = history + completion.ids + tokens(40, turn + 1)
        assert engine.stats().reused_tokens > 3 * 480

    in_engine(test, model)


def test_a_seed_decides_and_different_seeds_differ() -> None:
    async def test(engine: TorchEngine) -> None:
        prompt = tokens(10, 0)
        draws = [
            (await engine.generate(prompt, SamplingParams(max_tokens=12, temperature=3.0, seed=s), session=str(i))).ids
            for i, s in enumerate([5, 5, 6, -1, 2**70])
        ]
        assert draws[0] == draws[1]
        assert len({tuple(d) for d in draws}) == 4

    in_engine(test)


def test_stop_tokens_and_stop_strings_end_a_completion_and_are_kept() -> None:
    class Letters:
        def decode(self, ids: Any, *, skip_special_tokens: bool) -> str:
            assert not skip_special_tokens
            return "".join(f"<{i}>" for i in ids)

    async def test(engine: TorchEngine) -> None:
        prompt = tokens(10, 0)
        full = (await engine.generate(prompt, greedy(10), session="a")).ids
        cut = full.index(full[4]) + 1
        by_token = await engine.generate(
            prompt, SamplingParams(max_tokens=10, temperature=0, stop_token_ids=(full[4], VOCAB + 5)), session="b"
        )
        assert (by_token.ids, by_token.finish_reason) == (full[:cut], "stop")
        text = f"{full[3]}><{full[4]}"
        by_text = await engine.generate(prompt, SamplingParams(max_tokens=10, temperature=0, stop=(text,)), session="c")
        assert by_text.finish_reason == "stop"
        assert by_text.ids == full[: len(by_text.ids)]
        assert by_text.ids[-2:] == full[3:5]

    in_engine(test, tokenizer=Letters())


def test_stop_strings_without_a_tokenizer_are_refused() -> None:
    async def test(engine: TorchEngine) -> None:
        with pytest.raises(EngineError, match="tokenizer"):
            await engine.generate([1], SamplingParams(stop=("x",)), session="a")

    in_engine(test)


def test_what_torchscript_compiled_gives_the_same_bits_as_the_plain_function() -> None:
    from rollenv.inference import kernels

    async def test(engine: TorchEngine) -> Any:
        assert engine._runner._decode is not kernels.decode
        compiled = await play(engine, 3, release=True)
        engine._runner._decode = kernels.decode
        assert compiled == await play(engine, 3, release=True)

    in_engine(test, build("qwen3"))
