"""From a test run's log to a verdict, by SWE-bench's and SWE-smith's own rules.

Invariant: a log that does not show a test run is INVALID, never a pass. Sources of the rules: SWE-bench 5.0.2
(swebench/harness/grading.py) and SWE-smith (swesmith/harness/grading.py); `Grade.rules` says which were used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rollenv.envs.swe.log_parsers import ERROR, FAILED, PASSED, SKIPPED, XFAIL, parser_of
from rollenv.errors import RollenvError

Outcome = Literal["FULL", "PARTIAL", "NO", "INVALID"]
Rules = Literal["swebench-5", "swesmith-1", "pytest-1", "r2e-1", "reward-1"]

START, END = ">>>>> Start Test Output", ">>>>> End Test Output"
_ERROR_MARKS = (">>>>> Patch Apply Failed", ">>>>> Reset Failed", ">>>>> Tests Errored", ">>>>> Tests Timed Out")
_EXIT_CODE = re.compile(r">>>>> Test Exit Code:\s*(-?\d+)")
_RAN = re.compile(
    r"Executed [1-9]\d* of \d+|TOTAL: [1-9]\d* (?:SUCCESS|FAILED)|[1-9]\d* passing|Tests:\s+[1-9]\d*"
    r"|Test Suites:\s+(?:\d+ \w+, )*[1-9]\d* total|^# tests [1-9]\d*|[1-9]\d* specs?, \d+ failures?|': ok$",
    re.MULTILINE,
)
"""What runners say that list failures only, when they did run something."""
_SMITH_ID = re.compile(r"[^.]+\.[0-9a-f]{8}\..+")

Check = Callable[[str, Mapping[str, str]], bool]


@dataclass(frozen=True, slots=True)
class Grade:
    """What became of an instance.

    Attributes:
        resolved: whether the outcome is FULL.
        outcome: FULL: all of FAIL_TO_PASS and PASS_TO_PASS pass; PARTIAL: all of PASS_TO_PASS and some of FAIL_TO_PASS;
            NO: anything else; INVALID: the log does not show a test run.
        tests: status of every test that the log tells of.
        rules: which rules were used, with their version; `pytest-1` reads a JUnit file by SWE-bench's rules.
        fail_to_pass: the share of FAIL_TO_PASS that passes, in [0, 1]; 1 for an empty list.
        pass_to_pass: the same of PASS_TO_PASS.
        reason: why it is INVALID; empty otherwise.
    """

    resolved: bool
    outcome: Outcome
    tests: dict[str, str]
    rules: str
    fail_to_pass: float = 0.0
    pass_to_pass: float = 0.0
    reason: str = ""


def grade_log(instance: Mapping[str, Any], log: str) -> Grade:
    """Grades the log of an instance's test run.

    Args:
        instance: of SWE-bench's or SWE-smith's schema: `repo` (or `instance_id`), `FAIL_TO_PASS` and `PASS_TO_PASS`
            (lists, or JSON of lists), and optionally `log_parser` and `eval_type`.
        log: what the run printed; the part between its start and end marks is read, all of it where it has none.

    Raises:
        RollenvError: the instance lacks a list, or names a log parser that does not exist.
    """
    smith = is_swesmith(instance)
    rules: Rules = "swesmith-1" if smith else "swebench-5"
    expected = tests_of(instance, "FAIL_TO_PASS"), tests_of(instance, "PASS_TO_PASS")
    parse = parser_of(instance, smith)
    mark = next((mark for mark in _ERROR_MARKS if mark in log), None)
    if mark is not None:
        return Grade(False, "INVALID", {}, rules, reason=f"the log says '{mark.removeprefix('>>>>> ')}'")
    tests = parse(_between_marks(log)) or parse(log)
    if not tests and not _RAN.search(log):
        return Grade(False, "INVALID", {}, rules, reason="the log shows no test run")
    code = _EXIT_CODE.search(log)
    if code and int(code[1]) and tests and not {FAILED, ERROR} & set(tests.values()):
        reason = f"the tests ended with exit code {code[1]}, and no test is said to have failed"
        return Grade(False, "INVALID", tests, rules, reason=reason)
    return grade_tests(tests, *expected, rules, fail_only=instance.get("eval_type") == "fail_only")


def grade_tests(
    tests: dict[str, str],
    fail_to_pass: Sequence[str],
    pass_to_pass: Sequence[str],
    rules: Rules = "swebench-5",
    *,
    fail_only: bool = False,
) -> Grade:
    """Grades the statuses of tests.

    Args:
        tests: name -> status.
        fail_to_pass: tests that have to pass now.
        pass_to_pass: tests that have to pass still.
        rules: SWE-bench's, or SWE-smith's, which takes a test that is not there for one that passed.
        fail_only: a test that the log does not call failed has passed (runners that list failures only).
    """
    fixed, kept = _checks(rules, fail_only)
    first = _share([fixed(name, tests) for name in fail_to_pass])
    second = _share([kept(name, tests) for name in pass_to_pass])
    outcome: Outcome = "NO"
    if second == 1.0 and first > 0.0:
        outcome = "FULL" if first == 1.0 else "PARTIAL"
    return Grade(outcome == "FULL", outcome, tests, rules, first, second)


def _checks(rules: Rules, fail_only: bool) -> tuple[Check, Check]:
    """How a test of FAIL_TO_PASS, and one of PASS_TO_PASS, is judged."""
    if fail_only:
        return _not_failed, _not_failed
    if rules == "swesmith-1":
        return _not_broken, _not_broken
    return _passes, _passes_or_skips


def _passes(name: str, tests: Mapping[str, str]) -> bool:
    return _status(name, tests) in (PASSED, XFAIL)


def _passes_or_skips(name: str, tests: Mapping[str, str]) -> bool:
    return _status(name, tests) in (PASSED, XFAIL, SKIPPED)


def _not_failed(name: str, tests: Mapping[str, str]) -> bool:
    return tests.get(name) != FAILED


def _not_broken(name: str, tests: Mapping[str, str]) -> bool:
    return tests.get(name) not in (FAILED, ERROR)


def _status(name: str, tests: Mapping[str, str]) -> str | None:
    """A test's status; one whose parameters were cut off in the task file is known by its beginning, if all agree."""
    if name in tests:
        return tests[name]
    if name.count("[") > name.count("]"):
        found = [status for test, status in tests.items() if test.startswith(name)]
        if len({status in (PASSED, XFAIL) for status in found}) == 1:
            return found[0]
    return None


def _share(passed: Sequence[bool]) -> float:
    return sum(passed) / len(passed) if passed else 1.0


def _between_marks(log: str) -> str:
    if START not in log or END not in log:
        return log
    return log.split(START, 1)[1].split(END, 1)[0]


def is_swesmith(instance: Mapping[str, Any]) -> bool:
    """Whether an instance is of SWE-smith's schema: `owner__repo.commit.name`, or a repository of `swesmith/`."""
    return (
        str(instance.get("repo", "")).startswith("swesmith/")
        or "swesmith" in str(instance.get("image_name", ""))
        or ("version" not in instance and _SMITH_ID.fullmatch(str(instance.get("instance_id", ""))) is not None)
    )


def tests_of(instance: Mapping[str, Any], key: str) -> list[str]:
    """A list of tests of an instance, which some files have as JSON text.

    Raises:
        RollenvError: it is missing, or no list of texts.
    """
    found = instance.get(key)
    if isinstance(found, str):
        try:
            found = json.loads(found)
        except ValueError:
            found = None
    if found is not None and not isinstance(found, str) and all(isinstance(name, str) for name in found):
        return list(found)
    raise RollenvError(f"instance '{instance.get('instance_id')}': '{key}' must be a list of test names")
