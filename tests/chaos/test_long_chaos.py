"""Thirty training steps of WebShop while environments crash and hang and the engine fails: what it costs is time."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

ROLLENV = [sys.executable, "-m", "rollenv"]
STEPS, GROUPS, SIZE = 30, 2, 4
WORDS = [
    f"steps={STEPS}",
    f"groups={GROUPS}",
    f"group_size={SIZE}",
    "eval.every=0",
    "eval.episodes=20",
    "checkpoint.every=10",
    "filter=keep",
]
WORKERS = ["eta=1", "env_executor=process", "env_workers=2", "step_seconds=0.5", "reset_seconds=1", "max_attempts=60"]
FAULTS = ["--inject", "env_crash=0.05", "env_hang=0.02", "engine_error=0.02"]
MARK = "ROLLENV_TEST_CHAOS"


def train(out: Path, *words: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The run's steps and its groups."""
    command = [*ROLLENV, "train", "--env", "webshop", "--out", str(out), *WORDS, *WORKERS]
    subprocess.run([*command, *words], check=True, capture_output=True, env={**os.environ, MARK: str(out)})
    steps, groups = ([json.loads(line) for line in (out / f"{name}.jsonl").open()] for name in ("metrics", "groups"))
    return steps, groups


def left_behind(out: Path) -> list[str]:
    """Processes that carry the run's mark in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={out}".encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text())
        except OSError:
            continue
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes by /proc")
def test_thirty_steps_of_chaos_train_as_well_and_leave_nothing_behind(tmp_path: Path) -> None:
    _, calm = train(tmp_path / "calm")
    steps, stormy = train(tmp_path / "chaos", *FAULTS)
    assert [line["step"] for line in steps] == list(range(STEPS + 1))
    for name in ("env_crash", "env_hang", "engine_error"):
        assert sum(line.get(f"failed/injected/{name}", 0) for line in steps) > 0, f"{name} struck"
    assert len(stormy) == len(calm) == STEPS * GROUPS
    assert all(len(group["rewards"]) == SIZE for group in stormy)
    means = [[statistics.mean(group["rewards"]) for group in groups] for groups in (calm, stormy)]
    difference = statistics.mean(means[0]) - statistics.mean(means[1])
    error = math.sqrt(sum(statistics.variance(each) / len(each) for each in means))
    assert abs(difference) < 3.3 * error, "faults are no rewards: the 99.9% interval of the difference holds 0"
    assert left_behind(tmp_path / "calm") == left_behind(tmp_path / "chaos") == []
