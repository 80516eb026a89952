"""New weights for the embedded engine, between two tokens."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from inference.engines import (  # noqa: E402
    build,
    greedy,
    in_engine,
    reference_generate,
    reference_logprobs,
    start,
    tokens,
    until,
)

from rollenv.inference import InvalidRequest, TorchEngine  # noqa: E402


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
        with pytest.raises(InvalidRequest, match=r"did you mean 'model.norm.weight'"):
            await engine.update_weights(1, good | {"model.norm.wight": torch.zeros(64)})
        with pytest.raises(InvalidRequest, match="shape"):
            await engine.update_weights(1, good | {"model.norm.weight": torch.zeros(63)})
        assert engine.version == 0
        prompt = tokens(30, 0)
        assert (await engine.generate(prompt, greedy(), session="a")).ids == reference_generate(model, prompt, 8)

    in_engine(test, model)
