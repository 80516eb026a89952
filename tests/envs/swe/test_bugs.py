"""Bugs are small edits that leave a file Python, and the same source gives the same ones."""

from __future__ import annotations

import ast
import textwrap

import pytest

from rollenv.envs.swe.bugs import KINDS, Bug, Edit, apply_edits, find_bugs
from rollenv.envs.swe.synthesis import is_test, repo_files, repo_names

SOURCE = textwrap.dedent(
    '''\
    def clamp(value, low=0, high=10):
        """Naïve, on purpose."""
        if low > high:
            raise ValueError("é")
        if value < low and low is not None:
            value = low
        elif value > high:
            value = max(high, low)
        return [number + 1 for number in range(value)]
    '''
)


def changed(bug: Bug) -> str:
    return apply_edits({"a.py": SOURCE}, [bug.edit])["a.py"]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("operator", "number - 1"),
        ("operator", "value < low or low"),
        ("operator", "min(high, low)"),
        ("boundary", "value <= low"),
        ("boundary", "low >= high"),
        ("off_by_one", "range(value - 1)"),
        ("off_by_one", "number + 2"),
        ("wrong_variable", "value = high"),
        ("swapped_arguments", "max(low, high)"),
        ("missing_case", "elif False:"),
        ("missing_case", "if value < low:"),
        ("deleted_guard", 'purpose."""\n    if value'),
        ("wrong_default", "high=11"),
    ],
)
def test_each_kind_is_found(kind: str, text: str) -> None:
    assert any(text in changed(bug) for bug in find_bugs("a.py", SOURCE) if bug.kind == kind)


def test_every_bug_is_python_and_changes_something() -> None:
    for bug in find_bugs("a.py", SOURCE):
        assert changed(bug) != SOURCE
        ast.parse(changed(bug))
        assert bug.function == "clamp"


def test_the_same_source_gives_the_same_bugs() -> None:
    assert find_bugs("a.py", SOURCE) == find_bugs("a.py", SOURCE)


def test_edits_are_made_from_the_end() -> None:
    edits = [Edit("a", 0, 1, "xyz"), Edit("a", 3, 3, "!"), Edit("b", 0, 0, "?")]
    assert apply_edits({"a": "abcd", "b": ""}, edits) == {"a": "xyzbc!d", "b": "?"}


@pytest.mark.parametrize("name", ["caches", "romans", "throttle"])
def test_repositories_have_bugs_of_nearly_all_kinds(name: str) -> None:
    files = {path: text for path, text in repo_files(name).items() if path.endswith(".py") and not is_test(path)}
    kinds = {bug.kind for path, text in files.items() for bug in find_bugs(path, text)}
    assert len(kinds) >= len(KINDS) - 1


def test_there_are_enough_repositories() -> None:
    assert len(repo_names()) >= 12
