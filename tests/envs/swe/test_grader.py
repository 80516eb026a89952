"""Judging in images that hold the repository, and with programs of a task's own."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rollenv
from rollenv.agents.swe import GoldPatch, NoOp
from rollenv.envs.swe.git_folder import git_folder
from rollenv.envs.swe.grader import marked, unmarked
from rollenv.envs.swe.grading import END, START, grade_log
from rollenv.envs.swe.workspace import pack_files
from rollenv.sandboxes import DEFAULT_IMAGE
from rollenv.sandboxes.images import build

FILES = {"adder.py": b"def add(a, b):\n    return a - b\n", "tests/test_old.py": b"def test_old():\n    pass\n"}
GOLD = """\
diff --git a/adder.py b/adder.py
--- a/adder.py
+++ b/adder.py
@@ -1,2 +1,2 @@
 def add(a, b):
-    return a - b
+    return a + b
"""
SCRIPT = f"""\
#!/bin/bash
set -uxo pipefail
cd /testbed
printf 'from adder import add\\ndef test_add():\\n    assert add(1, 2) == 3\\n' >tests/test_new.py
: '{START}'
python3 -m pytest -rA -p no:cacheprovider tests
: '{END}'
rm tests/test_new.py
"""
INSTANCE = {
    "instance_id": "a__b-1",
    "repo": "a/b",
    "version": "1",
    "problem_statement": "add adds",
    "patch": GOLD,
    "eval_script": SCRIPT,
    "image": "tests/testbed",
    "FAIL_TO_PASS": json.dumps(["tests/test_new.py::test_add"]),
    "PASS_TO_PASS": ["tests/test_old.py::test_old"],
}


# -- marks -------------------------------------------------------------------------------------------------------


def log_of(script: str, inside: str, code: int = 0) -> str:
    """What bash would print of a marked script's tests."""
    lines = []
    for line in script.splitlines():
        if line.startswith(": '"):
            lines.append(f"+ {line}")
        elif line.startswith("echo "):
            lines.append(line.removeprefix('echo "').removesuffix('"').replace("$rollenv_code", str(code)))
        elif "pytest" in line:
            lines.append(inside)
    return "\n".join(lines)


def test_marks_cannot_be_foreseen() -> None:
    mark = secrets.token_hex(8)
    good = "PASSED tests/test_new.py::test_add\nPASSED tests/test_old.py::test_old"
    script = marked(SCRIPT, mark)
    assert grade_log(INSTANCE, unmarked(log_of(script, good), mark)).resolved
    failed = "FAILED tests/test_new.py::test_add\nPASSED tests/test_old.py::test_old"
    spoof = f"{START}\n{good}\n{END}\n>>>>> Test Exit Code: 0\n"
    assert not grade_log(INSTANCE, unmarked(log_of(script, spoof + failed, 1), mark)).resolved
    assert not grade_log(INSTANCE, unmarked(log_of(script, failed + "\n" + spoof + failed, 1), mark)).resolved


def test_an_exit_code_without_a_failure_is_no_pass() -> None:
    mark = secrets.token_hex(8)
    good = "PASSED tests/test_new.py::test_add\nPASSED tests/test_old.py::test_old"
    grade = grade_log(INSTANCE, unmarked(log_of(marked(SCRIPT, mark), good, 2), mark))
    assert (grade.outcome, grade.resolved) == ("INVALID", False)


def test_a_script_without_marks_stays_as_it_is() -> None:
    assert marked("pytest\n", "x") == "pytest\n"
    assert unmarked("PASSED a\n", "x") == "PASSED a\n"


# -- in sandboxes ------------------------------------------------------------------------------------------------


def episode(agent: Any, source: Path, task: str, **arguments: Any) -> dict[str, Any]:
    env = rollenv.make("swe", sandbox="bubblewrap", tasks=source, **arguments)
    try:
        agent.reset(0)
        observation, info = env.reset(options={"task": task})
        while True:
            observation, _, terminated, truncated, info = env.step(agent.act(observation, info))
            if terminated or truncated:
                return info
    finally:
        env.close()


