"""Issue texts, from what a bug does: which behaviour is wrong, how to see it, what comes out instead.

They tell what somebody who uses the package would notice, never where the bug is or of which kind.
"""

from __future__ import annotations

import ast
import random
import re
import textwrap
from collections.abc import Mapping

from rollenv.envs.swe.junit import Result

_TITLES = (
    "Wrong behaviour: {what}",
    "No longer true: {what}",
    "Broken since the last release: {what}",
    "Fails: {what}",
)
_OPENINGS = (
    "I rely on this and it has stopped working. Here is what I run:",
    "Steps to reproduce:",
    "This used to be fine. A small example:",
    "The following should pass, as far as I understand the README, but it does not:",
)
_RESULTS = ("What I get:", "It ends with:", "Output:")
_CLOSINGS = (
    "Everything else that I use seems to work as before, and should go on doing so.",
    "Please mend it without changing what works.",
    "I have not found the cause.",
)
_MOST_LINES, _MOST_TOLD = 12, 4


def write_issue(files: Mapping[str, str], failing: Mapping[str, Result], rng: random.Random) -> str:
    """An issue about tests that fail.

    Args:
        files: the repository's texts, tests included.
        failing: id and result of each test that fails.
        rng: decides the wording.
    """
    ids = sorted(failing, key=lambda id: (len(_code(files, id)), id))
    shown = ids[0]
    others = list(dict.fromkeys(_sentence(id) for id in ids if _sentence(id) != _sentence(shown)))
    what = _sentence(shown)
    title = rng.choice(_TITLES).format(what=what)
    code = _code(files, shown)
    parts = [
        title[:1].upper() + title[1:],
        rng.choice(_OPENINGS),
        f"```python\n{code}\n```",
        *_parameters(shown),
        rng.choice(_RESULTS),
        f"```\n{_said(failing[shown])}\n```",
    ]
    if others:
        listed = "\n".join(f"- {sentence}" for sentence in others[:_MOST_TOLD])
        more = f"\n- and {len(others) - _MOST_TOLD} more" if len(others) > _MOST_TOLD else ""
        parts.append(f"Probably related, these are wrong as well:\n{listed}{more}")
    parts.append(rng.choice(_CLOSINGS))
    return "\n\n".join(parts) + "\n"


def _sentence(id: str) -> str:
    """`tests/test_x.py::test_a_look_up_is_a_use[1]` -> `a look up is a use`."""
    name = id.rpartition("::")[2].partition("[")[0]
    return name.removeprefix("test_").replace("_", " ")


def _parameters(id: str) -> list[str]:
    _, found, inside = id.partition("[")
    return [f"with the values `{inside.removesuffix(']')}`."] if found else []


def _code(files: Mapping[str, str], id: str) -> str:
    """The imports of a test's file and the body of the test."""
    path, *_, name = id.partition("[")[0].split("::")
    source = files[path]
    tree = ast.parse(source)
    imports = [ast.get_source_segment(source, node) or "" for node in tree.body if _of_package(node)]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            lines = source.splitlines()[node.body[0].lineno - 1 : node.end_lineno]
            return "\n".join([*imports, "", textwrap.dedent("\n".join(lines))]).strip()
    return "\n".join(imports)


def _of_package(node: ast.stmt) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def _said(result: Result) -> str:
    """What the test said, in its first lines, without places in the tests' files."""
    lines = [line.removeprefix("E").removeprefix("   ") for line in result.detail.splitlines() if line.startswith("E ")]
    text = "\n".join((lines or result.message.splitlines())[:_MOST_LINES])
    return re.sub(r" at 0x[0-9a-f]+", "", text).strip() or result.message.strip() or "no result at all"
