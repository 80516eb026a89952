"""Spaces in words: every action has one name, and what is drawn for terminals can be read."""

from __future__ import annotations

import gymnasium
import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from rollenv.envs.adapters.foreign import plain
from rollenv.envs.adapters.spaces import actions_of, described, uncoloured

SPACES = st.one_of(
    st.builds(lambda n, start: gymnasium.spaces.Discrete(n, start=start), st.integers(1, 9), st.integers(-5, 5)),
    st.builds(gymnasium.spaces.MultiDiscrete, st.lists(st.integers(1, 4), min_size=1, max_size=4)),
    st.builds(lambda n: gymnasium.spaces.MultiBinary(n), st.integers(1, 6)),
    st.just(gymnasium.spaces.MultiBinary([2, 3])),
)


@hypothesis.given(SPACES)
def test_every_listed_action_is_another_one_of_the_space(space: gymnasium.Space[object]) -> None:
    actions = actions_of(space, None, "it")
    read = [actions.read(text) for text in actions.listed() or ()]
    assert all(space.contains(action) for action in read)
    assert len({str(np.asarray(action).tolist()) for action in read}) == len(read) > 0


@pytest.mark.parametrize(
    ("drawn", "text"),
    [
        ("a\x1b[41mS\x1b[0mb", "a<red>S</red>b"),
        ("\x1b[34;1mR\x1b[0m", "<blue>R</blue>"),
        ("\x1b[1mbold\x1b[0m \x1b[2Jplain", "bold plain"),
        ("plain", "plain"),
    ],
)
def test_colours_become_marks(drawn: str, text: str) -> None:
    assert uncoloured(drawn) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.int64(36), "36"),
        (np.array([0.12345678, -2.0, 1e-7], dtype=np.float32), "[0.1235, -2, 0]"),
        ({"at": (1, 2), "name": "x"}, "at: (1, 2)\nname: x"),
        (np.array([[1, 2], [3, 4]]), "[[1, 2], [3, 4]]"),
    ],
)
def test_observations_are_written_out(value: object, text: str) -> None:
    assert described(value) == text


def test_plain_data_has_numbers_and_no_objects() -> None:
    value = {"n": np.int8(3), "a": np.arange(2), "o": object(), "l": [1, {2}, None], "d": {"x": None, "f": max}}
    assert plain(value) == {"n": 3, "a": [0, 1], "l": [1, None], "d": {"x": None}}
