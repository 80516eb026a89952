"""The environment: arguments, episodes, snapshots, and the change to the reference engine."""

from __future__ import annotations

import json
import pickle
import random
import sys
from pathlib import Path

import pytest

import rollenv
from rollenv import RollenvError, SnapshotError
from rollenv.envs.alfworld.generated import generated_library

GENERATED = generated_library()
TASK = GENERATED.tasks.ids("train")[0]


def write_game(folder: Path, data: bytes, task: str = TASK) -> Path:
    path = folder / task / "game.tw-pddl"
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    return path


def test_an_episode_of_a_named_task_is_won_by_its_walkthrough() -> None:
    env = rollenv.make("alfworld", walkthrough=True)
    observation, info = env.reset(options={"task": TASK})
    assert observation.startswith("-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room.")
    assert (info["task"], info["won"]) == (TASK, False)
    *commands, last = info["walkthrough"]
    for command in commands:
        _, reward, terminated, truncated, info = env.step(command)
        assert (reward, terminated, truncated) == (0.0, False, False)
        assert info["valid_action"]
        assert "success" not in info
        assert "walkthrough" not in info
    _, reward, terminated, _, info = env.step(last)
    assert (reward, terminated, info["won"], info["success"]) == (1.0, True, True, True)
    with pytest.raises(RollenvError, match="reset"):
        env.step("look")


def test_a_command_that_is_not_admissible_changes_nothing() -> None:
    env = rollenv.make("alfworld")
    _, before = env.reset(options={"task": TASK})
    for nonsense in ("", "Look", "go to nowhere 9", "go to", "take mug 1 from", "open  drawer 1"):
        observation, reward, terminated, _, info = env.step(nonsense)
        assert (observation, reward, terminated, info["valid_action"]) == ("Nothing happens.", 0.0, False, False)
        assert info["admissible_actions"] == before["admissible_actions"]


def test_white_space_around_a_command_does_not_matter() -> None:
    env = rollenv.make("alfworld")
    env.reset(options={"task": TASK})
    assert env.step("  look \n")[4]["valid_action"]


def test_admissible_actions_are_sorted_distinct_and_the_callers_own() -> None:
    env = rollenv.make("alfworld")
    _, info = env.reset(options={"task": TASK})
    rng = random.Random(0)
    for _ in range(60):
        listed = info["admissible_actions"]
        assert listed == sorted(set(listed))
        command = rng.choice(listed)
        listed.clear()
        _, _, terminated, _, info = env.step(command)
        if terminated:
            break


def test_listing_can_be_left_out_and_changes_nothing_else() -> None:
    listing, silent = rollenv.make("alfworld"), rollenv.make("alfworld", admissible_actions=False)
    observation, info = listing.reset(options={"task": TASK})
    assert silent.reset(options={"task": TASK}) == (
        observation,
        {key: value for key, value in info.items() if key != "admissible_actions"},
    )
    rng = random.Random(1)
    for _ in range(30):
        command = rng.choice([*info["admissible_actions"], "nonsense"])
        *one, info = listing.step(command)
        *other, short = silent.step(command)
        assert one == other
        assert short == {key: value for key, value in info.items() if key != "admissible_actions"}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"engine": "nativ"}, "did you mean 'native'"),
        ({"data": "a", "game": "b"}, "not both"),
        ({"game": "/no/such/file"}, "cannot read"),
        ({"data": "/no/such/folder"}, "does not exist"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, str], reason: str) -> None:
    with pytest.raises(RollenvError, match=reason):
        rollenv.make("alfworld", **arguments)


def test_a_file_that_is_no_game_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(RollenvError, match="not valid JSON"):
        rollenv.make("alfworld", game=write_game(tmp_path, b'{"pddl_domain": "'))


def test_options_other_than_task_are_refused() -> None:
    with pytest.raises(RollenvError, match="did you mean 'task'"):
        rollenv.make("alfworld").reset(options={"tasks": TASK})


# -- snapshots --------------------------------------------------------------------------------------------------


def test_a_snapshot_goes_on_in_another_environment_and_in_a_pickled_one() -> None:
    env, other = rollenv.make("alfworld"), rollenv.make("alfworld")
    _, info = env.reset(seed=3)
    rng = random.Random(5)
    for _ in range(12):
        _, _, _, _, info = env.step(rng.choice(info["admissible_actions"]))
    other.restore(env.snapshot())
    third = pickle.loads(pickle.dumps(env))
    for _ in range(12):
        command = rng.choice(info["admissible_actions"])
        answer = env.step(command)
        assert other.step(command) == answer
        assert third.step(command) == answer
        if answer[2]:
            break
        info = answer[4]
    assert other.reset() == env.reset()


