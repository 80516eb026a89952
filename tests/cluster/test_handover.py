"""Weights go from ranks to engines directly, and whoever cannot be reached so gets the same bits another way."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from cluster.conftest import InRuntime  # noqa: E402
from cluster.test_engine import N, alone, engine_worker  # noqa: E402
from inference.engines import build, play  # noqa: E402

import rollenv.cluster.engine as engine_module  # noqa: E402
import rollenv.cluster.handover as handover_module  # noqa: E402
from rollenv.cluster.engine import EngineWorker, RemoteEngine, start_engine  # noqa: E402
from rollenv.cluster.handover import Giver, Handover  # noqa: E402
from rollenv.cluster.runtime import LocalRuntime, Runtime, WorkerSpec  # noqa: E402
from rollenv.cluster.weights import Publisher  # noqa: E402
from rollenv.cluster.worker_group import WorkerGroup  # noqa: E402
from rollenv.inference import EngineDead, InvalidRequest, LLMProxy, ScriptedEngine  # noqa: E402
from rollenv.inference.base import WeightsGone  # noqa: E402
from rollenv.inference.buckets import layout  # noqa: E402


def rank(state: dict[str, Any]) -> Any:
    """What makes a training rank that has weights and nothing else."""

    class Rank(Giver):
        def __init__(self) -> None:
            super().__init__()
            self.sent = self.asked = 0
            self.state = state

        def present_weights(self) -> Any:
            self.asked += 1
            return self.state

        def device(self) -> Any:
            return torch.device("cpu")

        def change(self, state: dict[str, Any]) -> None:
            self.state = state

        def overwrite(self) -> None:
            for tensor in self.state.values():
                tensor.zero_()

        def hand_over(self, issue: int, link: bool, handles: bool) -> Any:
            self.sent += 1
            return super().hand_over(issue, link, handles)

        def counts(self) -> tuple[int, int]:
            """How often it gave, and how often somebody wanted weights that it had not kept."""
            return self.sent, self.asked - self.sent

    return Rank


async def parts(runtime: Runtime, model: Any, n: int) -> tuple[WorkerGroup, Handover, list[RemoteEngine]]:
    state = model.state_dict()
    ranks = await WorkerGroup.start(runtime, [WorkerSpec("rank", rank(state))])
    return ranks, Handover(ranks, ""), await engines(runtime, model, range(n))


async def engines(runtime: Runtime, model: Any, names: Sequence[int]) -> list[RemoteEngine]:
    publisher, make = Publisher(runtime.put), engine_worker(model.state_dict())
    specs = [WorkerSpec(f"engine-{i}", make) for i in names]
    return list(await asyncio.gather(*(start_engine(runtime, spec, publisher) for spec in specs)))


async def played(proxy: LLMProxy) -> list[Any]:
    return list(await asyncio.gather(*(play(proxy, i) for i in range(N))))


def said(episodes: list[Any]) -> list[Any]:
    """Episodes but for the versions that made them."""
    return [[(one.ids, one.logprobs) for one in completions] for _, completions in episodes]


async def released(proxy: LLMProxy) -> None:
    for i in range(N):
        await proxy.release(f"s{i}")


def test_engines_get_each_version_over_the_link_once_for_all(in_runtime: InRuntime) -> None:
    model, other = build(seed=0), build(seed=1)
    expected = alone(model, other.state_dict())

    async def test(runtime: Runtime) -> None:
        ranks, handover, found = await parts(runtime, model, 2)
        proxy = LLMProxy(found)
        await proxy.update_weights(1, handover.issue())
        await ranks.rank_zero("change", other.state_dict())
        await proxy.update_weights(2, handover.issue())
        assert proxy.version == 2
        assert [engine.version for engine in found] == [2, 2]
        assert await ranks.rank_zero("counts") == (2, 0)
        assert said(await played(proxy)) == said(expected)
        await proxy.close()
        await ranks.stop()

    in_runtime(test)


def test_engines_on_the_ranks_own_gpu_read_a_copy_of_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """With memory of this process in the place of a GPU's: handles of it are the tensors themselves."""
    for module in (engine_module, handover_module):
        monkeypatch.setattr(module, "gpu_of", lambda device: "GPU-0")
    monkeypatch.setattr(handover_module, "handles_of", lambda tensors: ("GPU-0", list(tensors.items())))
    monkeypatch.setattr(engine_module, "opened", lambda handles: dict(handles[1]))
    model, other = build("llama-tied", seed=0), build("llama-tied", seed=1)
    expected = alone(model, other.state_dict())

    async def test() -> None:
        runtime = LocalRuntime()
        held = rank(other.state_dict())()
        ranks = await WorkerGroup.start(runtime, [WorkerSpec("rank", lambda: held)])
        found = await engines(runtime, model, range(2))
        proxy = LLMProxy(found)
        lent: list[Any] = []
        monkeypatch.setattr(held, "let_go", lambda: (lent.append(held._lent), Giver.let_go(held)))
        await proxy.update_weights(1, Handover(ranks, "GPU-0").issue())
        assert [engine.version for engine in found] == [1, 1]
        assert await ranks.rank_zero("counts") == (1, 0)
        assert said(await played(proxy)) == said(expected)
        (buffers,), own = lent, {tensor.data_ptr() for tensor in held.state.values()}
        assert not own & {buffer.data_ptr() for buffer in buffers.values()}, "the rank trains on"
        assert sum(buffer.nbytes for buffer in buffers.values()) == sum(layout(other.state_dict())[1])
        assert held._lent == {}
        await proxy.close()
        await ranks.stop()
        await runtime.close()

    asyncio.run(test())


