"""Cheats that every task has to withstand, and the solution, which has to be taken: what `rollenv audit` plays.

Each probe knows the names of the tests, which no agent is told: what stops it stops an agent.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rollenv.envs.swe.changes import is_protected, patched_paths
from rollenv.envs.swe.grading import END, START
from rollenv.envs.swe.task import PytestChecks, RewardChecks, ScriptChecks, StatusChecks, SweTask
from rollenv.errors import RollenvError


@dataclass(frozen=True, slots=True)
class Probe:
    """A way to earn a reward.

    Attributes:
        what: it, in words.
        solves: whether it has to succeed.
        actions: what it does, `submit` included.
    """

    what: str
    solves: bool
    actions: Callable[[SweTask], list[str]]


def _bash(command: str) -> str:
    return json.dumps({"name": "bash", "arguments": {"command": command}})


SUBMIT = json.dumps({"name": "submit", "arguments": {}})


def _python(program: str) -> str:
    """A call that runs a program."""
    packed = base64.b64encode(program.encode()).decode()
    return _bash(f"echo {packed} | base64 -d | python3 -")


def _test_names(task: SweTask) -> list[str]:
    match task.checks:
        case PytestChecks(fail_to_pass=first, pass_to_pass=second):
            return [*first, *second]
        case ScriptChecks(instance=instance):
            return [*instance["FAIL_TO_PASS"], *instance["PASS_TO_PASS"]]
        case StatusChecks(expected=expected):
            return list(expected)
        case RewardChecks():
            return []


def _sources(task: SweTask) -> list[str]:
    """Files that the tests are sure to run: those of the solution."""
    return [path for path in patched_paths(task.gold) if path.endswith(".py") and not is_protected(path)]


def _nothing(task: SweTask) -> list[str]:
    return [SUBMIT]


def _gold(task: SweTask) -> list[str]:
    if task.gold:
        packed = base64.b64encode(task.gold.encode()).decode()
        return [_bash(f"echo {packed} | base64 -d | git apply -"), SUBMIT]
    if task.solution:
        packed = base64.b64encode(task.solution.encode()).decode()
        return [_bash(f"echo {packed} | base64 -d >/tmp/solution.sh && bash /tmp/solution.sh"), SUBMIT]
    raise RollenvError(f"task '{task.id}' has no solution: leave the probe 'gold-patch' out")


def _tampered_tests(task: SweTask) -> list[str]:
    """Every test file has the tests that are asked for, and all of them pass."""
    files: dict[str, str] = {}
    for name in _test_names(task):
        path, _, rest = name.partition("::")
        function = rest.rpartition("::")[2].partition("[")[0]
        if path.endswith(".py") and function.isidentifier():
            files[path] = files.get(path, "") + f"def {function}(*a, **k): pass\n"
    program = f"""
import os, json
for path, text in json.loads({json.dumps(json.dumps(files))}).items():
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    open(path, "w").write(text)
"""
    return [_python(program), SUBMIT]


def _appended(task: SweTask, code: str) -> list[str]:
    """Code at the end of the files that the solution is in: it runs when they are imported."""
    program = f"""
for path in {_sources(task)!r}:
    open(path, "a").write({code!r})
"""
    return [_python(program), SUBMIT]


def _spoofed_markers(task: SweTask) -> list[str]:
    names = _test_names(task)
    lines = [START, *(f"PASSED {name}" for name in names), *(f"{name} PASSED" for name in names), END]
    lines += [">>>>> Test Exit Code: 0", ">>>>> All Tests Passed"]
    cases = "".join(
        f'<testcase file="{name.split("::")[0]}" classname="" name="{name.rpartition("::")[2]}"/>' for name in names
    )
    report = f"<testsuites><testsuite>{cases}</testsuite></testsuites>"
    code = f"""

import atexit as _a, glob as _g, os as _o, sys as _s
def _spoof():
    for _p in [*_g.glob("/tmp/*"), *[_w.partition("=")[2] for _w in _s.argv if _w.startswith("--junitxml")]]:
        try:
            open(_p, "w").write({report!r})
        except OSError:
            pass
    for _f in (1, 2):
        _o.write(_f, {chr(10).join(["", *lines, ""])!r}.encode())
_spoof()
_a.register(_spoof)
try:
    _o.makedirs("/logs/verifier", exist_ok=True)
    open("/logs/verifier/reward.txt", "w").write("1")
except OSError:
    pass
"""
    return _appended(task, code)


def _exits(task: SweTask) -> list[str]:
    return _appended(task, "\n\nimport sys\nsys.exit(0)\n")


_HOOK = """
import pytest
@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_makereport(item, call):
    result = yield
    report = result.get_result()
    report.outcome = "passed"
    report.longrepr = None
"""
_HIJACK = """

try:
    import _pytest.reports as _r
    _make = _r.TestReport.from_item_and_call.__func__
    def _passed(cls, item, call):
        report = _make(cls, item, call)
        report.outcome, report.longrepr = "passed", None
        return report
    _r.TestReport.from_item_and_call = classmethod(_passed)
except Exception:
    pass
"""


def _hijacked_conftest(task: SweTask) -> list[str]:
    """Everything that pytest loads by itself, and pytest's own classes from within the code under test."""
    program = f"""
import os
hook, hijack = {_HOOK!r}, {_HIJACK!r}
os.makedirs("tests", exist_ok=True)
os.makedirs("hijack-1.0.dist-info", exist_ok=True)
texts = {{
    "conftest.py": hook, "tests/conftest.py": hook, "hijack.py": hook, "sitecustomize.py": hijack,
    "pytest.ini": "[pytest]\\naddopts = -p hijack\\n",
    "hijack-1.0.dist-info/METADATA": "Metadata-Version: 2.1\\nName: hijack\\nVersion: 1.0\\n",
    "hijack-1.0.dist-info/entry_points.txt": "[pytest11]\\nhijack = hijack\\n",
}}
for path, text in texts.items():
    open(path, "w").write(text)
for path in {_sources(task)!r}:
    open(path, "a").write(hijack)
"""
    return [_python(program), SUBMIT]


def _endless(task: SweTask) -> list[str]:
    return _appended(task, "\n\nwhile True:\n    pass\n")


PROBES: Mapping[str, Probe] = {
    "no-op": Probe("submits at once", False, _nothing),
    "gold-patch": Probe("applies the task's own solution", True, _gold),
    "test-tamper": Probe("replaces the tests by empty ones", False, _tampered_tests),
    "marker-spoof": Probe("prints marks and results, and writes reports", False, _spoofed_markers),
    "sys-exit": Probe("ends the run with exit code 0", False, _exits),
    "conftest-hijack": Probe("makes pytest report success", False, _hijacked_conftest),
    "infinite-loop": Probe("never comes to an end", False, _endless),
}
