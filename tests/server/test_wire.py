"""Replies are written as `json` writes them, whoever writes them; messages are read as `json` reads them."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollenv.errors import RollenvError
from rollenv.server import wire

# With what one of the two writers cannot do, or does otherwise: NaN, large integers, halves of surrogate pairs.
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None, exclude_categories=()))
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12)


@given(reply=st.dictionaries(st.text(), VALUES))
def test_what_is_written_is_read_as_it_was(reply: dict[str, Any]) -> None:
    # By their texts, as NaN equals nothing.
    assert repr(json.loads(wire.dump(reply).decode())) == repr(reply)


def test_numbers_of_numpy_and_sets_are_plain() -> None:
    written = wire.dump(
        {"a": np.float32(0.5), "b": np.arange(2), "c": {2, 1}, "d": np.float64("nan"), "e": np.int64(3)}
    )
    read = json.loads(written)
    assert math.isnan(read.pop("d"))
    assert read == {"a": 0.5, "b": [0, 1], "c": [1, 2], "e": 3}


def test_what_has_no_form_is_refused() -> None:
    with pytest.raises(TypeError, match="object has no JSON form"):
        wire.dump({"a": object()})


@given(
    data=st.dictionaries(st.text().filter(lambda key: key != "step_id"), VALUES), space=st.sampled_from(["", " ", "\n"])
)
def test_messages_are_read_with_white_space_and_without(data: dict[str, Any], space: str) -> None:
    text = space + json.dumps({"type": "reset", "data": data}) + space
    assert repr(wire.read_message(text).data) == repr(data)


@pytest.mark.parametrize("rest", ["x", "{}", ","])
def test_what_follows_a_message_is_no_json(rest: str) -> None:
    with pytest.raises(RollenvError, match="not JSON"):
        wire.read_message('{"type": "state"}' + rest)
