"""What of an agent's changes counts."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollenv.envs.swe.changes import counted, find_changes, is_protected, patched_paths, unified, without
from rollenv.envs.swe.instances import reverse
from rollenv.envs.swe.workspace import pack_files
from rollenv.sandboxes import SandboxError

texts = st.text(st.sampled_from("ab\n-+ @é"), max_size=30)


@pytest.mark.parametrize(
    "path",
    [
        "conftest.py",
        "pkg/conftest.py",
        "tests/helpers.py",
        "pkg/tests/data.json",
        "test_a.py",
        "pkg/a_test.py",
        "pytest.ini",
        "setup.cfg",
        "sitecustomize.py",
        "x.pth",
        "pkg/__pycache__/a.cpython-311.pyc",
        "evil-1.0.dist-info/entry_points.txt",
        ".git/config",
    ],
)
def test_what_runs_tests_is_protected(path: str) -> None:
    assert is_protected(path)
    assert counted([path], gold="") == set()
    assert counted([path], gold=f"diff --git a/{path} b/{path}\n") == {path}


@pytest.mark.parametrize("path", ["pkg/a.py", "attest.py", "contest/a.py", "README.md", "latest_a.py", "tests"])
def test_code_counts(path: str) -> None:
    assert counted([path], gold="") == {path}
    assert counted([path], gold=f"diff --git a/{path} b/{path}\n", tests=[path]) == set()


def test_changes_of_an_archive() -> None:
    before = {"a.py": b"1", "b.py": b"2", "c/d.py": b"3"}
    after = {"./a.py": b"1", "./b.py": b"x", "./e.py": b"", "./.git/config": b"evil"}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content in after.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        link = tarfile.TarInfo("./c/d.py")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    assert find_changes(before, packed.getvalue()) == {"b.py": b"x", "e.py": b"", "c/d.py": None}


def test_archives_that_are_none_or_too_large() -> None:
    with pytest.raises(SandboxError, match="cannot be read"):
        find_changes({}, b"no archive" * 100)
    with pytest.raises(SandboxError, match="more than 10 bytes"):
        find_changes({}, pack_files({"a": b"x" * 11}), limit=10)


def apply(folder: Path, patch: str) -> dict[str, bytes]:
    subprocess.run(["git", "apply", "-"], input=patch.encode(), cwd=folder, check=True)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@given(old=st.dictionaries(st.sampled_from("abc"), texts), new=st.dictionaries(st.sampled_from("abc"), texts))
def test_a_patch_says_what_changed_and_its_reverse_takes_it_back(
    tmp_path_factory: pytest.TempPathFactory, old: dict[str, str], new: dict[str, str]
) -> None:
    before, after = ({k: v.encode() for k, v in files.items()} for files in (old, new))
    changes = {k: after.get(k) for k in {*before, *after} if before.get(k) != after.get(k)}
    # Git's patches cannot tell of empty files by hunks alone; how they look is git's business.
    if any(content == b"" for content in (*before.values(), *after.values())):
        return
    folder = tmp_path_factory.mktemp("tree")
    for name, content in before.items():
        (folder / name).write_bytes(content)
    patch = unified(before, changes)
    if not changes:
        assert patch == ""
        return
    assert apply(folder, patch) == after
    assert sorted(patched_paths(patch)) == sorted(changes)
    assert apply(folder, reverse(patch)) == before


def test_parts_of_a_patch_are_left_out() -> None:
    patch = unified({"a": b"1\n", "b": b"2\n"}, {"a": b"x\n", "b": b"y\n"})
    assert patched_paths(without(patch, {"b"})) == ["b"]
    assert without(patch, {"a", "b"}) == patch
    renamed = "diff --git a/tests/t.py b/src.py\nrename from tests/t.py\nrename to src.py\n"
    assert without(renamed, {"src.py"}) == ""
