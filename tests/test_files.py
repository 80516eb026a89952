"""Files that are either the old ones or the new ones."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollenv.errors import RollenvError
from rollenv.files import cache_folder, new_folder, stamp, sweep_folders, write_atomically


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def no_space(*args: object) -> None:
    raise OSError(28, "No space left on device")


def test_writes_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file.txt"
    write_atomically(path, ["one\n", "é\n"])
    assert path.read_text(encoding="utf-8") == "one\né\n"
    write_atomically(path, ["two"])
    assert path.read_text() == "two"
    assert names(path.parent) == ["file.txt"]
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("call", ["replace", "fsync"])
def test_a_full_disk_is_one_sentence_and_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "file.txt"
    write_atomically(path, ["old"])
    monkeypatch.setattr(os, call, no_space)
    with pytest.raises(RollenvError, match=r"cannot write '.*file\.txt': No space left on device; nothing"):
        write_atomically(path, ["new"])
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file.txt"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_parts_that_fail_leave_neither_a_half_nor_litter(tmp_path: Path, error: type[BaseException]) -> None:
    def parts() -> Iterator[str]:
        yield "half"
        raise error

    path = tmp_path / "file.txt"
    write_atomically(path, ["old"])
    with pytest.raises(error):
        write_atomically(path, parts())
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file.txt"]


def test_a_file_in_the_way_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RollenvError, match="cannot write"):
        write_atomically(tmp_path / "file" / "inside.txt", ["x"])


def fill(path: Path, content: str) -> None:
    with new_folder(path) as folder:
        assert folder.parent == path.parent
        (folder / "sub").mkdir()
        (folder / "sub" / "a").write_text(content)


def test_a_stamp_is_another_one_once_a_file_was_written_again(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    file = tmp_path / "inside" / "weights"
    file.write_text("one")
    seen = [stamp(tmp_path)]
    assert stamp(tmp_path) == seen[0]
    file.write_text("two")
    os.utime(file, ns=(0, 1))
    seen.append(stamp(tmp_path))
    (tmp_path / "more").touch()
    seen.append(stamp(tmp_path))
    file.unlink()
    assert len({*seen, stamp(tmp_path)}) == 4


def test_a_new_folder_appears_whole_and_replaces_the_old(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "folder"
    fill(path, "one")
    (path / "only in the old one").write_text("")
    fill(path, "two")
    assert (path / "sub" / "a").read_text() == "two"
    assert names(path) == ["sub"]
    assert names(path.parent) == ["folder"]
    assert path.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_block_that_fails_leaves_the_old_folder_and_no_litter(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "folder"
    fill(path, "old")

    def begin_and_fail() -> None:
        with new_folder(path) as folder:
            (folder / "half").write_text("")
            assert not (path / "half").exists()
            raise error

    with pytest.raises(error):
        begin_and_fail()
    assert (path / "sub" / "a").read_text() == "old"
    assert names(tmp_path) == ["folder"]


@pytest.mark.parametrize("nth", [1, 2])
def test_a_move_that_fails_leaves_the_old_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int) -> None:
    """The old one has to step aside first: when the new one then cannot come in, it steps back."""
    path = tmp_path / "folder"
    fill(path, "old")
    moves: list[object] = []
    real = os.replace

    def replace(a: object, b: object) -> None:
        moves.append(a)
        if len(moves) == nth:
            no_space()
        real(a, b)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(OSError, match="No space left"):
        fill(path, "new")
    assert (path / "sub" / "a").read_text() == "old"
    assert names(tmp_path) == ["folder"]


def test_at_no_moment_is_there_half_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever a name is moved or removed, what stands at the path is whole or not there, and a whole one exists."""
    path = tmp_path / "folder"
    fill(path, "old")
    states: list[str | None] = []
    real_replace, real_rmtree = os.replace, shutil.rmtree

    def look() -> None:
        states.append((path / "sub" / "a").read_text() if path.exists() else None)
        assert any((p / "sub" / "a").exists() for p in tmp_path.iterdir())

    monkeypatch.setattr(os, "replace", lambda a, b: (look(), real_replace(a, b), look()))
    monkeypatch.setattr(shutil, "rmtree", lambda *a, **k: (look(), real_rmtree(*a, **k), look()))
    fill(path, "new")
    assert states == ["old", None, None, "new", "new", "new"]


# -- what killed processes leave ---------------------------------------------------------------------------------

KILLED = """
import os, shutil, signal, sys
from pathlib import Path
from rollenv.files import new_folder

def die(*arguments, **options):
    os.kill(os.getpid(), signal.SIGKILL)

if sys.argv[2] == "moving":
    move = os.replace
    os.replace = lambda a, b: (move(a, b), die())
elif sys.argv[2] == "moved":
    shutil.rmtree = die
with new_folder(Path(sys.argv[1])) as folder:
    (folder / "sub").mkdir()
    (folder / "sub" / "a").write_text("new")
    if sys.argv[2] == "filling":
        die()
    elif sys.argv[2] == "waiting":
        print("filling", flush=True)
        sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("when", "before", "after"),
    [
        ("filling", "old", "old"),
        ("filling", None, None),
        ("moving", "old", "old"),
        ("moving", None, "new"),
        ("moved", "old", "new"),
    ],
)
def test_what_a_killed_process_left_is_swept_and_nothing_whole_is_lost(
    tmp_path: Path, when: str, before: str | None, after: str | None
) -> None:
    path = tmp_path / "step-1"
    if before is not None:
        fill(path, before)
    assert subprocess.run([sys.executable, "-c", KILLED, str(path), when], check=False).returncode == -9
    (tmp_path / ".other.abc").mkdir()
    (tmp_path / ".step-1.file").write_text("no folder of ours")
    sweep_folders(tmp_path, "step-")
    assert names(tmp_path) == sorted([".other.abc", ".step-1.file", *(["step-1"] if after else [])])
    assert after is None or (path / "sub" / "a").read_text() == after


def test_what_a_living_process_is_filling_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "step-1"
    command = [sys.executable, "-c", KILLED, str(path), "waiting"]
    with (
        new_folder(tmp_path / "step-2"),
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == "filling\n"
        there = names(tmp_path)
        sweep_folders(tmp_path, "step-")
        assert names(tmp_path) == there
        assert len(there) == 2
        process.communicate("")
    assert names(tmp_path) == ["step-1", "step-2"]
    sweep_folders(tmp_path / "nowhere", "step-")


def test_what_can_be_made_again_lies_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLENV_CACHE", str(tmp_path / "cache"))
    assert cache_folder("things") == tmp_path / "cache" / "things"
    assert cache_folder("things").is_dir()


def test_where_no_cache_can_be_made_a_process_has_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ROLLENV_CACHE", str(tmp_path / "file"))
    own = cache_folder("things")
    assert own.is_dir()
    assert tmp_path not in own.parents
    assert cache_folder("things") == own
