"""The household oracle: reads tasks of every form, finds things, and needs nothing that an agent does not see."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rollenv
from rollenv import RollenvError
from rollenv.agents import make_agent
from rollenv.agents.alfworld_oracle import ALFWorldOracle
from rollenv.agents.alfworld_view import Task, read_task
from rollenv.registration import spec


def play(env: rollenv.TextEnv, task: str, agent: Any, seed: int = 0, limit: int = 50) -> tuple[bool, list[str]]:
    """Whether an episode is solved within the limit, and what was done."""
    observation, info = env.reset(seed=seed, options={"task": task})
    agent.reset(seed)
    actions = []
    for _ in range(limit):
        actions.append(agent.act(observation, info))
        observation, _, terminated, _, info = env.step(actions[-1])
        if terminated:
            return True, actions
    return False, actions


@pytest.mark.parametrize(
    ("sentence", "task"),
    [
        ("put a mug in desk", Task("place", "mug", "desk")),
        ("put some mug on desk", Task("place", "mug", "desk")),
        ("look at book under the desklamp", Task("light", "book", "desklamp")),
        ("examine the book with the desklamp", Task("light", "book", "desklamp")),
        ("put a clean fork in drawer", Task("clean", "fork", "drawer")),
        ("clean some fork and put it in drawer", Task("clean", "fork", "drawer")),
        ("put a hot egg in fridge", Task("heat", "egg", "fridge")),
        ("heat some egg and put it in fridge", Task("heat", "egg", "fridge")),
        ("put a cool pan in cabinet", Task("cool", "pan", "cabinet")),
        ("cool some pan and put it in cabinet", Task("cool", "pan", "cabinet")),
        ("put two cd in safe", Task("two", "cd", "safe")),
        ("find two cd and put them in safe", Task("two", "cd", "safe")),
    ],
)
def test_every_form_of_a_task_is_understood(sentence: str, task: Task) -> None:
    assert read_task(f"You see nothing.\n\nYour task is to: {sentence}.") == task


def test_another_task_is_refused() -> None:
    with pytest.raises(RollenvError, match="none of the six kinds"):
        read_task("Your task is to: dance.")


def test_generated_games_are_solved_in_every_split() -> None:
    env = rollenv.make("alfworld")
    for split in env.tasks.splits:
        tasks = env.tasks.ids(split)[:60]
        solved = [play(env, task, ALFWorldOracle())[0] for task in tasks]
        assert sum(solved) >= 0.99 * len(solved), split


def test_it_does_without_the_list_of_admissible_actions() -> None:
    env = rollenv.make("alfworld", admissible_actions=False)
    tasks = env.tasks.ids("valid_unseen")[:60]
    assert sum(play(env, task, ALFWorldOracle())[0] for task in tasks) >= 58


def test_it_recovers_from_its_mistakes() -> None:
    env = rollenv.make("alfworld")
    tasks = env.tasks.ids("valid_seen")[:60]
    assert sum(play(env, task, ALFWorldOracle(noise=0.3), seed=1)[0] for task in tasks) >= 45


def test_some_of_its_mistakes_are_refused() -> None:
    env = rollenv.make("alfworld")
    refused = played = 0
    for task in env.tasks.ids("valid_seen")[:20]:
        agent = ALFWorldOracle(noise=1.0)
        observation, info = env.reset(options={"task": task})
        for _ in range(20):
            observation, _, over, _, info = env.step(agent.act(observation, info))
            played, refused = played + 1, refused + (not info["valid_action"])
            if over:
                break
    assert 0.1 < refused / played < 0.3


def test_a_seed_decides_its_mistakes() -> None:
    env = rollenv.make("alfworld")
    task = env.tasks.ids("train")[3]
    first, again, other = (play(env, task, ALFWorldOracle(noise=0.5), seed=seed)[1] for seed in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.parametrize("noise", [-0.1, 1.1])
def test_a_wrong_share_of_mistakes_is_refused(noise: float) -> None:
    with pytest.raises(RollenvError, match="noise"):
        ALFWorldOracle(noise=noise)


def test_real_games_of_both_dialects_are_solved(shared_data: Callable[[str], Path], tmp_path: Path) -> None:
    with tarfile.open(shared_data("alfworld/games_of_visible_transcripts.tar.xz")) as packed:
        packed.extractall(tmp_path, filter="data")
    for dialect in ("v1", "v2"):
        env = rollenv.make("alfworld", data=tmp_path / dialect)
        tasks = [task for ids in env.tasks.splits.values() for task in ids]
        assert all(play(env, task, ALFWorldOracle())[0] for task in tasks), dialect


@pytest.mark.slow
def test_99_of_100_real_training_games_are_solved(shared_data: Callable[[str], Path]) -> None:
    env = rollenv.make("alfworld", data=shared_data("alfworld/games_v2_train.tar.xz"))
    solved = [play(env, task, ALFWorldOracle())[0] for task in env.tasks.ids("train")]
    assert sum(solved) >= 0.99 * len(solved)


def test_the_walkthrough_is_replayed_when_the_environment_shows_it() -> None:
    agent = make_agent(spec("alfworld"), "walkthrough")
    env = rollenv.make("alfworld", walkthrough=True)
    for task in env.tasks.ids("valid_unseen")[:12]:
        assert play(env, task, agent)[0]


def test_the_walkthrough_must_be_shown(tmp_path: Path) -> None:
    agent = make_agent(spec("alfworld"), "walkthrough")
    env = rollenv.make("alfworld")
    with pytest.raises(RollenvError, match="walkthrough=True"):
        play(env, env.tasks.ids("train")[0], agent)


def test_a_walkthrough_that_does_not_solve_the_task_says_so() -> None:
    agent = make_agent(spec("alfworld"), "walkthrough")
    agent.reset(0)
    assert agent.act("", json.loads('{"walkthrough": ["look"]}')) == "look"
    with pytest.raises(RollenvError, match="does not solve"):
        agent.act("", {"task": "a task"})
