"""How much of an episode the model sees: all of it, or the last k turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rollenv.agents.base import Step
from rollenv.errors import RollenvError
from rollenv.messages import Message

History = int | Literal["full"]


def check_history(history: History) -> History:
    """`history` when it is `"full"` or a number of turns of at least 1. Raises RollenvError otherwise."""
    if history == "full" or (isinstance(history, int) and not isinstance(history, bool) and history >= 1):
        return history
    raise RollenvError(f"history must be 'full' or a number of turns of at least 1, not {history!r}")


def window_start(n_turns: int, history: History) -> int:
    """Index of the first turn that is shown when `n_turns` have begun.

    A window slides by half its length at a time rather than at every turn, so that most prompts extend the last
    one (and are neither computed again nor trained as a segment of their own): it shows between ceil(k/2) and k.
    """
    if history == "full" or n_turns <= history:
        return 0
    stride = max(1, history // 2)
    return -(-(n_turns - history) // stride) * stride


def conversation(system: str, texts: Sequence[str], steps: Sequence[Step], start: int) -> list[Message]:
    """System prompt, then turn by turn from `start` what the model read and what it wrote.

    `texts[t]` is the rendered observation of turn t; the last of `steps` is yet to be answered.
    """
    messages = [Message("system", system)] if system else []
    last = len(steps) - 1
    for turn in range(start, len(steps)):
        messages.append(Message("user", texts[turn], turn))
        if turn < last:
            messages.append(Message("assistant", steps[turn].completion, turn))
    return messages
