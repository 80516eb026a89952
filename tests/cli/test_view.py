"""`rollenv view` as a process and as a file: what it says, how it ends, and what it refuses."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from viewer.folders import episode, evaluation

from rollenv.cli import main

ROLLENV = [sys.executable, "-m", "rollenv"]
IMPORT = ["--import", str(Path(__file__).parent / "colours_env.py")]


def test_it_serves_at_this_machine_alone_until_ctrl_c(tmp_path: Path) -> None:
    evaluation(tmp_path, [episode(0)])
    command = [*ROLLENV, "view", str(tmp_path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        address = re.search(r"http://127\.0\.0\.1:\d+/", said)
        assert address, said
        for _ in range(200):
            try:
                found = httpx.get(f"{address[0]}api/episodes", params={"run": "."}, timeout=30)
                break
            except httpx.ConnectError:
                continue
        assert found.json()["total"] == 1
        assert "<title>rollenv</title>" in httpx.get(address[0]).text
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_a_real_evaluation_becomes_a_file(
    tmp_path: Path, temp_registry: object, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = tmp_path / "run", tmp_path / "pages" / "run.html"
    assert main(["eval", *IMPORT, "--env", "colours", "--agent", "random", "--samples", "2", "--out", str(run)]) == 0
    assert main(["view", str(run), "--export", str(out)]) == 0
    assert "everything is in it" in capsys.readouterr().out
    assert main(["view", str(run), "--export", str(out), "--episodes", "10"]) == 0
    assert "holds 10 of 64 episodes" in capsys.readouterr().out
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', out.read_text(), re.DOTALL)
    assert data
    (found,) = json.loads(data[1])["runs"]
    assert [each["task"] for each in found["episodes"]] == [f"colour-{32 + i // 2}" for i in range(10)]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["none"], "there is no folder 'none'"),
        (["."], "'.' holds no run"),
        (["run", "--export", "page.pdf"], "such as page.html"),
        (["run", "--host", "203.0.113.7"], "cannot listen at 203.0.113.7:8001"),
    ],
)
def test_what_cannot_be_shown_is_one_sentence(
    words: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if words[0] == "run":
        evaluation(tmp_path / "run", [episode(0)])
    assert main(["view", *words]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
