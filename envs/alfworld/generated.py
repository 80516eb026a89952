"""Generated games: an endless supply of houses in ALFWorld's file format, and the fixed splits made of them.

Invariant: the splits are the same on every machine, and no layout of `valid_unseen` occurs in `train` or
`valid_seen`, not even under another number.
"""

from __future__ import annotations

import functools
import hashlib
import json
import random
from collections.abc import Iterable

from rollenv.envs.alfworld.compiler import own_domain
from rollenv.envs.alfworld.dialect import TASK, own_grammar
from rollenv.envs.alfworld.houses import House, Recipe, furnish, household, kind_of, layout, options
from rollenv.envs.alfworld.library import TASK_TYPES
from rollenv.seeding import derive_seed
from rollenv.tasks import TaskSet

VERSION = 1
"""Raised whenever the same recipe gives another game."""
SIZES = {"train": 3600, "valid_seen": 180, "valid_unseen": 180}
"""Games per split, as many of each of the six kinds."""
_SEEN, _UNSEEN = 120, 40
"""Layouts for the seen splits, and for the unseen one."""


class GeneratedLibrary:
    """The generated games; each is made when it is asked for."""

    source = "generated games"

    def __init__(self) -> None:
        self._recipes = {task: recipe for tasks in _splits().values() for task, recipe in tasks.items()}
        self._sha256: dict[str, str] = {}
        splits = {split: list(tasks) for split, tasks in _splits().items()}
        self.tasks = TaskSet("alfworld", splits, self._content, {"generator": VERSION})

    def _content(self, task: str) -> dict[str, str | int]:
        recipe = self._recipes[task]
        made_of: dict[str, str | int] = {"object": recipe.thing, "place": recipe.place, "layout": recipe.layout}
        return made_of | {"type": recipe.kind, "seed": recipe.seed}

    def recipe(self, task: str) -> Recipe:
        """What a game is made from."""
        return self._recipes[task]

    def sha256(self, task: str) -> str:
        found = self._sha256.get(task)
        if found is None:
            found = self._sha256[task] = hashlib.sha256(self.read(task)).hexdigest()
        return found

    def read(self, task: str) -> bytes:
        return game_file(furnish(self._recipes[task]))


@functools.cache
def generated_library() -> GeneratedLibrary:
    """The generated games, shared by all of the process."""
    return GeneratedLibrary()


# -- splits -----------------------------------------------------------------------------------------------------


@functools.cache
def _splits() -> dict[str, dict[str, Recipe]]:
    """Split -> task id -> recipe."""
    seen, unseen = _layouts()
    rooms = {"train": seen, "valid_seen": seen, "valid_unseen": unseen}
    return {split: _tasks(split, size, rooms[split]) for split, size in SIZES.items()}


