"""Houses: layouts of rooms, the things that can be in them, and the games that can be played there.

Invariant: a layout follows from its number and a game from its recipe, on every machine; a game can be solved by
construction, and its goal does not hold when it begins.
"""

from __future__ import annotations

import functools
import random
import tomllib
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from rollenv.envs.alfworld.library import TASK_TYPES
from rollenv.envs.alfworld.naming import names_of
from rollenv.seeding import derive_seed

ROOMS = ("kitchen", "livingroom", "bedroom", "bathroom")
_INITIALS = {"kitchen": "k", "livingroom": "l", "bedroom": "b", "bathroom": "t"}
_PLACE, _LIGHT, _CLEAN, _HEAT, _COOL, _TWO = TASK_TYPES
_TREATMENT = {_CLEAN: "clean", _HEAT: "heat", _COOL: "cool"}
_APPLIANCE = {"clean": "SinkBasin", "heat": "Microwave", "cool": "Fridge"}
_SENTENCES = {
    _PLACE: ("put a {object} in {place}", "put some {object} on {place}"),
    _LIGHT: ("look at {object} under the {place}", "examine the {object} with the {place}"),
    _CLEAN: ("put a clean {object} in {place}", "clean some {object} and put it in {place}"),
    _HEAT: ("put a hot {object} in {place}", "heat some {object} and put it in {place}"),
    _COOL: ("put a cool {object} in {place}", "cool some {object} and put it in {place}"),
    _TWO: ("put two {object} in {place}", "find two {object} and put them in {place}"),
}
_FULL = 5
"""Rarely more things than this lie in one receptacle at first."""


@dataclass(frozen=True, slots=True)
class Thing:
    """A kind of object."""

    can: frozenset[str]
    places: frozenset[str]
    """Kinds of receptacles that it may lie in."""

    @property
    def carried(self) -> bool:
        return not self.can & {"fixed", "light"}


@dataclass(frozen=True)
class Household:
    """`household.toml`."""

    closed: frozenset[str]
    ajar: float
    rooms: dict[str, dict[str, tuple[int, int]]]
    things: dict[str, Thing]
    of_room: dict[str, tuple[str, ...]]
    """Room -> kinds of objects that occur there."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A room: which receptacles it has, and where they stand.

    Attributes:
        number: decides everything else.
        receptacles: ids, sorted; an id says its kind and its coordinates.
        places: id -> number of the location it is reached from; neighbours may share one.
        lit: whether a lamp stands there.
    """

    number: int
    room: str
    receptacles: tuple[str, ...]
    places: dict[str, int] = field(compare=False)
    lit: bool

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kind of each receptacle."""
        return tuple(kind_of(receptacle) for receptacle in self.receptacles)


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a game is made from."""

    kind: str
    thing: str
    place: str
    layout: int
    seed: int

    @property
    def folder(self) -> str:
        """The name of the task's folder, in ALFWorld's form."""
        return f"{self.kind}-{self.thing}-None-{self.place}-{self.layout}"


@dataclass(frozen=True, slots=True)
class House:
    """A furnished room with a task: a game before it is written down.

    Attributes:
        objects: id -> id of the receptacle that it lies in.
        opened: ids of the receptacles that are open.
        walkthrough: commands that solve the task.
    """

    layout: Layout
    recipe: Recipe
    objects: dict[str, str]
    opened: frozenset[str]
    task: str
    walkthrough: tuple[str, ...]


@functools.cache
def household() -> Household:
    """`household.toml`, read once."""
    raw: dict[str, Any] = tomllib.loads(resources.files(__package__).joinpath("household.toml").read_text("utf-8"))
    things = {
        name: Thing(frozenset(value["can"].split()), frozenset(value["in"].split()))
        for name, value in raw["objects"].items()
    }
    rooms = {room: {kind: (low, high) for kind, (low, high) in raw["rooms"][room].items()} for room in ROOMS}
    of_room = {
        room: tuple(
            name
            for name, value in raw["objects"].items()
            if _INITIALS[room] in value["rooms"] and things[name].places & rooms[room].keys()
        )
        for room in ROOMS
    }
    return Household(frozenset(raw["closed"]), raw["ajar"], rooms, things, of_room)


