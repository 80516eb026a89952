"""Checkpoints: what they hold, who may go on from them, what a full disk, a kill or a bad hook leaves."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.usefixtures("colours"), pytest.mark.timeout(1800)]

import toys  # noqa: E402
from batches import algo, make_groups, optim  # noqa: E402
from runs import assert_equal_runs, config, train, weights  # noqa: E402
from spawned import apart_from_packing, in_ranks, strategy  # noqa: E402

from rollenv.config.algo import CriticConfig  # noqa: E402
from rollenv.errors import RollenvError  # noqa: E402
from rollenv.trainers import checkpoint  # noqa: E402
from rollenv.trainers.learner import Snapshot  # noqa: E402
from rollenv.trainers.policy import Policy  # noqa: E402
from rollenv.trainers.state import load_tensors, save_tensors  # noqa: E402
from rollenv.trainers.step import PolicyTrainer  # noqa: E402
from rollenv.trainers.strategies.replicated import SINGLE  # noqa: E402
from rollenv.trainers.upload import uploaded  # noqa: E402

# -- on disk -----------------------------------------------------------------------------------------------


def written(tmp_path: Path, step: int, keep: int = 2) -> checkpoint.Checkpoint:
    save = saves(toys.policy(), {"x": torch.ones(2)})
    return asyncio.run(checkpoint.write(tmp_path, step, save, files({"step": step}, {"again": []}), keep))


def files(state: dict[str, Any], rollouts: dict[str, Any]) -> dict[str, str]:
    return checkpoint.files_of(state, rollouts)


def saves(policy: Any, tensors: dict[str, Any]) -> Any:
    async def save(folder: Path) -> None:
        policy.save(folder / "model")
        save_tensors({"y": torch.arange(5.0)}, folder / "trainer", None)
        torch.save(tensors, folder / "trainer.pt")

    return save


def contents(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 10):
        written(tmp_path, step)
    assert contents(tmp_path / "checkpoints") == ["step-000002", "step-000010"]
    last = checkpoint.newest(tmp_path)
    assert last is not None
    assert last.state() == {"format": checkpoint.FORMAT, "step": 10}
    assert last.rollouts() == {"again": []}
    assert last.tensors()["x"].tolist() == [1, 1]


class FullDisk:
    """Fails one of the ways in which a checkpoint reaches the disk."""

    def __init__(self, patch: pytest.MonkeyPatch, what: str) -> None:
        def full(*args: Any, **kwargs: Any) -> Any:
            raise OSError(28, "No space left on device")

        def torn(model: Any, folder: Path, *args: Any, **kwargs: Any) -> Any:
            Path(folder).mkdir(parents=True, exist_ok=True)
            (Path(folder) / "model.safetensors").write_bytes(b"half")
            raise RuntimeError("SafetensorError: I/O error: No space left on device (os error 28)")

        match what:
            case "model":
                patch.setattr("transformers.PreTrainedModel.save_pretrained", torn)
            case "tensors":
                patch.setattr(torch, "save", full)
            case "state":
                patch.setattr(Path, "write_text", full)
            case "sync":
                patch.setattr("os.fsync", full)
            case "move":
                patch.setattr("os.replace", full)


@pytest.mark.parametrize("step", [2, 1], ids=["a new one", "the same again"])
@pytest.mark.parametrize("what", ["model", "tensors", "state", "sync", "move"])
def test_a_full_disk_is_one_sentence_and_older_checkpoints_stay_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, step: int
) -> None:
    written(tmp_path, 1)
    policy = toys.policy()
    with monkeypatch.context() as patch:
        FullDisk(patch, what)
        new = files({"step": step, "new": True}, {})
        with pytest.raises(RollenvError) as refusal:
            asyncio.run(checkpoint.write(tmp_path, step, saves(policy, {}), new, keep=1))
    text = str(refusal.value)
    assert "No space left on device" in text
    assert "step-000001'" in text
    assert "--resume" in text
    assert "\n" not in text
    assert contents(tmp_path / "checkpoints") == ["step-000001"]
    last = checkpoint.newest(tmp_path)
    assert last is not None
    assert last.state()["step"] == 1
    assert last.tensors()["x"].tolist() == [1, 1]
    assert (last.model / "model.safetensors").stat().st_size > 1000


def test_what_a_killed_process_left_half_written_is_swept_at_the_next_start(model: Path, tmp_path: Path) -> None:
    train(config(tmp_path, steps=2), model)
    folder = tmp_path / "checkpoints"
    half = folder / ".step-000003.abcdefgh"
    (half / "model").mkdir(parents=True)
    (half / "model" / "half").write_bytes(b"half")
    train(config(tmp_path, steps=2), model, checkpoint.newest(tmp_path))
    assert contents(folder) == ["step-000002"]


def test_an_error_without_a_word_is_still_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*args: Any, **kwargs: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(torch, "save", nothing)
    with pytest.raises(RollenvError, match="MemoryError; there is none yet"):
        written(tmp_path, 1)


SHARD = "__0_0.distcp"


@pytest.mark.parametrize("name", ["state.json", "rollouts.json", "trainer.pt", f"trainer/{SHARD}", "trainer/.metadata"])
@pytest.mark.parametrize("damage", ["torn", "missing"])
def test_a_damaged_checkpoint_is_refused_in_one_sentence(tmp_path: Path, name: str, damage: str) -> None:
    made = written(tmp_path, 1)
    file = made.folder / name
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    reads = {"state.json": made.state, "rollouts.json": made.rollouts}
    with pytest.raises(RollenvError, match=f"no whole ({name}|trainer state|{SHARD})") as refusal:
        reads.get(name, made.tensors)()
    assert "\n" not in str(refusal.value)


def test_a_checkpoint_of_another_format_is_refused_in_one_sentence(tmp_path: Path) -> None:
    made = written(tmp_path, 1)
    (made.folder / "state.json").write_text('{"step": 1}')
    with pytest.raises(RollenvError, match=r"of format 1, this version of rollenv reads format \d: start the run anew"):
        made.state()


# -- in the background ---------------------------------------------------------------------------------------------


def test_training_goes_on_while_a_checkpoint_is_written_as_it_was(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writing of the first one lasts until two more steps are made; it holds the weights of its own step."""
    settings: dict[str, Any] = {"checkpoint": {"every": 2, "keep": 9}, "eval": {"every": 0}}
    train(config(tmp_path / "plain", **settings), model)
    go_on, original, events = threading.Event(), Snapshot.write, []

    def slow(kept: Snapshot, folder: Path, group: Any = None) -> None:
        assert go_on.wait(60)
        original(kept, folder, group)

    def on(kind: str, figures: dict[str, Any]) -> None:
        events.append((kind, figures["step"]))
        if (kind, figures["step"]) == ("step", 4):
            go_on.set()

    monkeypatch.setattr(Snapshot, "write", slow)
    train(config(tmp_path / "slow", **settings), model, on=on)
    assert events.index(("step", 3)) < events.index(("step", 4)) < events.index(("checkpoint", 2))
    assert_equal_runs(tmp_path / "plain", tmp_path / "slow")
    for step in (2, 4):
        ours, theirs = (checkpoint.found(tmp_path / name)[step // 2 - 1] for name in ("plain", "slow"))
        assert ours.step == theirs.step == step
        assert (ours.model / "model.safetensors").read_bytes() == (theirs.model / "model.safetensors").read_bytes()
    train(config(tmp_path / "slow", steps=5, **settings), model, checkpoint.found(tmp_path / "slow")[0])
    train(config(tmp_path / "plain", steps=5, **settings), model, checkpoint.newest(tmp_path / "plain"))
    assert all(
        torch.equal(a, b) for a, b in zip(*(weights(tmp_path / n).values() for n in ("plain", "slow")), strict=True)
    )


def test_what_could_not_be_written_ends_the_run_at_the_next_step(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Snapshot, "write", full)
    seen: list[int] = []
    with pytest.raises(RollenvError, match="No space left on device; there is none yet"):
        train(
            config(tmp_path, steps=50, checkpoint={"every": 2}, eval={"every": 0}),
            model,
            on=lambda kind, figures: seen.append(figures["step"]),
        )
    assert max(seen) < 50


KILLED = """
import asyncio, sys, time
from pathlib import Path
from rollenv.trainers import checkpoint

class Learner:
    async def snapshot(self):
        pass
    async def write(self, folder):
        (folder / "model").mkdir()
        (folder / "model" / "half").write_bytes(b"half")
        print("writing", flush=True)
        await asyncio.sleep(600)

async def main():
    writer = checkpoint.Writer(Path(sys.argv[1]), 1, None, print)
    await writer.begin(2, Learner(), {"state.json": "{}"})
    await writer.settled()

asyncio.run(main())
"""


def test_a_kill_in_mid_write_leaves_the_one_before(model: Path, tmp_path: Path) -> None:
    train(config(tmp_path, steps=1, eval={"every": 0}), model)
    command = [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        os.kill(process.pid, signal.SIGKILL)
    folder = tmp_path / "checkpoints"
    assert len(list(folder.iterdir())) == 2
    checkpoint.sweep(tmp_path)
    assert [path.name for path in folder.iterdir()] == ["step-000001"]
    last = checkpoint.newest(tmp_path)
    assert last is not None
    last.state(), last.rollouts(), last.tensors()


# -- other ranks ---------------------------------------------------------------------------------------------------


def trainer_of(folder: Path, spread: Any) -> PolicyTrainer:
    critic = CriticConfig.model_validate({"kind": "model", "value_lr": 1e-2})
    return PolicyTrainer(Policy.load(folder), algo(advantage="gae"), optim(), 4, critic=critic, strategy=spread)


Told = tuple[dict[str, float], dict[str, Any]]


def goes_on(trainer: PolicyTrainer) -> Told:
    """The third step's figures, and the weights after it."""
    figures = trainer.step(make_groups(2))
    trainer.close()
    return figures, {name: tensor.clone() for name, tensor in trainer.policy.state().items()}


def written_and_gone_on(model: Path, spread: Any, out: Path, rank: int = 0, group: Any = None) -> Told:
    trainer = trainer_of(model, spread)
    for step in range(2):
        trainer.step(make_groups(step))
    kept = Snapshot.of(trainer, rank)
    told = goes_on(trainer)
    kept.write(out, group)
    return told


def read_and_gone_on(out: Path, spread: Any) -> Told:
    trainer = trainer_of(out / "model", spread)
    trainer.load_numbers(torch.load(out / "trainer.pt", weights_only=True)["trainer"])
    load_tensors(out / "trainer", trainer.room_for)
    return goes_on(trainer)


def moves(model: Path, single: Path, out: Path) -> dict[str, Told]:
    """In a rank: writes in shards, and reads what was written in shards and by one process."""
    import torch.distributed as dist

    rank = dist.get_rank()
    told = {"sharded": written_and_gone_on(model, strategy("fsdp2"), out / "sharded", rank, dist.group.WORLD)}
    told["ddp"] = written_and_gone_on(model, strategy("ddp"), out / "ddp", rank, dist.group.WORLD)
    dist.barrier()
    told["sharded to sharded"] = read_and_gone_on(out / "sharded", strategy("fsdp2"))
    told["sharded to ddp"] = read_and_gone_on(out / "sharded", strategy("ddp"))
    told["ddp to ddp"] = read_and_gone_on(out / "ddp", strategy("ddp"))
    told["single to sharded"] = read_and_gone_on(single, strategy("fsdp2"))
    return told


def assert_near(one: Told, other: Told) -> None:
    assert apart_from_packing(one[0]) == pytest.approx(apart_from_packing(other[0]), rel=1e-4, abs=1e-6)
    for name, tensor in one[1].items():
        torch.testing.assert_close(tensor, other[1][name], rtol=1e-5, atol=1e-5)


def assert_same(one: Told, other: Told) -> None:
    assert one[0] == other[0]
    assert all(torch.equal(one[1][name], other[1][name]) for name in one[1])


def test_another_number_of_ranks_and_another_strategy_go_on(model: Path, tmp_path: Path) -> None:
    single = written_and_gone_on(model, SINGLE, tmp_path / "single")
    assert_same(single, read_and_gone_on(tmp_path / "single", SINGLE))
    told = in_ranks(2, partial(moves, model, tmp_path / "single", tmp_path))[0]
    assert_same(told["sharded"], told["sharded to sharded"])
    assert_same(told["ddp"], told["ddp to ddp"])
    for name in ("sharded", "sharded to ddp", "single to sharded"):
        assert_near(single, told[name])
    for name in ("sharded", "ddp"):
        assert_near(single, read_and_gone_on(tmp_path / name, SINGLE))
        files = {path.name: path.stat().st_size for path in (tmp_path / name / "trainer").glob("*.distcp")}
        assert set(files) == {"__0_0.distcp", "__1_0.distcp"}, "each rank has written"
        assert max(files.values()) < 1.5 * min(files.values()), "its share"


def test_tensors_of_another_trainer_are_refused(model: Path, tmp_path: Path) -> None:
    written_and_gone_on(model, SINGLE, tmp_path)
    other = PolicyTrainer(Policy.load(model), algo(), optim(), 4)
    with pytest.raises(RollenvError, match=r"'critic.* is only in one of the checkpoint and the trainer"):
        load_tensors(tmp_path / "trainer", other.room_for)


# -- upload --------------------------------------------------------------------------------------------------------

UPLOADED: list[Path] = []


def remember(folder: Path) -> None:
    UPLOADED.append(folder)
    assert (folder / "state.json").is_file()


def test_each_checkpoint_is_given_to_the_hook_once_it_is_whole(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "hooks_of_the_test", sys.modules[__name__])
    UPLOADED.clear()
    settings: dict[str, Any] = {"steps": 3, "eval": {"every": 0}}
    kept = {"every": 1, "keep": 1, "upload": "hooks_of_the_test:remember"}
    train(config(tmp_path / "run", checkpoint=kept, **settings), model)
    assert [folder.name for folder in UPLOADED] == ["step-000001", "step-000002", "step-000003"]
    to = tmp_path / "away from here"
    to.mkdir()
    kept["upload"] = f"cp -r --target-directory='{to}'"
    train(config(tmp_path / "again", checkpoint=kept, **settings), model)
    assert sorted(path.name for path in to.iterdir()) == ["step-000001", "step-000002", "step-000003"]
    assert checkpoint.Checkpoint(to / "step-000002", 2).tensors()["trainer"]["steps_done"] == 2


@pytest.mark.parametrize(
    ("hook", "reason"),
    [
        ("echo no bucket >&2; false", "status 1: no bucket"),
        ("no_such_module:send", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("os:no_such_function", "AttributeError"),
    ],
)
def test_a_hook_that_fails_is_a_sentence(hook: str, reason: str, tmp_path: Path) -> None:
    said = asyncio.run(uploaded(hook, tmp_path))
    assert said is not None
    assert reason in said
    assert "upload it by hand, or mend the hook" in said


def test_a_hook_that_fails_is_no_end_of_the_run(model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "rollenv")
    train(config(tmp_path, steps=1, eval={"every": 0}, checkpoint={"upload": "false"}), model)
    assert [r.message for r in caplog.records if "was not uploaded" in r.message]
    assert checkpoint.newest(tmp_path) is not None
