"""A compiled game: everything the native engine needs of a game file, as numbers, in one small record.

Objects, receptacles and locations are numbered by their sorted ids, so that going through the bits of a set from low
to high gives the original's order. Sets of objects or receptacles are integers, one bit each.
"""

from __future__ import annotations

import hashlib
import marshal
import sys
from dataclasses import dataclass, fields
from typing import Any

FORMAT = 1
"""Raised whenever the bytes of a compiled game change their meaning."""
_MAGIC = b"rollenv-alfworld-game\x01"


@dataclass(frozen=True, slots=True)
class Clause:
    """One condition of a goal; a goal holds when all its clauses do.

    `place`: some receptacle of `receptacles` holds `count` of `objects` that are in the states `clean`, `hot`,
    `cool` as far as these are true. `light`: one of `objects` is switched on in a receptacle of `receptacles` at
    the agent's location. `hold`: the agent holds one of `objects`.
    """

    kind: str
    objects: int
    receptacles: int = 0
    count: int = 1
    clean: bool = False
    hot: bool = False
    cool: bool = False


@dataclass(frozen=True, slots=True)
class Game:
    """A game of the household domain. Lists are indexed by object, receptacle or location number.

    Attributes:
        dialect: hash of the grammar without its task; the words are kept apart since thousands of games share them.
        task: the task's sentence.
        objects, receptacles: their names (`apple 1`).
        locations: their names (`loc 12`).
        place: receptacle -> its location.
        start: the agent's location at first.
        contents: receptacle -> set of objects, at first.
        lying: location -> set of objects that are at it, at first.
        takes: receptacle -> set of objects that may be put into it.
        inside: (object, objects in it): what containers hold, which never changes.
        goal: clauses.
    """

    dialect: str
    task: str
    objects: tuple[str, ...]
    receptacles: tuple[str, ...]
    locations: tuple[str, ...]
    place: tuple[int, ...]
    start: int
    contents: tuple[int, ...]
    lying: tuple[int, ...]
    takes: tuple[int, ...]
    openable: int
    opened: int
    sinks: int
    microwaves: int
    fridges: int
    pickupable: int
    cleanable: int
    heatable: int
    coolable: int
    toggleable: int
    sliceable: int
    knives: int
    containers: int
    inside: tuple[tuple[int, int], ...]
    clean: int
    hot: int
    cool: int
    toggled: int
    sliced: int
    goal: tuple[Clause, ...]
    walkthrough: tuple[str, ...] | None


_CLAUSE = tuple(field.name for field in fields(Clause))
_GAME = tuple(field.name for field in fields(Game))


def to_bytes(game: Game) -> bytes:
    """`game` as bytes, with a checksum."""
    values: dict[str, Any] = {name: getattr(game, name) for name in _GAME}
    values["goal"] = tuple(tuple(getattr(clause, name) for name in _CLAUSE) for clause in game.goal)
    body = marshal.dumps(tuple(values.values()), 2)  # version 2: equal games give equal bytes
    return _MAGIC + hashlib.sha256(body).digest()[:8] + body


def from_bytes(data: bytes) -> Game | None:
    """The game of `to_bytes`; None when the bytes are damaged or of another version."""
    start = len(_MAGIC) + 8
    body = data[start:]
    if not data.startswith(_MAGIC) or hashlib.sha256(body).digest()[:8] != data[len(_MAGIC) : start]:
        return None
    values = dict(zip(_GAME, marshal.loads(body), strict=True))
    values["goal"] = tuple(Clause(*clause) for clause in values["goal"])
    for name in ("objects", "receptacles", "locations"):  # names recur in every game: one copy of each
        values[name] = tuple(sys.intern(word) for word in values[name])
    return Game(**values)
