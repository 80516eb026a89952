"""An evaluation that is killed goes on where it stood."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rollenv.evaluation.records import Journal

ROLLENV = [sys.executable, "-m", "rollenv"]
SLOW = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).resolve().parents[1])!r})
import rollenv, toys

class Slow(toys.Colours):
    executor = "thread"

    def step(self, action):
        time.sleep(0.1)
        return super().step(action)

rollenv.register("Slow-v0", Slow)
"""


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    (tmp_path / "slow.py").write_text(SLOW)
    words = ["eval", "--import", str(tmp_path / "slow.py"), "--env", "slow", "--agent", "random"]
    return [*ROLLENV, *words, "-n", "16", "--samples", "2", "--concurrency", "3", "--seed", "5"]


def lines_of(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.exists() else 0


def test_killed_three_times_it_leaves_the_very_same_files(command: list[str], tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    subprocess.run([*command, "--out", str(whole)], check=True, capture_output=True)
    journal, finished = broken / Journal.NAME, 0
    for _ in range(3):
        process = subprocess.Popen([*command, "--out", str(broken)], stderr=subprocess.DEVNULL)
        while lines_of(journal) < finished + 3:
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()
        process.wait()
        finished = lines_of(journal)
    done = {json.loads(line)["place"] for line in journal.read_text().splitlines()[1:]}
    assert 6 <= len(done) < 16
    last = subprocess.run([*command, "--out", str(broken)], check=True, capture_output=True, text=True)
    assert "32 episodes" in last.stdout
    for name in ("summary.json", "trajectories.jsonl"):
        assert (broken / name).read_bytes() == (whole / name).read_bytes()
    assert not journal.exists()


def test_another_evaluation_does_not_go_on_with_it(command: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    with Journal.opened(out, {"env": "Other-v0"}) as journal:
        journal.add(0, [])
    refused = subprocess.run([*command, "--out", str(out)], capture_output=True, text=True)
    assert refused.returncode == 2
    assert "has an unfinished evaluation of another kind" in refused.stderr
    assert "Traceback" not in refused.stderr
