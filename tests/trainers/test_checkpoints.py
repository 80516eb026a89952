"""Checkpoints while a run goes on: what they hold, who may go on from them, what a kill or a bad hook leaves."""

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

from batches import algo, make_groups, optim  # noqa: E402
from runs import assert_equal_runs, config, train, weights  # noqa: E402
from spawned import apart_from_packing, in_ranks, strategy  # noqa: E402

from rollenv.config.algo import CriticConfig  # noqa: E402
from rollenv.errors import RollenvError  # noqa: E402
from rollenv.trainers import checkpoint  # noqa: E402
from rollenv.trainers.learner import Snapshot  # noqa: E402
from rollenv.trainers.policy import Policy  # noqa: E402
from rollenv.trainers.state import load_tensors  # noqa: E402
from rollenv.trainers.step import PolicyTrainer  # noqa: E402
from rollenv.trainers.strategies.replicated import SINGLE  # noqa: E402
from rollenv.trainers.upload import uploaded  # noqa: E402

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
