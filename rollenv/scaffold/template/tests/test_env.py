"""The environment keeps its contract, and its tasks can be solved."""

import random

import pytest
import rollenv

from my_env.env import bearing
from my_env.oracle import Oracle


@pytest.fixture
def env():
    env = rollenv.make("my_env")
    yield env
    env.close()


def play(env, task, agent):
    """Plays a task to its end; the number of turns."""
    observation, info = env.reset(seed=1, options={"task": task})
    agent.reset(seed=1)
    turns = 0
    while "success" not in info:
        observation, reward, *_, info = env.step(agent.act(observation, info))
        turns += 1
    assert (info["success"], reward) == (True, 1.0)
    return turns


def careless(observation: str, info: dict, rng: random.Random) -> str:
    agent = Oracle(noise=0.2)
    agent.reset(rng.getrandbits(32))
    return agent.act(observation, info)


def test_it_keeps_the_contract():
    report = rollenv.check_env("my_env", policy=careless)
    assert not report.skipped


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_oracle_solves_every_task_in_time(env, split):
    limit = rollenv.spec("my_env").max_turns
    assert max(play(env, task, Oracle()) for task in env.tasks.ids(split)) <= limit


def test_a_parcel_is_brought(env):
    observation, info = env.reset(options={"task": "a1-b1-b2"})
    assert observation == "The parcel is east."
    assert info["admissible_actions"] == ["north", "east"]
    assert env.step("east")[0] == "The parcel is here."
    assert env.step("take")[0] == "You carry the parcel. Its goal is north."
    assert env.step("drop")[1:3] == (0.0, False)  # not there yet
    env.step("take")
    assert env.step("north")[0] == "You carry the parcel. Its goal is here."
    _, reward, terminated, _, info = env.step("drop")
    assert (reward, terminated, info["success"]) == (1.0, True, True)


@pytest.mark.parametrize(
    ("there", "way"),
    [("b2", "here"), ("b3", "north"), ("a2", "west"), ("c1", "south and east"), ("a3", "north and west")],
)
def test_the_bearing_of_a_square(there, way):
    assert bearing("b2", there) == way


def test_what_is_not_possible_changes_nothing(env):
    observation, info = env.reset(options={"task": "a1-c3-b2"})
    for action in ("", "west", "south", "take", "drop", "up"):
        seen, reward, terminated, truncated, after = env.step(action)
        assert (seen, reward, terminated, truncated, after["valid_action"]) == (observation, 0.0, False, False, False)
        assert after["admissible_actions"] == info["admissible_actions"]
