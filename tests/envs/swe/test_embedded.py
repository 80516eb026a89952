"""The embedded tasks are what their file says they are."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from rollenv.envs.swe.bugs import KINDS, apply_edits
from rollenv.envs.swe.embedded import TEST_REPOS, embedded_library, make_task, read_verified
from rollenv.envs.swe.grader import grade
from rollenv.envs.swe.synthesis import Verified, by_turns, is_test, repo_files, repo_names
from rollenv.envs.swe.task import PytestChecks, SweTask
from rollenv.envs.swe.workspace import sandbox_spec
from rollenv.sandboxes import Pool

BUGS = read_verified()
IDS = [bug.id for bug in BUGS]


def test_there_are_hundreds_of_all_kinds_in_all_repositories() -> None:
    assert len(BUGS) >= 400
    assert len(set(IDS)) == len(IDS)
    assert {bug.repo for bug in BUGS} == set(repo_names())
    assert {kind for bug in BUGS for kind in bug.kinds} == set(KINDS)
    sites = Counter(min(len(bug.edits), 2) for bug in BUGS)
    assert sites[1] >= 300
    assert sites[2] >= 80


@pytest.mark.parametrize("bug", BUGS[::9], ids=lambda bug: bug.id)
def test_a_task_fits_the_repository_as_it_is_now(bug: Verified) -> None:
    sound, task = repo_files(bug.repo), make_task(bug)
    assert isinstance(task.checks, PytestChecks)
    assert apply_edits(sound, bug.edits) != sound
    assert bug.fail_to_pass
    assert bug.pass_to_pass
    for id in (*bug.fail_to_pass, *bug.pass_to_pass):
        path, _, name = id.partition("::")
        assert f"def {name.partition('[')[0]}(" in sound[path]
    for id in bug.fail_to_pass:
        path, _, name = id.partition("::")
        assert f"def {name.partition('[')[0]}(" not in (task.files or {})[path].decode()
    assert set(task.checks.files) == {path for path in sound if is_test(path)}


@pytest.mark.parametrize("bug", BUGS[::9], ids=lambda bug: bug.id)
def test_an_issue_tells_what_is_wrong_and_not_where(bug: Verified) -> None:
    assert "```python\n" in bug.issue
    assert len(bug.issue) > 150
    for edit in bug.edits:
        assert edit.file not in bug.issue
    assert not any(kind in bug.issue for kind in KINDS if "_" in kind)


def test_no_repository_is_in_two_splits() -> None:
    tasks = embedded_library().tasks
    repos = {split: {id.split("-")[0] for id in ids} for split, ids in tasks.splits.items()}
    assert repos["test"] == set(TEST_REPOS)
    assert repos["train"] == set(repo_names()) - set(TEST_REPOS)
    assert len({id.split("-")[0] for id in tasks.ids("train")[:10]}) == 10


def test_the_kinds_take_turns() -> None:
    from rollenv.envs.swe.bugs import find_bugs

    bugs = find_bugs("romans/numerals.py", repo_files("romans")["romans/numerals.py"])
    first = by_turns(bugs, random.Random(3))
    assert first == by_turns(bugs, random.Random(3))
    assert first != by_turns(bugs, random.Random(4))
    assert sorted(first, key=hash) == sorted(bugs, key=hash)
    kinds = {bug.kind for bug in bugs}
    assert {bug.kind for bug in first[: len(kinds)]} == kinds


@pytest.mark.slow
def test_a_sample_fails_before_and_passes_with_the_solution(bubblewrap: str) -> None:
    async def verdicts(pool: Pool, task: SweTask, bug: Verified) -> tuple[bool, float, bool]:
        sound = repo_files(bug.repo)
        fixed = {edit.file: sound[edit.file].encode() for edit in bug.edits}
        found = []
        for submission in ({}, fixed):
            async with pool.sandbox(sandbox_spec(task)) as sandbox:
                found.append(await grade(sandbox, task, submission))
        return found[0].resolved, found[0].pass_to_pass, found[1].resolved

    async def main() -> None:
        async with Pool(bubblewrap, max_live=2) as pool:
            for bug in random.Random(0).sample(BUGS, 14):
                assert await verdicts(pool, make_task(bug), bug) == (False, 1.0, True), bug.id

    asyncio.run(main())
