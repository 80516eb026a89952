"""ALFWorldOracle: a scripted expert for household tasks that sees only what any agent sees.

Invariant: a command depends on the feedback of this episode, the admissible commands if they are listed, and the seed
of `reset`, on nothing else: no facts, no walkthrough. What it does can therefore be learned from what it read.

It looks for what the task names in the likely places first, remembers everything it sees on the way, treats the thing
if the task says so, and carries it to where it belongs.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from rollenv.agents.alfworld_thoughts import thought_of
from rollenv.agents.alfworld_view import APPLIANCES, Task, World, kind_of, read_task
from rollenv.errors import RollenvError

_REFUSED = 0.2
"""Share of mistakes that are not admissible."""
_DOORS = frozenset(["cabinet", "drawer", "fridge", "microwave", "safe"])
"""Kinds that are mostly closed: looking into one takes a command more."""
_LIKELY = {
    "food": "countertop diningtable fridge garbagecan sinkbasin microwave sidetable cabinet",
    "crockery": "countertop diningtable sinkbasin coffeemachine fridge shelf microwave sidetable coffeetable cabinet",
    "cookware": "stoveburner countertop diningtable fridge cabinet sinkbasin",
    "cutlery": "countertop diningtable sinkbasin drawer sidetable",
    "condiment": "countertop diningtable shelf sidetable cabinet drawer",
    "cleaning": "countertop sinkbasin toilet garbagecan bathtubbasin shelf cabinet drawer cart",
    "bathing": "towelholder handtowelholder toilet toiletpaperhanger countertop bathtubbasin shelf cabinet drawer",
    "writing": "desk sidetable dresser shelf diningtable garbagecan coffeetable drawer countertop",
    "small": "sidetable coffeetable dresser desk sofa armchair shelf bed tvstand diningtable ottoman drawer safe",
    "large": "bed sofa desk coffeetable diningtable armchair dresser sidetable tvstand shelf ottoman cabinet drawer",
    "lamp": "sidetable desk dresser shelf coffeetable",
}
"""Sort of thing -> kinds of places, the likely ones first."""
_PLACES = sorted({kind for kinds in _LIKELY.values() for kind in kinds.split()})
_SORTS = {
    "food": "apple bread egg lettuce potato tomato",
    "crockery": "bowl cup mug plate winebottle glassbottle",
    "cookware": "pan pot kettle",
    "cutlery": "butterknife fork knife ladle spatula spoon",
    "condiment": "peppershaker saltshaker papertowelroll",
    "cleaning": "dishsponge soapbottle spraybottle cloth soapbar candle",
    "bathing": "towel handtowel toiletpaper toiletpaperroll",
    "writing": "pen pencil cd alarmclock",
    "small": "creditcard keychain remotecontrol watch cellphone tissuebox newspaper",
    "large": "book laptop pillow statue vase box houseplant basketball",
    "lamp": "desklamp floorlamp",
}
_SORT_OF = {thing: sort for sort, things in _SORTS.items() for thing in things.split()}


class ALFWorldOracle:
    """The expert. `noise` is the share of turns in which it does something else: mostly what is admissible, now and
    then what is refused (walking to where it is, or to what the room does not have), so that those who learn from it
    see refusals, and what to do after them.

    After `act`, `thought` says in a sentence or two why it does that; a mistake has no reason, and `thought` is empty.

    Args:
        noise: in [0, 1]; needs `info["admissible_actions"]`.

    Raises:
        RollenvError: `noise` is no such number.
    """

    def __init__(self, noise: float = 0.0) -> None:
        if not 0 <= noise <= 1:
            raise RollenvError(f"ALFWorldOracle: noise must lie in [0, 1], not {noise!r}")
        self.noise = noise
        self.reset(0)

    def reset(self, seed: int) -> None:
        """Forgets the last episode; `seed` decides the mistakes of the next one."""
        self._rng = random.Random(f"alfworld oracle {seed}")
        self._world = World()
        self._task: Task | None = None
        self._last = ""
        self.thought = ""

    def act(self, observation: str, info: dict[str, Any]) -> str:
        """The next command."""
        if self._task is None:
            self._task = read_task(observation)
            self._world = World.of(observation)
        listed = info.get("admissible_actions") or []
        self._world.notice(observation, self._last, set(listed))
        if self.noise and listed and self._rng.random() < self.noise:
            self._last, self.thought = self._mistake(listed), ""
        else:
            self._last = self._decide(self._task, listed)
            self.thought = thought_of(self._task, self._world, self._last)
        return self._last

    def _mistake(self, listed: list[str]) -> str:
        """Another command than the right one: one that is listed, or a walk that leads nowhere."""
        if self._rng.random() >= _REFUSED:
            return self._rng.choice(listed)
        here = sorted(self._world.here)
        if here and self._rng.random() < 0.5:
            return f"go to {self._rng.choice(here)}"
        kind = self._rng.choice(_PLACES)
        return f"go to {kind} {sum(kind_of(place) == kind for place in self._world.places) + 1}"

    # -- deciding ----------------------------------------------------------------------------------------------

    def _decide(self, task: Task, listed: list[str]) -> str:
        world = self._world
        if world.held and kind_of(world.held) != task.thing:
            return self._put_back(listed)
        if task.kind == "light":
            return self._light(task)
        if not world.held:
            return self._fetch(task)
        appliance = APPLIANCES.get(task.kind)
        if appliance and task.kind not in world.treated.get(world.held, ()):
            return self._treat(task.kind, appliance)
        return self._put(self._destination(task), listed)

    def _light(self, task: Task) -> str:
        world = self._world
        if not world.held:
            return self._fetch(task)
        lamp = next((t for things in world.contents.values() for t in things if kind_of(t) == task.place), None)
        if lamp is None:
            return self._search(task.place)
        place = world.where(lamp)
        return f"use {lamp}" if place in world.here else f"go to {place}"

    def _fetch(self, task: Task) -> str:
        """Takes the thing, or goes on looking for it."""
        world = self._world
        for receptacle in self._near_first(world.contents):
            for thing in world.contents[receptacle]:
                if kind_of(thing) == task.thing and not self._done(task, thing, receptacle):
                    reached = self._reach(receptacle)
                    return reached or f"take {thing} from {receptacle}"
        return self._search(task.thing)

    def _done(self, task: Task, thing: str, receptacle: str) -> bool:
        """Whether a thing is where it belongs already."""
        if task.kind == "two":
            return receptacle == self._destination(task)
        if kind_of(receptacle) != task.place:
            return False
        return task.kind == "place" or task.kind in self._world.treated.get(thing, ())

    def _near_first(self, receptacles: Iterable[str]) -> list[str]:
        """Receptacles, those at hand first."""
        return sorted(receptacles, key=lambda receptacle: receptacle not in self._world.here)

    def _search(self, thing: str) -> str:
        """Looks into the likeliest place that was not looked into."""
        world = self._world
        unseen = [place for place in world.places if place not in world.contents]
        if not unseen:  # it must be somewhere: look everywhere again
            world.contents.clear()
            unseen = world.places
        if not unseen:
            return "look"
        order = _LIKELY.get(_SORT_OF.get(thing, ""), _LIKELY["small"]).split()

        def doubt(place: str) -> tuple[bool, int]:
            kind = kind_of(place)
            likely = order.index(kind) if kind in order else len(order) + (kind in _DOORS)
            return place not in world.here, likely

        best = min(unseen, key=doubt)
        return self._reach(best) or f"examine {best}"

    def _reach(self, receptacle: str) -> str:
        """The command that brings a hand closer to the inside of a receptacle; `""` when it is there."""
        if receptacle not in self._world.here:
            return f"go to {receptacle}"
        return f"open {receptacle}" if receptacle in self._world.closed else ""

    def _treat(self, treatment: str, appliance: str) -> str:
        world = self._world
        places = [place for place in world.places if kind_of(place) == appliance]
        if not places:
            return "look"
        place = self._near_first(places)[0]
        return f"{treatment} {world.held} with {place}" if place in world.here else f"go to {place}"

    def _destination(self, task: Task) -> str:
        """The receptacle to put things into: one that has such a thing already, or is at hand, or open."""
        world = self._world
        places = [place for place in world.places if kind_of(place) == task.place]

        def cost(place: str) -> tuple[bool, bool, bool]:
            has = any(kind_of(thing) == task.thing for thing in world.contents.get(place, ()))
            shut = place in world.closed or (kind_of(place) in _DOORS and place not in world.contents)
            return not (task.kind == "two" and has), shut, place not in world.here

        return min(places, key=cost) if places else ""

    def _put(self, place: str, listed: list[str]) -> str:
        if not place:
            return "look"
        known = place in self._world.contents or place in self._world.closed or place not in self._world.here
        reached = self._reach(place) if known else f"examine {place}"
        return reached or _putting(self._world.held, place, listed)

    def _put_back(self, listed: list[str]) -> str:
        """Gets rid of what is not needed: here if that is possible, else where it came from."""
        held = self._world.held
        here = [command for command in listed if command.startswith((f"move {held} to ", f"put {held} in/on "))]
        return here[0] if here else self._put(self._world.source, listed)


def _putting(thing: str, place: str, listed: list[str]) -> str:
    """The command for putting in the dialect that is listed; in the newer one when none is."""
    old = f"put {thing} in/on {place}"
    return old if old in listed else f"move {thing} to {place}"
