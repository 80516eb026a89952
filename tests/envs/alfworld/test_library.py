"""Games are found in folders and archives alike, by upstream's rules, and found again as long as they are the same."""

from __future__ import annotations

import json
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from rollenv import RollenvError
from rollenv.envs.alfworld import library
from rollenv.envs.alfworld.cache import cache_root, compiled
from rollenv.envs.alfworld.generated import generated_library
from rollenv.envs.alfworld.library import SingleGame, open_library, task_type

GENERATED = generated_library()


@pytest.fixture(autouse=True)
def forgetful() -> None:
    """Every test looks at its files afresh."""
    open_library.cache_clear()


@pytest.fixture
def make_data(tmp_path: Path) -> Callable[..., Path]:
    """A folder of games in ALFWorld's order of folders."""

    def make(**changes: bytes | None) -> Path:
        folder = tmp_path / "data"
        for split in ("train", "valid_seen"):
            for task in GENERATED.tasks.ids(split)[:3]:
                path = folder / "json_2.1.1" / task / "game.tw-pddl"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(GENERATED.read(task))
        for name, data in changes.items():
            path = folder / "json_2.1.1" / "train" / name / "trial_1" / "game.tw-pddl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data or b"")
        return folder

    return make


def packed(folder: Path, name: str) -> Path:
    """The folder as an archive."""
    target = folder.parent / name
    if name.endswith(".zip"):
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as zipped:
            for path in sorted(folder.rglob("*")):
                zipped.write(path, path.relative_to(folder))
    else:
        mode = {"tar": "w", "gz": "w:gz", "xz": "w:xz"}[name.rpartition(".")[2]]
        with tarfile.open(target, mode) as tarred:
            tarred.add(folder, arcname=".")
    return target


@pytest.mark.parametrize("form", ["", "data.zip", "data.tar", "data.tar.gz", "data.tar.xz"])
def test_folders_and_archives_give_the_same_games(make_data: Callable[..., Path], form: str) -> None:
    folder = make_data()
    games = open_library(str(packed(folder, form) if form else folder))
    assert list(games.tasks.splits) == ["train", "valid_seen"]
    for split, ids in games.tasks.splits.items():
        assert list(ids) == sorted(GENERATED.tasks.ids(split)[:3])
        for task in ids:
            assert games.read(task) == GENERATED.read(task)
            assert games.sha256(task) == GENERATED.sha256(task)
    assert games.tasks.get(games.tasks.ids("train")[0]).data["type"] in library.TASK_TYPES


def test_a_folder_may_be_given_at_any_height(make_data: Callable[..., Path]) -> None:
    folder = make_data()
    ids = open_library(str(folder)).tasks.ids("train")
    assert open_library(str(folder / "json_2.1.1")).tasks.ids("train") == ids
    assert open_library(str(folder / "json_2.1.1" / "train")).tasks.ids("train") == ids


def test_what_upstream_leaves_out_is_left_out(make_data: Callable[..., Path]) -> None:
    game = GENERATED.read(GENERATED.tasks.ids("train")[0])
    unsolvable = game.replace(b'"solvable": true', b'"solvable": false')
    unchecked = game.replace(b'"solvable": true, ', b"")
    assert unsolvable != game
    assert unchecked != game
    folder = make_data(
        **{
            "pick_and_place_with_movable_recep-X": game,
            "AppleSliced-X": game,
            "unsolvable": unsolvable,
            "unchecked": unchecked,
        }
    )
    assert len(open_library(str(folder)).tasks.ids("train")) == 3


def test_a_torn_file_is_named(make_data: Callable[..., Path]) -> None:
    game = GENERATED.read(GENERATED.tasks.ids("train")[0])
    folder = make_data(torn=game[:5000])
    with pytest.raises(RollenvError, match=r"train/torn/trial_1/game\.tw-pddl' is torn after 5000 bytes"):
        open_library(str(folder))


