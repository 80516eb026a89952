"""An engine elsewhere is an engine here: the same bits, the same errors, the same end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from cluster.conftest import InRuntime  # noqa: E402
from inference.engines import build, play  # noqa: E402

from rollenv.cluster.engine import EngineWorker, RemoteEngine, start_engine  # noqa: E402
from rollenv.cluster.runtime import Runtime, WorkerSpec  # noqa: E402
from rollenv.cluster.weights import Publisher  # noqa: E402
from rollenv.inference import EngineDead, InvalidRequest, LLMProxy, SamplingParams, TorchEngine  # noqa: E402
from rollenv.inference.base import made_before  # noqa: E402

N = 4


def engine_worker(state: dict[str, Any]) -> Any:
    """What makes the worker there: a model of the same shape, with these weights."""

    def make() -> EngineWorker:
        model = transformers.LlamaForCausalLM(config)
        model.load_state_dict(state)
        torch.set_num_threads(1)
        return EngineWorker(lambda: TorchEngine(model, workers=1))

    config = build().config
    return make


async def started(runtime: Runtime, model: Any, n: int) -> list[RemoteEngine]:
    publisher, make = Publisher(runtime.put), engine_worker(model.state_dict())
    specs = [WorkerSpec(f"engine-{i}", make) for i in range(n)]
    return list(await asyncio.gather(*(start_engine(runtime, spec, publisher) for spec in specs)))


def alone(model: Any, weights: Any = None) -> list[Any]:
    """The episodes as one engine of this process plays them."""

    async def main() -> list[Any]:
        engine = TorchEngine(model, workers=1)
        if weights is not None:
            await engine.update_weights(1, weights)
        try:
            return list(await asyncio.gather(*(play(engine, i) for i in range(N))))
        finally:
            await engine.close()

    return asyncio.run(main())


def test_episodes_are_the_same_bits_as_here_before_and_after_an_update(in_runtime: InRuntime) -> None:
    model, other = build(seed=0), build(seed=1)
    expected, after = alone(model), alone(model, other.state_dict())

    async def test(runtime: Runtime) -> None:
        proxy = LLMProxy(await started(runtime, model, 2))
        assert await asyncio.gather(*(play(proxy, i) for i in range(N))) == expected
        for i in range(N):
            await proxy.release(str(i))
        await proxy.update_weights(1, other.state_dict())
        assert proxy.version == 1
        assert await asyncio.gather(*(play(proxy, i) for i in range(N))) == after
        await proxy.close()

    in_runtime(test)


def test_refusals_come_through(in_runtime: InRuntime) -> None:
    async def test(runtime: Runtime) -> None:
        (engine,) = await started(runtime, build(), 1)
        assert (engine.version, engine.max_length) == (0, 1024)
        with pytest.raises(InvalidRequest):
            await engine.generate([], SamplingParams(), session="a")
        with pytest.raises(InvalidRequest):
            await engine.update_weights(1, {"unknown": torch.zeros(1)})
        assert engine.version == 0
        await engine.close()

    in_runtime(test)


def test_a_cancelled_caller_ends_the_work_and_hears_what_was_made(in_runtime: InRuntime) -> None:
    async def test(runtime: Runtime) -> None:
        (engine,) = await started(runtime, build(), 1)
        made = None
        for delay in (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4):  # until it has been at it for a while, on any machine
            caller = asyncio.ensure_future(engine.generate([4, 5, 6], SamplingParams(max_tokens=1000), session="b"))
            await asyncio.sleep(delay)
            caller.cancel()
            with pytest.raises(asyncio.CancelledError) as error:
                await caller
            made = made_before(error.value)
            if made is not None and made.ids:
                break
        assert made is not None
        assert 0 < len(made.ids) < 1000
        assert len(made.ids) == len(made.logprobs) == len(made.policy_versions)
        await engine.close()

    in_runtime(test)


def test_when_an_engine_is_killed_the_others_finish_its_episodes(in_runtime: InRuntime) -> None:
    model = build()
    expected = alone(model)

    async def test(runtime: Runtime) -> None:
        engines = await started(runtime, model, 2)
        proxy = LLMProxy(engines)
        episodes = [asyncio.ensure_future(play(proxy, i)) for i in range(N)]
        while not proxy.stats().replicas["replica-0"].running:
            await asyncio.sleep(0)
        engines[0].handle.kill()
        assert await asyncio.gather(*episodes) == expected
        assert list(proxy.dead) == ["replica-0"]
        with pytest.raises(EngineDead):
            await engines[0].generate([1], SamplingParams(), session="x")
        await proxy.close()

    in_runtime(test)
