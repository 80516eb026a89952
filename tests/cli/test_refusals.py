"""What a user did wrong is one sentence on stderr and exit code 2, and nothing has been written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rollenv.cli import main

COLOURS = ["--import", str(Path(__file__).parent / "colours_env.py"), "--env", "colours"]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, temp_registry: object) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs the command line and returns its one sentence."""

    def run(*words: str) -> str:
        before = written(tmp_path)
        code = main(words)
        said = capsys.readouterr()
        assert code == 2, said
        assert said.err.startswith("error: ")
        assert said.err.count("\n") == 1, said.err
        assert written(tmp_path) == before
        return said.err

    return run


def written(folder: Path) -> list[Path]:
    """All that is in a folder, but for what Python keeps of a file that is imported."""
    return sorted(path for path in folder.rglob("*") if "__pycache__" not in path.parts)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["trian"], "Did you mean 'train'?"),
        (["train", "--env", "webshp"], "did you mean 'webshop'?"),
        (["train"], "say --env NAME"),
        (["train", *COLOURS, "--stepz", "3"], "No such option: --stepz"),
        (["train", *COLOURS, "optm.lr=1"], "did you mean 'optim.lr'?"),
        (["train", *COLOURS, "lr"], "'lr' is not of the form key=value"),
        (["train", *COLOURS, "optim.lr=fast"], "optim.lr"),
        (["train", *COLOURS, "n_taks=3"], "did you mean 'n_tasks'?"),
        (["train", *COLOURS, "every=3"], "ambiguous: say eval.every or checkpoint.every"),
        (["train", *COLOURS, "--config", "none.toml"], "cannot read configuration 'none.toml'"),
        (["train", *COLOURS], "ships no seed policy: say --model"),
        (["train", *COLOURS, "--model", "seed"], "ships no seed policy: say --model"),
        (["train", "--env", "webshop", "agent.name=oracle"], "agent 'oracle' takes no argument 'action_format'"),
        (["train", "--env", "swe", "--model", "seed", "agent.name=oracle"], "ships no seed policy"),
        (["imitate", "--env", "swe", "agent.name=oracle", "--out", "x"], "agent 'oracle' is a program"),
        (["imitate", "--env", "swe", "agent.name=harness", "agent.command=x", "--out", "x"], "'harness' is a program"),
        (["train", "--resume"], "--resume needs the run's folder"),
        (["train", "--resume", "runs/none"], "there is no such folder"),
        (["train", "--import", "none.py", "--env", "x"], "--import none.py: there is no such file"),
        (["train", "--import", "no.such.module", "--env", "x"], "No module named"),
        (["train", *COLOURS, "--inject", "env_crsh=0.1"], "no fault 'env_crsh'; did you mean 'env_crash'?"),
        (["train", *COLOURS, "--inject", "env_crash=0.1", "env_hag=0.1"], "did you mean 'env_hang'?"),
        (["train", *COLOURS, "--inject", "env_crash=1.1"], "inject.env_crash=1.1: input should be less than or equal"),
        (["train", *COLOURS, "--inject", "env_crash=-1"], "inject.env_crash=-1: input should be greater than or equal"),
        (["train", *COLOURS, "--inject", "env_crash=often"], "inject.env_crash"),
        (["train", *COLOURS, "--inject", "env_crash"], "'inject.env_crash' is not of the form key=value"),
        (["eval", *COLOURS, "--agent", "oracle", "--inject", "engine_eror=1"], "did you mean 'engine_error'?"),
        (["eval", *COLOURS, "--agent", "oracle", "--timeline"], "--timeline needs a folder"),
        (["eval", *COLOURS, "--agent", "oracl"], "did you mean 'oracle'?"),
        (["eval", *COLOURS, "--agent", "oracle", "agent.nois=1"], "did you mean 'noise'?"),
        (["eval", *COLOURS, "--agent", "oracle", "optim.lr=1"], "'optim.lr' means nothing to an evaluation"),
        (["eval", *COLOURS, "--agent", "oracle", "lr=1"], "'optim.lr' means nothing to an evaluation"),
        (["eval", *COLOURS, "--agent", "oracle", "steps=1"], "'steps' means nothing to an evaluation"),
        (["eval", *COLOURS, "--agent", "oracle", "--model", "x"], "is a program: leave out --model"),
        (["eval", *COLOURS, "--agent", "oracle", "--split", "tset"], "did you mean 'test'?"),
        (["eval", *COLOURS, "--agent", "oracle", "-n", "33"], "has 32 tasks: ask for 1 to 32, not 33"),
        (["eval", *COLOURS, "--model", "scratch"], "it is for 'rollenv train'"),
        (["eval", "--env", "webshop", "--agent", "oracle", "data=nowhere"], "nowhere' is not a folder"),
        (["play", "--env", "webshop", "--task", "synthetic-nope"], "no task 'synthetic-nope'"),
        (["imitate", *COLOURS], "say where the model goes: --out DIR"),
        (["imitate", *COLOURS, "--out", "x", "lerning=1"], "no key 'lerning'"),
    ],
)
def test_one_sentence(refused: Callable[..., str], words: list[str], sentence: str) -> None:
    assert sentence in refused(*words)


def test_an_import_that_fails_names_the_line(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("x = 1\ny = x / 0\n")
    sentence = refused("envs", "--import", "broken.py")
    assert "ZeroDivisionError" in sentence
    assert "broken.py, line 2" in sentence


def test_a_torn_config(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "torn.toml").write_text("steps = ")
    assert "is not TOML" in refused("train", *COLOURS, "--config", "torn.toml")


def test_a_folder_without_a_model(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for verb in (["train", "--out", "run"], ["eval"]):
        assert "is not a model folder" in refused(*verb, *COLOURS, "--model", "empty")


def test_a_torn_model(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "config.json").write_text("{")
    assert "cannot load model" in refused("train", *COLOURS, "--out", "run", "--model", "torn")


def test_an_out_folder_in_use(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text("")
    assert "already holds a run: continue it with --resume run" in refused("train", *COLOURS, "--out", "run")
    assert "holds no checkpoint" in refused("train", "--out", "run", "--resume")
    (tmp_path / "file").write_text("")
    assert "is a file" in refused("train", *COLOURS, "--out", "file")
    assert "is a file" in refused("eval", *COLOURS, "--agent", "oracle", "--out", "file")
    (tmp_path / "made" / "model").mkdir(parents=True)
    assert "already holds a 'model'" in refused("imitate", *COLOURS, "--out", "made")


def test_a_torn_data_file(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "items_shuffle_1000.json").write_text('[{"asin": "B0')
    (tmp_path / "data" / "items_ins_v2_1000.json").write_text("{}")
    assert "items_shuffle_1000.json" in refused("eval", "--env", "webshop", "--agent", "oracle", "data=data")
