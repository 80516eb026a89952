"""Both runtimes, for tests that hold in either."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from rollenv.cluster.runtime import LocalRuntime, Runtime

InRuntime = Callable[[Callable[[Runtime], Awaitable[Any]]], Any]


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Any]:
    """A cluster of this machine with four devices that it pretends to have; it lives for the whole session."""
    pytest.importorskip("ray")
    from rollenv.cluster.ray_runtime import RayRuntime
    from rollenv.config.train import RayConfig

    runtime = RayRuntime(RayConfig(fake_gpus=4))
    yield runtime
    asyncio.run(runtime.close())


@pytest.fixture(params=["local", "ray"])
def in_runtime(request: pytest.FixtureRequest) -> InRuntime:
    """Runs a test with a runtime, in an event loop of its own."""

    def run(test: Callable[[Runtime], Awaitable[Any]]) -> Any:
        async def main() -> Any:
            if request.param == "ray":
                return await test(request.getfixturevalue("ray_cluster"))
            runtime = LocalRuntime()
            try:
                return await test(runtime)
            finally:
                await runtime.close()

        return asyncio.run(main())

    return run