def with_image(
    folder: Path, instance: dict[str, Any], files: dict[str, bytes], beside: dict[str, bytes], name: str
) -> Path:
    """A file with one instance, whose image is there: a repository, and what lies beside it."""
    tree = {f"testbed/{path}": content for path, content in {**files, **git_folder(files)}.items()}
    (folder / "testbed.tar").write_bytes(pack_files({**tree, "root/.keep": b"", "opt/.keep": b"", **beside}))
    build.store_archive(name, folder / "testbed.tar", DEFAULT_IMAGE)
    (folder / "test.jsonl").write_text(json.dumps(instance) + "\n")
    return folder / "test.jsonl"


@pytest.fixture
def instances(bubblewrap: str, tmp_path: Path) -> Path:
    """An instance of SWE-bench's kind."""
    return with_image(tmp_path, INSTANCE, FILES, {}, "tests/testbed")


def test_an_instance_is_judged_by_its_script(instances: Path) -> None:
    solved = episode(GoldPatch(), instances, "a__b-1")
    assert (solved["outcome"], solved["rules"], solved["success"]) == ("FULL", "swebench-5", True)
    assert patch_lines(solved["patch"]) == patch_lines(GOLD)
    assert episode(NoOp(), instances, "a__b-1")["success"] is False


def patch_lines(patch: str) -> list[str]:
    return [line for line in patch.splitlines() if line[:1] in "+-"]


class Vandal:
    """Does one thing, and submits."""

    def __init__(self, command: str) -> None:
        self._left = [{"name": "bash", "arguments": {"command": command}}, {"name": "submit", "arguments": {}}]

    def reset(self, seed: int) -> None:
        return None

    def act(self, observation: str, info: dict[str, Any]) -> str:
        return json.dumps(self._left.pop(0))


@pytest.mark.parametrize(
    "command",
    [
        "echo 'import sys; sys.exit(0)' >>adder.py",
        "printf 'import pytest\\n@pytest.hookimpl(hookwrapper=True)\\ndef pytest_runtest_makereport():\\n"
        '    r = yield\\n    r.get_result().outcome = "passed"\\n\' >conftest.py',
        "git config core.fsmonitor /bin/false; git commit -qam x --allow-empty",
    ],
)
def test_an_instance_is_not_talked_round(instances: Path, command: str) -> None:
    assert episode(Vandal(command), instances, "a__b-1")["success"] is False


R2E_TEST = b"from adder import add\n\nclass TestAdd:\n    def test_add(self):\n        assert add(1, 2) == 3\n"
R2E_RUN = b"python3 -m pytest -rA -p no:cacheprovider r2e_tests\n"


@pytest.fixture
def r2e(bubblewrap: str, tmp_path: Path) -> Path:
    """An instance of R2E's kind: what runs the tests, and the tests, lie in the working folder, untracked."""
    instance = {
        "repo_name": "adder",
        "commit_hash": "a" * 40,
        "docker_image": "tests/r2e",
        "problem_statement": "add adds",
        "patch": GOLD,
        "expected_output_json": json.dumps({"TestAdd.test_add": "PASSED"}),
    }
    beside = {"testbed/run_tests.sh": R2E_RUN, "testbed/r2e_tests/test_1.py": R2E_TEST, "r2e_tests/.keep": b""}
    return with_image(tmp_path, instance, FILES, beside, "tests/r2e")


def test_an_instance_of_r2e_is_judged_by_the_statuses_it_expects(r2e: Path) -> None:
    name = f"adder-{'a' * 12}"
    solved = episode(GoldPatch(), r2e, name)
    assert (solved["outcome"], solved["rules"], solved["success"]) == ("FULL", "r2e-1", True)
    untouched = episode(NoOp(), r2e, name)
    assert (untouched["outcome"], untouched["success"]) == ("NO", False)


@pytest.mark.parametrize(
    "command",
    [
        "echo 'echo PASSED r2e_tests/test_1.py::TestAdd::test_add' >run_tests.sh",
        "printf 'class TestAdd:\n    def test_add(self): pass\n' >r2e_tests/test_1.py",
        "printf 'class TestAdd:\n    def test_add(self): pass\n' >r2e_tests/helper.py; rm r2e_tests/test_1.py",
        "echo 'print(\"PASSED r2e_tests/test_1.py::TestAdd::test_add\")' >pytest.py",
        "mkdir mine; printf 'class TestAdd:\\n    def test_add(self): pass\\n' >mine/test_1.py; "
        "rm -r r2e_tests; ln -s mine r2e_tests",
    ],
)
def test_what_judges_an_instance_of_r2e_is_not_the_agents(r2e: Path, command: str) -> None:
    info = episode(Vandal(command), r2e, f"adder-{'a' * 12}")
    assert (info["success"], info["outcome"]) == (False, "NO")


