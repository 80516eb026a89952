"""Both runtimes, for tests that hold in either."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from rollenv.cluster.runtime import LocalRuntime, Runtime

InRuntime = Callable[[Callable[[Runtime], Awaitable[Any]]], Any]


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
