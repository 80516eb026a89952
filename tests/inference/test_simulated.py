"""The engine without a model."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest
from inference.clock import run_jumping

from rollenv.inference import Completion, EngineDead, EngineError, InvalidRequest, SamplingParams, ScriptedEngine


def countdown(prompt: Any, sampling: SamplingParams) -> list[int]:
    return list(range(prompt[-1], -1, -1))


def test_the_script_is_cut_at_max_tokens_and_after_stop_tokens() -> None:
    async def run() -> None:
        engine = ScriptedEngine(countdown, logprob=-1.0, version=3)
        full = await engine.generate([4], SamplingParams(), session="a")
        assert full == Completion([4, 3, 2, 1, 0], [-1.0] * 5, [3] * 5, "stop")
        cut = await engine.generate([4], SamplingParams(max_tokens=2), session="a")
        assert (cut.ids, cut.finish_reason) == ([4, 3], "length")
        stopped = await engine.generate([4], SamplingParams(stop_token_ids=(2,)), session="a")
        assert (stopped.ids, stopped.finish_reason) == ([4, 3, 2], "stop")

    asyncio.run(run())


@pytest.mark.parametrize("seconds", [0.0, 0.001])
def test_abort_and_versions_between_tokens(seconds: float) -> None:
    async def run() -> None:
        engine = ScriptedEngine(lambda prompt, sampling: [1] * 100_000, seconds_per_token=seconds)
        sampling = SamplingParams(max_tokens=100_000)

        async def some_tokens() -> None:
            if seconds:
                await asyncio.sleep(20.5 * seconds)  # of the loop's clock, which jumps
            else:
                for _ in range(20):
                    await asyncio.sleep(0)

        tasks = [asyncio.create_task(engine.generate([1], sampling, session=name)) for name in "ab"]
        await some_tokens()
        assert engine.running == 2
        with pytest.raises(InvalidRequest, match="already"):
            await engine.generate([1], sampling, session="a")
        await engine.update_weights(5, {})
        await some_tokens()
        await engine.abort("a")
        got = await asyncio.wait_for(tasks[0], 5)
        assert got.finish_reason == "aborted"
        assert set(got.policy_versions) == {0, 5}
        assert sorted(got.policy_versions) == got.policy_versions
        assert engine.version == 5
        await engine.close()
        assert (await tasks[1]).finish_reason == "aborted"
        with pytest.raises(EngineDead, match="closed"):
            await engine.generate([1], sampling, session="c")

    run_jumping(run())


def test_a_failing_script_is_an_engine_error_and_nothing_hangs_on() -> None:
    async def run() -> None:
        engine = ScriptedEngine(countdown)
        with pytest.raises(EngineError, match="IndexError"):
            await engine.generate([], SamplingParams(), session="a")
        with pytest.raises(InvalidRequest, match="tokenizer"):
            await engine.generate([1], SamplingParams(stop=("x",)), session="a")
        assert engine.running == 0
        await engine.release("nobody")

    asyncio.run(run())


def test_importing_the_package_loads_neither_torch_nor_transformers() -> None:
    code = "import sys, rollenv.inference; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