def test_a_torn_archive_is_named(make_data: Callable[..., Path]) -> None:
    archive = packed(make_data(), "data.tar.gz")
    archive.write_bytes(archive.read_bytes()[:-3000])
    with pytest.raises(RollenvError, match=r"data\.tar\.gz' is torn"):
        open_library(str(archive))


@pytest.mark.parametrize(
    ("name", "reason"),
    [("missing", "does not exist"), ("notes.txt", "no folder and no archive"), ("empty", "no solvable game")],
)
def test_what_holds_no_games_is_refused(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("no archive")
    with pytest.raises(RollenvError, match=reason):
        open_library(str(tmp_path / name))


def test_two_games_of_one_name_are_refused(make_data: Callable[..., Path]) -> None:
    folder = make_data()
    task = GENERATED.tasks.ids("train")[0]
    other = folder / "copy" / task / "game.tw-pddl"
    other.parent.mkdir(parents=True)
    other.write_bytes(GENERATED.read(task))
    with pytest.raises(RollenvError, match="two games"):
        open_library(str(folder))


@pytest.mark.parametrize("form", ["", "data.zip"])
def test_a_second_look_reads_no_game(
    make_data: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    folder = make_data()
    data = str(packed(folder, form) if form else folder)
    first = open_library(data).tasks
    open_library.cache_clear()
    monkeypatch.setattr(library, "_is_solvable", lambda *_: pytest.fail("a game was read again"))
    assert open_library(data).tasks.splits == first.splits


def test_a_changed_file_is_noticed(make_data: Callable[..., Path]) -> None:
    folder = make_data()
    games = open_library(str(folder))
    task, other = games.tasks.ids("train")[:2]
    (folder / "json_2.1.1" / task / "game.tw-pddl").write_bytes(games.read(other))
    with pytest.raises(RollenvError, match="changed while it was in use"):
        games.read(task)
    open_library.cache_clear()
    again = open_library(str(folder))
    assert again.sha256(task) == again.sha256(other)
    assert again.tasks.panel("train").sha256 != games.tasks.panel("train").sha256


def test_a_single_game_has_the_id_of_its_folders(make_data: Callable[..., Path]) -> None:
    folder = make_data()
    task = GENERATED.tasks.ids("train")[0]
    single = SingleGame(str(folder / "json_2.1.1" / task / "game.tw-pddl"))
    assert single.tasks.splits == {"game": (task,)}
    assert single.read(task) == GENERATED.read(task)
    with pytest.raises(RollenvError, match="cannot read"):
        SingleGame(str(folder / "nothing.tw-pddl"))


def test_a_game_is_compiled_once_and_again_when_the_cache_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLENV_CACHE", str(tmp_path))
    task = GENERATED.tasks.ids("valid_unseen")[-1]
    reads: list[str] = []

    def read() -> bytes:
        reads.append(task)
        return GENERATED.read(task)

    first = compiled(GENERATED.sha256(task), read, task)
    assert compiled(GENERATED.sha256(task), read, task) == first
    assert reads == [task]
    (kept,) = cache_root().glob(f"games-*/*/{GENERATED.sha256(task)}.game")
    kept.write_bytes(kept.read_bytes()[:-7])
    assert compiled(GENERATED.sha256(task), read, task) == first
    assert reads == [task, task]


def test_the_kind_of_a_task_is_in_its_folders_name() -> None:
    assert task_type("train/pick_and_place_simple-Mug-None-Desk-301/trial_1") == "pick_and_place_simple"
    assert task_type("somewhere/else") == "other"


@pytest.mark.slow
def test_all_published_training_games_are_found(shared_data: Callable[[str], Path]) -> None:
    games = open_library(str(shared_data("alfworld/games_v2_train.tar.xz")))
    assert {split: len(ids) for split, ids in games.tasks.splits.items()} == {"train": 3553, "valid_train": 200}
    task = games.tasks.ids("train")[0]
    assert json.loads(games.read(task))["solvable"] is True
