"""How much of an episode the model sees."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollenv.agents.base import Step
from rollenv.agents.history import check_history, conversation, window_start
from rollenv.errors import RollenvError


@given(st.integers(1, 60), st.integers(1, 12))
def test_a_window_shows_the_last_turns_and_slides_seldom(turns: int, history: int) -> None:
    starts = [window_start(n, history) for n in range(1, turns + 1)]
    shown = [n - start for n, start in zip(range(1, turns + 1), starts, strict=True)]
    assert max(shown) <= history
    assert all(count >= min(n, history // 2 + history % 2) for n, count in enumerate(shown, 1))
    assert starts == sorted(starts)
    slides = sum(a != b for a, b in itertools.pairwise(starts))
    assert slides == -(-max(0, turns - history) // max(1, history // 2))


def test_windows_by_hand() -> None:
    assert [window_start(n, 4) for n in range(1, 10)] == [0, 0, 0, 0, 2, 2, 4, 4, 6]
    assert [window_start(n, 1) for n in range(1, 5)] == [0, 1, 2, 3]
    assert window_start(1000, "full") == 0


@pytest.mark.parametrize("history", [0, -1, 1.5, True, "all", None])
def test_a_history_that_makes_no_sense_is_refused(history: object) -> None:
    with pytest.raises(RollenvError, match="history must be 'full' or a number of turns"):
        check_history(history)  # type: ignore[arg-type]


def test_conversation_keeps_every_turn_valid_or_not() -> None:
    """History never keeps only some kind of steps; the last one is yet to be answered."""
    steps = [Step("o0", {}, "c0", valid_action=False), Step("o1", {}, "c1"), Step("o2", {})]
    messages = conversation("sys", ["t0", "t1", "t2"], steps, 0)
    assert [(m.role, m.content, m.turn) for m in messages] == [
        ("system", "sys", None),
        ("user", "t0", 0),
        ("assistant", "c0", 0),
        ("user", "t1", 1),
        ("assistant", "c1", 1),
        ("user", "t2", 2),
    ]
    assert [(m.role, m.turn) for m in conversation("", ["", "t1", "t2"], steps, 1)] == [
        ("user", 1),
        ("assistant", 1),
        ("user", 2),
    ]
