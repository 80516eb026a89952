"""Why the household oracle does what it does, in words: the thoughts of ReAct demonstrations.

Invariant: a thought follows from the task, what was seen, and the command that is about to be given.
"""

from __future__ import annotations

from rollenv.agents.alfworld_view import APPLIANCES, Task, World, kind_of

_WANTED = {"clean": "clean", "heat": "hot", "cool": "cool"}


def thought_of(task: Task, world: World, command: str) -> str:
    """The reason for `command`, in the first person; `""` where there is none to give.

    Args:
        world: what was seen before the command is given.
    """
    verb, _, rest = command.partition(" ")
    if verb == "go":
        return _walk(task, world, rest.removeprefix("to "))
    if verb == "open":
        return f"The {rest} is closed. {_look_inside(task, world)}"
    if verb == "examine":
        return f"I am at the {rest} already. {_look_inside(task, world)}"
    if verb == "take":
        return f"I see the {rest.partition(' from ')[0]} that I need. I take it."
    if verb in APPLIANCES:
        return f"The {world.held} must be {_WANTED[verb]}, and here is the {rest.partition(' with ')[2]}."
    if verb == "use":
        return f"I hold the {world.held} and stand at the lamp. I switch it on."
    if verb in ("move", "put") and world.held:
        return _put(task, world, rest.removeprefix(f"{world.held} "))
    return ""


def _walk(task: Task, world: World, place: str) -> str:
    sought = _sought(task, world)
    if sought:
        things = [thing for thing in world.contents.get(place, ()) if kind_of(thing) == sought]
        if things:
            return f"I saw the {things[0]} at the {place}. I go there."
        seen = [other for other in world.places if other in world.contents and kind_of(other) == kind_of(place)]
        nothing_there = f" There is none at the {' or the '.join(seen)}." if seen else ""
        return f"I look for {_a(sought)}.{nothing_there} It may be at the {place}."
    if kind_of(world.held) != task.thing:
        return f"I do not need the {world.held}. I bring it back to the {place}."
    if task.kind == "light":
        return f"I hold the {world.held}. The {task.place} is at the {place}."
    if task.kind in APPLIANCES and kind_of(place) == APPLIANCES[task.kind] and not _is_treated(task, world):
        return f"I hold the {world.held}. It must be {_WANTED[task.kind]} first: I go to the {place}."
    return f"I hold the {world.held}. It belongs at the {place}."


def _look_inside(task: Task, world: World) -> str:
    sought = _sought(task, world)
    return f"I look for {_a(sought)} in it." if sought else f"I want to put the {world.held} there."


def _put(task: Task, world: World, where: str) -> str:
    if kind_of(world.held) != task.thing:
        return f"I do not need the {world.held}. I put it away."
    how = f" and is {_WANTED[task.kind]}" if task.kind in _WANTED else ""
    more = ""
    if task.kind == "two":
        place = where.removeprefix("to ").removeprefix("in/on ")
        first = all(kind_of(thing) != task.thing for thing in world.contents.get(place, ()))
        more = " Then I look for the second one." if first else " It is the second one."
    return f"The {world.held} belongs here{how}.{more}"


def _sought(task: Task, world: World) -> str:
    """The kind of thing that is looked for now; `""` when nothing is."""
    if not world.held:
        return task.thing
    lamp_seen = any(kind_of(thing) == task.place for things in world.contents.values() for thing in things)
    if task.kind == "light" and kind_of(world.held) == task.thing and not lamp_seen:
        return task.place
    return ""


def _is_treated(task: Task, world: World) -> bool:
    return task.kind in world.treated.get(world.held, ())


def _a(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
