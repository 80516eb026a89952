"""Engines without a model for tests of the proxy, and what the tests ask of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from rollenv.inference import (
    Completion,
    LLMProxy,
    SamplingParams,
    ScriptedEngine,
)

LONG = SamplingParams(max_tokens=10**6)


def count_up(prompt: Sequence[int], sampling: SamplingParams) -> list[int]:
    return [prompt[-1] + 1 + i for i in range(min(sampling.max_tokens, 100_000))]


class Scripted(ScriptedEngine):
    """Counts up; says what it was asked; breaks on demand: `fault` is raised after so many ticks by each completion."""

    def __init__(self, **options: Any) -> None:
        super().__init__(count_up, **options)
        self.asked: list[str] = []
        self.released: list[str] = []
        self.fault: BaseException | None = None
        self.closed = False

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams, *, session: str) -> Completion:
        self.asked.append(session)
        if self.fault is not None:
            await asyncio.sleep(0)
            raise self.fault
        return await super().generate(prompt_ids, sampling, session=session)

    async def release(self, session: str) -> None:
        self.released.append(session)
        await super().release(session)

    async def close(self) -> None:
        self.closed = True
        await super().close()


class Silent(Scripted):
    """Takes requests, and never answers."""

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams, *, session: str) -> Completion:
        self.asked.append(session)
        await asyncio.Event().wait()
        raise AssertionError("unreachable")


class Hanging(Silent):
    """Does not even take weights."""

    async def update_weights(self, version: int, tensors: Mapping[str, Any]) -> None:
        await asyncio.Event().wait()


def engines(n: int, **options: Any) -> list[Scripted]:
    return [Scripted(**options) for _ in range(n)]


def tokens(n: int) -> SamplingParams:
    return SamplingParams(max_tokens=n)


def ask(proxy: LLMProxy, session: str, sampling: SamplingParams = LONG, prompt: Sequence[int] = (1,)) -> Any:
    return asyncio.create_task(proxy.generate(prompt, sampling, session=session))


async def ticks(n: int = 5) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


def in_flight(proxy: LLMProxy) -> list[int]:
    return [replica.tokens_in_flight for replica in proxy.stats().replicas.values()]
