"""Environments of a server that live in processes of their own: the same to clients, and a crash stays where it is."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from rollout.worker_envs import CORRIDOR, FAULTY
from server.serving import served, until

import rollenv
from rollenv import RollenvError
from rollenv.registration import registry
from rollenv.server.sessions import SessionError


@pytest.fixture
def faulty(temp_registry: Any) -> Iterator[tuple[str, Any]]:
    registry[FAULTY.id] = FAULTY
    with served("faulty", workers=2, step_seconds=2.0) as (address, hosts):
        yield f"{address}/faulty", hosts["faulty"]


def test_the_contract_holds(temp_registry: Any) -> None:
    registry[CORRIDOR.id] = CORRIDOR
    # Pings draw from the global generator, which in this process would be the environment's fault.
    with served("corridor", workers=2, ping_seconds=1e6) as (address, _):
        rollenv.connect(f"{address}/corridor").reset()  # the loop of all connections outlives environments
        there = rollenv.check_env(functools.partial(rollenv.connect, f"{address}/corridor"))
    here = rollenv.check_env("corridor")
    assert (there.passed, there.skipped) == (here.passed, here.skipped)
    assert {"snapshots", "pickling", "tasks", "misuse"} <= set(there.passed)


def at_its_second_step(env: Any, task: str) -> Any:
    env.reset(seed=1, options={"task": task})
    env.step("one")
    return env.step("two")


@pytest.mark.parametrize(
    ("task", "code", "why"),
    [
        ("exit-0", "EXECUTION_ERROR", "ended with exit code 7: the session is over"),
        ("segfault-0", "EXECUTION_ERROR", "was killed by SIGSEGV: the session is over"),
        ("sleep-0", "DEADLINE", "took more than 2 s for a step: the session is over"),
        ("native-0", "DEADLINE", "took more than 2 s for a step: the session is over"),
    ],
)
def test_what_ends_its_process_ends_nobody_elses_session(faulty: Any, task: str, code: str, why: str) -> None:
    address, host = faulty
    with rollenv.connect(address) as bad, rollenv.connect(address) as good:
        begun, _ = good.reset(seed=2, options={"task": "good-3"})
        with pytest.raises(SessionError, match=why) as refused:
            at_its_second_step(bad, task)
        assert refused.value.code == code
        here = rollenv.make(FAULTY)
        assert here.reset(seed=2, options={"task": "good-3"})[0] == begun
        assert [good.step("a")[:2] for _ in range(3)] == [here.step("a")[:2] for _ in range(3)]
        until(lambda: len(host.sessions) == 1)
        metrics = httpx.get(f"{address.rsplit('/', 1)[0]}/metrics").text
        assert 'rollenv_worker_deaths_total{env="faulty"} 1.0' in metrics
    with rollenv.connect(address) as again:  # in the process that took its place, or the other one
        again.reset(seed=3, options={"task": "good-4"})
        assert [again.step("a")[2] for _ in range(3)] == [False, False, True]


def test_an_error_of_the_environment_itself_is_told_as_ever_and_the_session_goes_on(faulty: Any) -> None:
    with rollenv.connect(faulty[0]) as env:
        for task, why in (
            ("raise-0", "failed with RuntimeError"),
            ("unsendable-0", "cannot be sent"),
            ("sys.exit-0", "SystemExit: 3"),
        ):
            with pytest.raises(RollenvError, match=why):
                at_its_second_step(env, task)
        assert at_its_second_step(env, "good-0")[1] == 0.25
        with pytest.raises(RollenvError, match="KeyError"):
            env.reset()  # this one wants a task


def test_no_process_is_left(temp_registry: Any) -> None:
    registry[FAULTY.id] = FAULTY
    with served("faulty", workers=2) as (address, hosts), rollenv.connect(f"{address}/faulty") as env:
        env.reset(seed=1, options={"task": "good-0"})
        processes = [worker.process for worker in hosts["faulty"].workers.workers]
        assert [process.poll() for process in processes] == [None, None]
    assert all(process.returncode is not None for process in processes)
