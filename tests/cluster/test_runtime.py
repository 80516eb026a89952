"""What holds for a worker wherever it lives: calls, errors, death."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from concurrent.futures import Future
from typing import Any

import pytest
from cluster.conftest import InRuntime

from rollenv.cluster.head import Replies
from rollenv.cluster.runtime import Runtime, WorkerDied, WorkerSpec
from rollenv.cluster.worker_group import WorkerGroup


def counter() -> type:
    """The class, made inside a function: what cannot be imported where a worker lives travels with it."""

    class Counter:
        def __init__(self, start: int = 0) -> None:
            if start < 0:
                raise ValueError("counts from 0")
            self.n, self.gate = start, asyncio.Event()

        def add(self, n: int, twice: bool = False) -> int:
            self.n += n * (1 + twice)
            return self.n

        def thread(self) -> str:
            return threading.current_thread().name

        def fail(self) -> None:
            raise KeyError("nothing there")

        def total(self, numbers: Any) -> int:
            return int(sum(numbers))

        def variable(self, name: str) -> str | None:
            return os.environ.get(name)

        def niceness(self) -> int:
            return os.nice(0)

        async def wait(self) -> str:
            await asyncio.wait_for(self.gate.wait(), 30)
            return "opened"

        async def open(self) -> None:
            self.gate.set()

    return Counter


def spec(name: str = "counter", start: int = 0, **more: Any) -> WorkerSpec:
    cls = counter()
    return WorkerSpec(name, lambda: cls(start), **more)


def test_methods_are_called_by_name_and_keep_their_state(in_runtime: InRuntime) -> None:
    async def test(runtime: Runtime) -> None:
        handle = await runtime.start(spec(start=5))
        assert await handle.call("add", 2) == 7
        assert await handle.call("add", 2, twice=True) == 11
        assert len({await handle.call("thread") for _ in range(3)}) == 1, "one thread of its own"
        assert await handle.call("thread") != threading.current_thread().name
        await handle.stop()

    in_runtime(test)


def test_coroutines_run_side_by_side(in_runtime: InRuntime) -> None:
    async def test(runtime: Runtime) -> None:
        handle = await runtime.start(spec())
        waiting = [asyncio.ensure_future(handle.call("wait")) for _ in range(3)]
        assert await handle.call("add", 1) == 1
        await handle.call("open")
        assert await asyncio.gather(*waiting) == ["opened"] * 3
        await handle.stop()

    in_runtime(test)


def test_a_reference_arrives_as_what_it_stands_for(in_runtime: InRuntime) -> None:
    async def test(runtime: Runtime) -> None:
        handle = await runtime.start(spec())
        numbers = runtime.put([1, 2, 3])
        assert await asyncio.gather(*(handle.call("total", numbers) for _ in range(3))) == [6, 6, 6]
        await handle.stop()

    in_runtime(test)


def test_errors_come_through_as_they_are_and_the_worker_lives(in_runtime: InRuntime) -> None:
    async def test(runtime: Runtime) -> None:
        with pytest.raises(ValueError, match="counts from 0"):
            await runtime.start(spec(start=-1))
        handle = await runtime.start(spec())
        with pytest.raises(KeyError, match="nothing there"):
            await handle.call("fail")
        assert await handle.call("add", 1) == 1
        await handle.stop()
        with pytest.raises(WorkerDied, match="'counter' has ended"):
            await handle.call("add", 1)

    in_runtime(test)


def test_who_waits_for_a_worker_that_is_killed_hears_of_it(in_runtime: InRuntime) -> None:
    async def test(runtime: Runtime) -> None:
        handle = await runtime.start(spec("doomed"))
        waiting = asyncio.ensure_future(handle.call("wait"))
        await handle.call("add", 1)
        handle.kill()
        with pytest.raises(WorkerDied, match="doomed"):
            await asyncio.wait_for(waiting, 20)

    in_runtime(test)


def test_groups_are_called_as_one(in_runtime: InRuntime) -> None:
    async def test(runtime: Runtime) -> None:
        group = await WorkerGroup.start(runtime, [spec(f"rank-{i}", start=10 * i) for i in range(3)])
        assert await group.broadcast("add", 1) == [1, 11, 21]
        assert await group.scatter("add", [0, 1, 2]) == [1, 12, 23]
        assert await group.rank_zero("add", 5) == 6
        with pytest.raises(ValueError, match="2 parts for 3 ranks"):
            await group.scatter("add", [1, 2])
        await group.stop()

    in_runtime(test)


def test_a_group_that_cannot_start_whole_does_not_start(in_runtime: InRuntime) -> None:
    async def test(runtime: Runtime) -> None:
        with pytest.raises(ValueError, match="counts from 0"):
            await WorkerGroup.start(runtime, [spec("a"), spec("b", start=-1)])

    in_runtime(test)


def test_a_group_with_a_dead_rank_fails_at_once(in_runtime: InRuntime) -> None:
    async def test(runtime: Runtime) -> None:
        group = await WorkerGroup.start(runtime, [spec("a"), spec("b")])
        waiting = asyncio.ensure_future(group.broadcast("wait"))
        await group.rank_zero("add", 1)
        group.handles[1].kill()
        with pytest.raises(WorkerDied):
            await asyncio.wait_for(waiting, 20)
        group.kill()

    in_runtime(test)


def test_a_ray_worker_sees_the_devices_of_its_mapping(ray_cluster: Any) -> None:
    async def test() -> None:
        ray_cluster.reserve((1, 2, 3))
        try:
            handle = await ray_cluster.start(spec("mapped", devices=(3, 1), share=0.5, env={"ROLLENV_TEST": "here"}))
            assert await handle.call("variable", "CUDA_VISIBLE_DEVICES") == "3,1"
            assert await handle.call("variable", "OMP_WAIT_POLICY") == "PASSIVE"
            assert await handle.call("variable", "ROLLENV_TEST") == "here"
            await handle.stop()
        finally:
            ray_cluster.give_back()

    asyncio.run(test())


def test_devices_are_counted_among_those_that_the_node_was_started_with(ray_cluster: Any) -> None:
    async def test() -> None:
        ray_cluster.reserve((1, 2, 3))
        try:
            seen = {"CUDA_VISIBLE_DEVICES": "4,5,GPU-8a1,7"}
            handle = await ray_cluster.start(spec("mapped", devices=(3, 1), share=0.5, env=seen))
            assert await handle.call("variable", "CUDA_VISIBLE_DEVICES") == "7,5"
            await handle.stop()
        finally:
            ray_cluster.give_back()

    asyncio.run(test())


def test_what_ray_says_of_an_actor_that_it_has_ended_is_a_death() -> None:
    """Ray's memory monitor needs a machine without memory; what it then raises is not the error of other deaths."""
    exceptions, module = pytest.importorskip("ray.exceptions"), pytest.importorskip("rollenv.cluster.ray_runtime")

    class Ended:
        def __getattr__(self, method: str) -> Any:
            return self

        def remote(self, *args: Any) -> Any:
            return self

        def future(self) -> Any:
            reply: Future[Any] = Future()
            reply.set_exception(exceptions.OutOfMemoryError("killed by the memory monitor"))
            return reply

    async def test() -> None:
        with pytest.raises(WorkerDied, match="worker 'rank-0' died: killed by the memory monitor"):
            await module._RayHandle("rank-0", Ended(), Replies()).call("step")

    asyncio.run(test())