def test_one_that_joins_later_gets_what_the_rank_kept_and_not_what_it_has_by_then(in_runtime: InRuntime) -> None:
    model, other = build(seed=0), build(seed=1)
    expected = alone(model, other.state_dict())

    async def test(runtime: Runtime) -> None:
        ranks, handover, found = await parts(runtime, model, 1)
        proxy = LLMProxy(found)
        await ranks.rank_zero("change", other.state_dict())
        await proxy.update_weights(1, handover.issue())
        await ranks.rank_zero("change", build(seed=2).state_dict())
        (late,) = await engines(runtime, model, [7])
        name = await proxy.join(late)
        assert await ranks.rank_zero("counts") == (1, 0)
        await proxy.drain(next(one for one in proxy.stats().replicas if one != name))
        assert said(await played(proxy)) == said(expected)
        await released(proxy)
        await proxy.update_weights(2, handover.issue())
        assert late.version == 2
        assert await ranks.rank_zero("counts") == (2, 0)
        await proxy.close()
        await ranks.stop()

    in_runtime(test)


def test_an_engine_that_dies_leaves_the_others_with_the_new_weights(in_runtime: InRuntime) -> None:
    model, other = build(seed=0), build(seed=1)
    expected = alone(model, other.state_dict())

    async def test(runtime: Runtime) -> None:
        ranks, handover, found = await parts(runtime, model, 3)
        proxy = LLMProxy(found)
        await proxy.update_weights(1, handover.issue())
        found[1].handle.kill()
        await ranks.rank_zero("change", other.state_dict())
        await proxy.update_weights(2, handover.issue())
        assert [found[0].version, found[2].version] == [2, 2]
        assert sorted(proxy.stats().replicas) == ["replica-0", "replica-2"]
        assert said(await played(proxy)) == said(expected)
        sent, _ = await ranks.rank_zero("counts")
        await proxy.update_weights(3, handover.issue())  # over a link of those who are left
        assert (await ranks.rank_zero("counts"))[0] == sent + 1
        await proxy.close()
        await ranks.stop()

    in_runtime(test)


