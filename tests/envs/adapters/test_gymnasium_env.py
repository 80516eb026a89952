"""Gymnasium's environments, played by text: the same episodes, behind the contract of an environment."""

from __future__ import annotations

import functools
import pickle
import re
from typing import Any

import gymnasium
import numpy as np
import pytest
from server.serving import served

import rollenv
from rollenv import RollenvError, SnapshotError
from rollenv.envs.adapters.gymnasium_env import GymnasiumEnv

SHORTEST = ["up", *["right"] * 11, "down"]


class Locks(gymnasium.Env[str, Any]):
    """Two wheels and a bolt, to be set to what the observation says."""

    observation_space = gymnasium.spaces.Text(40)

    def __init__(self, space: gymnasium.Space[Any] | None = None, size: int = 3) -> None:
        self.action_space = space or gymnasium.spaces.MultiDiscrete([size, size, 2])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.code = [int(n) for n in self.np_random.integers(2, size=3)]
        return f"set {self.code}", {}

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        opened = not isinstance(action, str) and np.ravel(action).tolist() == self.code
        return "open" if opened else "shut", float(opened), opened, False, {"is_success": opened, "lock": object()}


class Sayings(Locks):
    def __init__(self) -> None:
        super().__init__(gymnasium.spaces.Text(12))


class Pictures(gymnasium.Env[Any, int]):
    action_space = gymnasium.spaces.Discrete(2, start=5)
    observation_space = gymnasium.spaces.Box(0, 255, (20, 20))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros((20, 20)), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.full((20, 20), action), 0.0, False, False, {}


def brightness(observation: Any, info: Any) -> str:
    return f"as bright as {observation.mean():g}"


def played(env: rollenv.TextEnv, actions: list[str], **reset: Any) -> list[Any]:
    return [env.reset(**reset)[0], *(env.step(action)[:4] for action in actions)]


# -- the same episodes ---------------------------------------------------------------------------------------------


def test_a_cliff_is_walked_around_by_words() -> None:
    env = rollenv.make("gymnasium", env_id="CliffWalking-v1")
    observation, info = env.reset(seed=0, options={"task": "seed-0"})
    assert observation.splitlines()[-1].split() == ["x", *"C" * 10, "T"]
    assert info["admissible_actions"] == ["up", "right", "down", "left"]
    total = 0.0
    for action in SHORTEST:
        observation, reward, terminated, truncated, info = env.step(action)
        total += reward
    assert (total, terminated, truncated, info["admissible_actions"]) == (-13.0, True, False, [])
    env.close()


@pytest.mark.parametrize("name", ["CartPole-v1", "MountainCar-v0", "Blackjack-v1"])
def test_an_episode_begins_as_gymnasiums_own_with_the_tasks_seed(name: str) -> None:
    inner = gymnasium.make(name)
    env = GymnasiumEnv(name, observe="array")
    for seed in (0, 7, 1999):
        numbers = re.findall(
            r"-?[\d.]+(?:e-?\d+)?", env.reset(options={"task": f"seed-{seed}"} if seed != 1999 else None)[0]
        )
        expected = inner.reset(seed=int(env._task.removeprefix("seed-")))[0]  # type: ignore[union-attr]
        assert [float(n) for n in numbers] == pytest.approx(np.ravel(expected).tolist(), abs=1e-4)
    inner.close()
    env.close()


def test_without_chance_every_step_is_gymnasiums_own() -> None:
    inner, env = gymnasium.make("Taxi-v4"), GymnasiumEnv("Taxi-v4", observe="array")
    observation, info = inner.reset(seed=5)
    assert env.reset(options={"task": "seed-5"})[0] == str(observation)
    names = ("south", "north", "east", "west", "pick up", "drop off")
    generator = np.random.default_rng(0)
    for _ in range(60):
        number = int(generator.choice(np.flatnonzero(info["action_mask"])))
        observation, reward, terminated, truncated, info = inner.step(number)
        answer = env.step(names[number])
        assert answer[:4] == (str(observation), reward, terminated, truncated)
        assert answer[4]["admissible_actions"] == [names[i] for i in np.flatnonzero(info["action_mask"])]
    inner.close()
    env.close()


def test_samples_of_a_task_begin_alike_and_meet_chances_of_their_own() -> None:
    env = GymnasiumEnv("FrozenLake-v1")
    ways = [tuple(played(env, ["up"] * 3, seed=seed, options={"task": "seed-3"})[:4]) for seed in range(6)]
    assert len({way[0] for way in ways}) == 1
    assert len(set(ways)) > 1
    assert tuple(played(env, ["up"] * 3, seed=2, options={"task": "seed-3"})[:4]) == ways[2]
    env.close()


def test_an_action_that_is_masked_or_unknown_changes_nothing() -> None:
    env = GymnasiumEnv("Taxi-v4")
    observation, info = env.reset(options={"task": "seed-3"})
    assert "pick up" not in info["admissible_actions"]
    for action in ("pick up", "fly", ""):
        seen, reward, terminated, truncated, after = env.step(action)
        assert (seen, reward, terminated, truncated, after["valid_action"]) == (observation, 0.0, False, False, False)
    assert env.step(" SOUTH ")[4]["valid_action"]
    env.close()


def test_limits_of_the_environment_truncate() -> None:
    env = GymnasiumEnv("FrozenLake-v1", args={"max_episode_steps": 3, "is_slippery": False})
    *_, last = played(env, ["left"] * 3, options={"task": "seed-0"})
    assert last[1:] == (0.0, False, True)
    with pytest.raises(RollenvError, match="reset"):
        env.step("left")
    env.close()


