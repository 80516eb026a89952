"""`--env-url`: an environment of a server stands in for the one that is installed, or brings in one that is not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import toys
from server.serving import served

import rollenv
from rollenv.cli import main
from rollenv.errors import RollenvError
from rollenv.registration import registry, spec
from rollenv.server.client import RemoteEnv, facts_of
from rollenv.server.remote import play_remotely
from rollenv.trainers.metrics import read_metrics


@pytest.fixture(autouse=True)
def forget_servers(temp_registry: Any) -> None:
    facts_of.cache_clear()  # another server may get the port of an earlier one


@pytest.fixture
def webshop() -> Iterator[str]:
    with served("webshop", capacity=32) as (address, _):
        yield f"{address}/webshop"


def test_the_installed_environment_keeps_what_is_known_of_it(webshop: str) -> None:
    here = spec("webshop")
    there = play_remotely(webshop, "webshop")
    assert there is spec("webshop")
    assert (there.id, there.agents, there.train_config) == (here.id, here.agents, here.train_config)
    env = rollenv.make("webshop")
    assert isinstance(env, RemoteEnv)
    env.close()


def test_one_that_is_not_installed_here_is_known_by_what_its_server_says(colours: Any) -> None:
    address, _ = colours
    served_spec = registry.pop("Colours-v0")
    there = play_remotely(address)
    assert (there.id, there.max_turns, there.eval_split) == (served_spec.id, served_spec.max_turns, "test")
    assert rollenv.make("colours").tasks.ids("test") == toys.Colours().tasks.ids("test")


def test_another_environment_than_the_one_asked_for_is_refused(colours: Any) -> None:
    address, _ = colours
    with pytest.raises(RollenvError, match="serves 'colours', not 'webshop': leave out --env"):
        play_remotely(address, "webshop")


def test_an_evaluation_there_leaves_the_files_of_one_here(webshop: str, tmp_path: Path) -> None:
    command = ["eval", "--env", "webshop", "--agent", "oracle", "agent.noise=0.2", "-n", "16", "--out"]
    assert main([*command, str(tmp_path / "here")]) == 0
    assert main([*command, str(tmp_path / "there"), "--env-url", webshop]) == 0
    for name in ("summary.json", "trajectories.jsonl"):
        assert (tmp_path / "there" / name).read_bytes() == (tmp_path / "here" / name).read_bytes()
    assert 0 < json.loads((tmp_path / "there" / "summary.json").read_text())["success_rate"] < 1


def test_nobody_there_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "--agent", "oracle", "--env-url", "http://127.0.0.1:1/webshop"]) == 2
    assert "no environment answers there" in capsys.readouterr().err


def test_a_run_that_trains_there_takes_the_steps_of_one_here_and_resumes(
    colours: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address, _ = colours
    toys.warm_policy().save(tmp_path / "model")
    words = ["agent.system=", "agent.list_actions=false", "rollout.groups=2", "rollout.group_size=2", "threads=1"]
    words += ["rollout.concurrency=4", "sampling.max_tokens=8", "eval.episodes=4", "checkpoint.every=1"]
    command = ["train", "--model", str(tmp_path / "model"), *words]
    assert main([*command, "--env", "colours", "--steps", "3", "--out", str(tmp_path / "here")]) == 0
    there = str(tmp_path / "there")
    assert main([*command, "--env-url", address, "--steps", "2", "--out", there]) == 0
    nobody = "http://127.0.0.1:1/colours"
    assert main(["train", "--resume", there, "steps=3", f"env_url={nobody}"]) == 2, "it goes where it is told to"
    assert "no environment answers there" in capsys.readouterr().err
    registry.pop("Colours-v0")
    assert main(["train", "--resume", there, "steps=3"]) == 0
    rewards = [[line["reward"] for line in read_metrics(tmp_path / run) if line["step"]] for run in ("here", "there")]
    assert len(rewards[0]) == 3
    assert rewards[0] == rewards[1]