@functools.cache
def _layouts() -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Numbers of the layouts for the seen and the unseen splits: the first ones that differ in what they have."""
    chosen: list[int] = []
    furniture = set()
    number = 0
    while len(chosen) < _SEEN + _UNSEEN:
        kinds = (layout(number).room, layout(number).kinds)
        if kinds not in furniture:
            furniture.add(kinds)
            chosen.append(number)
        number += 1
    return tuple(chosen[:_SEEN]), tuple(chosen[_SEEN:])


def _tasks(split: str, size: int, layouts: tuple[int, ...]) -> dict[str, Recipe]:
    possible = {number: options(layout(number)) for number in layouts}
    tasks: dict[str, Recipe] = {}
    for index in range(size):
        kind = TASK_TYPES[index % len(TASK_TYPES)]
        rng = random.Random(derive_seed("alfworld split", split, index))
        number = rng.choice([number for number in layouts if possible[number][kind]])
        thing, place = rng.choice(possible[number][kind])
        recipe = Recipe(kind, thing, place, number, derive_seed(split, index))
        tasks[f"{split}/{recipe.folder}/trial_{index:05d}"] = recipe
    return tasks


# -- files ------------------------------------------------------------------------------------------------------


def game_file(house: House) -> bytes:
    """The game in the format of `game.tw-pddl`."""
    game = {
        "pddl_domain": own_domain(),
        "grammar": own_grammar().replace(f"Your task is to: {TASK}.", house.task),
        "pddl_problem": _problem(house),
        "solvable": True,
        "walkthrough": list(house.walkthrough),
    }
    return json.dumps(game).encode()


def _problem(house: House) -> str:
    objects = [
        *_typed("agent", ["agent1"]),
        *_typed("location", [f"loc_bar_{place}" for place in range(max(house.layout.places.values()) + 1)]),
        *_typed("receptacle", house.layout.receptacles),
        *_typed("object", sorted(house.objects)),
        *_typed("rtype", sorted({f"{kind}Type" for kind in house.layout.kinds})),
        *_typed("otype", sorted({f"{kind_of(name)}Type" for name in house.objects} | {"KnifeType", "ButterKnifeType"})),
    ]
    facts = ["(atLocation agent1 loc_bar_0)", *_room_facts(house), *_object_facts(house)]
    return "\n".join(
        [
            "(define (problem house)",
            "(:domain alfred)",
            "(:objects",
            *objects,
            ")",
            "(:init",
            *facts,
            ")",
            _goal(house),
            ")",
        ]
    )


def _typed(kind: str, names: Iterable[str]) -> list[str]:
    return [f"  {name} - {kind}" for name in names]


def _room_facts(house: House) -> list[str]:
    home, facts = household(), []
    for receptacle in house.layout.receptacles:
        kind = kind_of(receptacle)
        facts.append(f"(receptacleType {receptacle} {kind}Type)")
        facts.append(f"(receptacleAtLocation {receptacle} loc_bar_{house.layout.places[receptacle]})")
        if kind in home.closed:
            facts.append(f"(openable {receptacle})")
        if receptacle in house.opened:
            facts.append(f"(opened {receptacle})")
    kinds = sorted(set(house.layout.kinds))
    for thing in sorted({kind_of(name) for name in house.objects}):
        if home.things[thing].carried:
            facts += [f"(canContain {kind}Type {thing}Type)" for kind in kinds if kind in home.things[thing].places]
    return facts


_ABILITIES = {
    "clean": "cleanable",
    "heat": "heatable",
    "cool": "coolable",
    "slice": "sliceable",
    "hold": "isReceptacleObject",
    "light": "toggleable",
}


def _object_facts(house: House) -> list[str]:
    home, facts = household(), []
    for name in sorted(house.objects):
        receptacle, thing = house.objects[name], home.things[kind_of(name)]
        facts.append(f"(objectType {name} {kind_of(name)}Type)")
        facts.append(f"(inReceptacle {name} {receptacle})")
        facts.append(f"(objectAtLocation {name} loc_bar_{house.layout.places[receptacle]})")
        if thing.carried:
            facts.append(f"(pickupable {name})")
        facts += [f"({fact} {name})" for ability, fact in _ABILITIES.items() if ability in thing.can]
    return facts


def _goal(house: House) -> str:
    recipe = house.recipe
    thing, place = f"{recipe.thing}Type", f"{recipe.place}Type"
    if recipe.kind == "look_at_obj_in_light":
        return (
            "(:goal (and (exists (?lamp - object ?r - receptacle ?a - agent ?l - location) (and "
            f"(objectType ?lamp {place}) (toggleable ?lamp) (isToggled ?lamp) (inReceptacle ?lamp ?r) "
            "(receptacleAtLocation ?r ?l) (atLocation ?a ?l))) "
            f"(exists (?o - object ?a - agent) (and (objectType ?o {thing}) (holds ?a ?o)))))"
        )
    if recipe.kind == "pick_two_obj_and_place":
        return (
            "(:goal (exists (?r - receptacle ?o1 - object ?o2 - object) (and "
            f"(receptacleType ?r {place}) (objectType ?o1 {thing}) (inReceptacle ?o1 ?r) "
            f"(objectType ?o2 {thing}) (inReceptacle ?o2 ?r) (not (= ?o1 ?o2)))))"
        )
    states = {
        "pick_clean_then_place_in_recep": " (isClean ?o)",
        "pick_heat_then_place_in_recep": " (isHot ?o)",
        "pick_cool_then_place_in_recep": " (isCool ?o)",
    }
    return (
        "(:goal (exists (?r - receptacle ?o - object) (and "
        f"(receptacleType ?r {place}) (objectType ?o {thing}) (inReceptacle ?o ?r){states.get(recipe.kind, '')})))"
    )
