"""Judges what an agent left, in a sandbox that no agent has been in.

Invariant: the sandbox holds the pristine tree, the changes that count, and the task's own tests; nothing that the agent
started is alive; what happened is read from where the agent could not foresee it. A run that does not end is no pass.
"""

from __future__ import annotations

import json
import re
import secrets
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import assert_never

from rollenv.envs.swe.canaries import with_canaries
from rollenv.envs.swe.changes import Changes
from rollenv.envs.swe.grading import END, START, Grade, grade_log, grade_tests
from rollenv.envs.swe.junit import read_junit
from rollenv.envs.swe.log_parsers import pytest_summary
from rollenv.envs.swe.task import PytestChecks, RewardChecks, ScriptChecks, StatusChecks, SweTask
from rollenv.envs.swe.workspace import Submission, pack_files
from rollenv.errors import RollenvError
from rollenv.sandboxes import ExecResult, Sandbox, SandboxDied, SandboxError

_RUNNER = Path(__file__).parent / "runner.py"
_REPORT_BYTES = 64 << 20
_APPLY = (
    "git apply --verbose {0}",
    "git apply --verbose --3way {0}",
    "git apply --verbose --reject {0}",
    "patch --batch --fuzz=5 -p1 -i {0}",
)
"""How SWE-bench applies a patch: whichever of these works first, each from a pristine tree."""


class PatchDoesNotApply(RollenvError):
    """A patch that fits none of the ways to apply it."""


async def grade(sandbox: Sandbox, task: SweTask, submission: Submission) -> Grade:
    """Judges a submission.

    Args:
        sandbox: a fresh one, made for the task; it is used up.
        task: what was to be done.
        submission: what the agent left (see `Workspace.submission`).

    Raises:
        SandboxDied: the sandbox is gone, which says nothing about the submission.
    """
    try:
        if isinstance(submission, bytes):
            await sandbox.upload(submission, ".")
        elif isinstance(submission, str):
            await apply_patch(sandbox, submission, task.id)
        elif not isinstance(task.checks, PytestChecks):
            await sandbox.upload(pack_files(_merged(task, submission)), ".")
    except PatchDoesNotApply as error:
        return Grade(False, "INVALID", {}, _rules(task), reason=str(error))
    match task.checks:
        case PytestChecks() as checks:
            return await _by_pytest(sandbox, task, checks, submission)
        case ScriptChecks() as checks:
            return await _by_script(sandbox, checks)
        case StatusChecks() as checks:
            return await _by_statuses(sandbox, checks)
        case RewardChecks() as checks:
            return await _by_reward(sandbox, checks)
        case other:
            assert_never(other)


def _rules(task: SweTask) -> str:
    return {PytestChecks: "pytest-1", ScriptChecks: "swebench-5", StatusChecks: "r2e-1", RewardChecks: "reward-1"}[
        type(task.checks)
    ]


def _merged(task: SweTask, changes: Changes) -> dict[str, bytes]:
    """The pristine tree with the changes that count."""
    merged = {**(task.files or {}), **changes}
    return {path: content for path, content in merged.items() if content is not None}


async def apply_patch(sandbox: Sandbox, patch: str, name: str) -> None:
    """Applies a patch in the working folder as SWE-bench does; an empty one is nothing to do.

    Raises:
        PatchDoesNotApply: it fits in none of the ways.
    """
    if not patch.strip():
        return
    place = f"/tmp/{secrets.token_hex(8)}.patch"
    await sandbox.write(place, patch)
    said = ""
    for way in _APPLY:
        done = await sandbox.exec(way.format(place), timeout=120)
        if done.exit_code == 0:
            return
        said = said or (done.stderr.strip().splitlines() or [f"exit code {done.exit_code}"])[-1]
        await sandbox.exec("git reset -q --hard HEAD && git clean -fdq", timeout=120)
    raise PatchDoesNotApply(f"task '{name}': the patch does not apply ({said}): make it against the task's repository")


# -- tests by name -----------------------------------------------------------------------------------------------


async def _by_pytest(sandbox: Sandbox, task: SweTask, checks: PytestChecks, submission: Submission) -> Grade:
    names = (*checks.fail_to_pass, *checks.pass_to_pass)
    canaries = with_canaries(checks.files, {name.split("::")[0] for name in names})
    tree = {} if isinstance(submission, str | bytes) else _merged(task, submission)
    await sandbox.upload(pack_files({**tree, **canaries.files}), ".")
    report = f"/tmp/{secrets.token_hex(16)}"
    tests = sorted({name.split("::")[0] for name in names})
    job = {"root": task.workdir, "tests": tests, "xml": report, "timeout": checks.timeout}
    program = f"import json\nJOBS = json.loads({json.dumps(json.dumps([job]))})\n{_RUNNER.read_text()}"
    done = await sandbox.exec(["python3", "-I", "-B", "-"], stdin=program, timeout=checks.timeout, cwd="/tmp")
    reason = _why_not(done, checks.timeout)
    results = {} if reason else read_junit(await _report(sandbox, report))
    if not reason and not results:
        reason = "the tests did not come to an end: no report was written"
    if not reason and not canaries.sing(results):
        reason = "the report is not what pytest would have written"
    if reason:
        return Grade(False, "INVALID", {}, "pytest-1", reason=reason)
    seen = {id: result.status for id, result in results.items() if id.rpartition("::")[2] not in canaries.expected}
    return grade_tests(seen, checks.fail_to_pass, checks.pass_to_pass, "pytest-1")


