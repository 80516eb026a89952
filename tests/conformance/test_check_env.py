"""check_env: a good environment passes, and each broken one fails with a message that names its fault."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from conformance import broken
from conformance.toy import Corridor

import rollenv
from rollenv.conformance import ConformanceError
from rollenv.conformance.checks import CHECKS
from rollenv.conformance.compare import difference


@pytest.fixture(autouse=True)
def cleaned_up() -> Iterator[None]:
    yield
    while broken.LEFT:
        broken.LEFT.pop()()


def test_a_good_environment_passes_every_check() -> None:
    report = rollenv.check_env(Corridor)
    assert report.passed == list(CHECKS)
    assert report.skipped == {}
    assert "13 checks passed" in str(report)


# class -> the check that must find it, and what its message must say
FAULTS: dict[type[Corridor], tuple[str, str]] = {
    broken.Unseeded: ("seeds", "same seed and actions in another instance gave another answer"),
    broken.UsesGlobalRandom: ("contract", "reset used the global generator of random"),
    broken.SeedsGlobalNumpy: ("contract", "reset used the global generator of numpy.random"),
    broken.ReadsGlobalRandom: ("seeds", "same seed"),
    broken.LiesAboutActions: ("admissible actions", "was listed in info['admissible_actions'] and was not valid"),
    broken.LeavesThread: ("leaks", "close left behind: thread 'forgotten'"),
    broken.LeavesFile: ("leaks", "close left behind: open file '/dev/null'"),
    broken.LeavesChild: ("leaks", "close left behind: child process"),
    broken.RewardOutOfRange: ("contract", "outside reward_range (0.0, 1.0)"),
    broken.RewardIsNumpy: ("contract", "reward as float64"),
    broken.DoneIsInteger: ("contract", "terminated as int"),
    broken.ForgetsRoomInSnapshot: ("snapshots", "a snapshot of step"),
    broken.ForgetsGeneratorInSnapshot: ("snapshots", "a snapshot of step"),
    broken.SnapshotDisturbs: ("snapshots", "Taking a snapshot may not change the state"),
    broken.RestoresGarbage: ("snapshots", "restore of garbage"),
    broken.NoSuccess: ("contract", "the episode ended and info['success'] is None"),
    broken.SuccessTooEarly: ("contract", "reset set info['success']"),
    broken.NoValidAction: ("contract", "info['valid_action'] is None"),
    broken.AcceptsNonsense: ("bad actions", "was accepted as a valid action"),
    broken.NonsenseMoves: ("bad actions", "the same actions after 5 invalid ones"),
    broken.NonTextIsTaken: ("bad actions", "step(None) was accepted"),
    broken.StateSurvivesReset: ("seeds", "same seed"),
    broken.DependsOnSetOrder: ("another process", "in another process gave another answer"),
    broken.CannotBePickled: ("pickling", "cannot be pickled"),
    broken.ForgetsWhenPickled: ("pickling", "a copy pickled at step"),
    broken.AsyncDiffers: ("asynchronous calls", "through areset and astep gave another answer"),
    broken.ReusesInfo: ("contract", "the info returned before was changed"),
    broken.StepsBeforeReset: ("misuse", "a step before the first reset was accepted"),
    broken.StepsAfterTheEnd: ("misuse", "a step after the end of the episode was accepted"),
    broken.AnyTaskWillDo: ("options", "was accepted"),
    broken.IgnoresTask: ("tasks", "plays task"),
    broken.HashChanges: ("tasks", "the hash of split 'train' changes"),
    broken.CloseTwiceFails: ("leaks", "the second close raised OSError: already closed"),
    broken.Crashes: ("contract", "step raised KeyError: 'ears'"),
    broken.ObservationIsBytes: ("contract", "observation as bytes"),
    broken.UnknownTaskInInfo: ("contract", "'chest-99', which is not in env.tasks"),
    broken.RewardRangeIsWrong: ("declarations", "reward_range is (1.0, 0.0)"),
    broken.ExecutorIsUnknown: ("declarations", "executor is 'process'"),
    broken.SpaceIsNone: ("declarations", "action_space is no gymnasium.Space"),
    broken.ObservationTooLong: ("contract", "not in observation_space TextSpace(max_length=40)"),
    broken.ActionsAreATuple: ("contract", "info['admissible_actions'] is tuple"),
    broken.ActionsOutsideTheirSpace: ("contract", "the admissible action 'open chest' is not in action_space"),
    broken.TaskChangesMeanwhile: ("contract", "during the episode"),
    broken.SnapshotIsText: ("snapshots", "snapshot returned str, not bytes"),
    broken.RestoreShowsAnotherView: ("snapshots", "came back with another view: observation"),
    broken.RestoreIsNotChecked: ("snapshots", "going on after a refused restore gave another answer"),
    broken.CreationUsesGlobalRandom: ("contract", "creating it used a global generator"),
    broken.OtherTasksEachTime: ("tasks", "two instances have other tasks"),
    broken.SplitsOverlap: ("tasks", "task 'chest-0' is in the splits 'train' and 'more'"),
    broken.UnknownTaskIsAKeyError: ("options", "raised KeyError"),
    broken.CloseFails: ("declarations", "close raised OSError: no such handle"),
    broken.RefusalDoesNotSayWhy: ("misuse", "does not mention reset: not now"),
}


@pytest.mark.parametrize("env", FAULTS, ids=lambda env: env.__name__)
def test_a_broken_environment_fails_with_its_fault(env: type[Corridor]) -> None:
    check, said = FAULTS[env]
    with pytest.raises(ConformanceError) as caught:
        rollenv.check_env(env)
    assert said in str(caught.value)
    assert caught.value.check == check
    assert str(caught.value).startswith(f"{env.__name__}: ")


def test_every_broken_environment_is_in_the_table() -> None:
    defined = {c for c in vars(broken).values() if isinstance(c, type) and issubclass(c, Corridor)} - {Corridor}
    assert defined == set(FAULTS)


def test_a_fault_says_where_it_happened() -> None:
    with pytest.raises(ConformanceError) as caught:
        rollenv.check_env(broken.Crashes, seed=11)
    error = caught.value
    assert error.seed in (11, 12, 13)
    assert error.task is not None
    assert error.step is not None
    assert f"task '{error.task}'; seed {error.seed}; step {error.step}, action 'listen'" in str(error)


class NoSnapshots(Corridor):
    def snapshot(self) -> bytes:
        raise rollenv.SnapshotError("too much to pack")


class Answers(rollenv.TextEnv):
    """One question, any answer, no task set."""

    free_text = True
    task: str | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.task = f"{self.np_random.integers(10)}+1"
        return f"What is {self.task}?", {"task": self.task}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.check_text(action)
        if self.task is None:
            raise rollenv.RollenvError("call reset() first")
        right = action == str(int(self.task[0]) + 1)
        info = {"task": self.task, "valid_action": True, "success": right}
        self.task = None
        return "", float(right), True, False, info


def test_what_an_environment_does_not_have_is_skipped_with_the_reason() -> None:
    report = rollenv.check_env(NoSnapshots)
    assert report.skipped == {"snapshots": "no snapshots: too much to pack"}
    assert "skipped  snapshots: no snapshots: too much to pack" in str(report)

    report = rollenv.check_env(Answers)
    assert set(report.skipped) == {"tasks", "options", "admissible actions", "bad actions: nonsense", "snapshots"}
    assert report.skipped["bad actions: nonsense"] == "any text is an action here (free_text)"

    assert "check 'bad actions'" in _failure(WithoutDeclaration)


class WithoutDeclaration(Answers):
    free_text = False


def _failure(env: Any, **kwargs: Any) -> str:
    with pytest.raises(rollenv.RollenvError) as caught:
        rollenv.check_env(env, **kwargs)
    return str(caught.value)


def test_an_episode_that_never_ends_is_reported_as_such() -> None:
    report = rollenv.check_env(Corridor, steps=2, policy=lambda observation, info, generator: "listen")
    assert "pass more steps or a policy" in report.skipped["contract: end of an episode"]
    assert "misuse: a step after the end" in report.skipped


def test_an_id_an_instance_and_a_function_are_accepted(temp_registry: object) -> None:
    rollenv.register("Corridor-v3", "conformance.toy:Corridor")
    assert rollenv.check_env("corridor").env == "Corridor-v3"
    assert rollenv.check_env(lambda: Corridor()).passed == list(CHECKS)
    assert rollenv.check_env(functools.partial(Corridor)).passed == list(CHECKS)

    env = Corridor()
    assert rollenv.check_env(env).skipped == {}
    assert env._np_random is None, "the instance itself is not played"
    env.reset(seed=5)
    env.step("listen")
    before = env.snapshot()
    report = rollenv.check_env(env)
    assert list(report.skipped) == ["misuse: a step before reset"]
    assert env.snapshot() == before


def test_what_cannot_be_checked_is_refused_with_what_to_pass_instead(temp_registry: object) -> None:
    assert "pass env.unwrapped" in _failure(gymnasium.wrappers.TimeLimit(Corridor(), 5))
    assert "an id or a function" in _failure(7)
    assert "the factory returned int" in _failure(lambda: 7)
    assert "cannot be pickled" in _failure(broken.CannotBePickled())
    assert "no environment 'corridr'" in _failure("corridr")
    assert "at least one episode" in _failure(Corridor, episodes=0)


def test_the_global_generators_are_left_as_they_were() -> None:
    random.seed(3)
    np.random.seed(3)
    before = random.getstate(), np.random.get_state()[1].tolist()
    rollenv.check_env(Corridor, episodes=1)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


def test_it_can_be_called_from_a_running_event_loop() -> None:
    async def main() -> list[str]:
        return rollenv.check_env(Corridor, episodes=1).passed

    assert "asynchronous calls" in asyncio.run(main())


def test_without_proc_open_files_and_children_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollenv.conformance.resources.HAS_PROC", False)
    monkeypatch.setattr("rollenv.conformance.checks.HAS_PROC", False)
    report = rollenv.check_env(broken.LeavesFile, episodes=1)
    assert "no /proc" in report.skipped["leaks: open files and child processes"]
    with pytest.raises(ConformanceError, match="thread 'forgotten'"):
        rollenv.check_env(broken.LeavesThread, episodes=1)


def test_the_copies_of_an_instance_are_played_in_a_process_without_the_tests(tmp_path: Path) -> None:
    local = type("Local", (Corridor,), {})
    local.__module__ = "__main__"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("__main__.Local", local, raising=False)
        report = rollenv.check_env(local, episodes=1)
    assert "cannot be imported in another process" in report.skipped["another process"]


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ({"a": 1}, {"a": 1}, None),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, None),
        (float("nan"), float("nan"), None),
        (np.arange(3), np.arange(3), None),
        (1, 1.0, "x: 1 then 1.0"),
        ({"a": 1}, {}, "x['a']: there, then missing"),
        ({}, {"a": 1}, "x['a']: missing, then there"),
        ([1, [2]], [1, [3]], "x[1][0]: 2 then 3"),
        ([1], [1, 2], "x: 1 items then 2"),
        (np.arange(3), np.arange(1, 4), "x: array([0, 1, 2]) then array([1, 2, 3])"),
        ("a" * 500 + "b", "a" * 500 + "c", f"x: '{'a' * 20}b' then '{'a' * 20}c'"),
    ],
)
def test_a_difference_is_described_where_it_is(first: Any, second: Any, said: str | None) -> None:
    assert difference(first, second, "x") == said
