"""Whole runs from the command line: imitation, training, Ctrl-C, resume, and the README's own example."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import toys
from rollout import trace

from rollenv.cli import main
from rollenv.rollout.figures import depends_on_speed

IMPORT = ["--import", str(Path(__file__).parent / "colours_env.py")]
ROLLENV = [sys.executable, "-m", "rollenv"]
TERSE = ["agent.system=", "agent.list_actions=false"]
SMALL = [*TERSE, "rollout.groups=2", "rollout.group_size=4", "eval.episodes=4", "sampling.max_tokens=8", "threads=1"]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that has learned to name colours, often the wrong ones."""
    folder = tmp_path_factory.mktemp("tiny") / "start"
    shape = ["hidden=16", "layers=1", "heads=2", "kv_heads=1", "mlp=32", "vocabulary=300", "context=256"]
    words = [*(f"shape.{word}" for word in shape), *TERSE, "epochs=1", "batch=8", "lr=2e-2", "warmup=4", "threads=1"]
    command = ["imitate", *IMPORT, "--env", "colours", "--out", str(folder), "-n", "400", "--noise", "0.5", *words]
    subprocess.run([*ROLLENV, *command, "eval.episodes=4"], check=True, capture_output=True)
    return folder


def metrics(run: Path) -> list[dict[str, Any]]:
    """A run's figures without wall-clock time."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if not depends_on_speed(k)} for line in lines]


def train_command(tiny: Path, out: Path, *words: str) -> list[str]:
    return ["train", *IMPORT, "--env", "colours", "--model", str(tiny), "--out", str(out), *SMALL, *words]


def interrupted(command: list[str], when: str) -> str:
    """Runs until a line begins with `when`, then sends Ctrl-C; returns what was printed."""
    with subprocess.Popen([*ROLLENV, *command], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said, sent = "", False
        for line in process.stdout:
            said += line
            if line.startswith(when) and not sent:
                process.send_signal(signal.SIGINT)
                sent = True
        assert process.wait() == 130, said
    return said


def test_a_run_that_was_interrupted_and_resumed_equals_one_that_was_not(
    tiny: Path, tmp_path: Path, temp_registry: object, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--steps", "5", "optim.lr=1e-3", "eval.every=2", "checkpoint.every=3"]
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    said = interrupted(train_command(tiny, cut, *words), "step    2/5")
    found = re.search(r"interrupted at step (\d); continue with: rollenv (train --import \S+ --resume \S+)", said)
    assert found, said
    again = found[2].split()
    assert int(found[1]) >= 2
    assert metrics(cut)[-1]["step"] in (int(found[1]), int(found[1]) - 1)  # its panel may still be to come
    assert main(again) == 0
    assert main(train_command(tiny, whole, *words)) == 0
    assert "-> " in capsys.readouterr().out
    assert metrics(cut) == metrics(whole)
    assert [line["step"] for line in metrics(whole)] == list(range(6))
    assert sum(line.get("updates", 0) for line in metrics(whole)) > 2
    model = "checkpoints/step-000005/model/model.safetensors"
    assert (cut / model).read_bytes() == (whole / model).read_bytes()


@pytest.mark.parametrize(("number", "resumed"), [(signal.SIGINT, False), (signal.SIGTERM, True)])
def test_a_run_on_ray_that_is_stopped_as_it_starts_leaves_no_process(
    tiny: Path, tmp_path: Path, temp_registry: object, number: signal.Signals, resumed: bool
) -> None:
    """Workers are about to come up; the exit is the one of Ctrl-C, in one line, without Ray's stack."""
    pytest.importorskip("ray")
    words = ["runtime=ray", "ray.fake_gpus=2", "devices.policy=0", "devices.rollout=1"]
    command, last = train_command(tiny, tmp_path / "run"), "interrupted before training began\n"
    if resumed:
        assert main([*command, "--steps", "1"]) == 0
        command = ["train", *IMPORT, "--resume", str(tmp_path / "run")]
        last, words = f"interrupted; continue with: {shlex.join(['rollenv', *command])}\n", [*words, "--steps", "2"]
    with subprocess.Popen(
        [*ROLLENV, *command, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("engine 0"):
                break
        started = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        said = process.stdout.read()
        assert process.wait() == 130, said
    assert said == last
    assert started
    _, alive = psutil.wait_procs(started, timeout=60)
    assert not alive


def test_a_run_folder(
    tiny: Path,
    tmp_path: Path,
    temp_registry: object,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    assert main(train_command(tiny, run, "--steps", "2", "checkpoint.every=1")) == 0
    files = {"metrics.jsonl", "groups.jsonl", "bias.json", "config.toml"}
    assert {path.name for path in run.iterdir()} == {*files, "checkpoints", "tensorboard"}
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert all({"step", "success", "reward", "seconds"} <= set(line) for line in lines)
    capsys.readouterr()

    # What it was told can be told again.
    assert main(["train", *IMPORT, "--config", str(run / "config.toml"), "--dry-run"]) == 0
    assert capsys.readouterr().out == (run / "config.toml").read_text()

    # It keeps its settings when it goes on, but may go on for longer.
    assert main(["train", *IMPORT, "--resume", str(run), "optim.lr=1"]) == 2
    assert "has optim.lr=1e-06, not 1" in capsys.readouterr().err
    assert main(["train", *IMPORT, "--resume", str(run), "algo=ppo"]) == 2
    assert "has algo.advantage=grpo, not gae" in capsys.readouterr().err
    assert main(["train", *IMPORT, "--resume", str(run), "--steps", "1"]) == 2
    assert "is at step 2 already" in capsys.readouterr().err
    assert main(["train", *IMPORT, "--resume", str(run), "--env", "webshop"]) == 2
    assert "has env=Colours-v0, not WebShop-v1" in capsys.readouterr().err

    # A torn checkpoint is passed over; a moved folder goes on where it is, and is drawn from there.
    moved = shutil.move(run, tmp_path / "moved")
    (tmp_path / "moved/checkpoints/step-000002/trainer.pt").write_bytes(b"torn")
    assert main(["train", *IMPORT, "--out", str(moved), "--resume", "steps=3", "--timeline"]) == 0
    said = capsys.readouterr()
    assert "passed over" in said.err
    assert "continuing from step 1" in said.out
    steps = [one.name for one in trace.read(tmp_path / "moved" / "timeline-000001.json").of("trainer")]
    assert [name for name in steps if name.startswith("step")] == ["step 2", "step 3"]
    assert [line["step"] for line in metrics(tmp_path / "moved")] == [0, 1, 2, 3]

    # A run's folder stands for its newest model.
    assert main(["eval", *IMPORT, "--env", "colours", "--model", "moved", "-n", "4", "threads=1"]) == 0
    assert "step-000003/model: 4 episodes" in capsys.readouterr().out


def test_scratch_imitates_first(
    tmp_path: Path, temp_registry: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shipped = tmp_path / "shipped.py"
    shipped.write_text("")
    (tmp_path / "imitate.toml").write_text(
        "episodes = 20\nepochs = 1\n[shape]\nhidden = 16\nlayers = 1\nheads = 2\nkv_heads = 1\nmlp = 32\n"
        "vocabulary = 300\ncontext = 512\n[eval]\nepisodes = 4\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    toys.rollenv.register(
        "Colours-v0",
        toys.Colours,
        max_turns=4,
        agents={"oracle": "toys:ColourOracle"},
        imitate_config="shipped:imitate.toml",
    )
    run = tmp_path / "run"
    command = ["train", "--env", "colours", "--model", "scratch", "--out", str(run), "--steps", "1", *SMALL]
    assert main(command) == 0
    assert (run / "scratch" / "model" / "config.json").is_file()
    assert json.loads((run / "scratch" / "summary.json").read_text())["episodes"] == 20
    assert metrics(run)[-1]["step"] == 1
    # Made once: another start in the same place takes it as it is.
    made = (run / "scratch" / "summary.json").stat().st_mtime_ns
    shutil.rmtree(run / "checkpoints")
    (run / "metrics.jsonl").unlink()
    assert main(command) == 0
    assert (run / "scratch" / "summary.json").stat().st_mtime_ns == made


def code_blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a language in a Markdown text."""
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def documented(root: Path, document: str, name: str) -> str:
    """The Python block of a document that begins with the comment `# name`."""
    blocks = code_blocks((root / document).read_text(), "python")
    return next(block for block in blocks if block.startswith(f"# {name}"))


def test_the_environment_of_the_readme_is_trained(root: Path, tmp_path: Path) -> None:
    """Its file and its commands as they stand there, with fewer episodes and steps."""
    readme = (root / "README.md").read_text()
    (tmp_path / "corridor.py").write_text(documented(root, "README.md", "corridor.py"))
    commands = [
        shlex.split(line, comments=True)[1:]
        for block in code_blocks(readme, "bash")
        for line in block.replace("\\\n", " ").splitlines()
        if line.startswith("rollenv") and "corridor.py" in line
    ]
    assert [command[0] for command in commands] == ["imitate", "train", "play"]
    fewer = {"imitate": ["-n", "30", "shape.hidden=16", "shape.layers=1", "epochs=1", "threads=1"]}
    fewer["train"] = ["--steps", "1", "rollout.groups=2", "rollout.group_size=2", "threads=1"]
    for command in commands:
        done = subprocess.run(
            [*ROLLENV, *command, *fewer.get(command[0], [])],
            cwd=tmp_path,
            input="2\n" * 5,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
    assert "solved after" in done.stdout
    assert metrics(tmp_path / "runs" / "corridor")[-1]["step"] == 1


def test_the_python_of_the_readme_runs(root: Path) -> None:
    exec(documented(root, "README.md", "shop.py"), {})


def test_a_full_disk_loses_nothing(
    tiny: Path,
    tmp_path: Path,
    temp_registry: object,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, save = tmp_path / "run", torch.save

    def full(tensors: object, path: Path) -> None:
        if any(step in str(path) for step in ("step-000002", "step-000003")):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(tensors, path)

    monkeypatch.setattr(torch, "save", full)
    assert main(train_command(tiny, run, "--steps", "3", "checkpoint.every=1")) == 2
    sentence = capsys.readouterr().err.splitlines()[-1]
    assert sentence.startswith("error: cannot write checkpoint")
    assert "No space left on device" in sentence
    assert "step-000001'" in sentence
    assert [folder.name for folder in (run / "checkpoints").iterdir()] == ["step-000001"]
    monkeypatch.setattr(torch, "save", save)
    assert main(["train", *IMPORT, "--resume", str(run)]) == 0
    assert [line["step"] for line in metrics(run)] == [0, 1, 2, 3]


def test_the_episodes_of_a_run_are_kept_and_exported(
    tiny: Path,
    tmp_path: Path,
    temp_registry: object,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    assert main(train_command(tiny, run, "--steps", "2", "trajectories=2")) == 0
    assert main(["export", str(run), "--to", "jsonl"]) == 0
    rows = [json.loads(line) for line in (run / "export" / "trajectories.jsonl").read_text().splitlines()]
    assert {row["step"] for row in rows} == {2}
    groups = [line for line in map(json.loads, (run / "groups.jsonl").read_text().splitlines()) if line["step"] == 2]
    assert sorted(row["reward"] for row in rows) == sorted(r for group in groups for r in group["rewards"])
    for row in (row for row in rows if row["trained"]):
        given = row["advantages"]
        assert [len(of_turn) for of_turn in given] == [len(turn["completion_ids"]) for turn in row["turns"]]
        rewards = [r for group in groups if group["index"] == row["group"] for r in group["rewards"]]
        above = row["reward"] - statistics.mean(rewards)
        assert all(value == pytest.approx(0, abs=1e-6) or value * above > 0 for of_turn in given for value in of_turn)
    assert any(any(map(any, row["advantages"] or [])) for row in rows)
    assert f"exported {len(rows)} episodes to" in capsys.readouterr().out
    assert main(["export", str(tmp_path / "no"), "--to", "jsonl"]) == 2
    assert "there is no folder" in capsys.readouterr().err
