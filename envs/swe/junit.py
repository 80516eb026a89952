"""JUnit files: what pytest wrote about its tests, read without trusting who wrote it."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass

from rollenv.envs.swe.log_parsers import ERROR, FAILED, PASSED, SKIPPED, XFAIL


@dataclass(frozen=True, slots=True)
class Result:
    """A test's status and, where it has failed, what it said."""

    status: str
    message: str = ""
    detail: str = ""


def read_junit(data: bytes) -> dict[str, Result]:
    """Test id (`path::class::name`) -> result; empty for bytes that are no such file.

    A test that fails and has an error in its teardown has two entries, of which the worse counts.
    """
    if b"<!DOCTYPE" in data or b"<!ENTITY" in data:
        return {}
    try:
        tree = ElementTree.fromstring(data)
    except ElementTree.ParseError:
        return {}
    found: dict[str, Result] = {}
    for case in tree.iter("testcase"):
        id, result = _id(case), _result(case)
        if id not in found or _RANK[result.status] > _RANK[found[id].status]:
            found[id] = result
    return found


_RANK = {PASSED: 0, XFAIL: 1, SKIPPED: 2, FAILED: 3, ERROR: 4}


def _id(case: ElementTree.Element) -> str:
    """As pytest names tests. A class stands after the file's dotted name; a file that cannot be read has no name."""
    file, name = case.get("file", ""), case.get("name", "")
    module = file.removesuffix(".py").replace("/", ".")
    inside = case.get("classname", "").removeprefix(module).strip(".")
    return "::".join(part for part in (file, *inside.split("."), name) if part)


def _result(case: ElementTree.Element) -> Result:
    for tag, status in (("error", ERROR), ("failure", FAILED), ("skipped", SKIPPED)):
        node = case.find(tag)
        if node is not None:
            expected = status == SKIPPED and node.get("type") == "pytest.xfail"
            return Result(XFAIL if expected else status, node.get("message") or "", node.text or "")
    return Result(PASSED)
