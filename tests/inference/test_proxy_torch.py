"""The proxy over embedded engines: the same bits as from one engine, whatever happens to the replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from inference.engines import VOCAB, build, greedy, in_engine, play, reference_generate, tokens, until  # noqa: E402

from rollenv.inference import Completion, EngineDead, InvalidRequest, LLMProxy, TorchEngine  # noqa: E402

N = 8


@dataclass
class Undisturbed:
    """N episodes of several turns as one engine plays them, and what it computed for them."""

    episodes: list[tuple[list[int], list[Completion]]]
    prefilled_tokens: int
    reused_tokens: int


@pytest.fixture(scope="module")
def model() -> Any:
    return build()


@pytest.fixture(scope="module")
def undisturbed(model: Any) -> Undisturbed:
    async def test(engine: TorchEngine) -> Undisturbed:
        assert engine.exact
        episodes = await asyncio.gather(*(play(engine, i) for i in range(N)))
        return Undisturbed(episodes, engine.stats().prefilled_tokens, engine.stats().reused_tokens)

    return in_engine(test, model)  # type: ignore[no-any-return]


def in_proxy(test: Callable[[LLMProxy, list[TorchEngine]], Awaitable[None]], model: Any, n: int) -> None:
    """Runs `test(proxy, its n engines)` in an event loop of its own."""

    async def run() -> None:
        engines = [TorchEngine(model) for _ in range(n)]
        proxy = LLMProxy(engines)
        try:
            await test(proxy, engines)
        finally:
            await proxy.close()

    asyncio.run(run())


def test_a_fork_goes_where_the_cache_is(model: Any) -> None:
    async def test(proxy: LLMProxy, engines: list[TorchEngine]) -> None:
        prompt = tokens(150, 4)
        for name in ("x", "a", "y"):
            await proxy.generate(prompt, greedy(4), session=name)
        await proxy.fork("a", "b")
        await proxy.fork("nobody", "c")
        assert proxy._router.home_of("b") == proxy._router.home_of("a")
        before = sum(engine.stats().prefilled_tokens for engine in engines)
        made = await proxy.generate(prompt, greedy(4), session="b")
        assert made.ids == reference_generate(model, prompt, 4)
        assert sum(engine.stats().prefilled_tokens for engine in engines) - before == 1
        for name in ("x", "a", "y", "b"):
            await proxy.release(name)
        assert sum(engine.stats().sessions for engine in engines) == 0

    in_proxy(test, model, 2)


def decoded(engines: list[TorchEngine]) -> int:
    return sum(engine.stats().decoded_tokens for engine in engines)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_any_number_of_replicas_gives_the_bits_of_one_engine_and_reuses_as_much(
    n: int, model: Any, undisturbed: Undisturbed
) -> None:
    async def test(proxy: LLMProxy, engines: list[TorchEngine]) -> None:
        assert (proxy.max_length, proxy.token_budget) == (engines[0].max_length, n * engines[0].token_budget)
        assert await asyncio.gather(*(play(proxy, i) for i in range(N))) == undisturbed.episodes
        stats = [engine.stats() for engine in engines]
        assert all(s.sessions > 0 for s in stats)
        assert sum(s.reused_tokens for s in stats) == undisturbed.reused_tokens > 0
        assert sum(s.prefilled_tokens for s in stats) == undisturbed.prefilled_tokens
        for i in range(N):
            await proxy.release(f"s{i}")
        assert [engine.stats().sessions for engine in engines] == [0] * n

    in_proxy(test, model, n)


@pytest.mark.parametrize("death", ["declared", "closed", "failing steps"])
@pytest.mark.parametrize("after", [3, 40])
def test_a_replica_that_dies_in_the_middle_of_completions_changes_no_bit(
    death: str, after: int, model: Any, undisturbed: Undisturbed
) -> None:
    class Broken:
        def __call__(self, batch: Any) -> Any:
            raise RuntimeError("device lost")

    async def test(proxy: LLMProxy, engines: list[TorchEngine]) -> None:
        playing = asyncio.gather(*(play(proxy, i) for i in range(N)))
        await until(lambda: decoded(engines) >= after and engines[0].stats().running > 0)
        if death == "declared":
            proxy.declare_dead("replica-0", "its machine is gone")
        elif death == "closed":
            await engines[0].close()
        else:
            engines[0]._runner = Broken()
        assert await playing == undisturbed.episodes
        stats = proxy.stats()
        assert stats.restarts > 0
        assert stats.moved_sessions > 0
        assert stats.completions == sum(len(completions) for _, completions in undisturbed.episodes)

    in_proxy(test, model, 2)


def test_draining_and_joining_under_load_change_no_bit(model: Any, undisturbed: Undisturbed) -> None:
    async def test(proxy: LLMProxy, engines: list[TorchEngine]) -> None:
        playing = asyncio.gather(*(play(proxy, i) for i in range(N)))
        await until(lambda: decoded(engines) >= 3)
        newcomer = TorchEngine(model)
        await proxy.join(newcomer)
        left = await proxy.drain("replica-0")
        assert left is engines[0]
        assert (engines[0].stats().running, engines[0].stats().sessions) == (0, 0)
        await proxy.join(left)
        await proxy.drain("replica-1")
        assert await playing == undisturbed.episodes
        stats = proxy.stats()
        assert list(stats.replicas) == ["replica-2", "replica-3"]
        assert stats.moved_sessions > 0
        assert stats.restarts == stats.failures == 0
        await engines[1].close()

    in_proxy(test, model, 2)


def test_a_newcomer_speaks_with_the_present_weights_even_when_the_trainer_has_gone_on(model: Any) -> None:
    new = build(seed=1)
    state = {name: tensor.clone() for name, tensor in new.state_dict().items()}

    async def test(proxy: LLMProxy, engines: list[TorchEngine]) -> None:
        await proxy.update_weights(7, state)
        for tensor in state.values():
            tensor.zero_()
        newcomer = TorchEngine(model)
        await proxy.join(newcomer)
        prompt = tokens(30, 0)
        got = await asyncio.gather(*(proxy.generate(prompt, greedy(), session=str(i)) for i in range(4)))
        assert [(c.ids, c.policy_versions) for c in got] == [(reference_generate(new, prompt, 8), [7] * 8)] * 4
        assert newcomer.stats().decoded_tokens == engines[0].stats().decoded_tokens == 16

    in_proxy(test, model, 1)


def test_faults_of_a_request_are_told_from_faults_of_a_replica(model: Any) -> None:
    async def test(proxy: LLMProxy, engines: list[TorchEngine]) -> None:
        for prompt, match in [([], "empty"), ([1] * 1024, "context ends at 1024"), ([VOCAB], "outside")]:
            with pytest.raises(InvalidRequest, match=match):
                await proxy.generate(prompt, greedy(), session="s")
        with pytest.raises(InvalidRequest, match="no weight 'nonsense'"):
            await proxy.update_weights(1, {"nonsense": torch.zeros(1)})
        assert (proxy.version, dict(proxy.dead), proxy.stats().failures) == (0, {}, 0)
        for engine in engines:
            await engine.close()
        with pytest.raises(EngineDead, match=r"no replica is left; replica '.*' failed: the engine is closed"):
            await proxy.generate([1], greedy(), session="s")

    in_proxy(test, model, 2)
