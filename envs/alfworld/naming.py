"""The names by which agents know things: `Drawer|+01.2|...` becomes `drawer 3`.

ALFWorld's rule: ids are sorted, and the numbers of a kind are handed out from the highest to 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

_SEPARATOR = "_bar_"


def names_of(ids: Iterable[str]) -> dict[str, str]:
    """Id -> name of every entity of a game, all at once: an entity's number depends on the others."""
    ordered = sorted(ids)
    left = Counter(_kind(entity) for entity in ordered if _SEPARATOR in entity)
    names = {}
    for entity in ordered:
        kind = _kind(entity)
        if _SEPARATOR in entity:
            names[entity] = f"{kind} {left[kind]}"
            left[kind] -= 1
        else:
            names[entity] = f"{_plain(entity)} "  # the original leaves the space where the number would stand
    return names


def has_number(entity: str) -> bool:
    """Whether an id is of a thing in the world, and not of a type or the agent."""
    return _SEPARATOR in entity


def _kind(entity: str) -> str:
    kind = entity.split(_SEPARATOR, 1)[0]
    return f"{kind}basin" if "basin" in entity else kind


def _plain(entity: str) -> str:
    for mark, sign in (("_minus_", "-"), ("_plus_", "+"), ("_dot_", "."), ("_comma_", ",")):
        entity = entity.replace(mark, sign)
    return entity
