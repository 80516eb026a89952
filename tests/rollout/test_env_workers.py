"""Worker processes: the same episodes as anywhere else, faults that stay where they are, and nothing left behind."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rollout import worker_envs
from rollout.fakes import END, Letters, Recorder, babbles, run
from rollout.worker_envs import CORRIDOR, FAULTY, Faulty, alive, left_of

import rollenv
from rollenv.agents.llm import LLMAgent
from rollenv.errors import RollenvError
from rollenv.inference import SamplingParams
from rollenv.registration import EnvSpec
from rollenv.rollout import env_worker, env_workers
from rollenv.rollout.controller import collect
from rollenv.rollout.env_pool import Environments, EnvPool
from rollenv.rollout.env_workers import WorkerPool, portable
from rollenv.rollout.episode import EpisodeLimits, EpisodeRequest, Fault
from rollenv.rollout.groups import GroupRequest
from rollenv.rollout.play import ModelPlay
from rollenv.rollout.scheduler import Scheduler
from rollenv.trajectory import StopReason, Trajectory

Pools = Callable[..., WorkerPool]


@pytest.fixture
def pools(tmp_path: Path) -> Iterator[Pools]:
    """Makes pools; at the end they are closed, and none of their processes may be left."""
    made: list[WorkerPool] = []
    pids = tmp_path / "pids"
    pids.mkdir()

    def make(n: int = 1, spec: EnvSpec = FAULTY, seconds: float = 30.0, **arguments: Any) -> WorkerPool:
        if spec is FAULTY:
            arguments |= {"pids": str(pids)}
        tasks = rollenv.make(spec).tasks
        made.append(WorkerPool(spec, arguments, tasks, n, reset_seconds=seconds, step_seconds=seconds))
        return made[-1]

    yield make
    processes = [worker.process for pool in made for worker in pool.workers]
    for pool in made:
        pool.close()
    assert all(process.returncode is not None for process in processes)
    assert left_of(pids) == []


def model_play(pool: Environments, **limits: Any) -> ModelPlay:
    return ModelPlay(
        pool,
        "it",
        LLMAgent(system="", list_actions=False),
        Recorder(babbles),
        Letters(),  # type: ignore[arg-type]
        SamplingParams(max_tokens=16, stop_token_ids=(END,)),
        EpisodeLimits(**limits),
    )


def played(pool: Environments, tasks: list[str], concurrency: int = 8, **limits: Any) -> tuple[list[Trajectory], Any]:
    """The episodes of `tasks`, two for each, and the ledger."""

    async def main() -> tuple[list[Trajectory], Any]:
        scheduler = Scheduler(model_play(pool, **limits), concurrency)
        groups = await collect(scheduler, [GroupRequest(i, task, 2, 5) for i, task in enumerate(tasks)])
        await scheduler.close()
        return [t for group in groups for t in group.trajectories], scheduler.ledger

    return run(main())


def told(trajectory: Trajectory) -> dict[str, Any]:
    """An episode without its clocks."""
    data = trajectory.to_dict()
    for turn in data["turns"]:
        turn["seconds"] = None
    return data


# -- the same episodes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("env", ["webshop", "corridor", "faulty"])
def test_episodes_are_the_same_wherever_they_are_played(pools: Pools, env: str) -> None:
    spec = {"webshop": rollenv.spec("webshop"), "corridor": CORRIDOR, "faulty": FAULTY}[env]
    make = lambda: rollenv.make(spec)  # noqa: E731
    train = make().tasks.ids("train")
    tasks = ["good-1", "raise-1", "bytes-2", "sys.exit-1", "good-4"] if env == "faulty" else list(train[:5])
    local = {place: EnvPool(make, place) for place in ("inline", "thread")}  # type: ignore[arg-type]
    outcomes = {
        place: [told(t) for t in played(pool, tasks, max_turns=6)[0]]
        for place, pool in [*local.items(), ("process", pools(2, spec))]
    }
    assert outcomes["inline"] == outcomes["thread"] == outcomes["process"]
    assert sum(len(t["turns"]) for t in outcomes["inline"]) > 10
    for pool in local.values():
        pool.close()


def test_a_snapshot_goes_on_in_another_process_with_a_future_of_its_own(pools: Pools) -> None:
    pool = pools(2, CORRIDOR)

    async def futures() -> list[list[str]]:
        first, second = await pool.acquire(), await pool.acquire()
        assert first.worker is not second.worker  # type: ignore[attr-defined]
        task = pool.tasks.ids("train")[0]
        await first.areset(seed=1, options={"task": task})
        await first.astep("listen")
        snapshot, heard = await first.asnapshot(), []
        for seed in (None, 7, 7, 8):
            await second.arestore(snapshot, seed=seed)
            heard.append([(await second.astep("listen"))[0] for _ in range(11)])
        heard.append([(await first.astep("listen"))[0] for _ in range(11)])
        pool.release(first, True)
        pool.release(second, True)
        return heard

    same, one, again, other, here = run(futures())
    assert same == here
    assert one == again
    assert len({tuple(f) for f in (same, one, other)}) == 3


def test_a_pool_serves_one_loop_after_another(pools: Pools) -> None:
    pool = pools(2)
    first, second = (played(pool, ["good-1", "good-2"])[0] for _ in range(2))
    assert [told(t) for t in first] == [told(t) for t in second]
    assert pool.deaths == 0


def test_what_many_ask_in_one_turn_of_the_loop_goes_out_together(pools: Pools, monkeypatch: Any) -> None:
    frames: list[int] = []
    original = env_worker.frame
    monkeypatch.setattr(env_worker, "frame", lambda requests: frames.append(len(requests)) or original(requests))

    async def main() -> None:
        pool = pools(1)
        envs = [await pool.acquire() for _ in range(20)]
        await asyncio.gather(*(env.areset(seed=1, options={"task": "good-1"}) for env in envs))
        frames.clear()
        await asyncio.gather(*(env.astep("x") for env in envs))
        for env in envs:
            pool.release(env, healthy=True)

    run(main())
    assert frames == [20]


def test_environments_are_spread_over_the_least_loaded(pools: Pools) -> None:
    async def main() -> None:
        pool = pools(3)
        envs: list[Any] = [await pool.acquire() for _ in range(7)]
        assert sorted(worker.load for worker in pool.workers) == [2, 2, 3]
        for env in envs[:3]:
            pool.release(env, healthy=True)
        envs = envs[3:] + [await pool.acquire() for _ in range(2)]
        assert sorted(worker.load for worker in pool.workers) == [2, 2, 2]
        assert max(env.number for env in envs) < 7  # idle ones are used again
        for env in envs:
            pool.release(env, healthy=True)

    run(main())


# -- faults ----------------------------------------------------------------------------------------------------


LABELS = {
    "exit": ("crash", "step: its worker process ended with exit code 7"),
    "segfault": ("crash", "its worker process was killed by SIGSEGV"),
    "raise": ("crash", "step: RuntimeError: broken at step"),
    "sys.exit": ("crash", "step: SystemExit: 3"),
    "unsendable": ("crash", "step: its result cannot be sent to another process"),
    "bytes": ("bad_output", "step must return"),
    "sleep": ("timeout", "step took longer than 0.5 s"),
    "spin": ("timeout", "step took longer than 0.5 s"),
    "native": ("timeout", "step took longer than 0.5 s"),
}
DEADLY = {"exit", "segfault", "sleep", "spin", "native"}


@pytest.mark.parametrize("fault", worker_envs.FAULTS)
def test_a_fault_is_labelled_and_only_a_deadly_one_ends_the_process(pools: Pools, fault: str) -> None:
    pool = pools(1, seconds=0.5 if LABELS[fault][0] == "timeout" else 30.0)
    before = pool.workers
    trajectory = run(model_play(pool)(EpisodeRequest(f"{fault}-1", 1)))
    assert trajectory.failure is not None
    kind, message = LABELS[fault]
    assert (trajectory.failure.where, trajectory.failure.kind) == ("env", kind)
    assert message.removeprefix("step: ") in trajectory.failure.message
    assert not trajectory.failure.collateral
    assert trajectory.failure.turn == 1
    assert len(pool.workers) == 1
    assert pool.deaths == (fault in DEADLY)
    assert (pool.workers == before) == (fault not in DEADLY)
    good = run(model_play(pool)(EpisodeRequest("good-1", 1)))
    assert good.stop is StopReason.TERMINATED


@pytest.mark.parametrize("fault", ["exit", "sleep"])
def test_neighbours_of_a_dead_environment_are_collateral_and_lose_no_try(
    pools: Pools, fault: str, tmp_path: Path
) -> None:
    """All live in one process; the guilty one breaks at its first try only."""
    (once := tmp_path / "once").mkdir()
    tasks = [f"{fault}-1", *(f"good-{i}" for i in range(5))]
    clean, _ = played(pools(2), [f"good-{i}" for i in range(5)])
    pool = pools(1, seconds=3.0, once=str(once))
    episodes, ledger = played(pool, tasks, concurrency=12)
    assert pool.deaths == 1
    assert [t.stop for t in episodes] == [StopReason.TERMINATED] * 12
    assert sorted(t.attempt for t in episodes[:2]) == [0, 1]
    assert [t.attempt for t in episodes[2:]] == [0] * 10
    guilty = "env/timeout" if fault == "sleep" else "env/crash"
    assert ledger.failures[guilty] == 1
    assert ledger.failures["env/collateral"] == ledger.failed - 1 > 0
    assert ledger.retried == ledger.failed
    assert ledger.balanced
    for ours, theirs in zip(episodes[2:], clean, strict=True):  # seeds differ by the group's place
        assert [len(t.completion_ids) > 0 for t in ours.turns] == [len(t.completion_ids) > 0 for t in theirs.turns]


def test_waiting_for_neighbours_makes_nobody_late(pools: Pools) -> None:
    """Forty environments take 0.1 s each in one process; a deadline of 3 s holds for each, not for the queue."""
    pool = pools(1, seconds=3.0, nap=0.1)
    episodes, ledger = played(pool, [f"good-{i}" for i in range(20)], concurrency=40, max_turns=1)
    assert ledger.failed == 0
    assert all(t.stop is StopReason.MAX_TURNS for t in episodes)


def test_an_answer_that_came_in_time_counts_although_the_loop_was_busy(pools: Pools) -> None:
    async def main() -> None:
        pool = pools(1, seconds=0.2)
        env = await pool.acquire()
        await env.areset(seed=1, options={"task": "good-1"})
        step = asyncio.ensure_future(env.astep("x"))
        await asyncio.sleep(0.05)
        time.sleep(1.0)  # as a training step does
        assert (await step)[1] == 0.25
        pool.release(env, healthy=True)

    run(main())


def test_a_process_killed_from_outside_costs_no_try_unless_it_was_at_work(pools: Pools) -> None:
    async def main() -> None:
        pool = pools(1)
        envs: list[Any] = [await pool.acquire() for _ in range(3)]
        for env in envs:
            await env.areset(seed=1, options={"task": "good-1"})
        os.kill(envs[0].worker.process.pid, signal.SIGKILL)
        while pool.deaths == 0:
            await asyncio.sleep(0.01)
        for env in envs:
            with pytest.raises(Fault) as caught:
                await env.astep("x")
            assert caught.value.collateral
            pool.release(env, healthy=False)
        fresh = await pool.acquire()
        await fresh.areset(seed=1, options={"task": "good-1"})
        pool.release(fresh, healthy=True)

    run(main())


def test_an_environment_that_always_kills_its_process_fails_for_good_and_alone(pools: Pools) -> None:
    pool = pools(1)
    episodes, ledger = played(pool, ["exit-1", "good-1", "good-2", "good-3"])
    assert [t.stop is StopReason.FAILED for t in episodes] == [True] * 2 + [False] * 6
    assert all(t.failure is not None and not t.failure.collateral and t.attempt == 2 for t in episodes[:2])
    assert ledger.failures["env/crash"] == 6 == pool.deaths
    assert ledger.balanced


@pytest.mark.parametrize("fault", ["segfault", "exit"])
def test_a_crash_takes_what_the_environment_has_started_with_it(pools: Pools, tmp_path: Path, fault: str) -> None:
    pool = pools(1, helper=True)
    (failed,) = [t for t in played(pool, [f"{fault}-1"], concurrency=1)[0] if t.sample == 0]
    assert failed.failure is not None
    (worker,) = pool.workers
    deadline = time.monotonic() + 20
    started = [int(path.name) for path in (tmp_path / "pids").iterdir()]
    assert len(started) >= 2 * 6
    while [pid for pid in started if alive(pid)] not in ([], [worker.process.pid]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [pid for pid in started if alive(pid)] in ([], [worker.process.pid])


def test_a_process_that_cannot_be_prepared_serves_nobody(pools: Pools) -> None:
    """One of two is killed and its successor finds nothing to make: the other one goes on for both."""
    pool = pools(2)
    pool._setup = replace(pool._setup, made_of=b"torn")
    os.kill(pool.workers[0].process.pid, signal.SIGKILL)
    episodes, ledger = played(pool, ["good-1", "good-2", "good-3", "good-4"], concurrency=4)
    assert all(t.stop is StopReason.TERMINATED for t in episodes)
    assert ledger.balanced


def test_one_that_cannot_be_made_is_a_labelled_fault_as_in_this_process() -> None:
    spec = EnvSpec("Unmakeable-v0", "rollout.worker_envs:Unmakeable")
    pool = WorkerPool(spec, {}, Faulty().tasks, 1)
    remote = run(model_play(pool)(EpisodeRequest("t", 1)))
    local = run(model_play(EnvPool(worker_envs.Unmakeable))(EpisodeRequest("t", 1)))
    pool.close()
    assert remote.failure == local.failure
    assert remote.failure is not None
    assert remote.failure.message == "ConnectionError: no container"


def test_random_faults_leave_the_books_in_order(pools: Pools, tmp_path: Path) -> None:
    """Deadly and harmless faults among good episodes, over three processes: every episode ends well in the end."""
    (once := tmp_path / "once").mkdir()
    draw = random.Random(3)
    tasks = [
        f"{draw.choice(['good', 'good', 'good', 'exit', 'segfault', 'raise', 'spin'])}-{i % 20}" for i in range(24)
    ]
    pool = pools(3, seconds=2.0, once=str(once))
    episodes, ledger = played(pool, tasks, concurrency=16)
    assert [t.stop for t in episodes] == [StopReason.TERMINATED] * 48
    assert ledger.balanced
    assert ledger.in_flight == ledger.cancelled == 0
    assert ledger.finished == 48
    deadly = {task for task in tasks if task.rpartition("-")[0] in DEADLY}
    assert pool.deaths == len(deadly)
    guilty = deadly | {task for task in tasks if task.startswith("raise")}
    assert ledger.failed - ledger.failures["env/collateral"] == len(guilty)
    assert sum(t.attempt for t in episodes) == len(guilty)


def test_an_environment_that_hangs_in_closing_is_nobodys_fault_but_its_own(pools: Pools, monkeypatch: Any) -> None:
    monkeypatch.setattr(env_workers, "CLOSE_SECONDS", 0.5)

    async def main() -> None:
        pool = pools(1)
        hangs, neighbour = [await pool.acquire() for _ in range(2)]
        await hangs.areset(seed=1, options={"task": "close hang-1"})
        await neighbour.areset(seed=1, options={"task": "good-1"})
        pool.release(hangs, healthy=False)
        with pytest.raises(Fault) as caught:
            await neighbour.astep("x")  # it waits behind the one that closes
        assert caught.value.collateral
        assert pool.deaths == 1
        pool.release(neighbour, healthy=False)

    run(main())


# -- cancellation and limits -----------------------------------------------------------------------------------


def test_a_cancelled_episode_leaves_at_once_and_its_environment_is_dropped(pools: Pools) -> None:
    async def main() -> None:
        pool = pools(1)
        task = asyncio.ensure_future(model_play(pool)(EpisodeRequest("spin-1", 1)))
        while not (pool.workers[0].started and pool.workers[0].load):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        task.cancel()
        assert (await task).stop is StopReason.ABORTED
        assert pool.workers[0].load == 0
        pool.close(seconds=0.0)

    run(main())


def test_no_more_play_at_the_same_time_than_may(pools: Pools) -> None:
    spec = EnvSpec("Faulty-v0", "rollout.worker_envs:Faulty", max_concurrency=3)
    pool = WorkerPool(spec, {}, Faulty().tasks, 2)
    most = 0
    acquire = pool.acquire

    async def watched() -> Any:
        nonlocal most
        env = await acquire()
        most = max(most, sum(worker.load for worker in pool.workers))
        return env

    pool.acquire = watched  # type: ignore[method-assign]
    _, ledger = played(pool, [f"good-{i}" for i in range(6)], concurrency=12)
    pool.close()
    assert (most, ledger.finished) == (3, 12)


# -- what is refused -------------------------------------------------------------------------------------------


def local_env() -> Any:
    class Local(Faulty):
        pass

    return Local


@pytest.mark.parametrize(
    ("entry_point", "arguments", "said"),
    [
        (lambda: Faulty(), {}, "cannot be pickled"),
        (local_env(), {}, "cannot be pickled"),
        ("__main__:Env", {}, "defined in the script that runs"),
        (Faulty, {"once": lambda: None}, "cannot be pickled"),
    ],
)
def test_what_cannot_be_sent_is_refused_with_a_way_out(entry_point: Any, arguments: Any, said: str) -> None:
    with pytest.raises(RollenvError, match=rf"'It-v0'.*{said}.*rollout.env_executor=thread"):
        portable(EnvSpec("It-v0", entry_point), arguments)


def test_what_a_worker_cannot_import_is_refused_before_anything_is_played() -> None:
    with pytest.raises(RollenvError, match="cannot import 'no_such_module_here:Env'"):
        WorkerPool(EnvSpec("It-v0", "no_such_module_here:Env"), {}, Faulty().tasks, 2)


# -- nothing is left -------------------------------------------------------------------------------------------


def test_closing_kills_what_does_not_close(tmp_path: Path) -> None:
    (pids := tmp_path / "own pids").mkdir()
    pool = WorkerPool(FAULTY, {"pids": str(pids), "helper": True}, Faulty().tasks, 2)

    async def main() -> None:
        for task in ("close hang-1", "helper stays-1"):
            env = await pool.acquire()
            await env.areset(seed=1, options={"task": task})

    run(main())
    noted = [int(path.name) for path in pids.iterdir()]
    assert len(noted) == 4
    assert all(alive(pid) for pid in noted)
    pool.close(seconds=1.0)
    assert left_of(pids) == []


@pytest.mark.parametrize("task", ["good-1", "sleep-1", "spin-1"])
def test_no_process_outlives_a_parent_that_is_killed(tmp_path: Path, task: str) -> None:
    """Between steps, in a step that sleeps, in one that computes; nor do processes that environments started."""
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        f"from rollout.worker_envs import play_until_killed\nplay_until_killed({str(tmp_path)!r}, {task!r})"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        noted = [int(path.name) for path in tmp_path.iterdir()]
        assert len(noted) == 2 + 4  # two workers, a helper for each of four environments
        assert all(alive(pid) for pid in noted)
    finally:
        parent.kill()
        parent.wait()
    assert left_of(tmp_path) == []


def test_no_process_outlives_a_program_that_ends_by_an_error(tmp_path: Path) -> None:
    code = f"""
import asyncio, sys
sys.path[:0] = {sys.path!r}
from rollout.worker_envs import FAULTY, Faulty
from rollenv.rollout.env_workers import WorkerPool

pool = WorkerPool(FAULTY, {{"pids": {str(tmp_path)!r}, "helper": True}}, Faulty().tasks, 2)

async def play():
    for _ in range(2):
        env = await pool.acquire()
        await env.areset(seed=1, options={{"task": "good-1"}})
    raise KeyError("in the middle")

asyncio.run(play())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert "KeyError: 'in the middle'" in done.stderr
    assert len(list(tmp_path.iterdir())) == 4
    assert left_of(tmp_path) == []
