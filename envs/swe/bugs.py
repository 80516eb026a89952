"""Bugs that people make, put into a Python file on purpose: one small edit each, the rest of the text untouched.

Invariant: `find_bugs` depends on the text alone, so that the same source gives the same bugs in the same order on every
machine. Whether a bug is felt by any test is another matter (`synthesis.py`).
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal[
    "operator",
    "boundary",
    "off_by_one",
    "wrong_variable",
    "swapped_arguments",
    "missing_case",
    "deleted_guard",
    "wrong_default",
]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Edit:
    """One replacement in a file: `file[start:end]` (characters) becomes `text`."""

    file: str
    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Bug:
    """An edit, what kind of mistake it is, and the function that it is in."""

    kind: Kind
    edit: Edit
    function: str


def apply_edits(files: dict[str, str], edits: Sequence[Edit]) -> dict[str, str]:
    """The files with some edits made, which may not overlap."""
    changed = dict(files)
    for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
        text = changed[edit.file]
        changed[edit.file] = text[: edit.start] + edit.text + text[edit.end :]
    return changed


def find_bugs(file: str, source: str) -> list[Bug]:
    """Every bug that can be put into a file, in the order of their places."""
    found: dict[Edit, Bug] = {}
    for function, node in _functions(ast.parse(source)):
        finder = _Finder(file, source, function, node)
        for bug in finder.bugs():
            if _parses(apply_edits({file: source}, [bug.edit])[file]):
                found.setdefault(bug.edit, bug)
    return sorted(found.values(), key=lambda bug: (bug.edit.start, bug.edit.end, bug.kind, bug.edit.text))


def _parses(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


def _functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Functions and methods with their dotted names; nested ones belong to the one around them."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef):
                    yield f"{node.name}.{inner.name}", inner


_BINARY = {ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.FloorDiv: "/", ast.Div: "*", ast.Mod: "//"}
_AUGMENTED = {ast.Add: "-=", ast.Sub: "+="}
_BOUNDARY = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
_COMPARED = {ast.Eq: "!=", ast.NotEq: "==", ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is"}
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
_ENDINGS = (ast.Raise, ast.Return, ast.Continue, ast.Break)


class _Finder:
    """Looks for places in one function."""

    def __init__(self, file: str, source: str, name: str, node: ast.FunctionDef) -> None:
        self._file, self._source, self._name, self._node = file, source, name, node
        self._lines = list(itertools.accumulate((len(line) for line in source.splitlines(keepends=True)), initial=0))
        self._bytes = source.splitlines()
        self._locals = self._local_names()

    def bugs(self) -> Iterator[Bug]:
        """All of them; some may not be valid Python."""
        yield from self._defaults()
        for node in ast.walk(self._node):
            match node:
                case ast.BinOp(op=op, left=left, right=right) if type(op) in _BINARY:
                    yield from self._between("operator", left, right, _BINARY[type(op)])
                case ast.AugAssign(op=op, target=target, value=value) if type(op) in _AUGMENTED:
                    yield from self._between("operator", target, value, _AUGMENTED[type(op)])
                case ast.BoolOp(op=op, values=values):
                    word = "or" if isinstance(op, ast.And) else "and"
                    yield from self._between("operator", values[0], values[1], word)
                    yield from self._without_one(values)
                case ast.Compare(left=left, ops=ops, comparators=others):
                    yield from self._compare(left, ops, others)
                case ast.Call():
                    yield from self._call(node)
                case ast.Constant(value=int() as value) if not isinstance(value, bool):
                    yield self._bug("off_by_one", node, str(value + 1))
                case ast.If():
                    yield from self._branch(node)
                case ast.Name(ctx=ast.Load()) if node.id in self._locals:
                    yield from self._other_name(node)

    # -- kinds ---------------------------------------------------------------------------------------------------

    def _compare(self, left: ast.expr, ops: list[ast.cmpop], others: list[ast.expr]) -> Iterator[Bug]:
        for first, op, second in zip([left, *others], ops, others, strict=False):
            if type(op) in _BOUNDARY:
                yield from self._between("boundary", first, second, _BOUNDARY[type(op)])
            elif type(op) in _COMPARED:
                yield from self._between("operator", first, second, _COMPARED[type(op)])

    def _call(self, node: ast.Call) -> Iterator[Bug]:
        if isinstance(node.func, ast.Name) and node.func.id in _NAMES:
            yield self._bug("operator", node.func, _NAMES[node.func.id])
        if isinstance(node.func, ast.Name) and node.func.id == "range" and node.args:
            last = node.args[-1] if len(node.args) < 3 else node.args[1]
            yield self._bug("off_by_one", last, f"{self._text(last)} - 1")
        if len(node.args) == 2 and not any(isinstance(argument, ast.Starred) for argument in node.args):
            first, second = node.args
            if self._text(first) != self._text(second):
                swapped = f"{self._text(second)}, {self._text(first)}"
                yield self._bug("swapped_arguments", first, swapped, until=second)

    def _branch(self, node: ast.If) -> Iterator[Bug]:
        simple = len(node.body) == 1 and isinstance(node.body[0], _ENDINGS)
        is_elif = self._source[self._at(node) :].startswith("elif")
        if simple and not node.orelse and not is_elif:
            yield self._delete(node, "deleted_guard")
        if is_elif:
            yield self._bug("missing_case", node.test, "False")
        elif not simple and node.orelse:
            yield self._bug("missing_case", node.test, "True")

    def _without_one(self, values: list[ast.expr]) -> Iterator[Bug]:
        """One side of `and` or `or` is forgotten."""
        yield self._bug("missing_case", values[-2], self._text(values[-2]), until=values[-1])
        if len(values) == 2:
            yield self._bug("missing_case", values[0], self._text(values[1]), until=values[1])

    def _other_name(self, node: ast.Name) -> Iterator[Bug]:
        at = self._locals.index(node.id)
        for other in (self._locals[at - 1], self._locals[(at + 1) % len(self._locals)]):
            if other != node.id:
                yield self._bug("wrong_variable", node, other)

    def _defaults(self) -> Iterator[Bug]:
        for node in [*self._node.args.defaults, *filter(None, self._node.args.kw_defaults)]:
            match node:
                case ast.Constant(value=bool() as value):
                    yield self._bug("wrong_default", node, str(not value))
                case ast.Constant(value=int() | float() as value):
                    yield self._bug("wrong_default", node, repr(type(value)(0) if value == 1 else value + 1))
                case ast.Constant(value=str() as value):
                    yield self._bug("wrong_default", node, repr(value[:-1] if value else " "))
                case ast.Tuple(elts=[]):
                    yield self._bug("wrong_default", node, "None")

    # -- places --------------------------------------------------------------------------------------------------

    def _local_names(self) -> list[str]:
        """Arguments and variables, but for `self`, in the order in which they come."""
        arguments = [argument.arg for argument in (*self._node.args.args, *self._node.args.kwonlyargs)]
        stored = [
            (node.lineno, node.col_offset, node.id)
            for node in ast.walk(self._node)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        ]
        names = dict.fromkeys([*arguments, *(name for _, _, name in sorted(stored))])
        return [name for name in names if name not in ("self", "cls") and not name.startswith("_")]

    def _offset(self, line: int, column: int) -> int:
        """Characters before a place that ast tells in bytes of a line."""
        return self._lines[line - 1] + len(self._bytes[line - 1].encode()[:column].decode())

    def _at(self, node: ast.expr | ast.stmt) -> int:
        return self._offset(node.lineno, node.col_offset)

    def _end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._offset(node.end_lineno, node.end_col_offset)

    def _text(self, node: ast.expr) -> str:
        return self._source[self._at(node) : self._end(node)]

    def _bug(self, kind: Kind, node: ast.expr, text: str, until: ast.expr | None = None) -> Bug:
        edit = Edit(self._file, self._at(node), self._end(until or node), text)
        return Bug(kind, edit, self._name)

    def _between(self, kind: Kind, left: ast.expr, right: ast.expr, operator: str) -> Iterator[Bug]:
        """Another operator between two expressions, with the brackets and spaces around it left as they are."""
        start, end = self._end(left), self._at(right)
        gap = self._source[start:end]
        core = gap.strip(" ()\n")
        if core and "#" not in core:
            at = start + gap.index(core)
            yield Bug(kind, Edit(self._file, at, at + len(core), operator), self._name)

    def _delete(self, node: ast.stmt, kind: Kind) -> Bug:
        """A statement's lines are gone; where nothing else is left in its block, `pass` stays."""
        assert node.end_lineno is not None
        start, end = self._lines[node.lineno - 1], self._lines[node.end_lineno]
        removed = self._source[:start] + self._source[end:]
        if _parses(removed):
            return Bug(kind, Edit(self._file, start, end, ""), self._name)
        return Bug(kind, Edit(self._file, self._at(node), self._end(node), "pass"), self._name)
