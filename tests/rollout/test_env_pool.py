"""Pools of this process and who may come in: the gate, the deadline of closing."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from conformance.toy import Corridor
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout.fakes import run

from rollenv.rollout import env_pool
from rollenv.rollout.env_pool import EnvPool, Gate
from rollenv.rollout.episode import EpisodeLimits, EpisodeRequest
from rollenv.rollout.play import ScriptedPlay
from rollenv.trajectory import StopReason


@settings(max_examples=80)
@given(
    limit=st.integers(1, 4),
    stays=st.lists(st.integers(0, 6), min_size=1, max_size=15),
    cancelled=st.dictionaries(st.integers(0, 14), st.integers(0, 12)),
)
def test_a_gate_lets_in_as_many_as_may_whoever_gives_up(
    limit: int, stays: list[int], cancelled: dict[int, int]
) -> None:
    """Some are cancelled while they wait or while they are inside; all others get in, never more than `limit`."""
    inside, most, came = 0, 0, []

    async def visitor(gate: Gate, number: int) -> None:
        nonlocal inside, most
        await gate.enter()
        inside += 1
        most = max(most, inside)
        came.append(number)
        try:
            for _ in range(stays[number]):
                await asyncio.sleep(0)
        finally:
            inside -= 1
            gate.leave()

    async def main() -> None:
        gate = Gate(limit)
        tasks = [asyncio.ensure_future(visitor(gate, n)) for n in range(len(stays))]
        for tick in range(13):
            for number, when in cancelled.items():
                if when == tick and number < len(tasks):
                    tasks[number].cancel()
            await asyncio.sleep(0)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert gate._inside == 0
        await asyncio.wait_for(gate.enter(), 60)  # the place is free for the next

    run(main())
    assert most <= limit
    assert came == sorted(came)  # first come, first served
    assert {n for n in range(len(stays)) if n not in cancelled} <= set(came)


def test_without_a_limit_everybody_gets_in() -> None:
    async def main() -> None:
        gate = Gate(None)
        for _ in range(1000):
            await gate.enter()

    run(main())


class Walker:
    """Always listens."""

    def reset(self, seed: int) -> None:
        return None

    def act(self, observation: str, info: Any) -> str:
        return "listen"


def test_an_episode_that_is_cancelled_while_it_waits_never_began() -> None:
    async def main() -> None:
        pool = EnvPool(Corridor, "inline", max_concurrency=1)
        env = await pool.acquire()
        play = ScriptedPlay(pool, "corridor", Walker, EpisodeLimits())
        task = asyncio.ensure_future(play(EpisodeRequest("chest-1", 1)))
        await asyncio.sleep(0)
        task.cancel()
        trajectory = await task
        assert (trajectory.stop, trajectory.turns, trajectory.failure) == (StopReason.ABORTED, [], None)
        pool.release(env, healthy=True)
        assert (await play(EpisodeRequest("chest-1", 1))).stop is StopReason.TRUNCATED

    run(main())


def test_asking_for_the_tasks_while_all_are_out_makes_no_environment_more() -> None:
    made: list[Corridor] = []

    def make() -> Corridor:
        made.append(Corridor())
        return made[-1]

    async def main() -> None:
        pool = EnvPool(make, "inline", max_concurrency=1)
        tasks = pool.tasks
        env = await pool.acquire()
        assert pool.tasks is tasks
        assert len(made) == 1
        pool.release(env, healthy=True)
        pool.close()

    run(main())


def test_a_pool_calls_its_environments_as_it_is_told() -> None:
    places: list[str] = []

    class Where(Corridor):
        def reset(self, **options: Any) -> Any:
            places.append(threading.current_thread().name)
            return super().reset(**options)

    async def main(executor: Any) -> None:
        pool = EnvPool(Where, executor)
        assert pool.tasks.name == "corridor"
        env = await pool.acquire()
        await env.areset(seed=1)
        pool.release(env, healthy=True)
        pool.close()

    here = threading.current_thread().name
    for executor in ("inline", "thread", None):
        run(main(executor))
    assert places == [here, "env-Where", "env-Where"]  # the class says nothing: a thread


def test_closing_gives_up_on_an_environment_that_hangs(monkeypatch: Any) -> None:
    monkeypatch.setattr(env_pool, "CLOSE_SECONDS", 0.1)
    freed, closed = threading.Event(), []

    class Hangs(Corridor):
        def close(self) -> None:
            freed.wait(60)
            closed.append(self)

    async def main() -> None:
        pool = EnvPool(Hangs)
        pool.release(await pool.acquire(), healthy=True)
        pool.close()
        assert not closed
        freed.set()

    run(main())