def test_a_ray_worker_waits_for_nobody_that_its_starter_would_not_wait_for(ray_cluster: Any) -> None:
    async def test() -> None:
        handle = await ray_cluster.start(spec("nice"))
        assert await handle.call("niceness") == os.nice(0)
        await handle.stop()

    asyncio.run(test())


ENDED_LATE = """
import asyncio
import ray
from rollenv.cluster.ray_runtime import RayRuntime
from rollenv.cluster.runtime import WorkerSpec
from rollenv.config.cluster import RayConfig

class Nothing:
    def close(self):
        pass

async def main():
    runtime = RayRuntime(RayConfig())
    handle = await runtime.start(WorkerSpec("late", Nothing))
    await runtime.close()
    handle.kill()
    print("joined another" if ray.is_initialized() else "ended")

asyncio.run(main())
"""


def test_a_ray_worker_that_is_ended_after_its_runtime_joins_no_other_cluster(ray_cluster: Any) -> None:
    done = subprocess.run([sys.executable, "-c", ENDED_LATE], capture_output=True, text=True, timeout=200)
    assert done.stdout.split("\n")[-2:] == ["ended", ""], done.stderr


def test_a_cluster_that_is_not_there_is_one_sentence() -> None:
    pytest.importorskip("ray")
    import subprocess
    import sys

    code = (
        "from rollenv.cluster.ray_runtime import RayRuntime; from rollenv.config.cluster import RayConfig\n"
        "from rollenv.errors import RollenvError\n"
        "try: RayRuntime(RayConfig(address='127.0.0.1:1'))\n"
        "except RollenvError as error: print(error)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert "no Ray cluster at ray.address=127.0.0.1:1" in out.stdout, out.stderr