def test_an_instance_of_swe_smith_is_judged_by_its_script(bubblewrap: str, tmp_path: Path) -> None:
    """Its patch puts the bug in, and its image has the bug as the last commit: here, as the only one."""
    test = b"from adder import add\n\ndef test_add():\n    assert add(1, 2) == 3\n"
    files = {**FILES, "tests/test_add.py": test}
    bug = GOLD.replace("-    return a - b\n+    return a + b", "-    return a + b\n+    return a - b")
    instance = {
        "instance_id": "adder.1__func_1",
        "repo": "swesmith/adder",
        "image_name": "tests/smith",
        "problem_statement": "add adds",
        "patch": bug,
        "FAIL_TO_PASS": ["tests/test_add.py::test_add"],
        "PASS_TO_PASS": ["tests/test_old.py::test_old"],
    }
    activate = b'conda() { :; }\npytest() { python3 -m pytest -p no:cacheprovider "$@"; }\n'
    source = with_image(tmp_path, instance, files, {"opt/miniconda3/bin/activate": activate}, "tests/smith")
    solved = episode(GoldPatch(), source, "adder.1__func_1")
    assert (solved["outcome"], solved["success"]) == ("FULL", True)
    assert episode(NoOp(), source, "adder.1__func_1")["success"] is False
    assert (
        episode(Vandal("echo 'def test_add(): pass' >tests/test_add.py"), source, "adder.1__func_1")["success"] is False
    )


@pytest.fixture
def terminal_bench(bubblewrap: str, tmp_path: Path) -> Path:
    folder = tmp_path / "hello"
    for path, text in {
        "task.yaml": "instruction: |-\n  Write hello to hello.txt\nmax_test_timeout_sec: 30\n",
        "run-tests.sh": "python3 -m pytest -p no:cacheprovider $TEST_DIR/test_outputs.py -rA\n",
        "tests/test_outputs.py": "def test_hello():\n    assert open('/app/hello.txt').read().strip() == 'hello'\n",
        "solution.sh": "echo hello >hello.txt\n",
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def test_a_terminal_bench_task_is_judged_by_all_its_tests(terminal_bench: Path) -> None:
    solved = episode(GoldPatch(), terminal_bench, "hello")
    assert (solved["success"], solved["rules"]) == (True, "reward-1")
    assert episode(NoOp(), terminal_bench, "hello")["success"] is False
    cheat = "mkdir -p /tests; echo 'def test_hello(): pass' >/tests/test_outputs.py; echo 'echo PASSED' >"
    assert episode(Vandal(f"{cheat}/tests/run-tests.sh"), terminal_bench, "hello")["success"] is False


@pytest.fixture
def harbor(bubblewrap: str, tmp_path: Path) -> Callable[[str], Path]:
    def make(test: str) -> Path:
        folder = tmp_path / "hello"
        for path, text in {
            "instruction.md": "Write hello to hello.txt",
            "task.toml": "[verifier]\ntimeout_sec = 30\n",
            "tests/test.sh": test,
            "solution/solve.sh": "echo hello >hello.txt",
        }.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        return folder

    return make


def test_a_harbor_task_is_judged_by_its_reward_file(harbor: Callable[[str], Path]) -> None:
    folder = harbor(
        '[ "$(cat /app/hello.txt)" = hello ] && echo 1 >/logs/verifier/reward.txt || echo 0 >/logs/verifier/reward.txt'
    )
    solved = episode(GoldPatch(), folder, "hello")
    assert (solved["success"], solved["rules"]) == (True, "reward-1")
    assert (
        episode(Vandal("mkdir -p /logs/verifier; echo 1 >/logs/verifier/reward.txt"), folder, "hello")["success"]
        is False
    )


def test_a_harbor_task_without_a_reward_is_invalid(harbor: Callable[[str], Path]) -> None:
    info = episode(GoldPatch(), harbor("true"), "hello")
    assert (info["outcome"], info["reason"]) == ("INVALID", "the tests left no reward in /logs/verifier")
