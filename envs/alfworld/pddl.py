"""PDDL as nested lists: reading problems, and forms in which two domains of the same meaning are equal.

Everything is lower case, as PDDL does not tell cases apart; comments are gone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

Expression = Any
"""A symbol (`str`) or a list of expressions."""

_TOKEN = re.compile(r"[()]|[^\s()]+")
_COMMENT = re.compile(r";[^\n]*")
FALSE: Expression = ["or"]
"""What can never hold: a disjunction of nothing."""


class PddlError(ValueError):
    """Text that is not PDDL, or lacks what is needed."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem: typed objects, the facts that hold at first, and the goal."""

    objects: dict[str, str]
    """Name -> type."""
    facts: dict[str, list[tuple[str, ...]]]
    """Predicate -> arguments, in the file's order."""
    goal: Expression


def parse(text: str) -> Expression:
    """The expression that `text` holds.

    Raises:
        PddlError: brackets do not match, or there is more or less than one expression.
    """
    stack: list[list[Expression]] = [[]]
    for token in _TOKEN.findall(_COMMENT.sub("", text).lower()):
        if token == "(":
            stack.append([])
        elif token == ")":
            if len(stack) == 1:
                raise PddlError("a ')' without its '('")
            done = stack.pop()
            stack[-1].append(done)
        else:
            stack[-1].append(token)
    if len(stack) != 1 or len(stack[0]) != 1 or not isinstance(stack[0][0], list):
        raise PddlError(f"{len(stack) - 1} '(' without their ')'" if len(stack) > 1 else "not one expression")
    return stack[0][0]


def read_problem(text: str) -> Problem:
    """Takes a PDDL problem apart.

    Raises:
        PddlError: it is none.
    """
    sections = _sections(parse(text))
    facts: dict[str, list[tuple[str, ...]]] = {}
    for atom in _section(sections, ":init"):
        if not isinstance(atom, list) or not atom or not all(isinstance(word, str) for word in atom):
            raise PddlError(f"an initial fact that is no plain atom: {atom!r:.80}")
        facts.setdefault(atom[0], []).append(tuple(atom[1:]))
    goal = _section(sections, ":goal")
    if len(goal) != 1:
        raise PddlError("the goal is not one expression")
    return Problem(dict(typed(_section(sections, ":objects"))), facts, goal[0])


def typed(words: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The pairs (name, type) of a typed list such as `a b - t c - u`; a name without a type is an `object`."""
    names: list[str] = []
    of_type = False
    for word in words:
        if of_type:
            yield from ((name, word) for name in names)
            names, of_type = [], False
        elif word == "-":
            of_type = True
        else:
            names.append(word)
    yield from ((name, "object") for name in names)


def _sections(define: Expression) -> dict[str, list[Expression]]:
    if not define or define[0] != "define":
        raise PddlError("no (define ...)")
    return {part[0]: part[1:] for part in define[1:] if isinstance(part, list) and part}


def _section(sections: dict[str, list[Expression]], name: str) -> list[Expression]:
    try:
        return sections[name]
    except KeyError:
        raise PddlError(f"no section ({name} ...)") from None


# -- domains ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Domain:
    """What a domain means, in a form in which equal meaning mostly gives equal values."""

    types: frozenset[tuple[str, str]]
    """(type, its supertype)."""
    actions: dict[str, Expression]
    """Name -> [parameters, precondition, effect]. Parameters keep their names: grammars refer to them."""


def read_domain(text: str) -> Domain:
    """The meaning of a PDDL domain: costs, predicate declarations, and the order of conjunctions do not matter.

    Raises:
        PddlError: it is no domain.
    """
    define = parse(text)
    sections = _sections(define)
    types = frozenset(typed(sections.get(":types", [])))
    known = {name for name, _ in types} | {"object"}
    actions: dict[str, Expression] = {}
    for part in define[1:]:
        if isinstance(part, list) and part and part[0] == ":action":
            fields = dict(zip(part[2::2], part[3::2], strict=False))
            actions[part[1]] = [
                [list(pair) for pair in typed(fields.get(":parameters", []))],
                canonical(fields.get(":precondition", []), known),
                canonical(fields.get(":effect", []), known),
            ]
    return Domain(types, actions)


def canonical(expression: Expression, types: set[str]) -> Expression:
    """`expression` with flat and sorted conjunctions and disjunctions, without costs, quantified names numbered.

    A quantifier over a type that nothing has can never be satisfied: planners read `(?l - location, ?r - thing)`
    so, where the comma belongs to the type's name.
    """
    return _canonical(expression, types, {})


def _canonical(expression: Expression, types: set[str], names: dict[str, str]) -> Expression:
    if isinstance(expression, str):
        return names.get(expression, expression)
    if not expression:
        return ["and"]
    head = expression[0]
    if head == "exists":
        variables = list(typed(expression[1]))
        if any(of_type not in types for _, of_type in variables):
            return FALSE
        numbered = names | {name: f"?{len(names) + i}" for i, (name, _) in enumerate(variables)}
        inner = _canonical(expression[2], types, numbered)
        return ["exists", [[numbered[name], of_type] for name, of_type in variables], inner]
    if head in ("and", "or"):
        return _junction(head, [_canonical(part, types, names) for part in expression[1:] if part[0] != "increase"])
    return [head, *(_canonical(part, types, names) for part in expression[1:])]


def _junction(head: str, parts: list[Expression]) -> Expression:
    flat: list[Expression] = []
    for part in parts:
        flat.extend(part[1:] if part[0] == head else [part])
    if len(flat) == 1:
        return flat[0]
    return [head, *sorted(flat, key=repr)]