def kind_of(entity: str) -> str:
    """The kind in an id: `Drawer_bar_...` is a `Drawer`, and `Sink_bar_..._bar_SinkBasin` a `SinkBasin`."""
    first, *_, last = entity.split("_bar_")
    return last if last.endswith("Basin") else first


# -- layouts ----------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1024)
def layout(number: int) -> Layout:
    """The layout of that number; the rooms take turns."""
    rng = random.Random(derive_seed("alfworld layout", number))
    room = ROOMS[number % len(ROOMS)]
    receptacles: dict[str, int] = {}
    place = 0
    for kind, (low, high) in household().rooms[room].items():
        for _ in range(rng.randint(low, high)):
            # Neighbours of one kind are sometimes reached from the same spot, as drawers above each other are.
            neighbour = receptacles and kind_of(next(reversed(receptacles))) == kind
            if not neighbour or rng.random() < 0.85:
                place += 1
            receptacles[_identity(kind, rng, receptacles)] = place
    names = sorted(receptacles)
    lamps = household().things["DeskLamp"].places & household().rooms[room].keys()
    lit = room in ("bedroom", "livingroom") and any(kind_of(name) in lamps for name in names)
    return Layout(number, room, tuple(names), receptacles, lit)


def _identity(kind: str, rng: random.Random, taken: Any) -> str:
    """An id of ALFWorld's form: the kind and three coordinates in quarters of a metre."""
    while True:
        words = []
        for low, high in ((-16, 16), (0, 8), (-16, 16)):
            value = rng.randint(low, high) * 25
            sign = "minus" if value < 0 else "plus"
            words.append(f"_bar__{sign}_{abs(value) // 100:02d}_dot_{abs(value) % 100:02d}")
        name = kind + "".join(words)
        if kind.endswith("Basin"):
            name = f"{kind.removesuffix('Basin')}{''.join(words)}_bar_{kind}"
        if name not in taken:
            return name


def options(where: Layout) -> dict[str, list[tuple[str, str]]]:
    """Kind of task -> (object, receptacle) pairs that make such a task in a layout, in a fixed order."""
    home = household()
    kinds = set(where.kinds)
    found: dict[str, list[tuple[str, str]]] = {kind: [] for kind in TASK_TYPES}
    for name in home.of_room[where.room]:
        thing = home.things[name]
        usable = sorted(thing.places & kinds)
        if not thing.carried or len(usable) < 2:  # it must be able to lie elsewhere
            continue
        if where.lit:
            found[_LIGHT].append((name, "DeskLamp"))
        for place in usable:
            found[_PLACE].append((name, place))
            found[_TWO].append((name, place))
            for kind, treatment in _TREATMENT.items():
                appliance = _APPLIANCE[treatment]
                if treatment in thing.can and appliance in kinds and place != appliance:
                    found[kind].append((name, place))
    return found


# -- games ------------------------------------------------------------------------------------------------------


def furnish(recipe: Recipe) -> House:
    """The house of a recipe."""
    rng = random.Random(derive_seed("alfworld game", recipe.folder, recipe.seed))
    where = layout(recipe.layout)
    home = household()
    opened = frozenset(r for r in where.receptacles if kind_of(r) in home.closed and rng.random() < home.ajar)
    objects: dict[str, str] = {}
    targets = _targets(recipe, where, objects, rng)
    _clutter(recipe, where, objects, rng)
    sentence = rng.choice(_SENTENCES[recipe.kind])
    task = f"Your task is to: {sentence.format(object=recipe.thing.lower(), place=recipe.place.lower())}."
    walk = _Walk(where, objects, opened)
    return House(where, recipe, objects, opened, task, tuple(walk.solve(recipe, targets, rng)))