async def _report(sandbox: Sandbox, path: str) -> bytes:
    try:
        return await sandbox.read(path, limit=_REPORT_BYTES)
    except SandboxDied:
        raise
    except SandboxError:
        return b""


def _why_not(done: ExecResult, timeout: float) -> str:
    """Why a run says nothing, or the empty text."""
    if done.timed_out:
        return f"the tests took longer than {timeout:g} s"
    if done.oom:
        return "the tests ran out of memory"
    if done.flooded:
        return "the tests' output had no end"
    return ""


# -- logs --------------------------------------------------------------------------------------------------------


async def _by_script(sandbox: Sandbox, checks: ScriptChecks) -> Grade:
    mark = secrets.token_hex(16)
    place = f"/tmp/{mark}.sh"
    await sandbox.write(place, marked(checks.script, mark), mode=0o755)
    done = await sandbox.exec(f"bash {shlex.quote(place)} 2>&1", timeout=checks.timeout)
    reason = _why_not(done, checks.timeout)
    if reason:
        return Grade(False, "INVALID", {}, grade_log(checks.instance, "").rules, reason=reason)
    return grade_log(checks.instance, unmarked(done.stdout, mark))


def marked(script: str, mark: str) -> str:
    """An evaluation script whose marks nobody can foresee, and which tells the exit code of the tests."""
    before, found, rest = script.partition(START)
    test, ended, after = rest.partition(END)
    if not found or not ended:
        return script
    line = test.rpartition("\n")
    code = f"{line[0]}\nrollenv_code=$?\n{line[2]}"
    tail = after.partition("\n")
    said = f'{tail[0]}\necho ">>>>> Test Exit Code {mark}: $rollenv_code"\n{tail[2]}'
    return f"{before}{START} {mark}{code}{END} {mark}{said}"


def unmarked(log: str, mark: str) -> str:
    """The log of a marked script, from its own marks to its own exit code; as it is where it has none of them."""
    start, end = log.find(f"{START} {mark}"), log.rfind(f"{END} {mark}")
    if start < 0 or end < start:
        return log
    code = re.search(rf">>>>> Test Exit Code {mark}: (\d+)", log[end:])
    inside = log[log.find("\n", start) : end].replace(START, "").replace(END, "")
    told = f"\n>>>>> Test Exit Code: {code[1]}" if code else ""
    return f"{START}\n{inside}\n{END}{told}\n"


async def _by_statuses(sandbox: Sandbox, checks: StatusChecks) -> Grade:
    done = await sandbox.exec(checks.command, timeout=checks.timeout)
    reason = _why_not(done, checks.timeout)
    seen = pytest_summary(done.stdout)
    if reason or not seen:
        return Grade(False, "INVALID", seen, "r2e-1", reason=reason or "the log shows no test run")
    # R2E names tests without their files: `TestX.test_y`.
    named = {_r2e_name(id): status for id, status in seen.items()}
    right = [named.get(name) == status for name, status in checks.expected.items()]
    share = sum(right) / len(right) if right else 0.0
    same = bool(right) and all(right)
    return Grade(same, "FULL" if same else "NO", named, "r2e-1", share, float(same))


def _r2e_name(id: str) -> str:
    return ".".join(id.split("::")[1:]) or id


async def _by_reward(sandbox: Sandbox, checks: RewardChecks) -> Grade:
    await sandbox.upload(pack_files({path.lstrip("/"): content for path, content in checks.files.items()}), "/")
    done = await sandbox.exec(checks.command, timeout=checks.timeout)
    reason = _why_not(done, checks.timeout)
    if reason:
        return Grade(False, "INVALID", {}, "reward-1", reason=reason)
    if checks.log:
        return _of_all(pytest_summary(done.stdout))
    return await _of_reward_file(sandbox)


def _of_all(tests: dict[str, str]) -> Grade:
    """Terminal-Bench: all tests that there are have to pass."""
    if not tests:
        return Grade(False, "INVALID", {}, "reward-1", reason="the log shows no test run")
    return grade_tests(tests, list(tests), [], "reward-1")


async def _of_reward_file(sandbox: Sandbox) -> Grade:
    """Harbor: the reward is in a file that the tests write."""
    for path in ("/logs/verifier/reward.txt", "/logs/verifier/reward.json"):
        text = (await _report(sandbox, path)).decode(errors="replace").strip()
        if text:
            reward = _number(text)
            if reward is not None:
                full = reward >= 1.0
                return Grade(full, "FULL" if full else "PARTIAL" if reward > 0 else "NO", {}, "reward-1", reward, 1.0)
    return Grade(False, "INVALID", {}, "reward-1", reason="the tests left no reward in /logs/verifier")


def _number(text: str) -> float | None:
    try:
        said = json.loads(text)
    except ValueError:
        return None
    if isinstance(said, Mapping):
        said = said.get("reward")
    return min(1.0, max(0.0, float(said))) if isinstance(said, int | float) else None
