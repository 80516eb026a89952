"""Dialects: the words that a game's grammar gives to what the native engine does.

Invariant: a grammar is a dialect only if its rules have the structure of `grammar.tw` (same conditions, same
references, in whatever words); everything else is left to the reference engine.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

TASK = "@TASK@"
"""Stands for the task in `grammar.tw`."""


class UnknownDialect(ValueError):
    """A grammar that the native engine does not speak."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """A parsed grammar: rules by symbol, actions by name in lower case."""

    rules: Mapping[str, tuple[tuple[str, str], ...]]
    """Symbol -> (condition, right-hand side) in the order in which they are tried."""
    actions: Mapping[str, tuple[str, str]]
    """Name -> (template of its command, feedback)."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """What is said and understood. Feedback is text for `str.format` with `{o}`, `{r}`, `{l}`, `{list}`, `{view}`.

    Attributes:
        welcome: the whole first observation, with `{look}` and `{task}`.
        feedback: action -> its feedback; examinations and the inventory stand apart because they have conditions.
        commands: action -> (beginning, middle) of its command: `("take ", " from ")`; the middle is empty for those
            with one argument.
        views: what a receptacle shows: open, closed, or neither.
        objects: what an examined object shows: a container, then the others in the order of `OBJECT_STATES`.
    """

    welcome: str
    task: str
    feedback: Mapping[str, str]
    commands: Mapping[str, tuple[str, str]]
    views: tuple[str, str, str]
    objects: tuple[str, ...]
    carrying: str
    empty_handed: str
    facing: str
    beside: str
    """What is said of a place, with `{facing}` and `{floor}`."""
    nowhere: str
    """What is said where nothing stands, with `{list}`."""
    no_floor: str
    no_appliances: str
    nothing: str
    separator: str
    last_separator: str
    arrival_names_place: bool
    """Whether arriving names the location (`loc 12`) instead of the receptacle."""

    def join(self, items: list[str]) -> str:
        """An enumeration."""
        if not items:
            return self.nothing
        if len(items) == 1:
            return items[0]
        return self.separator.join(items[:-1]) + self.last_separator + items[-1]


OBJECT_STATES: tuple[tuple[str, ...], ...] = (
    ("clean", "hot", "sliced"),
    ("clean", "cool", "sliced"),
    ("clean", "sliced"),
    ("hot", "sliced"),
    ("cool", "sliced"),
    ("clean", "hot"),
    ("clean", "cool"),
    ("hot",),
    ("clean",),
    ("cool",),
    ("on",),
    ("off",),
    ("sliced",),
    (),
)
"""What the texts of `Dialect.objects` after the first are for; the first whose states all hold is said.