@pytest.mark.parametrize(
    ("settings", "solved"),
    [({"success": "terminated"}, True), ({"success": -13}, True), ({"success": -12.5}, False), ({}, False)],
)
def test_what_success_means_can_be_said(settings: dict[str, Any], solved: bool) -> None:
    env = GymnasiumEnv("CliffWalking-v1", **settings)
    env.reset(seed=0)
    assert [env.step(action) for action in SHORTEST][-1][4]["success"] is solved
    env.close()


# -- the contract --------------------------------------------------------------------------------------------------


def test_a_stochastic_environment_keeps_the_contract() -> None:
    report = rollenv.check_env(functools.partial(GymnasiumEnv, "FrozenLake-v1", reward_range=(0, 1)))
    assert not report.skipped


@pytest.mark.parametrize(
    "make",
    [
        functools.partial(GymnasiumEnv, "Taxi-v4"),
        functools.partial(GymnasiumEnv, Locks),
        functools.partial(GymnasiumEnv, Sayings),
    ],
    ids=["mask", "several numbers", "text"],
)
def test_other_kinds_of_actions_keep_the_contract(make: Any) -> None:
    report = rollenv.check_env(make, episodes=2, steps=12)
    assert {"snapshots", "pickling", "bad actions", "leaks"} <= set(report.passed)


def test_a_copy_and_a_snapshot_go_on_alike_after_a_reseed() -> None:
    env = GymnasiumEnv("FrozenLake8x8-v1")
    env.reset(seed=4)
    env.step("right")
    env.reseed(99)
    env.step("down")
    snapshot, copy, other = env.snapshot(), pickle.loads(pickle.dumps(env)), GymnasiumEnv("FrozenLake8x8-v1")
    other.restore(snapshot)
    for action in ("right", "down", "right", "down"):
        assert env.step(action) == copy.step(action) == other.step(action)
    with pytest.raises(SnapshotError, match="another environment"):
        GymnasiumEnv("FrozenLake-v1").restore(snapshot)


def test_a_snapshot_holds_nothing_that_could_be_executed() -> None:
    env = GymnasiumEnv("FrozenLake-v1")
    env.reset(seed=0)
    assert b"pickle" not in env.snapshot()
    assert not any(marker in env.snapshot() for marker in (b"\x80\x04", b"\x80\x05"))


def test_an_unbounded_reward_is_played_on_a_server(temp_registry: Any) -> None:
    with served("gymnasium", arguments={"env_id": "CliffWalking-v1"}) as (address, _):
        env = rollenv.connect(f"{address}/gymnasium")
        assert env.reward_range == (-float("inf"), float("inf"))
        local = GymnasiumEnv("CliffWalking-v1")
        assert played(env, ["up", "right", "down"], seed=1) == played(local, ["up", "right", "down"], seed=1)
        env.close()
        local.close()


# -- words ---------------------------------------------------------------------------------------------------------


def test_several_numbers_make_an_action() -> None:
    env = GymnasiumEnv(Locks)
    observation, info = env.reset(seed=0)
    assert len(info["admissible_actions"]) == 3 * 3 * 2
    code = " ".join(re.findall(r"\d", observation))
    for wrong in ("0 0", "0 0 2", "0 0 x", "-1 0 0"):
        assert not env.step(wrong)[4]["valid_action"]
    seen, reward, terminated, _, info = env.step(code)
    assert (seen, reward, terminated, info["success"], info["inner"]) == ("open", 1.0, True, True, {"is_success": True})


def test_too_many_combinations_are_not_listed() -> None:
    env = GymnasiumEnv(functools.partial(Locks, size=100))
    assert "admissible_actions" not in env.reset(seed=0)[1]
    assert env.step("99, 0, 1")[4]["valid_action"]


def test_a_picture_is_refused_unless_somebody_describes_it() -> None:
    with pytest.raises(RollenvError, match=r"20 x 20 numbers.*describe="):
        GymnasiumEnv(Pictures).reset()
    env = GymnasiumEnv(Pictures, describe=brightness, actions=["dim", "lit"])
    env.reset()
    assert env.step("lit")[0] == "as bright as 6"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, "which environment"),
        ({"env_id": "CliffWalkin-v1"}, "did you mean 'CliffWalking-v1'"),
        ({"env_id": "Pendulum-v1"}, "no word names.*Discrete"),
        ({"env_id": "CliffWalking-v1", "args": {"slippy": True}}, "cannot make 'CliffWalking-v1'.*slippy"),
        ({"env_id": "CliffWalking-v1", "actions": ["north", "south"]}, "4 different words"),
        ({"env_id": "CliffWalking-v1", "actions": ["a", "b", "c", "A "]}, "4 different words"),
        ({"env_id": "CartPole-v1", "observe": "ansi"}, "no render mode ansi"),
        ({"env_id": "CartPole-v1", "observe": "ascii"}, "did you mean 'ansi'"),
        ({"env_id": "CartPole-v1", "success": "won"}, "a return to reach"),
        ({"env_id": "CartPole-v1", "reward_range": [1, 0]}, "lowest, highest"),
        ({"env_id": "CartPole-v1", "describe": "json:no_such"}, "no 'no_such'"),
        ({"env_id": "rollenv/WebShop-v1"}, "--env webshop"),
        ({"env_id": "no_such_module:Env-v0"}, "no_such_module"),
    ],
)
def test_what_cannot_be_played_is_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(RollenvError, match=reason):
        rollenv.make("gymnasium", **settings)
