"""WebShop keeps rollenv's contract and Gymnasium's, on the generated store and on WebShop's own data."""

from __future__ import annotations

import functools
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.utils import env_checker

import rollenv
from rollenv.conformance.checks import CHECKS


@pytest.fixture(params=["generated", "real"])
def data(request: pytest.FixtureRequest, shared_data: Callable[[str], Path]) -> dict[str, Any]:
    """The arguments that choose the store."""
    return {} if request.param == "generated" else {"data": shared_data("webshop")}


def shopper(observation: str, info: dict[str, Any], generator: random.Random) -> str:
    """Random clicks, and now and then a search for some words of the instruction."""
    if info["available_actions"]["has_search_bar"] and generator.random() < 0.7:
        words = info["instruction"].lower().replace(",", "").split()
        return f"search[{' '.join(generator.sample(words, 3))}]"
    return str(generator.choice(info["admissible_actions"]))


@pytest.mark.parametrize("goals", ["synthetic", "human"])
def test_webshop_keeps_the_contract(data: dict[str, Any], goals: str) -> None:
    make = functools.partial(rollenv.make, "webshop", goals=goals, **data)
    report = rollenv.check_env(make, episodes=4, steps=60)
    assert report.passed == list(CHECKS)
    assert report.skipped == {}


def test_webshop_keeps_the_contract_when_searched_and_bought_from() -> None:
    report = rollenv.check_env("webshop", episodes=4, steps=40, seed=100, policy=shopper)
    assert report.passed == list(CHECKS)
    assert report.skipped == {}


@pytest.mark.parametrize("mode", ["text_rich", "html", "url"])
def test_every_observation_mode_keeps_the_contract(mode: str) -> None:
    make = functools.partial(rollenv.make, "webshop", observation_mode=mode, show_attrs=True)
    assert rollenv.check_env(make, episodes=3, steps=60).skipped == {}


def test_a_webshop_in_the_middle_of_an_episode_can_be_checked() -> None:
    env = rollenv.make("webshop")
    env.reset(seed=1)
    env.step("search[shoes]")
    before = env.snapshot()
    assert list(rollenv.check_env(env, episodes=1).skipped) == ["misuse: a step before reset"]
    assert env.snapshot() == before
    env.close()


def test_gymnasiums_checker_is_content(data: dict[str, Any]) -> None:
    rollenv.spec("webshop")
    env = gymnasium.make("rollenv/WebShop-v1", **data)
    env_checker.check_env(env.unwrapped)
    env.close()


def test_importing_rollenv_is_enough_for_gymnasium() -> None:
    code = "import gymnasium, rollenv; print(type(gymnasium.make('rollenv/WebShop-v1').unwrapped).__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "WebShopEnv\n", done.stderr
