"""A repository that is made without git is one to git."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rollenv.envs.swe.git_folder import git_folder

FILES = {
    "README.md": b"hello\n",
    "a/b/c.py": b"x = 1\n",
    "a/b.py": b"",
    "a.py": b"\xff\x00",
    "a-b/d": b"d",
    "z" * 200: "ü".encode(),
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for path, content in {**FILES, **git_folder(FILES)}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    return tmp_path


def git(folder: Path, *words: str) -> str:
    command = ["git", "-c", "safe.directory=*", "-C", str(folder), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_nothing_has_changed_since_its_commit(repository: Path) -> None:
    git(repository, "fsck", "--strict")
    assert git(repository, "status", "--porcelain") == ""
    assert git(repository, "log", "--format=%s").strip() == "Start"
    assert set(git(repository, "ls-tree", "-r", "-z", "--name-only", "HEAD").split("\0")) == {*FILES, ""}


def test_changes_are_seen(repository: Path) -> None:
    (repository / "a" / "b" / "c.py").write_text("x = 2\n")
    (repository / "new").write_text("")
    assert git(repository, "status", "--porcelain") == " M a/b/c.py\n?? new\n"
    assert "-x = 1\n+x = 2\n" in git(repository, "diff")


def test_the_same_tree_gives_the_same_bytes() -> None:
    assert git_folder(FILES) == git_folder(dict(FILES))