def _targets(recipe: Recipe, where: Layout, objects: dict[str, str], rng: random.Random) -> list[str]:
    """Places the objects that the task is about, none where they are to go. Returns those of the walkthrough."""
    home = household()
    if recipe.kind == _LIGHT:
        lamps = [r for r in where.receptacles if kind_of(r) in home.things["DeskLamp"].places]
        objects[_identity("DeskLamp", rng, objects)] = rng.choice(lamps)
    away = [r for r in where.receptacles if kind_of(r) in home.things[recipe.thing].places - {recipe.place}]
    needed = 2 if recipe.kind == _TWO else 1
    targets = []
    for _ in range(needed + rng.choice((0, 0, 1))):
        name = _identity(recipe.thing, rng, objects)
        objects[name] = rng.choice(away)
        targets.append(name)
    return targets[:needed]


def _clutter(recipe: Recipe, where: Layout, objects: dict[str, str], rng: random.Random) -> None:
    """Places everything else that is usual in such a room."""
    home = household()
    lying: dict[str, int] = {}
    for receptacle in objects.values():
        lying[receptacle] = lying.get(receptacle, 0) + 1
    for name in home.of_room[where.room]:
        if name == recipe.thing:
            continue
        possible = [r for r in where.receptacles if kind_of(r) in home.things[name].places]
        most = 1 if not home.things[name].carried else 3
        already = sum(kind_of(other) == name for other in objects)
        count = max(rng.choice((0, 1, 1, 2, 2, 3)[: 3 + most]), 1 if name == "DeskLamp" and where.lit else 0)
        for _ in range(min(count, most) - already if possible else 0):
            receptacle = rng.choice(possible)
            if lying.get(receptacle, 0) < _FULL:
                lying[receptacle] = lying.get(receptacle, 0) + 1
                objects[_identity(name, rng, objects)] = receptacle


class _Walk:
    """Writes the commands of a walkthrough down."""

    def __init__(self, where: Layout, objects: dict[str, str], opened: frozenset[str]) -> None:
        self.where, self.objects, self.opened = where, objects, set(opened)
        self.names = names_of(name.lower() for name in (*where.receptacles, *objects))
        self.commands: list[str] = []
        self.at = -1

    def solve(self, recipe: Recipe, targets: list[str], rng: random.Random) -> list[str]:
        if recipe.kind == _LIGHT:
            self._take(targets[0])
            lamp = min(name for name in self.objects if kind_of(name) == "DeskLamp")
            self._go(self.objects[lamp])
            self.commands.append(f"use {self._name(lamp)}")
            return self.commands
        goal = rng.choice([r for r in self.where.receptacles if kind_of(r) == recipe.place])
        for target in targets:
            self._take(target)
            treatment = _TREATMENT.get(recipe.kind)
            if treatment is not None:
                appliance = next(r for r in self.where.receptacles if kind_of(r) == _APPLIANCE[treatment])
                self._go(appliance)
                self.commands.append(f"{treatment} {self._name(target)} with {self._name(appliance)}")
            self._go(goal)
            self._open(goal)
            self.commands.append(f"move {self._name(target)} to {self._name(goal)}")
        return self.commands

    def _name(self, entity: str) -> str:
        return self.names[entity.lower()]

    def _take(self, target: str) -> None:
        receptacle = self.objects[target]
        self._go(receptacle)
        self._open(receptacle)
        self.commands.append(f"take {self._name(target)} from {self._name(receptacle)}")

    def _go(self, receptacle: str) -> None:
        if self.where.places[receptacle] != self.at:
            self.at = self.where.places[receptacle]
            self.commands.append(f"go to {self._name(receptacle)}")

    def _open(self, receptacle: str) -> None:
        if kind_of(receptacle) in household().closed and receptacle not in self.opened:
            self.opened.add(receptacle)
            self.commands.append(f"open {self._name(receptacle)}")
