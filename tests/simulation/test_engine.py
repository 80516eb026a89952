"""The engine's model: what is shared, what waits, what a pause costs, and that no work is lost or done twice."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollenv.config.simulate import SimulatedEngineConfig
from rollenv.simulation.clock import run_virtual
from rollenv.simulation.engine import SimulatedEngine


def engine(devices: int = 1, slots: int = 64, capacity: float = math.inf, pause: float = 0.0) -> SimulatedEngine:
    """Of which a completion at full speed makes one token a second."""
    whole = None if math.isinf(capacity) else capacity
    return SimulatedEngine(
        SimulatedEngineConfig(slots=slots, tokens_per_second=1.0, device_tokens_per_second=whole, update_seconds=pause),
        devices,
    )


async def finish(model: SimulatedEngine, work: float, begin: float = 0.0) -> float:
    await asyncio.sleep(begin)
    await model.generate(work)
    return asyncio.get_running_loop().time()


def times(model: SimulatedEngine, jobs: list[tuple[float, float]]) -> list[float]:
    """When each (work, begin) is done."""

    async def main() -> list[float]:
        return await asyncio.gather(*(finish(model, work, begin) for work, begin in jobs))

    return run_virtual(main())


def test_one_completion_runs_at_full_speed() -> None:
    assert times(engine(), [(7.0, 0.0)]) == [7.0]


def test_completions_share_a_device_fairly() -> None:
    # Capacity 2: four run at half speed until two are done (at 4), the others then at full speed.
    assert times(engine(capacity=2.0), [(2.0, 0), (2.0, 0), (5.0, 0), (5.0, 0)]) == pytest.approx([4, 4, 7, 7])


def test_a_newcomer_slows_those_that_run() -> None:
    # Alone until 2; then two share capacity 1, each at half speed, until the first has its last 1 second at 4.
    assert times(engine(capacity=1.0), [(3.0, 0), (4.0, 2)]) == pytest.approx([4.0, 7.0])


def test_who_finds_no_slot_waits_first_come_first_served() -> None:
    assert times(engine(slots=1), [(3.0, 0), (1.0, 1), (1.0, 2)]) == [3.0, 4.0, 5.0]


def test_devices_are_filled_evenly() -> None:
    assert times(engine(devices=3, slots=2), [(5.0, 0.0)] * 6) == [5.0] * 6
    assert times(engine(devices=3, capacity=1.0), [(5.0, 0.0)] * 3) == [5.0] * 3


def test_nothing_to_generate_takes_no_time() -> None:
    assert times(engine(slots=1), [(0.0, 0.0)] * 3) == [0.0] * 3


def test_new_weights_pause_everything_and_what_runs_goes_on_with_them() -> None:
    model = engine(pause=10.0)

    async def main() -> tuple[list[int], float]:
        running = asyncio.ensure_future(model.generate(5.0))
        await asyncio.sleep(2.0)
        await model.update_weights(1)
        return await running, asyncio.get_running_loop().time()

    assert run_virtual(main()) == ([0, 1], 15.0)


def test_a_cancelled_completion_frees_its_slot_at_once() -> None:
    model = engine(slots=1)

    async def main() -> list[Any]:
        first, waiting, last = (asyncio.ensure_future(model.generate(100.0)) for _ in range(3))
        await asyncio.sleep(1.0)
        waiting.cancel()
        await asyncio.sleep(1.0)
        first.cancel()
        await last
        return [asyncio.get_running_loop().time(), model.running, model.work_done()]

    assert run_virtual(main()) == [102.0, 0, pytest.approx(102.0)]


@settings(max_examples=60)
@given(
    jobs=st.lists(st.tuples(st.integers(1, 30), st.integers(0, 30)), min_size=1, max_size=25),
    devices=st.integers(1, 4),
    slots=st.integers(1, 5),
    capacity=st.sampled_from([0.5, 1.0, 2.5, math.inf]),
)
def test_all_work_is_done_exactly_once_and_none_faster_than_possible(
    jobs: list[tuple[int, int]], devices: int, slots: int, capacity: float
) -> None:
    model = engine(devices, slots, capacity)

    async def main() -> tuple[list[float], float]:
        done = await asyncio.gather(*(finish(model, work, begin) for work, begin in jobs))
        return done, model.work_done()

    done, work = run_virtual(main())
    assert work == pytest.approx(sum(work for work, _ in jobs))
    assert model.running == 0
    assert all(end >= work + begin - 1e-6 for end, (work, begin) in zip(done, jobs, strict=True))
    assert max(done) >= sum(work for work, _ in jobs) / (devices * min(slots, capacity)) - 1e-6
