"""Where two recorded answers of an environment differ, in words."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np


def difference(first: Any, second: Any, at: str = "") -> str | None:
    """The first place where two values differ, as `"info['x']: 1 then 2"`; None when they are equal.

    >>> difference({"a": [1, 2]}, {"a": [1, 3]}, "info")
    "info['a'][1]: 2 then 3"
    """
    if type(first) is not type(second):
        return _then(at, repr(first), repr(second))
    if isinstance(first, dict):
        for key in first:
            if key not in second:
                return f"{at}[{key!r}]: there, then missing"
            if found := difference(first[key], second[key], f"{at}[{key!r}]"):
                return found
        extra = [key for key in second if key not in first]
        return f"{at}[{extra[0]!r}]: missing, then there" if extra else None
    if isinstance(first, list | tuple):
        for index, (one, other) in enumerate(zip(first, second, strict=False)):
            if found := difference(one, other, f"{at}[{index}]"):
                return found
        return None if len(first) == len(second) else f"{at}: {len(first)} items then {len(second)}"
    if _equal(first, second):
        return None
    if isinstance(first, str):
        equal = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), len(first))
        start = max(0, equal - 20)
        return _then(at, repr(first[start : start + 100]), repr(second[start : start + 100]))
    return _then(at, repr(first), repr(second))


def _equal(first: Any, second: Any) -> bool:
    if isinstance(first, np.ndarray):
        same_form = bool(first.shape == second.shape and first.dtype == second.dtype)
        return same_form and first.tobytes() == second.tobytes()
    if isinstance(first, float) and first != first:
        return bool(second != second)
    by_identity: bool = getattr(type(first), "__eq__", None) is object.__eq__
    return pickle.dumps(first) == pickle.dumps(second) if by_identity else bool(first == second)


def _then(at: str, first: str, second: str) -> str:
    return f"{at}: {first[:120]} then {second[:120]}"
