"""Tasks from files of instances: SWE-bench (Lite, Verified, full) and SWE-Gym, SWE-smith, and R2E.

The schema of each instance says which it is. The repository is in the instance's image; this module starts nothing.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rollenv.envs.swe.changes import patched_paths
from rollenv.envs.swe.grading import END, START, is_swesmith, tests_of
from rollenv.envs.swe.library import Library
from rollenv.envs.swe.task import R2E_RUNNER, R2E_TESTS, Checks, ScriptChecks, StatusChecks, SweTask
from rollenv.errors import RollenvError

_SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".parquet")
_SPLITS = ("train", "validation", "dev", "test")
_GiB = 1 << 30
_ACTIVATE = "source /opt/miniconda3/bin/activate && conda activate testbed"


def instance_library(path: Path) -> Library:
    """The tasks of a file, or of all such files of a folder, each a split by its name.

    Raises:
        RollenvError: a file cannot be read, an instance lacks a key, or an id occurs twice.
    """
    files = sorted(file for file in path.iterdir() if _is_ours(file)) if path.is_dir() else [path]
    if not files:
        raise RollenvError(f"swe: '{path}' holds neither task folders nor {', '.join(_SUFFIXES)} files")
    instances: dict[str, Mapping[str, Any]] = {}
    splits: dict[str, list[str]] = {}
    for file in files:
        for number, instance in enumerate(read_instances(file), 1):
            id = _id(instance, file, number)
            if id in instances:
                raise RollenvError(f"swe: '{file}', instance {number}: the id '{id}' occurs twice")
            instances[id] = instance
            splits.setdefault(_split(file), []).append(id)
    return Library(str(path), splits, lambda id: make_task(id, instances[id]))


def _is_ours(file: Path) -> bool:
    return file.name.endswith(_SUFFIXES)


def _split(file: Path) -> str:
    """`SWE-bench_Lite__test.parquet` and `test-00000-of-00001.parquet` are `test`."""
    return next((split for split in _SPLITS if split in file.name.lower().replace("swe-bench", "")), "test")


def _id(instance: Any, file: Path, number: int) -> str:
    if isinstance(instance, Mapping):
        if "instance_id" in instance:
            return str(instance["instance_id"])
        if "commit_hash" in instance:  # R2E
            return f"{instance.get('repo_name', 'r2e')}-{str(instance['commit_hash'])[:12]}"
    raise RollenvError(f"swe: '{file}', instance {number} has no 'instance_id': it is of no schema that is known")


def read_instances(file: Path) -> Iterator[Any]:
    """Every instance of a file, in order.

    Raises:
        RollenvError: it is not of its format; the message has the line.
    """
    try:
        if file.name.endswith(".parquet"):
            yield from _parquet(file)
        elif file.name.endswith(".json"):
            said = json.loads(file.read_text(encoding="utf-8"))
            yield from said if isinstance(said, list) else [said]
        elif file.name.endswith((".jsonl", ".jsonl.gz")):
            data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
            for number, line in enumerate(data.decode("utf-8").splitlines(), 1):
                yield _line(file, number, line)
        else:
            raise RollenvError(f"swe: '{file}' is none of {', '.join(_SUFFIXES)}")
    except (OSError, ValueError, EOFError) as error:
        raise RollenvError(f"swe: the instances in '{file}' cannot be read: {error}") from error


def _line(file: Path, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise RollenvError(f"swe: '{file}', line {number} is not JSON: {error}") from error


def _parquet(file: Path) -> Iterator[Any]:
    try:
        from pyarrow import parquet
    except ModuleNotFoundError as error:
        raise RollenvError(f"swe: reading '{file}' needs pyarrow: pip install 'rollenv[swe]'") from error
    for batch in parquet.ParquetFile(file).iter_batches(batch_size=64):
        yield from batch.to_pylist()


# -- schemas -----------------------------------------------------------------------------------------------------


def make_task(id: str, instance: Mapping[str, Any]) -> SweTask:
    """The task of an instance.

    Raises:
        RollenvError: a key of its schema is missing.
    """
    if "commit_hash" in instance and "expected_output_json" in instance:
        return _r2e(id, instance)
    _need(id, instance, "problem_statement", "patch", "FAIL_TO_PASS", "PASS_TO_PASS")
    smith = is_swesmith(instance)
    # SWE-smith's patch puts the bug in: the solution takes it out again.
    gold = reverse(str(instance["patch"])) if smith else str(instance["patch"])
    return SweTask(
        id=id,
        issue=str(instance["problem_statement"]),
        checks=_smith_checks(instance) if smith else _bench_checks(id, instance),
        gold=gold,
        image=_image(id, instance),
        repo=str(instance.get("repo", "")),
        user="root",
        memory=4 * _GiB,
        writable=("/opt", "/root"),
    )


def _need(id: str, instance: Mapping[str, Any], *keys: str) -> None:
    for key in keys:
        if instance.get(key) is None:
            raise RollenvError(f"swe: instance '{id}' has no '{key}'")


def _image(id: str, instance: Mapping[str, Any]) -> str:
    """As the instance says, else as SWE-bench names its images (`__` is not allowed in a name)."""
    named = instance.get("image") or instance.get("image_name") or instance.get("docker_image")
    if named:
        return str(named)
    return f"swebench/sweb.eval.x86_64.{id.lower().replace('__', '_1776_')}:latest"


def _bench_checks(id: str, instance: Mapping[str, Any]) -> Checks:
    kept = {key: instance[key] for key in _KEPT if instance.get(key) is not None}
    kept |= {key: tests_of(instance, key) for key in ("FAIL_TO_PASS", "PASS_TO_PASS")}
    script = instance.get("eval_script")
    return ScriptChecks(str(script) if script else _script(id, instance), kept | {"instance_id": id})


_KEPT = ("repo", "version", "log_parser", "eval_type", "test_patch", "image_name")


def _script(id: str, instance: Mapping[str, Any]) -> str:
    """For instances without a script of their own (SWE-bench before 5, SWE-Gym): pytest on the files of the tests."""
    _need(id, instance, "base_commit", "test_patch")
    files = " ".join(dict.fromkeys(patched_paths(str(instance["test_patch"]))))
    commit = instance["base_commit"]
    return "\n".join(
        [
            "#!/bin/bash",
            "set -uxo pipefail",
            _ACTIVATE,
            "cd /testbed",
            "git config --global --add safe.directory /testbed",
            f"git checkout {commit} -- {files} || true",
            f"git apply -v - <<'EOF_OF_TESTS'\n{str(instance['test_patch']).rstrip()}\n\nEOF_OF_TESTS",
            f": '{START}'",
            f"pytest -rA {files}",
            f": '{END}'",
            f"git checkout {commit} -- {files}",
        ]
    )


def _smith_checks(instance: Mapping[str, Any]) -> Checks:
    """SWE-smith's tests are in the image's repository; the run is verbose, as its parser reads progress lines."""
    files = " ".join(dict.fromkeys(name.split("::")[0] for name in tests_of(instance, "FAIL_TO_PASS")))
    command = f"pytest --disable-warnings --color=no --tb=no --verbose {files}"
    script = "\n".join(
        [
            "#!/bin/bash",
            "set -uxo pipefail",
            _ACTIVATE,
            "cd /testbed",
            f"git checkout -q HEAD~1 -- {files} || true",
            f": '{START}'",
            command,
            f": '{END}'",
        ]
    )
    lists = {key: tests_of(instance, key) for key in ("FAIL_TO_PASS", "PASS_TO_PASS")}
    kept = {key: str(instance[key]) for key in ("instance_id", "repo", "image_name") if key in instance}
    return ScriptChecks(script, {**kept, **lists})


def _r2e(id: str, instance: Mapping[str, Any]) -> SweTask:
    _need(id, instance, "problem_statement", "docker_image", "expected_output_json")
    expected = instance["expected_output_json"]
    statuses = json.loads(expected) if isinstance(expected, str) else expected
    return SweTask(
        id=id,
        issue=str(instance["problem_statement"]),
        checks=StatusChecks(f"cd /testbed && bash {R2E_RUNNER} 2>&1", {str(k): str(v) for k, v in statuses.items()}),
        gold=str(instance.get("patch") or ""),
        image=str(instance["docker_image"]),
        repo=str(instance.get("repo_name", "")),
        user="root",
        memory=4 * _GiB,
        writable=("/opt", "/root", f"/{R2E_TESTS}"),
    )


_HUNK = re.compile(r"@@ -(\d+(?:,(\d+))?) \+(\d+(?:,(\d+))?) @@(.*)", re.DOTALL)
_TURNED = {"new file mode": "deleted file mode", "deleted file mode": "new file mode"}


def reverse(patch: str) -> str:
    """A git patch that takes back what another does."""
    lines: list[str] = []
    left = 0  # lines of the hunk that are still to come, of both sides together
    for line in patch.splitlines(keepends=True):
        if left > 0:
            left -= 2 if line[:1] == " " or not line.strip() else line[:1] in "+-"
            lines.append({"+": "-", "-": "+"}.get(line[:1], line[:1]) + line[1:])
        elif hunk := _HUNK.match(line):
            old, old_count, new, new_count, rest = hunk.groups()
            left = int(old_count or 1) + int(new_count or 1)
            lines.append(f"@@ -{new} +{old} @@{rest}")
        elif line.startswith("+++ "):
            before, after = lines.pop()[4:], line[4:]
            lines += [f"--- {_side(after, 'b/', 'a/')}", f"+++ {_side(before, 'a/', 'b/')}"]
        else:
            word = next((word for word in _TURNED if line.startswith(word)), "")
            lines.append(_TURNED[word] + line[len(word) :] if word else line)
    return "".join(lines)


def _side(path: str, was: str, now: str) -> str:
    return now + path.removeprefix(was) if path.startswith(was) else path
