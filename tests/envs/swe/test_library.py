"""Tasks come from what users have: folders and files of instances, or a sentence says what is wrong with them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rollenv
from rollenv.envs.swe.folders import read_folder
from rollenv.envs.swe.grading import END, START
from rollenv.envs.swe.library import open_library
from rollenv.envs.swe.task import PytestChecks, RewardChecks, ScriptChecks, StatusChecks
from rollenv.errors import RollenvError

TASK_TOML = """
issue = "add adds"
fail_to_pass = ["tests/test_adder.py::test_add"]
pass_to_pass = ["tests/test_adder.py::test_zero"]
timeout = 20
"""
GOLD = """\
diff --git a/adder.py b/adder.py
--- a/adder.py
+++ b/adder.py
@@ -1,2 +1,2 @@
 def add(a, b):
-    return a - b
+    return a + b
"""
TESTS = """\
from adder import add


def test_add():
    assert add(1, 2) == 3


def test_zero():
    assert add(1, 0) == 1
"""


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    folder = tmp_path / "tasks" / "adder-1"
    for path, text in {
        "task.toml": TASK_TOML,
        "repo/adder.py": "def add(a, b):\n    return a - b\n",
        "tests/tests/test_adder.py": TESTS,
        "gold.patch": GOLD,
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def test_a_plain_folder(plain: Path) -> None:
    for source in (plain, plain.parent):
        library = open_library(source)
        assert library.tasks.splits == {"test": ("adder-1",)}
        task = library.task("adder-1")
        assert isinstance(task.checks, PytestChecks)
        assert (task.issue, task.checks.timeout, task.gold) == ("add adds", 20.0, GOLD)
        assert set(task.files or {}) == {"adder.py"}
        assert set(task.checks.files) == {"tests/test_adder.py"}


def test_splits_are_folders(plain: Path) -> None:
    (plain.parent / "train").mkdir()
    plain.rename(plain.parent / "train" / "adder-1")
    assert open_library(plain.parent).tasks.splits == {"train": ("adder-1",)}


def test_the_hash_is_of_the_content(plain: Path) -> None:
    before = open_library(plain).tasks.sha256(["adder-1"])
    assert open_library(plain).tasks.sha256(["adder-1"]) == before
    (plain / "repo" / "adder.py").write_text("def add(a, b):\n    return a * b\n")
    assert open_library(plain).tasks.sha256(["adder-1"]) != before


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"task.toml": "issue = "}, "task.toml' cannot be read"),
        ({"task.toml": TASK_TOML + "imag = 'x'"}, "unknown key 'imag'; did you mean 'image'"),
        ({"task.toml": "issue = 'x'"}, "'fail_to_pass' in .* must be a list of test ids"),
        ({"task.toml": "issue = 'x'\nfail_to_pass = []"}, "is empty"),
        ({"task.toml": "fail_to_pass = ['a.py::b']"}, "has no issue"),
        ({"task.toml": TASK_TOML.replace("20", "-1")}, "'timeout' in .* must be a positive number"),
        ({"repo/adder.py": None}, "has no folder 'repo'"),
    ],
)
def test_a_broken_folder_is_refused(plain: Path, change: dict[str, str | None], says: str) -> None:
    for path, text in change.items():
        if text is None:
            (plain / path).unlink()
            (plain / path).parent.rmdir()
        else:
            (plain / path).write_text(text)
    with pytest.raises(RollenvError, match=says):
        open_library(plain).task("adder-1")


def test_two_tasks_of_one_name_are_refused(plain: Path) -> None:
    other = plain.parent / "other"
    other.mkdir()
    (other / "task.toml").write_text("id = 'adder-1'\n")
    with pytest.raises(RollenvError, match="the same id 'adder-1'"):
        open_library(plain.parent)


@pytest.mark.parametrize("name", ["nowhere", "defualt"])
def test_what_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(RollenvError, match="there are no tasks"):
        rollenv.make("swe", tasks=name)


def test_harbor_folders(tmp_path: Path) -> None:
    folder = tmp_path / "hello"
    (folder / "tests").mkdir(parents=True)
    (folder / "solution").mkdir()
    (folder / "instruction.md").write_text("Write hello.txt")
    (folder / "task.toml").write_text("[verifier]\ntimeout_sec = 30.0\n[environment]\ndocker_image = 'hello:1'\n")
    (folder / "tests" / "test.sh").write_text("echo 1 >/logs/verifier/reward.txt")
    (folder / "solution" / "solve.sh").write_text("echo hello >hello.txt")
    task = read_folder(folder)
    assert isinstance(task.checks, RewardChecks)
    assert (task.issue, task.image, task.checks.timeout) == ("Write hello.txt", "hello:1", 30.0)
    assert "hello.txt" in task.solution
    assert set(task.checks.files) == {"/tests/test.sh"}
    (folder / "tests" / "test.sh").unlink()
    with pytest.raises(RollenvError, match=r"no file 'tests/test.sh'"):
        read_folder(folder)


def test_terminal_bench_folders(tmp_path: Path) -> None:
    folder = tmp_path / "hello"
    (folder / "tests").mkdir(parents=True)
    (folder / "task.yaml").write_text(
        "instruction: |-\n  Write\n    hello.txt\ndifficulty: easy\nmax_test_timeout_sec: 90\n"
    )
    (folder / "run-tests.sh").write_text("pytest $TEST_DIR/test_outputs.py -rA")
    (folder / "tests" / "test_outputs.py").write_text("")
    task = read_folder(folder)
    assert isinstance(task.checks, RewardChecks)
    assert (task.issue, task.checks.timeout, task.checks.log) == ("Write\n  hello.txt", 90.0, True)


def test_swe_bench_files(shared_data: Callable[[str], Path]) -> None:
    jsonl = open_library(shared_data("swe/SWE-bench_Lite_323.jsonl.gz"))
    assert len(jsonl.tasks) == 323
    task = jsonl.task("astropy__astropy-12907")
    assert isinstance(task.checks, ScriptChecks)
    assert task.image == "swebench/sweb.eval.x86_64.astropy_1776_astropy-12907:latest"
    assert START in task.checks.script
    pytest.importorskip("pyarrow")
    parquet = open_library(shared_data("swe/SWE-bench_Lite__test.parquet"))
    assert set(parquet.tasks.splits) == {"test"}
    assert len(parquet.tasks) == 300
    assert parquet.tasks.get("astropy__astropy-12907").data["gold"] == task.gold
    old = parquet.task("django__django-11039").checks
    assert isinstance(old, ScriptChecks)
    assert START in old.script
    assert END in old.script


def write(path: Path, *instances: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(instance) + "\n" for instance in instances))
    return path


SMITH = {
    "instance_id": "a__b.12345678.lm_1",
    "repo": "swesmith/a__b.12345678",
    "image_name": "swesmith/a__b:latest",
    "problem_statement": "broken",
    "patch": GOLD,
    "FAIL_TO_PASS": ["tests/t.py::x"],
    "PASS_TO_PASS": [],
}


def test_swe_smith_and_r2e_files(tmp_path: Path) -> None:
    r2e = {
        "repo_name": "orange3",
        "commit_hash": "f" * 40,
        "docker_image": "namanjain12/orange3:f",
        "problem_statement": "x",
        "expected_output_json": '{"TestA.test_b": "PASSED"}',
    }
    library = open_library(write(tmp_path / "train.jsonl", SMITH, r2e))
    smith, other = (library.task(id) for id in library.tasks.ids("train"))
    assert "+    return a - b" in smith.gold.splitlines()
    assert "-    return a + b" in smith.gold.splitlines()
    assert isinstance(smith.checks, ScriptChecks)
    assert isinstance(other.checks, StatusChecks)
    assert other.checks.expected == {"TestA.test_b": "PASSED"}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "line 1 is not JSON"),
        ('{"a": 1}', "instance 1 has no 'instance_id'"),
        ('{"instance_id": "x"}', "instance 'x' has no 'problem_statement'"),
        (json.dumps(SMITH) + "\n" + json.dumps(SMITH), "occurs twice"),
    ],
)
def test_broken_files_of_instances_are_refused(tmp_path: Path, content: str, says: str) -> None:
    file = tmp_path / "test.jsonl.gz"
    file.write_bytes(gzip.compress(content.encode()))
    with pytest.raises(RollenvError, match=says):
        open_library(file).task("x")


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(RollenvError, match="holds neither task folders"):
        open_library(tmp_path)
    with pytest.raises(RollenvError, match="is none of"):
        open_library(tmp_path / "a.txt")
    (tmp_path / "test.parquet").write_text("no parquet")
    pytest.importorskip("pyarrow")
    with pytest.raises(RollenvError, match="cannot be read"):
        open_library(tmp_path / "test.parquet")
