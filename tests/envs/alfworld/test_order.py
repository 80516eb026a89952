"""Games are played in the order of the original."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest

import rollenv
from rollenv.envs.alfworld.generated import generated_library
from rollenv.envs.alfworld.order import UpstreamOrder

IDS = [f"game {number}" for number in range(7)]


def test_the_order_is_that_of_textworlds_gym_environments() -> None:
    rng = np.random.RandomState(1234)
    shuffled = list(IDS)
    rng.shuffle(shuffled)
    expected = list(shuffled)
    for _ in range(2):
        rng.shuffle(shuffled)
        expected += shuffled
    order = UpstreamOrder(IDS)
    assert [order.draw() for _ in expected] == expected


def test_it_is_textworlds_own_order() -> None:
    cycle = pytest.importorskip("textworld.gym.envs.utils", reason="needs the extra [alfworld]").shuffled_cycle
    rng = np.random.RandomState(99)
    ids = list(IDS)
    rng.shuffle(ids)
    expected = list(itertools.islice(cycle(ids, rng=rng), 30))
    order = UpstreamOrder(IDS, 99)
    assert [order.draw() for _ in expected] == expected


@pytest.mark.parametrize("drawn", [0, 3, 7, 20])
def test_an_order_goes_on_where_it_was(drawn: int) -> None:
    order = UpstreamOrder(IDS, 5)
    for _ in range(drawn):
        order.draw()
    again = UpstreamOrder(IDS, 5, drawn)
    assert [order.draw() for _ in range(20)] == [again.draw() for _ in range(20)]


def test_an_environment_plays_every_game_once_before_it_plays_one_again() -> None:
    env = rollenv.make("alfworld", order="upstream")
    ids = generated_library().tasks.ids("train")
    order = UpstreamOrder(ids)
    assert [env.reset()[1]["task"] for _ in range(5)] == [order.draw() for _ in range(5)]
    other = rollenv.make("alfworld", order="upstream")
    other.restore(env.snapshot())
    assert other.reset()[1]["task"] == env.reset()[1]["task"] == order.draw()


def test_it_keeps_the_contract() -> None:
    make = functools.partial(rollenv.make, "alfworld", order="upstream")
    assert "snapshots" in rollenv.check_env(make, steps=8).passed
