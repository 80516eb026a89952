"""The tasks that come with rollenv: small repositories with bugs that their tests notice (`synthesis.py` made them).

The agent finds the repository without the tests that fail, as in SWE-smith; they come back when its work is judged. No
repository has tasks in two splits.
"""

from __future__ import annotations

import ast
import functools
import gzip

from rollenv.envs.swe.bugs import apply_edits
from rollenv.envs.swe.changes import unified
from rollenv.envs.swe.library import Library
from rollenv.envs.swe.synthesis import VERIFIED, Verified, is_test, repo_files
from rollenv.envs.swe.task import PytestChecks, SweTask

TEST_REPOS = ("romans", "sheets", "spans", "throttle")
_SECONDS = 30.0
_MEMORY = 512 << 20


@functools.cache
def embedded_library() -> Library:
    """All embedded tasks. In a split, repositories take turns."""
    bugs = {bug.id: bug for bug in read_verified()}
    order = sorted(bugs.values(), key=lambda bug: (bug.id.split("-")[1], bug.repo))
    splits = {
        "train": [bug.id for bug in order if bug.repo not in TEST_REPOS],
        "test": [bug.id for bug in order if bug.repo in TEST_REPOS],
    }
    return Library("the embedded tasks", splits, lambda id: make_task(bugs[id]))


def read_verified() -> list[Verified]:
    """The bugs that were verified when this version was made."""
    lines = gzip.decompress(VERIFIED.read_bytes()).decode().splitlines()
    return [Verified.from_json(line) for line in lines]


def make_task(bug: Verified) -> SweTask:
    """The task of mending a bug."""
    sound = repo_files(bug.repo)
    broken = apply_edits(sound, bug.edits)
    files = {path: text.encode() for path, text in broken.items()}
    fixed = {path: sound[path].encode() for path in sorted({edit.file for edit in bug.edits})}
    hidden = {path: _without(text, bug.fail_to_pass, path).encode() for path, text in sound.items() if is_test(path)}
    tests = {path: text.encode() for path, text in sound.items() if is_test(path)}
    return SweTask(
        id=bug.id,
        issue=bug.issue,
        checks=PytestChecks(bug.fail_to_pass, bug.pass_to_pass, tests, _SECONDS),
        gold=unified(files, fixed),
        files={**files, **hidden},
        repo=bug.repo,
        memory=_MEMORY,
        facts={"kinds": list(bug.kinds)},
    )


def _without(source: str, ids: tuple[str, ...], path: str) -> str:
    """A test file without the functions that some ids name."""
    names = {id.partition("::")[2].partition("[")[0] for id in ids if id.startswith(f"{path}::")}
    lines = source.splitlines(keepends=True)
    for node in reversed(ast.parse(source).body):
        if isinstance(node, ast.FunctionDef) and node.name in names:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            del lines[first - 1 : node.end_lineno]
    return "".join(lines)
