"""GEM's environments, by the real package: the same episodes, behind the contract of an environment."""

from __future__ import annotations

import functools
import random
from typing import Any

import numpy as np
import pytest

import rollenv
from rollenv import RollenvError
from rollenv.envs.adapters.gem_env import GemEnv

gem: Any = pytest.importorskip("gem", reason="needs the extra [gem], in an environment of its own")

pytestmark = pytest.mark.foreign

GUESS = "game:GuessTheNumber-v0-hard"


def guesses(observation: str, info: Any, rng: random.Random) -> str:
    return f"\\boxed{{{rng.randint(1, 50)}}}"


def test_an_episode_is_gems_own() -> None:
    env = rollenv.make("gem", env_id=GUESS)
    inner = gem.make(GUESS)
    for seed in (3, 150, 1004):
        state = random.getstate(), np.random.get_state()
        observation, info = inner.reset(seed=seed)
        assert env.reset(options={"task": f"seed-{seed}"})[0] == f"{observation}\n{info['suffix']}"
        for number in (25, 12, 37, 6):
            expected = inner.step(f"\\boxed{{{number}}}")
            seen = env.step(f"\\boxed{{{number}}}")
            assert seen[0].startswith(expected[0])
            assert seen[1:4] == expected[1:4]
            if expected[2]:
                break
        random.setstate(state[0])
        np.random.set_state(state[1])
    env.close()


def test_halving_finds_the_number() -> None:
    env = GemEnv(GUESS)
    _, info = env.reset(seed=0, options={"task": "seed-9"})
    low, high = 1, 50
    while "success" not in info:
        middle = (low + high) // 2
        observation, reward, *_, info = env.step(f"It is \\boxed{{{middle}}}")
        low, high = (middle + 1, high) if "higher" in observation else (low, middle - 1)
    assert info["success"] == (reward == 1.0)
    assert info["success"] or "maximum" in observation


@pytest.mark.parametrize("name", [GUESS, "game:Minesweeper-v0-easy", "rg:leg_counting"])
def test_it_keeps_the_contract(name: str) -> None:
    report = rollenv.check_env(functools.partial(GemEnv, name), episodes=2, steps=8, policy=guesses)
    assert {"seeds", "another process", "snapshots", "pickling", "leaks"} <= set(report.passed)


def test_two_episodes_at_once_do_not_disturb_each_other() -> None:
    alone, first, second = GemEnv("game:Game2048-v0-easy"), *(GemEnv("game:Game2048-v0-easy") for _ in range(2))
    moves = ["\\boxed{up}", "\\boxed{left}", "\\boxed{down}", "\\boxed{right}"] * 2
    expected = [alone.reset(seed=5)[0], *(alone.step(move)[0] for move in moves)]
    seen = [first.reset(seed=5)[0]]
    second.reset(seed=6)
    for move in moves:
        second.step(move)
        seen.append(first.step(move)[0])
    assert seen == expected


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, "which environment"),
        ({"env_id": "game:GuessTheNumber-v0-hrd"}, "did you mean 'game:GuessTheNumber-v0-hard'"),
        ({"env_id": GUESS, "args": {"min_number": "x"}}, "cannot make"),
    ],
)
def test_what_cannot_be_played_is_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(RollenvError, match=reason):
        rollenv.make("gem", **settings)
