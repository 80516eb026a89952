"""Gymnasium's spaces as text: actions that are words, observations that can be read."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import gymnasium
import numpy as np

from rollenv.errors import RollenvError

MOST_LISTED = 1000
"""So many combinations of a MultiDiscrete space are listed as admissible; of a larger one none."""
MOST_NUMBERS = 256
"""The largest array that is written out."""


class Actions(Protocol):
    """What can be done, in words."""

    free: bool
    """Whether any text may be one."""

    def read(self, text: str, mask: Any = None) -> Any:
        """The action that `text` names, in the space's own form; None when it names none that is possible."""
        ...

    def listed(self, mask: Any = None) -> list[str] | None:
        """The possible ones; None when there are too many. `mask` is the environment's `info["action_mask"]`, where it
        gives one (1 for each action of a Discrete space that is possible now)."""
        ...


def actions_of(space: gymnasium.Space[Any], names: Sequence[str] | None, what: str) -> Actions:
    """Actions of a space.

    Args:
        space: Discrete, MultiDiscrete, MultiBinary or Text.
        names: words for the actions of a Discrete space, in its order; None: their numbers.
        what: the environment, for messages.

    Raises:
        RollenvError: it is another space, or `names` are not as many different words as it has actions.
    """
    spaces = gymnasium.spaces
    if isinstance(space, spaces.Discrete):
        return _Named(space, names, what)
    if names is not None:
        raise RollenvError(f"{what}: actions= names the actions of a Discrete space; this one has {space}")
    if isinstance(space, spaces.MultiDiscrete):
        first = np.asarray(space.start).ravel()
        return _Numbers([range(int(s), int(s) + int(n)) for s, n in zip(first, space.nvec.ravel(), strict=True)], space)
    if isinstance(space, spaces.MultiBinary):
        return _Numbers([range(2)] * int(np.prod(space.shape)), space)
    if isinstance(space, spaces.Text):
        return _Words(space)
    raise RollenvError(
        f"{what}: its actions are {space}, which no word names: wrap it so that they are Discrete, MultiDiscrete, "
        "MultiBinary or Text (gymnasium.wrappers.DiscretizeAction makes a Box so)"
    )


class _Named:
    """Discrete: one word per action, upper and lower case alike."""

    free = False

    def __init__(self, space: gymnasium.spaces.Discrete, names: Sequence[str] | None, what: str) -> None:
        count, self._first = int(space.n), int(space.start)
        self._names = [str(self._first + i) for i in range(count)] if names is None else [str(name) for name in names]
        self._numbers = {name.strip().lower(): i for i, name in enumerate(self._names)}
        if len(self._names) != count or len(self._numbers) != count or "" in self._numbers:
            raise RollenvError(f"{what}: actions= must be {count} different words, not {list(names or ())}")

    def read(self, text: str, mask: Any = None) -> Any:
        number = self._numbers.get(text.strip().lower())
        return self._first + number if number is not None and self._possible(mask)[number] else None

    def listed(self, mask: Any = None) -> list[str]:
        return list(itertools.compress(self._names, self._possible(mask)))

    def _possible(self, mask: Any) -> Sequence[Any]:
        fits = isinstance(mask, np.ndarray) and mask.shape == (len(self._names),)
        return mask.tolist() if fits else [1] * len(self._names)


class _Numbers:
    """MultiDiscrete and MultiBinary: as many numbers as it has places, with spaces between them."""

    free = False

    def __init__(self, places: Sequence[range], space: gymnasium.Space[Any]) -> None:
        self._places, self._space = places, space
        self._all: list[str] | None = None
        if math.prod(len(place) for place in places) <= MOST_LISTED:
            self._all = [" ".join(map(str, numbers)) for numbers in itertools.product(*places)]

    def read(self, text: str, mask: Any = None) -> Any:
        words = text.replace(",", " ").split()
        if len(words) != len(self._places) or not all(re.fullmatch(r"-?\d{1,18}", word) for word in words):
            return None
        numbers = [int(word) for word in words]
        if not all(number in place for number, place in zip(numbers, self._places, strict=True)):
            return None
        return np.array(numbers, dtype=self._space.dtype).reshape(self._space.shape)

    def listed(self, mask: Any = None) -> list[str] | None:
        return self._all


class _Words:
    """Text: as it is."""

    free = True

    def __init__(self, space: gymnasium.spaces.Text) -> None:
        self._space = space

    def read(self, text: str, mask: Any = None) -> Any:
        return text if self._space.contains(text) else None

    def listed(self, mask: Any = None) -> None:
        return None


def described(value: Any) -> str:
    """An observation as text: words as they are, numbers with four decimals at most, one line per entry of a dict.

    >>> described((12, 10, 0))
    '(12, 10, 0)'
    >>> described({"position": np.array([0.25, -1.0]), "key": 1})
    'position: [0.25, -1]\\nkey: 1'

    Raises:
        RollenvError: it is an array of more than `MOST_NUMBERS` numbers, such as a picture.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return "\n".join(f"{key}: {described(item)}" for key, item in value.items())
    if isinstance(value, np.ndarray) and value.size > MOST_NUMBERS:
        raise RollenvError(
            f"the observation is an array of {' x '.join(map(str, value.shape))} numbers, too long to read: "
            "say what it shows with describe=module:function, which gets the observation and the info"
        )
    if isinstance(value, np.ndarray | np.generic):
        return described(value.tolist())
    if isinstance(value, list):
        return f"[{', '.join(described(item) for item in value)}]"
    if isinstance(value, tuple):
        return f"({', '.join(described(item) for item in value)})"
    return f"{round(value, 4):g}" if isinstance(value, float) else str(value)


_STYLED = re.compile(r"\x1b\[([\d;]*)m(.*?)\x1b\[0?m", re.DOTALL)
_ESCAPE = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")
_COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")


def uncoloured(text: str) -> str:
    """Text for terminals without its escape codes: what stood out by a colour stands between angle brackets.

    >>> uncoloured("S\\x1b[41mF\\x1b[0mH")
    'S<red>F</red>H'
    """
    return _ESCAPE.sub("", _STYLED.sub(_marked, text))


def _marked(found: re.Match[str]) -> str:
    codes = [int(code) for code in found[1].split(";") if code]
    names = [_COLOURS[code % 10] for code in codes if code // 10 in (3, 4) and code % 10 < 8]
    return f"<{names[0]}>{found[2]}</{names[0]}>" if names else found[2]
