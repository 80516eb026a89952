"""kill -9 at random moments: the run goes on from its last checkpoint, and trains what it would have trained."""

from __future__ import annotations

import json
import random
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from cli.test_runs import IMPORT, ROLLENV, tiny, train_command  # noqa: F401

WORDS = ["steps=12", "checkpoint.every=2", "eval.every=0", "rollout.filter=keep"]


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def killed_when(command: list[str], log: Path, n: int) -> bool:
    """Runs until `n` lines are in `log`, and there is something to resume from, then kills; False when the run was over
    before."""
    checkpoints = log.parent / "checkpoints"
    with subprocess.Popen([*ROLLENV, *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        while process.poll() is None:
            if log.is_file() and log.read_bytes().count(b"\n") >= n and any(checkpoints.glob("step-*")):
                process.kill()
            time.sleep(0.02)
        assert process.stderr is not None
        said = process.stderr.read().decode()
    assert process.returncode in (0, -9), said
    return process.returncode == -9


@pytest.mark.slow
@pytest.mark.parametrize(("eta", "times"), [(0, 5), (1, 2)])
def test_kills_change_nothing(tiny: Path, tmp_path: Path, eta: int, times: int) -> None:  # noqa: F811
    draw = random.Random(eta)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    words = [*WORDS, f"rollout.eta={eta}"]
    subprocess.run([*ROLLENV, *train_command(tiny, whole, *words)], check=True, capture_output=True)
    command, kills = train_command(tiny, broken, *words), 0
    for n in sorted(draw.sample(range(5, 24), times)):
        kills += killed_when(command, broken / "groups.jsonl", n)
        command = ["train", *IMPORT, "--resume", str(broken)]
    assert kills == times
    subprocess.run([*ROLLENV, *command], check=True, capture_output=True)
    ours, theirs = lines(broken / "groups.jsonl"), lines(whole / "groups.jsonl")
    if eta == 0:
        assert ours == theirs, "the same tasks, episodes and rewards in every step"
    indices = [line["index"] for line in ours]
    assert len(indices) == len(set(indices)) == len(theirs) == 24, "none twice"
    assert {line["step"] for line in ours} == set(range(1, 13))
    assert all(line["staleness"] <= eta for line in ours)
