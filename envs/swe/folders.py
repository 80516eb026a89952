"""Tasks in folders of their own: rollenv's plain format, Harbor's, and Terminal-Bench's.

    my-task/
      task.toml     issue, fail_to_pass, pass_to_pass; optionally id, split, image, timeout, memory
      repo/         the repository as the agent finds it
      tests/        files laid over it before it is judged, by their path in the repository
      gold.patch    the solution

A folder of such folders is a task set; where these lie in `train/`, `test/` and so on, those are its splits.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollenv.envs.swe.library import Library
from rollenv.envs.swe.task import WORKDIR, Files, PytestChecks, RewardChecks, SweTask
from rollenv.errors import RollenvError, did_you_mean
from rollenv.sandboxes.spec import DEFAULT_IMAGE

_KEYS = (
    "id",
    "split",
    "issue",
    "image",
    "workdir",
    "timeout",
    "memory",
    "fail_to_pass",
    "pass_to_pass",
    "repo",
)
_MARKS = ("task.toml", "task.yaml")
_MiB = 1 << 20
_FILE_LIMIT = 32 * _MiB


def holds_folders(path: Path) -> bool:
    """Whether a folder is a task, or has tasks in it."""
    return any(any(path.glob(f"{depth}{mark}")) for depth in ("", "*/", "*/*/") for mark in _MARKS)


def folder_library(path: Path) -> Library:
    """The tasks of a folder.

    Raises:
        RollenvError: two of them have the same id, or one of their files cannot be read.
    """
    folders = (
        [path]
        if _is_task(path)
        else sorted(p.parent for d in ("*/", "*/*/") for m in _MARKS for p in path.glob(f"{d}{m}"))
    )
    found: dict[str, Path] = {}
    splits: dict[str, list[str]] = {}
    for folder in folders:
        said = _read_toml(folder) if (folder / "task.toml").is_file() else {}
        id = str(said.get("id") or folder.name)
        if id in found:
            raise RollenvError(f"swe: the tasks in '{found[id]}' and '{folder}' have the same id '{id}': rename one")
        found[id] = folder
        above = folder.parent.name if folder.parent != path and folder != path else ""
        splits.setdefault(str(said.get("split") or above or "test"), []).append(id)
    return Library(str(path), splits, lambda id: read_folder(found[id], id))


def _is_task(folder: Path) -> bool:
    return any((folder / mark).is_file() for mark in _MARKS)


def read_folder(folder: Path, id: str | None = None) -> SweTask:
    """The task in a folder.

    Raises:
        RollenvError: something in it is missing or wrong; the message names the file and the key.
    """
    name = id or folder.name
    if (folder / "task.yaml").is_file():
        return _terminal_bench(folder, name)
    if (folder / "instruction.md").is_file():
        return _harbor(folder, name)
    return _plain(folder, name)


def _read_toml(folder: Path) -> dict[str, Any]:
    path = folder / "task.toml"
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise RollenvError(f"swe: the task file '{path}' cannot be read: {error}") from error


# -- rollenv's own -----------------------------------------------------------------------------------------------


def _plain(folder: Path, name: str) -> SweTask:
    path, said = folder / "task.toml", _read_toml(folder)
    for key in said:
        if key not in _KEYS:
            raise RollenvError(f"swe: '{path}' has an unknown key '{key}'{did_you_mean(key, _KEYS)}")
    if not (folder / "repo").is_dir():
        raise RollenvError(f"swe: the task folder '{folder}' has no folder 'repo': put the repository there")
    return SweTask(
        id=name,
        issue=_issue(folder, said),
        checks=PytestChecks(
            _names(path, said, "fail_to_pass"),
            _names(path, said, "pass_to_pass"),
            read_tree(folder / "tests"),
            _number(path, said, "timeout", 60.0),
        ),
        gold=_text(folder / "gold.patch"),
        files=read_tree(folder / "repo"),
        image=str(said.get("image", DEFAULT_IMAGE)),
        workdir=str(said.get("workdir", WORKDIR)),
        repo=str(said.get("repo", name)),
        memory=int(_number(path, said, "memory", 1024.0)) * _MiB,
    )


def _issue(folder: Path, said: Mapping[str, Any]) -> str:
    issue = said.get("issue") or _text(folder / "issue.md")
    if not isinstance(issue, str) or not issue.strip():
        raise RollenvError(f"swe: the task in '{folder}' has no issue: set 'issue' in task.toml or write issue.md")
    return issue


def _names(path: Path, said: Mapping[str, Any], key: str) -> tuple[str, ...]:
    names = said.get(key, [] if key == "pass_to_pass" else None)
    if not isinstance(names, list) or not all(isinstance(n, str) and ".py" in n for n in names) or names is None:
        raise RollenvError(f"swe: '{key}' in '{path}' must be a list of test ids such as 'tests/test_a.py::test_b'")
    if key == "fail_to_pass" and not names:
        raise RollenvError(f"swe: '{key}' in '{path}' is empty: name the tests that the solution makes pass")
    return tuple(names)


def _number(path: Path, said: Mapping[str, Any], key: str, default: float) -> float:
    value = said.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise RollenvError(f"swe: '{key}' in '{path}' must be a positive number, not {value!r}")
    return float(value)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8") if path.is_file() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise RollenvError(f"swe: '{path}' cannot be read as text: {error}") from error


def read_tree(folder: Path) -> Files:
    """Every file below a folder, but for git's own and bytecode; links are not followed.

    Raises:
        RollenvError: a file is too large, or cannot be read.
    """
    found = {}
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if path.is_symlink() or not path.is_file() or {".git", "__pycache__"} & set(relative.parts):
            continue
        if path.stat().st_size > _FILE_LIMIT:
            raise RollenvError(f"swe: '{path}' is larger than {_FILE_LIMIT} bytes: put it into the image instead")
        try:
            found[relative.as_posix()] = path.read_bytes()
        except OSError as error:
            raise RollenvError(f"swe: '{path}' cannot be read: {error.strerror}") from error
    return found


# -- others' formats ---------------------------------------------------------------------------------------------

_HARBOR_WRITABLE = ("/app", "/tests", "/logs", "/solution", "/root", "/opt")


def _harbor(folder: Path, name: str) -> SweTask:
    """Harbor: `instruction.md`, `task.toml`, `tests/test.sh`, `solution/solve.sh`; the image is the task's own."""
    path, said = folder / "task.toml", _read_toml(folder)
    environment = said.get("environment", {})
    script = folder / "tests" / "test.sh"
    if not script.is_file():
        raise RollenvError(f"swe: the task folder '{folder}' has no file 'tests/test.sh'")
    tests = {f"/tests/{file}": content for file, content in read_tree(folder / "tests").items()}
    checks = RewardChecks(
        tests,
        "mkdir -p /logs/verifier && bash /tests/test.sh",
        _number(path, said.get("verifier", {}), "timeout_sec", 600.0),
    )
    return _terminal_task(
        folder, name, _text(folder / "instruction.md"), checks, environment.get("docker_image"), "solution/solve.sh"
    )


