"""What an agent sees of a household: the task, the receptacles, what lies in them, what it holds.

Invariant: everything comes from the feedback of this episode and from the admissible commands if they are listed.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field

from rollenv.errors import RollenvError

NOTHING = "Nothing happens."
APPLIANCES = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}
"""Treatment -> the kind of receptacle where it is done."""

NAME = r"[a-z]+ \d+"
LISTED = re.compile(rf"\ba ({NAME})")
VIEWS = (
    re.compile(rf"The ({NAME}) is open\. In it, you see ([^.]*)\."),
    re.compile(rf"On the ({NAME}), you see ([^.]*)\."),
)
CLOSED = re.compile(rf"The ({NAME}) is closed\.|You close the ({NAME})\.")
ROOM = re.compile(r"Looking quickly around you, you see ([^.]*)\.")
FACING = re.compile(r"You are facing the ([^.]*)\.")
_TAKEN = re.compile(rf"You pick up the ({NAME}) from the ({NAME})\.")
_PUT = re.compile(rf"You (?:move|put) the ({NAME}) (?:to|in/on) the ({NAME})\.")
_TREATED = re.compile(rf"You (clean|heat|cool) the ({NAME}) using")
_TASKS = (
    ("two", re.compile(r"(?:put|find) two (\w+)(?: and put them)? in (\w+)")),
    ("light", re.compile(r"look at (\w+) under the (\w+)|examine the (\w+) with the (\w+)")),
    ("clean", re.compile(r"put a clean (\w+) in (\w+)|clean some (\w+) and put it in (\w+)")),
    ("heat", re.compile(r"put a hot (\w+) in (\w+)|heat some (\w+) and put it in (\w+)")),
    ("cool", re.compile(r"put a cool (\w+) in (\w+)|cool some (\w+) and put it in (\w+)")),
    ("place", re.compile(r"put (?:a|some) (\w+) (?:in|on) (\w+)")),
)


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be done: `kind` is two, light, clean, heat, cool or place."""

    kind: str
    thing: str
    place: str
    """Kind of receptacle; for `light` the kind of lamp."""


@dataclass(slots=True)
class World:
    """What was seen so far.

    Attributes:
        places: the receptacles, in the order in which the room lists them.
        here: those at the agent's place, as far as is known.
        contents: receptacle -> what was last seen in it; receptacles that were not looked into are missing.
        closed: those that were last seen closed.
        held: what is in the hand, `""` for nothing, and where it was taken from.
        treated: thing -> what was done to it.
    """

    places: list[str] = field(default_factory=list)
    here: set[str] = field(default_factory=set)
    contents: dict[str, list[str]] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    held: str = ""
    source: str = ""
    treated: dict[str, set[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, observation: str) -> World:
        """The world of a first observation, which lists the receptacles."""
        found = ROOM.search(observation) or FACING.search(observation)
        return cls(places=LISTED.findall(found[1]) if found else [])

    def where(self, thing: str) -> str | None:
        """The receptacle that `thing` was last seen in."""
        return next((place for place, things in self.contents.items() if thing in things), None)

    def notice(self, observation: str, command: str = "", listed: Collection[str] = ()) -> None:
        """Learns what an observation says, and from the list what cannot be walked to since it is here.

        Args:
            command: what was done before it.
            listed: the admissible commands after it; empty when they are not known.
        """
        if listed:
            self.here = {place for place in self.places if f"go to {place}" not in listed}
        elif command.startswith("go to "):
            target = command.removeprefix("go to ")
            # One cannot walk to where one is.
            self.here = self.here | {target} if observation == NOTHING else {target}
        for view in VIEWS:
            for receptacle, things in view.findall(observation):
                self.contents[receptacle] = LISTED.findall(things)
                self.closed.discard(receptacle)
        for names in CLOSED.findall(observation):
            self.closed.add(names[0] or names[1])
        self._notice_hands(observation)

    def _notice_hands(self, observation: str) -> None:
        if taken := _TAKEN.search(observation):
            self.held, self.source = taken[1], taken[2]
            for lying in self.contents.values():
                if taken[1] in lying:
                    lying.remove(taken[1])
        if put := _PUT.search(observation):
            self.held = ""
            self.contents.setdefault(put[2], []).append(put[1])
        if treated := _TREATED.search(observation):
            done = self.treated.setdefault(treated[2], set())
            done.discard({"heat": "cool", "cool": "heat"}.get(treated[1], ""))
            done.add(treated[1])


def read_task(observation: str) -> Task:
    """The task of a first observation.

    Raises:
        RollenvError: it names none of the six kinds of tasks.
    """
    sentence = observation.rpartition("Your task is to: ")[2].strip().rstrip(".").lower()
    for kind, pattern in _TASKS:
        found = pattern.fullmatch(sentence)
        if found:
            thing, place = (word for word in found.groups() if word)
            return Task(kind, thing, place)
    raise RollenvError(f"ALFWorld: the task {sentence!r:.100} is none of the six kinds that the oracle understands")


def kind_of(name: str) -> str:
    """`drawer 3` is a `drawer`."""
    return name.partition(" ")[0]
