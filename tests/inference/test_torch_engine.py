"""The embedded engine against transformers' own generate and forward, and against itself in other company."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from rollenv.inference import Completion, EngineError, SamplingParams, TorchEngine  # noqa: E402

VOCAB = 211
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
ARCHITECTURES = {
    "llama": ("Llama", {}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-biased": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama3-rope": (
        "Llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 256,
            }
        },
    ),
    "qwen2": ("Qwen2", {"num_attention_heads": 8, "num_key_value_heads": 1}),
    "qwen3": ("Qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    "mistral": ("Mistral", {"num_key_value_heads": 4}),
    "granite": ("Granite", {"logits_scaling": 3.0, "embedding_multiplier": 2.0, "residual_multiplier": 0.7}),
}


def build(name: str = "llama", seed: int = 0) -> Any:
    """A tiny random model whose scores are spread enough that greedy choices are no near-ties."""
    family, extra = ARCHITECTURES[name]
    config = getattr(transformers, f"{family}Config")(**(SIZES | extra))
    torch.manual_seed(seed)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4.0)
            elif not torch.equal(parameter, torch.ones_like(parameter)):
                parameter.normal_(0, 0.1)
    return model


@asynccontextmanager
async def engine_of(model: Any, **options: Any) -> AsyncIterator[TorchEngine]:
    engine = TorchEngine(model, **options)
    try:
        yield engine
    finally:
        await engine.close()


def in_engine(test: Callable[[TorchEngine], Awaitable[Any]], model: Any = None, **options: Any) -> Any:
    """Runs `test(engine)` in an event loop of its own."""

    async def run() -> Any:
        async with engine_of(model if model is not None else build(), **options) as engine:
            return await test(engine)

    return asyncio.run(run())


def tokens(n: int, seed: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(1, VOCAB) for _ in range(n)]


def greedy(max_tokens: int = 8) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0.0)


def reference_generate(model: Any, prompt: list[int], n: int) -> list[int]:
    ids = torch.tensor([prompt])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=n, do_sample=False)
    return out[0, len(prompt) :].tolist()


def reference_logprobs(model: Any, prompt: list[int], completion: list[int], temperature: float = 1.0) -> list[float]:
    with torch.no_grad():
        logits = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1].float() / temperature
    return logits.log_softmax(-1).gather(1, torch.tensor(completion)[:, None])[:, 0].tolist()


async def play(
    engine: TorchEngine,
    seed: int,
    turns: int = 4,
    sampling: Callable[[int], SamplingParams] | None = None,
    release: bool = False,
) -> tuple[list[int], list[Completion]]:
    """A multi-turn episode that grows by appending: its last history and its completions."""
    history: list[int] = []
    completions = []
    draw = random.Random(seed)
    for turn in range(turns):
        history += tokens(draw.choice([1, 5, 17, 60, 130]), seed * 100 + turn)
        params = (
            sampling(turn) if sampling else SamplingParams(max_tokens=draw.choice([1, 3, 9]), seed=seed * 10 + turn)
        )
        completion = await engine.generate(history, params, session=f"s{seed}")
        completions.append(completion)
        history = history + completion.ids
        if release:
            await engine.release(f"s{seed}")
    return history, completions


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


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


def start(coroutine: Coroutine[Any, Any, Completion]) -> asyncio.Task[Completion]:
    return asyncio.get_running_loop().create_task(coroutine)


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
        with pytest.raises(asyncio.CancelledError):
            await task
        assert engine.stats().running == 0
        await engine.generate([1], greedy(2), session="b")
        assert engine.stats().sessions == 1

    in_engine(test)


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
            with pytest.raises(EngineError, match=match):
                await engine.generate(prompt, greedy(), session="a")
        for params in (SamplingParams(max_tokens=0), SamplingParams(temperature=-1), SamplingParams(top_p=0)):
            with pytest.raises(EngineError):
                await engine.generate([1], params, session="a")
        assert (await engine.generate([1] * 1020, greedy(), session="a")).finish_reason == "length"
        busy = start(engine.generate([1], greedy(200), session="b"))
        await asyncio.sleep(0)
        with pytest.raises(EngineError, match="already generating"):
            await engine.generate([1], greedy(), session="b")
        await busy

    in_engine(test)


def test_a_budget_shorter_than_the_context_is_the_bound() -> None:
    async def test(engine: TorchEngine) -> None:
        assert engine.max_length == 512
        with pytest.raises(EngineError, match="kv_budget_bytes"):
            await engine.generate([1] * 600, greedy(), session="a")
        assert len((await engine.generate([1] * 510, greedy(), session="a")).ids) == 2

    in_engine(test, kv_budget_bytes=512 * 3 * 2 * 2 * 16 * 4)
    with pytest.raises(ValueError, match="kv_budget_bytes"):
        TorchEngine(build(), kv_budget_bytes=1000)


@pytest.mark.parametrize("stale_kv", ["keep", "drop", "recompute"])
def test_weights_change_between_tokens_and_each_token_knows_its_version(stale_kv: str) -> None:
    old, new = build(), build(seed=1)

    async def test(engine: TorchEngine) -> None:
        prompt = tokens(30, 0)
        task = start(engine.generate(prompt, greedy(60), session="a"))
        await until(lambda: engine.stats().decoded_tokens >= 5)
        await engine.update_weights(7, new.state_dict())
        assert engine.version == 7
        got = await task
        switch = got.policy_versions.index(7)
        assert got.policy_versions == [0] * switch + [7] * (60 - switch)
        assert switch >= 5
        assert got.ids[:switch] == reference_generate(old, prompt, switch)
        if stale_kv == "recompute":
            assert got.ids[switch:] == reference_generate(new, prompt + got.ids[:switch], 60 - switch)
        before = engine.stats().reused_tokens
        follow = prompt + got.ids + tokens(5, 1)
        after = await engine.generate(follow, greedy(), session="a")
        assert (engine.stats().reused_tokens > before) == (stale_kv != "drop")
        if stale_kv != "keep":
            assert after.ids == reference_generate(new, follow, 8)
        fresh = await engine.generate(prompt, greedy(), session="b")
        assert fresh.ids == reference_generate(new, prompt, 8)
        assert fresh.policy_versions == [7] * 8

    in_engine(test, old, stale_kv=stale_kv)


@pytest.mark.parametrize("name", ["llama-tied", "qwen3"])
def test_tied_weights_follow_whichever_name_carries_them(name: str) -> None:
    new = build(name, seed=1)

    async def test(engine: TorchEngine) -> None:
        prompt = tokens(30, 0)
        tensors = dict(new.state_dict())
        tensors.pop("lm_head.weight", None)
        await engine.update_weights(1, tensors)
        completion = await engine.generate(prompt, greedy(), session="a")
        assert completion.ids == reference_generate(new, prompt, 8)
        assert completion.logprobs == pytest.approx(reference_logprobs(new, prompt, completion.ids), abs=1e-5)

    in_engine(test, build(name))


def test_the_engine_owns_its_weights() -> None:
    model = build()

    async def test(engine: TorchEngine) -> None:
        prompt = tokens(30, 0)
        expected = reference_generate(model, prompt, 8)
        before = engine.stats()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        assert (await engine.generate(prompt, greedy(), session="a")).ids == expected
        assert before.decoded_tokens == 0
        assert model.config._attn_implementation == "sdpa"

    in_engine(test, model)


def test_bad_weights_are_refused_and_change_nothing() -> None:
    model = build()

    async def test(engine: TorchEngine) -> None:
        good = build(seed=1).state_dict()
        with pytest.raises(EngineError, match=r"did you mean 'model.norm.weight'"):
            await engine.update_weights(1, good | {"model.norm.wight": torch.zeros(64)})
        with pytest.raises(EngineError, match="shape"):
            await engine.update_weights(1, good | {"model.norm.weight": torch.zeros(63)})
        assert engine.version == 0
        prompt = tokens(30, 0)
        assert (await engine.generate(prompt, greedy(), session="a")).ids == reference_generate(model, prompt, 8)

    in_engine(test, model)


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
        with pytest.raises(EngineError, match="closed"):
            await engine.generate([1], greedy(), session="x")
        with pytest.raises(EngineError, match="closed"):
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


def test_what_torchscript_compiled_gives_the_same_bits_as_the_plain_function() -> None:
    from rollenv.inference import kernels

    async def test(engine: TorchEngine) -> Any:
        assert engine._runner._decode is not kernels.decode
        compiled = await play(engine, 3, release=True)
        engine._runner._decode = kernels.decode
        assert compiled == await play(engine, 3, release=True)

    in_engine(test, build("qwen3"))


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