Nothing is ever `off`: the grammars ask for a fact `not_istoggled`, and no action takes `istoggled` away.
"""

_SIMPLE = {
    "openobject": "OpenObject.feedback",
    "closeobject": "CloseObject.feedback",
    "pickupobject": "PickupObject.feedback",
    "putobject": "PutObject.feedback",
    "cleanobject": "cleanObject.feedback",
    "heatobject": "heatObject.feedback",
    "coolobject": "coolObject.feedback",
    "sliceobject": "sliceObject.feedback",
    "toggleobject": "toggleObject.feedback",
    "gotolocation": "GotoLocation.feedback",
}
_ROOTS = ("intro", "list_empty", "list_separator", "list_last_separator")
_OPTIONAL = frozenset({"help"})
_VERBATIM = frozenset({"overview(o)", "overview(r)", "list_appliances", "list_objects_on_the_floor"})
"""Symbols whose first alternative the engine writes itself."""
_PART = re.compile(
    r'\s*(?:grammar\s*::\s*"""(?P<rules>.*?)"""\s*;|action\s+(?P<name>[\w/-]+)\s*\{(?P<body>.*?)\n?\}(?=\s*(?:#[^\n]*\s*)*'
    r"(?:action\b|grammar\b|\Z)))",
    re.DOTALL,
)
_FIELD = re.compile(r'\s*(template|feedback|pddl|grammar)\s*::\s*("""(?:.*?)"""|"[^"]*")\s*;', re.DOTALL)
_COMMENTS = re.compile(r"(?:\s*#[^\n]*(?:\n|\Z))*\s*")
_TOKEN = re.compile(r"(\[\{[^\]]*\}\]|\{[^{}]*\}|#[^#]*#)")
_SPECIAL = re.compile(r'[;|"<>\[\]#{}\t]')
_ARGUMENTS = {
    "{o.name}": "{o}",
    "{r.name}": "{r}",
    "{co.name}": "{o}",
    "{ko.name}": "{r}",
    "{lend.name}": "{l}",
    "#examineReceptacle.feedback#": "{view}",
    "#look.feedback#": "{look}",
    "#task#": "{task}",
    "#look-variations#": "{facing}",
    "#list_objects_on_the_floor#": "{floor}",
    "#list_appliances#": "{list}",
}


def own_grammar() -> str:
    """The text of `grammar.tw`."""
    return resources.files(__package__).joinpath("grammar.tw").read_text("utf-8")


def read_grammar(text: str) -> Grammar:
    """Takes a grammar in TextWorld's format apart.

    Raises:
        UnknownDialect: it is none.
    """
    rules: dict[str, Any] = {}
    actions: dict[str, tuple[str, str]] = {}
    at = _skip(text, 0)
    while at < len(text):
        part = _PART.match(text, at)
        if part is None:
            raise UnknownDialect(f"no grammar at {text[at : at + 30]!r}")
        if part["name"] is None:
            rules |= _json(part["rules"])
        else:
            fields = {name: value.strip('"') for name, value in _FIELD.findall(part["body"])}
            actions[part["name"].lower()] = (fields.get("template", ""), fields.get("feedback", ""))
            rules |= _json(fields.get("grammar", "{}"))
        at = _skip(text, part.end())
    try:
        tidy = {
            symbol: tuple((_tidy(rule.get("condition", "")), rule["rhs"]) for rule in alternatives)
            for symbol, alternatives in rules.items()
        }
    except (TypeError, KeyError, AttributeError) as error:
        raise UnknownDialect(f"a rule is not a list of right-hand sides ({error})") from error
    return Grammar(tidy, actions)


def read_dialect(text: str) -> Dialect:
    """The dialect of a grammar.

    Raises:
        UnknownDialect: its rules are not those of `grammar.tw`; the message names the first that differs.
    """
    grammar, own = read_grammar(text), _own()
    _compare_actions(grammar, own)
    reached = [*_ROOTS, *(_SIMPLE[name] for name in _SIMPLE), "inventory.feedback", "examineObject.feedback"]
    for symbol in _reachable(own, reached):
        _compare_rules(symbol, grammar, own)
    return _build(grammar)


@functools.cache
def _own() -> Grammar:
    return read_grammar(own_grammar())


def _skip(text: str, at: int) -> int:
    found = _COMMENTS.match(text, at)
    return found.end() if found else at


def _json(text: str) -> dict[str, Any]:
    lines = (line for line in text.split("\n") if not line.lstrip().startswith("#"))
    try:
        found = json.loads("\n".join(lines))
    except json.JSONDecodeError as error:
        raise UnknownDialect(f"its rules are not JSON: {error}") from error
    if not isinstance(found, dict):
        raise UnknownDialect("its rules are not a JSON object")
    return found


def _tidy(text: str) -> str:
    return " ".join(text.split())


# -- structure ----------------------------------------------------------------------------------------------


def _pieces(rhs: str) -> list[str]:
    return [piece for piece in _TOKEN.split(rhs) if piece]


def _is_token(piece: str) -> bool:
    return piece[0] in "[{#" and _TOKEN.fullmatch(piece) is not None


def _shape(rhs: str) -> tuple[str, ...]:
    """The references of a right-hand side in their order, without its words."""
    shape = []
    if rhs.lstrip().startswith("//"):
        raise UnknownDialect(f"the text {rhs!r:.60} is a comment")
    for piece in _pieces(rhs):
        if _is_token(piece):
            shape.append("{r.name}" if piece == "{lend.name}" else _tidy(piece))
        elif _SPECIAL.search(piece):
            raise UnknownDialect(f"the text {piece!r:.60} has characters that mean something")
    return tuple(shape)


def _reachable(grammar: Grammar, symbols: list[str]) -> Iterator[str]:
    waiting, seen = list(symbols), set()
    while waiting:
        symbol = waiting.pop()
        if symbol in seen:
            continue
        seen.add(symbol)
        yield symbol
        for _, rhs in grammar.rules[symbol]:
            waiting.extend(re.findall(r"#([^#]+)#", rhs))


def _compare_rules(symbol: str, grammar: Grammar, own: Grammar) -> None:
    theirs, ours = grammar.rules.get(symbol, ()), own.rules[symbol]
    same = [(condition, _shape(rhs)) for condition, rhs in theirs] == [(c, _shape(rhs)) for c, rhs in ours]
    if not same or (symbol in _VERBATIM and _pieces(theirs[0][1]) != _pieces(ours[0][1])):
        raise UnknownDialect(f"its rules for '{symbol}' have another structure")


def _compare_actions(grammar: Grammar, own: Grammar) -> None:
    for name, (template, feedback) in own.actions.items():
        if name not in grammar.actions:
            if name in _OPTIONAL:
                continue
            raise UnknownDialect(f"it has no action '{name}'")
        theirs = grammar.actions[name]
        if name == "help":
            if _shape(theirs[0]) or _shape(theirs[1]):
                raise UnknownDialect("its help is not plain text")
        elif _shape(theirs[0]) != _shape(template) or theirs[1] != feedback:
            raise UnknownDialect(f"its action '{name}' has another structure")


# -- words --------------------------------------------------------------------------------------------------


def _line(rhs: str) -> str:
    """A right-hand side as text for `str.format`.

    TextWorld's parser skips white space at the start of a text, though not after it.
    """
    parts = []
    for piece in _pieces(rhs.lstrip()):
        if _is_token(piece):
            parts.append("{list}" if piece[0] == "[" else _ARGUMENTS.get(piece, ""))
        else:
            parts.append(piece)
    return "".join(parts)


def _command(template: str) -> tuple[str, str]:
    """How a command begins, and what stands between its two arguments."""
    pieces = _pieces(template)
    words, tokens = pieces[::2], pieces[1::2]
    alternating = not any(map(_is_token, words)) and all(map(_is_token, tokens))
    if not alternating or (tokens and (len(pieces) % 2 or not pieces[0].endswith(" "))):
        raise UnknownDialect(f"the command '{template}' is not words and arguments in turn")
    return words[0], words[1] if len(words) > 1 else ""


def _build(grammar: Grammar) -> Dialect:
    def lines(symbol: str) -> tuple[str, ...]:
        return tuple(_line(rhs) for _, rhs in grammar.rules[symbol])

    feedback = {name: lines(symbol)[0] for name, symbol in _SIMPLE.items()}
    if "help" in grammar.actions:
        feedback["help"] = _line(grammar.actions["help"][1])
    opened, closed, plain = lines("examineReceptacle.feedback")
    carrying, empty_handed = lines("inventory.feedback")
    beside, nowhere = lines("look.feedback")
    return Dialect(
        welcome=lines("intro")[0],
        task=grammar.rules["task"][0][1],
        feedback=feedback,
        commands={name: _command(grammar.actions[name][0]) for name in _own().actions if name in grammar.actions},
        views=(opened, closed, plain),
        objects=lines("examineObject.feedback"),
        carrying=carrying,
        empty_handed=empty_handed,
        facing=lines("look-variations")[0],
        beside=beside,
        nowhere=nowhere,
        no_floor=lines("list_objects_on_the_floor")[1],
        no_appliances=lines("list_appliances")[1],
        nothing=lines("list_empty")[0],
        separator=lines("list_separator")[0],
        last_separator=lines("list_last_separator")[0],
        arrival_names_place="{l}" in feedback["gotolocation"],
    )