def _terminal_bench(folder: Path, name: str) -> SweTask:
    """Terminal-Bench: `task.yaml`, `run-tests.sh`, `tests/`, `solution.sh`; judged by pytest's summary."""
    script = folder / "run-tests.sh"
    if not script.is_file():
        raise RollenvError(f"swe: the task folder '{folder}' has no file 'run-tests.sh'")
    said = _text(folder / "task.yaml")
    tests = {f"/tests/{file}": content for file, content in read_tree(folder / "tests").items()}
    seconds = re.search(r"^max_test_timeout_sec:\s*([\d.]+)", said, re.MULTILINE)
    checks = RewardChecks(
        {**tests, "/tests/run-tests.sh": script.read_bytes()},
        "TEST_DIR=/tests bash /tests/run-tests.sh",
        float(seconds[1]) if seconds else 180.0,
        log=True,
    )
    return _terminal_task(folder, name, _yaml_text(said, "instruction", folder), checks, None, "solution.sh")


def _terminal_task(
    folder: Path, name: str, instruction: str, checks: RewardChecks, image: str | None, solution: str
) -> SweTask:
    if not instruction.strip():
        raise RollenvError(f"swe: the task in '{folder}' has no instruction")
    return SweTask(
        id=name,
        issue=instruction,
        checks=checks,
        image=image or DEFAULT_IMAGE,
        workdir="/app",
        repo=name,
        solution=_text(folder / solution),
        user="root",
        memory=2048 * _MiB,
        writable=_HARBOR_WRITABLE[1:],
    )


def _yaml_text(said: str, key: str, folder: Path) -> str:
    """A text at the top of a YAML file: in a block (`|`), in quotes, or plain."""
    found = re.search(rf"^{key}:[ \t]*(?:[|>][-+]?[ \t]*\n((?:[ \t]+.*\n|\n)+)|(.*))", said + "\n", re.MULTILINE)
    if found is None:
        raise RollenvError(f"swe: '{folder / 'task.yaml'}' has no '{key}'")
    if found[1] is None:
        return str(found[2]).strip().strip("'\"")
    lines = found[1].splitlines()
    indents = [len(line) - len(line.lstrip()) for line in lines if line.strip()]
    return "\n".join(line[min(indents) :] for line in lines).strip()