def test_a_snapshot_of_another_game_is_refused(tmp_path: Path) -> None:
    env = rollenv.make("alfworld")
    env.reset(options={"task": GENERATED.tasks.ids("train")[1]})
    snapshot = env.snapshot()
    single = rollenv.make("alfworld", game=write_game(tmp_path, GENERATED.read(TASK)))
    single.reset(seed=0)
    with pytest.raises(SnapshotError, match="does not have"):
        single.restore(snapshot)
    assert single.step("look")[4]["valid_action"]


# -- the reference engine -----------------------------------------------------------------------------------------


def foreign_game() -> bytes:
    """A game whose domain the native engine does not know: hands can hold more than one thing."""
    game = json.loads(GENERATED.read(TASK))
    game["pddl_domain"] = game["pddl_domain"].replace("(not (holdsAny ?a))", "")
    return json.dumps(game).encode()


def test_without_textworld_a_foreign_game_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = rollenv.make("alfworld", game=write_game(tmp_path, foreign_game()))
    for module in ("textworld", "textworld.core"):
        monkeypatch.setitem(sys.modules, module, None)
    with (
        pytest.warns(RuntimeWarning, match="slow reference engine: its domain's action 'pickupobject'"),
        pytest.raises(RollenvError, match=r"pip install 'rollenv\[alfworld\]'"),
    ):
        env.reset(seed=0)


def test_a_foreign_game_is_played_by_the_reference_engine(tmp_path: Path) -> None:
    pytest.importorskip("fast_downward", reason="needs the extra [alfworld]")
    arguments = sys.argv
    env = rollenv.make("alfworld", game=write_game(tmp_path, foreign_game()))
    with pytest.warns(RuntimeWarning, match="reference engine"):
        observation, info = env.reset(seed=0)
    native = rollenv.make("alfworld")
    assert (observation, info) == native.reset(options={"task": TASK})
    command = next(command for command in info["admissible_actions"] if command.startswith("go to "))
    assert env.step(command) == native.step(command)
    assert env.step("nonsense") == native.step("nonsense")
    with pytest.warns(RuntimeWarning, match="reference engine"):
        again = pickle.loads(pickle.dumps(env))
    assert again.step("look") == env.step("look") == native.step("look")
    assert sys.argv is arguments
    env.close()
    again.close()


def test_an_unreadable_game_is_refused_by_the_reference_engine(tmp_path: Path) -> None:
    pytest.importorskip("fast_downward", reason="needs the extra [alfworld]")
    game = json.loads(GENERATED.read(TASK)) | {"pddl_domain": "(define nothing)"}
    env = rollenv.make("alfworld", game=write_game(tmp_path, json.dumps(game).encode()), engine="textworld")
    with pytest.raises(RollenvError, match="cannot load"):
        env.reset(seed=0)


def test_real_games_are_tasks_under_the_names_of_their_folders(real_games: dict[str, Path]) -> None:
    env = rollenv.make("alfworld", data=real_games["transcripts"] / "v2")
    task = env.tasks.ids("valid_unseen")[0]
    split, folder, trial = task.split("/")
    assert split == "valid_unseen"
    assert trial.startswith("trial_T")
    _, info = env.reset(options={"task": task})
    assert info["type"] == folder.split("-")[0]


def test_a_game_is_shared_by_all_who_play_it() -> None:
    from rollenv.envs.alfworld.boards import board_of

    episodes = [board_of(GENERATED, task).episode() for task in GENERATED.tasks.ids("train")[:40]]
    again = [board_of(GENERATED, task).episode() for task in GENERATED.tasks.ids("train")[:40]]
    assert all(one.board is other.board for one, other in zip(episodes, again, strict=True))
    assert len({id(one.state) for one in (*episodes, *again)}) == 80


def test_a_snapshot_of_another_engine_is_refused() -> None:
    env, reference = rollenv.make("alfworld"), rollenv.make("alfworld", engine="textworld")
    env.reset(options={"task": TASK})
    with pytest.raises(SnapshotError, match="another engine"):
        reference.restore(env.snapshot())
