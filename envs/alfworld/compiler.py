"""Game files: what `game.tw-pddl` says, and its compilation into a `Game`.

A game whose domain, grammar or goal is not one that the native engine knows raises `Foreign`; a file that is no game
at all, or cannot be solved, raises `RollenvError`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from typing import Any

from rollenv.envs.alfworld.dialect import Dialect, UnknownDialect, read_dialect
from rollenv.envs.alfworld.game import Clause, Game
from rollenv.envs.alfworld.naming import has_number, names_of
from rollenv.envs.alfworld.pddl import Domain, Expression, PddlError, Problem, read_domain, read_problem, typed
from rollenv.errors import RollenvError

_TASK = re.compile(r'"task"\s*:\s*\[\s*\{\s*"rhs"\s*:\s*("(?:[^"\\]|\\.)*")')
_SPECIAL = re.compile(r'[;|"<>\[\]#{}\t]')
_KNOWN_FACTS = {
    "atlocation", "receptacleatlocation", "objectatlocation", "receptacletype", "objecttype", "cancontain", "openable",
    "opened", "inreceptacle", "isreceptacleobject", "inreceptacleobject", "pickupable", "cleanable", "heatable",
    "coolable", "toggleable", "sliceable", "isclean", "ishot", "iscool", "istoggled", "issliced", "moveable",
    "ison", "checked", "isreceptacleobjectfull", "wasinreceptacle", "full", "examined",
}  # fmt: skip
"""Facts that a game may begin with; the last few of them nothing depends on."""
_TYPES = {"object", "receptacle", "agent", "location"}


class Foreign(ValueError):
    """A game that only the reference engine can play. The text says why."""


@dataclass(frozen=True, slots=True)
class GameFile:
    """The parts of a game file that are needed to play it."""

    domain: str
    grammar: str
    problem: str
    walkthrough: tuple[str, ...] | None


def read_game_file(data: bytes, name: str) -> GameFile:
    """Takes a game file apart. `name` is what messages call it.

    Raises:
        RollenvError: it is torn, no game, or marked as unsolvable.
    """
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RollenvError(
            f"alfworld: '{name}' is not valid JSON ({error}); it is torn or no game: copy or download it again"
        ) from error
    keys = ("pddl_domain", "grammar", "pddl_problem")
    missing = [key for key in keys if not isinstance(content, dict) or not isinstance(content.get(key), str)]
    if missing:
        raise RollenvError(
            f"alfworld: '{name}' has no text '{missing[0]}': it is no TextWorld game with {', '.join(keys)}; "
            "give a game.tw-pddl file"
        )
    if content.get("solvable") is False:
        raise RollenvError(f"alfworld: '{name}' is marked as unsolvable (\"solvable\": false); choose another game")
    walkthrough = content.get("walkthrough")
    if not isinstance(walkthrough, list) or not all(isinstance(command, str) for command in walkthrough):
        walkthrough = None
    domain, grammar, problem = (content[key] for key in keys)
    return GameFile(domain, grammar, problem, tuple(walkthrough) if walkthrough else None)


def compile_game(file: GameFile) -> Game:
    """The game for the native engine.

    Raises:
        Foreign: its domain, grammar, facts or goal are not known to it.
    """
    _check_domain(file.domain)
    words, task = split_task(file.grammar)
    dialect_of(words)
    try:
        problem = read_problem(file.problem)
    except PddlError as error:
        raise Foreign(f"its problem cannot be read ({error})") from error
    return _Compiler(problem).game(grammar_key(words), task, file.walkthrough)


# -- domain and grammar: few, shared by thousands of games -------------------------------------------------------


@functools.lru_cache(maxsize=64)
def _check_domain(text: str) -> None:
    try:
        domain = read_domain(text)
    except (PddlError, TypeError, IndexError) as error:
        raise Foreign(f"its domain cannot be read ({error})") from error
    own = _own_domain()
    if domain.types != own.types:
        raise Foreign("its domain has other types")
    for name, meaning in domain.actions.items():
        if own.actions.get(name) != meaning:
            raise Foreign(f"its domain's action '{name}' is not the one that the native engine knows")
    missing = own.actions.keys() - domain.actions.keys() - {"help"}
    if missing:
        raise Foreign(f"its domain has no action '{min(missing)}'")


@functools.cache
def _own_domain() -> Domain:
    return read_domain(own_domain())


def own_domain() -> str:
    """The text of `domain.pddl`."""
    return resources.files(__package__).joinpath("domain.pddl").read_text("utf-8")


def split_task(grammar: str) -> tuple[str, str]:
    """A grammar without its task's sentence, and that sentence.

    Raises:
        Foreign: there is none.
    """
    found = _TASK.search(grammar)
    if found is None:
        raise Foreign("its grammar has no task")
    try:
        task: str = json.loads(found[1])
    except json.JSONDecodeError as error:
        raise Foreign(f"the task of its grammar cannot be read ({error})") from error
    if _SPECIAL.search(task):
        raise Foreign(f"its task {task!r:.60} has characters that mean something in a grammar")
    return f'{grammar[: found.start(1)]}""{grammar[found.end(1) :]}', task


def grammar_key(words: str) -> str:
    """Names a grammar without its task."""
    return hashlib.sha256(words.encode()).hexdigest()[:16]


@functools.lru_cache(maxsize=64)
def dialect_of(words: str) -> Dialect:
    """The dialect of a grammar whose task is taken out.

    Raises:
        Foreign: it is none that the native engine speaks.
    """
    try:
        return read_dialect(words)
    except UnknownDialect as error:
        raise Foreign(f"its grammar is not known: {error}") from error


# -- the problem ------------------------------------------------------------------------------------------------


class _Compiler:
    """Numbers the things of a problem and turns its facts into sets."""

    def __init__(self, problem: Problem) -> None:
        self.facts = problem.facts
        self.goal = problem.goal
        unknown = problem.facts.keys() - _KNOWN_FACTS
        if unknown:
            raise Foreign(f"it begins with facts that are not known: '{min(unknown)}'")
        present = {name for atoms in problem.facts.values() for atom in atoms for name in atom}
        undeclared = present - problem.objects.keys()
        if undeclared:
            raise Foreign(f"its facts name '{min(undeclared)}', which its objects do not declare")
        of_type: dict[str, list[str]] = {"object": [], "receptacle": [], "location": [], "agent": []}
        for name in sorted(present):
            of_type.setdefault(problem.objects[name], []).append(name)
        self.names = names_of(present)
        self.objects, self.receptacles, self.locations = (
            of_type[kind] for kind in ("object", "receptacle", "location")
        )
        if len(of_type["agent"]) != 1:
            raise Foreign(f"it has {len(of_type['agent'])} agents at some place")
        (self.agent,) = of_type["agent"]
        nameless = [name for name in (*self.objects, *self.receptacles) if not has_number(name)]
        if nameless:
            raise Foreign(f"its thing '{nameless[0]}' has no number")
        self.object_at = {name: number for number, name in enumerate(self.objects)}
        self.receptacle_at = {name: number for number, name in enumerate(self.receptacles)}
        self.location_at = {name: number for number, name in enumerate(self.locations)}
        try:
            self.object_type = self._one_each("objecttype")
            self.receptacle_type = self._one_each("receptacletype")
        except IndexError as error:
            raise Foreign("a fact has too few arguments") from error

    def game(self, dialect: str, task: str, walkthrough: tuple[str, ...] | None) -> Game:
        try:
            return self._game(dialect, task, walkthrough)
        except (KeyError, ValueError) as error:
            raise error if isinstance(error, Foreign) else Foreign(f"a fact is about other things ({error})") from error

    def _game(self, dialect: str, task: str, walkthrough: tuple[str, ...] | None) -> Game:
        places = self._one_each("receptacleatlocation")
        starts = self._one_each("atlocation")
        return Game(
            dialect=dialect,
            task=task,
            objects=tuple(self.names[name] for name in self.objects),
            receptacles=tuple(self.names[name] for name in self.receptacles),
            locations=tuple(self.names[name] for name in self.locations),
            place=tuple(self.location_at[places[name]] for name in self.receptacles),
            start=self.location_at[starts[self.agent]],
            contents=self._sets("inreceptacle", self.receptacle_at),
            lying=self._sets("objectatlocation", self.location_at),
            takes=self._takes(),
            openable=self._receptacles("openable"),
            opened=self._receptacles("opened"),
            sinks=self._of_types({"sinktype", "sinkbasintype"}),
            microwaves=self._of_types({"microwavetype"}),
            fridges=self._of_types({"fridgetype"}),
            pickupable=self._objects("pickupable"),
            cleanable=self._objects("cleanable"),
            heatable=self._objects("heatable"),
            coolable=self._objects("coolable"),
            toggleable=self._objects("toggleable"),
            sliceable=self._objects("sliceable"),
            knives=self._objects_of_type({"knifetype", "butterknifetype"}),
            containers=self._objects("isreceptacleobject"),
            inside=self._inside(),
            clean=self._objects("isclean"),
            hot=self._objects("ishot"),
            cool=self._objects("iscool"),
            toggled=self._objects("istoggled"),
            sliced=self._objects("issliced"),
            goal=_Goal(self).clauses(self.goal),
            walkthrough=walkthrough,
        )

    def _one_each(self, predicate: str) -> dict[str, str]:
        values: dict[str, str] = {}
        for name, value in self.facts.get(predicate, ()):
            if values.setdefault(name, value) != value:
                raise Foreign(f"'{name}' has two values of '{predicate}'")
        return values

    def _objects(self, predicate: str) -> int:
        return bits(self.object_at[name] for (name,) in self.facts.get(predicate, ()))

    def _receptacles(self, predicate: str) -> int:
        return bits(self.receptacle_at[name] for (name,) in self.facts.get(predicate, ()))

    def _objects_of_type(self, types: set[str]) -> int:
        return bits(number for name, number in self.object_at.items() if self.object_type.get(name) in types)

    def _of_types(self, types: set[str]) -> int:
        return bits(number for name, number in self.receptacle_at.items() if self.receptacle_type.get(name) in types)

    def _sets(self, predicate: str, numbers: dict[str, int]) -> tuple[int, ...]:
        sets = [0] * len(numbers)
        for name, where in self.facts.get(predicate, ()):
            sets[numbers[where]] |= 1 << self.object_at[name]
        return tuple(sets)

    def _takes(self) -> tuple[int, ...]:
        by_type: dict[str, int] = {}
        for receptacle_type, object_type in set(self.facts.get("cancontain", ())):
            fitting = self._objects_of_type({object_type})
            by_type[receptacle_type] = by_type.get(receptacle_type, 0) | fitting
        return tuple(by_type.get(self.receptacle_type.get(name, ""), 0) for name in self.receptacles)

    def _inside(self) -> tuple[tuple[int, int], ...]:
        inside: dict[int, int] = {}
        for inner, outer in self.facts.get("inreceptacleobject", ()):
            inside[self.object_at[outer]] = inside.get(self.object_at[outer], 0) | 1 << self.object_at[inner]
        return tuple(sorted(inside.items()))


def bits(numbers: Iterable[int]) -> int:
    """The set of `numbers` as an integer."""
    found = 0
    for number in numbers:
        found |= 1 << number
    return found


class _Goal:
    """Turns a goal into clauses, if it is one of the six kinds of task."""

    def __init__(self, compiler: _Compiler) -> None:
        self.compiler = compiler

    def clauses(self, goal: Expression) -> tuple[Clause, ...]:
        parts = goal[1:] if goal[0] == "and" else [goal]
        return tuple(self._clause(_flatten(part)) for part in parts)

    def _clause(self, atoms: list[list[Any]]) -> Clause:
        of = {name: self._having(atoms, name) for name in ("inreceptacle", "holds", "istoggled")}
        if of["holds"]:
            return self._hold(atoms)
        if of["istoggled"]:
            return self._light(atoms)
        if of["inreceptacle"]:
            return self._place(atoms)
        raise Foreign("its goal is of none of the six kinds")

    @staticmethod
    def _having(atoms: list[list[Any]], predicate: str) -> list[list[Any]]:
        return [atom for atom in atoms if atom[0] == predicate]

    def _hold(self, atoms: list[list[Any]]) -> Clause:
        ((_, agent, held),) = self._having(atoms, "holds")
        self._only(atoms, [["holds", agent, held], ["objecttype", held, None]])
        return Clause("hold", self._object_set(atoms, held))

    def _light(self, atoms: list[list[Any]]) -> Clause:
        ((_, lamp),) = self._having(atoms, "istoggled")
        ((_, _, where),) = self._having(atoms, "inreceptacle")
        ((_, _, place),) = self._having(atoms, "receptacleatlocation")
        ((_, agent, _),) = self._having(atoms, "atlocation")
        wanted = [
            ["istoggled", lamp], ["toggleable", lamp], ["objecttype", lamp, None], ["inreceptacle", lamp, where],
            ["receptacleatlocation", where, place], ["atlocation", agent, place],
        ]  # fmt: skip
        self._only(atoms, wanted)
        lamps = self._object_set(atoms, lamp) & self.compiler._objects("toggleable")
        return Clause("light", lamps, (1 << len(self.compiler.receptacles)) - 1)

    def _place(self, atoms: list[list[Any]]) -> Clause:
        things = [atom[1] for atom in self._having(atoms, "inreceptacle")]
        where = self._having(atoms, "inreceptacle")[0][2]
        first, states = things[0], ("isclean", "ishot", "iscool")
        wanted: list[list[Any]] = [["receptacletype", where, None]]
        for thing in things:
            wanted += [["inreceptacle", thing, where], ["objecttype", thing, None]]
        if len(things) == 1:
            wanted += [[state, first] for state in (*states, "cleanable", "heatable", "coolable")]
        elif len(things) == 2:
            wanted += [["not", ["=", *things]], ["not", ["=", *reversed(things)]]]
            if not self._having(atoms, "not"):
                raise Foreign("its goal does not tell its two objects apart")
        else:
            raise Foreign("its goal is about more than two objects")
        self._only(atoms, wanted)
        objects = {self._object_set(atoms, thing) for thing in things}
        if len(objects) > 1:
            raise Foreign("its goal is about two objects of different types")
        compiler, chosen = self.compiler, objects.pop()
        for predicate in ("cleanable", "heatable", "coolable"):
            if self._having(atoms, predicate):
                chosen &= compiler._objects(predicate)
        ((_, _, receptacle_type),) = _distinct(self._having(atoms, "receptacletype"))
        clean, hot, cool = (bool(self._having(atoms, state)) for state in states)
        return Clause("place", chosen, compiler._of_types({receptacle_type}), len(things), clean, hot, cool)

    def _object_set(self, atoms: list[list[Any]], name: str) -> int:
        types = {atom[2] for atom in self._having(atoms, "objecttype") if atom[1] == name}
        if len(types) != 1:
            raise Foreign("its goal does not say of which type an object is")
        return self.compiler._objects_of_type(types)

    @staticmethod
    def _only(atoms: list[list[Any]], allowed: list[list[Any]]) -> None:
        for atom in atoms:
            if not any(_fits(atom, pattern) for pattern in allowed):
                raise Foreign(f"its goal has a condition '{atom[0]}' that is not known there")


def _fits(atom: list[Any], pattern: list[Any]) -> bool:
    """Whether an atom is `pattern`, in which None stands for any constant."""
    return len(atom) == len(pattern) and all(
        (not str(given).startswith("?")) if wanted is None else given == wanted
        for given, wanted in zip(atom, pattern, strict=True)
    )


def _distinct(atoms: list[list[Any]]) -> list[list[Any]]:
    return [atom for i, atom in enumerate(atoms) if atom not in atoms[:i]]


def _flatten(expression: Expression, bound: tuple[str, ...] = ()) -> list[list[Any]]:
    """The atoms of nested conjunctions and existential quantifiers."""
    if expression[0] == "exists":
        variables = list(typed(expression[1]))
        names = (*bound, *(name for name, _ in variables))
        if len(set(names)) < len(names) or any(of_type not in _TYPES for _, of_type in variables):
            raise Foreign("its goal has quantifiers that are not known")
        return _flatten(expression[2], names)
    if expression[0] == "and":
        return [atom for part in expression[1:] for atom in _flatten(part, bound)]
    return [expression]
