"""`rollenv serve` as a process: what it says, how it ends, and what it refuses."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import rollenv
from rollenv.cli import main
from rollenv.server.client import facts_of

IMPORT = ["--import", str(Path(__file__).parent / "colours_env.py")]
ROLLENV = [sys.executable, "-m", "rollenv"]


@pytest.fixture
def server() -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The toy environment and its address, in a process."""
    facts_of.cache_clear()
    command = [*ROLLENV, "serve", *IMPORT, "--env", "colours", "--port", "0", "--drain", "5", "n_tasks=6"]
    environment = {name: value for name, value in os.environ.items() if name != "ROLLENV_TOKEN"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said.startswith("Colours-v0 at http://127.0.0.1:"), said
        address = said.split()[-1]
        while True:
            try:
                httpx.get(f"{address}/metadata")
                break
            except httpx.ConnectError:
                time.sleep(0.05)
        yield address, process
        process.kill()


def test_it_serves_with_the_arguments_that_it_was_given(server: tuple[str, subprocess.Popen[str]]) -> None:
    env = rollenv.connect(server[0])
    assert len(env.tasks.ids("test")) == 6
    env.reset()
    env.close()


def test_told_to_stop_it_lets_episodes_end(server: tuple[str, subprocess.Popen[str]]) -> None:
    address, process = server
    env = rollenv.connect(address)
    task = env.tasks.ids("test")[0]
    colour = env.tasks.get(task).data["colour"]
    env.reset(options={"task": task})
    process.send_signal(signal.SIGTERM)
    while httpx.get(f"{address.removesuffix('/colours')}/health").json()["status"] != "degraded":
        time.sleep(0.02)
    assert httpx.post(f"{address}/reset", json={}).status_code == 429
    env.step(colour)
    assert env.step(colour)[1] == 1.0
    env.close()
    assert process.wait(20) == 0


def test_a_second_signal_ends_a_busy_server(
    server: tuple[str, subprocess.Popen[str]],
) -> None:
    address, process = server
    httpx.post(f"{address}/reset", json={})
    process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    assert process.poll() is None, "there is still a session"
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "say what to serve: --env NAME"),
        (["--env", "webshpo"], "did you mean 'webshop'"),
        (["--env", "webshop", "alfworld.data=x"], "alfworld.data: 'alfworld' is not served here, only webshop"),
        (["--env", "webshop", "--host", "203.0.113.7"], "cannot listen at 203.0.113.7:8000"),
    ],
)
def test_what_cannot_be_served_is_one_sentence(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *words]) == 2
    assert sentence in capsys.readouterr().err