def test_a_link_that_breaks_is_made_anew_for_the_next_version(
    in_runtime: InRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(runtime: Runtime) -> None:
        ranks, handover, found = await parts(runtime, build(), 2)
        proxy = LLMProxy(found)
        for version in range(1, 5):
            if version == 3:  # over a link that has carried two versions
                await found[0].handle.call("leave_link")
            await proxy.update_weights(version, handover.issue())
            assert [engine.version for engine in found] == [version] * 2
            broken = [record for record in caplog.records if "hosts' memory" in record.getMessage()]
            assert len(broken) == (version >= 3)
        assert await ranks.rank_zero("counts") == (4, 0)
        await proxy.close()
        await ranks.stop()

    in_runtime(test)


def test_an_engine_that_hangs_holds_up_no_other(in_runtime: InRuntime) -> None:
    def hanging() -> Any:
        class Hangs(ScriptedEngine):
            async def update_weights(self, version: int, tensors: Any) -> None:
                await asyncio.Event().wait()

        return EngineWorker(lambda: Hangs(lambda prompt, sampling: [0]))

    async def test(runtime: Runtime) -> None:
        ranks, handover, (engine,) = await parts(runtime, build(), 1)
        hung = await start_engine(runtime, WorkerSpec("hangs", hanging), Publisher(runtime.put))
        held = handover.issue()
        waiting = asyncio.ensure_future(hung.update_weights(1, held))
        await engine.update_weights(1, held)
        assert engine.version == 1
        assert not waiting.done()
        hung.handle.kill()
        with pytest.raises(EngineDead):
            await waiting
        await engine.update_weights(2, handover.issue())
        assert engine.version == 2
        await engine.close()
        await ranks.stop()

    in_runtime(test)


def test_when_the_rank_is_gone_no_engine_says_that_it_has_what_it_has_not(in_runtime: InRuntime) -> None:
    async def test(runtime: Runtime) -> None:
        ranks, handover, found = await parts(runtime, build(), 2)
        proxy = LLMProxy(found)
        await proxy.update_weights(1, handover.issue())
        ranks.kill()
        with pytest.raises(WeightsGone):
            await proxy.update_weights(2, handover.issue())
        assert [engine.version for engine in found] == [1, 1]
        assert (proxy.version, dict(proxy.dead)) == (1, {}), "the engines have done nothing wrong"
        await proxy.close()

    in_runtime(test)


def test_weights_that_nobody_was_there_to_take_are_kept_for_who_comes(in_runtime: InRuntime) -> None:
    model, other = build(seed=0), build(seed=1)
    expected = alone(model, other.state_dict())

    async def test(runtime: Runtime) -> None:
        ranks, handover, (first,) = await parts(runtime, model, 1)
        may_come = asyncio.Event()

        async def successor(name: str, cause: str) -> RemoteEngine:
            await may_come.wait()
            return (await engines(runtime, model, [1]))[0]

        proxy = LLMProxy([first], successor=successor)
        first.handle.kill()
        await ranks.rank_zero("change", {name: one.clone() for name, one in other.state_dict().items()})
        await proxy.update_weights(1, handover.issue())
        await ranks.rank_zero("overwrite")  # as the next step of training does
        may_come.set()
        assert said(await played(proxy)) == said(expected)
        await proxy.close()
        await ranks.stop()

    in_runtime(test)


def test_a_refusal_is_heard_and_breaks_nothing(in_runtime: InRuntime) -> None:
    model = build()

    async def test(runtime: Runtime) -> None:
        ranks, handover, (engine,) = await parts(runtime, model, 1)
        await ranks.rank_zero("change", {"unknown": torch.ones(3)})
        with pytest.raises(InvalidRequest, match="unknown"):
            await engine.update_weights(1, handover.issue())
        await ranks.rank_zero("change", model.state_dict())
        await engine.update_weights(1, handover.issue())
        assert engine.version == 1
        assert await ranks.rank_zero("counts") == (2, 0)
        await engine.close()
        await ranks.stop()

    in_runtime(test)


def test_held_weights_can_be_read_from_any_thread_but_the_loops(in_runtime: InRuntime) -> None:
    model = build()

    async def test(runtime: Runtime) -> None:
        ranks, handover, _ = await parts(runtime, model, 0)
        held = handover.issue()
        read = await asyncio.to_thread(dict, held)
        assert threading.current_thread() is threading.main_thread()
        assert read.keys() == model.state_dict().keys()
        assert all(torch.equal(read[name], tensor) for name, tensor in model.state_dict().items())
        await ranks.stop()

    in_runtime(test)
