"""The quick verbs: envs, dry runs, eval and play."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from rollout import trace

from rollenv.cli import main
from rollenv.cli.options import as_words
from rollenv.cli.settings import dump_toml
from rollenv.cli.show import Bar, duration, rate
from rollenv.cli.train import name_bare_resume
from rollenv.config import ImitateConfig, TrainConfig, load_config
from rollenv.config.load import parse_override
from rollenv.evaluation.statistics import wilson

IMPORT = ["--import", str(Path(__file__).parent / "colours_env.py")]
COLOURS = [*IMPORT, "--env", "colours"]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, temp_registry: object) -> None:
    monkeypatch.chdir(tmp_path)


def test_help_and_envs_load_no_torch() -> None:
    program = (
        "import sys; from rollenv.cli import main; main(['--help']); main(['envs']); main(['train', '--env', 'webshop',"
        "'--dry-run']); sys.exit(any(m in sys.modules for m in ('torch', 'transformers', 'ray')))"
    )
    assert subprocess.run([sys.executable, "-c", program], stdout=subprocess.DEVNULL).returncode == 0


def test_envs_lists_what_was_imported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs", *IMPORT, "--tasks"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("colours"))
    assert "Colours-v0" in line
    assert "oracle" in line
    assert "train 32, test 32" in line


def test_an_environment_that_needs_arguments_is_listed_without_its_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs", "--tasks"]) == 0
    lines = capsys.readouterr().out.splitlines()
    textworld = next(line for line in lines if line.startswith("textworld"))
    assert " -  " in textworld
    assert "the extra [alfworld]" in textworld, "what stands in brackets is text, not a style"
    assert "valid_unseen 180" in next(line for line in lines if line.startswith("alfworld"))


def test_an_environment_is_measured_on_the_split_that_it_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "--env", "alfworld", "--agent", "oracle", "-n", "3"]) == 0
    assert "ALFWorld-v1, valid_unseen split, oracle: 3 episodes" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    import rollenv

    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == rollenv.__version__


# -- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["train", "imitate"])
def test_a_dry_run_reads_back_to_the_same(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["seed=7", "eval.episodes=11", "env_args.say=tell", "agent.history=3", "threads=1"]
    assert main([verb, *COLOURS, *words, "--dry-run"]) == 0
    text = capsys.readouterr().out
    (tmp_path / "again.toml").write_text(text)
    assert main([verb, *IMPORT, "--config", "again.toml", "--dry-run"]) == 0
    assert capsys.readouterr().out == text
    assert 'say = "tell"' in text
    assert sorted(tmp_path.iterdir()) == [tmp_path / "again.toml"]


def test_none_overrides_what_the_environment_ships(tmp_path: Path) -> None:
    config = load_config(
        TrainConfig, "webshop", None, ["agent.system=none", "rollout.max_turns=none", "algo.correction=none"]
    )
    (tmp_path / "a.toml").write_text(dump_toml(config))
    assert load_config(TrainConfig, None, tmp_path / "a.toml") == config
    assert config.agent.arguments["system"] is None
    assert config.rollout.max_turns is None
    assert config.algo.correction == "none"


def test_a_preset_is_shown_as_the_settings_that_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--dry-run` prints all that it sets, later words over it; nothing of its name is left."""
    words = ["train", *COLOURS, "algo=dapo", "clip_high=0.3", 'mixture=[{env="webshop", algo="ppo"}]', "--dry-run"]
    assert main(words) == 0
    text = capsys.readouterr().out
    shown = tomllib.loads(text)
    assert (shown["algo"]["clip_low"], shown["algo"]["clip_high"]) == (0.2, 0.3)
    assert (shown["algo"]["overlong_length"], shown["rollout"]["filter"]) == (20480, "refill")
    assert shown["mixture"][0]["algo"]["advantage"] == "gae"
    (tmp_path / "again.toml").write_text(text)
    assert main(["train", *IMPORT, "--config", "again.toml", "--dry-run"]) == 0
    assert capsys.readouterr().out == text
    assert main(["train", *COLOURS, "algo=dappo", "--dry-run"]) == 2
    assert "there is no such preset; did you mean 'dapo'?" in capsys.readouterr().err


def test_options_come_before_words_and_files_before_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.toml").write_text("steps = 3\nseed = 3\nmodel = 'file'\n")
    command = ["train", *COLOURS, "--config", "a.toml", "--steps", "4", "--seed", "4", "steps=5", "--dry-run"]
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {"steps = 5", "seed = 4", 'model = "file"'} <= set(lines)


def test_imitating_another_agent_drops_the_first_ones_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["imitate", "--env", "webshop", "--agent", "random", "--dry-run"]) == 0
    expert = capsys.readouterr().out.split("[expert]")[1].split("[")[0]
    assert expert.split() == ["name", "=", '"random"']


def test_bare_resume() -> None:
    assert name_bare_resume(["train", "--resume"]) == ["train", "--resume="]
    assert name_bare_resume(["train", "--resume", "steps=5"]) == ["train", "--resume=", "steps=5"]
    assert name_bare_resume(["train", "--resume", "runs/a"]) == ["train", "--resume", "runs/a"]


@pytest.mark.parametrize("value", ["runs/a b", 'q"uote', "1", "true", 0.1, 1e-7, 3, True])
def test_words_keep_values(value: object) -> None:
    (word,) = as_words({"key": value, "left_out": None})
    assert parse_override(word) == ("key", value)


def test_configs_are_frozen_in_type() -> None:
    assert isinstance(load_config(ImitateConfig, "webshop"), ImitateConfig)


# -- eval ------------------------------------------------------------------------------------------------------------


def test_eval_writes_its_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "eval",
        *COLOURS,
        "--agent",
        "oracle",
        "agent.noise=0.3",
        "--samples",
        "2",
        "--out",
        "out",
        "--seed",
        "5",
    ]
    assert main(command) == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    lines = [json.loads(line) for line in (tmp_path / "out" / "trajectories.jsonl").read_text().splitlines()]
    assert summary["episodes"] == len(lines) == 64
    successes = sum(bool(line["success"]) for line in lines)
    assert 0 < successes < 64
    assert summary["success_rate"] == successes / 64
    assert summary["ci95"] == list(wilson(successes, 64))
    assert summary["mean_reward"] == pytest.approx(sum(line["reward"] for line in lines) / 64)
    assert {line["tasks_sha256"] for line in lines} == {summary["tasks_sha256"]}
    assert f"success  {100 * successes / 64:.1f}% (95% CI" in capsys.readouterr().out
    first = (tmp_path / "out" / "trajectories.jsonl").read_bytes()
    main([*command[:-3], "again", "--seed", "5"])
    again = [json.loads(line) for line in (tmp_path / "again" / "trajectories.jsonl").read_text().splitlines()]
    assert [[turn["action"] for turn in t["turns"]] for t in again] == [
        [turn["action"] for turn in json.loads(line)["turns"]] for line in first.decode().splitlines()
    ]


def test_eval_by_type_of_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["eval", "--env", "alfworld", "--agent", "oracle", "-n", "7", "--by", "type", "--out", "out"]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "  pick_and_place_simple           100.0% (95% CI 34.2-100.0)  2 episodes" in said
    parts = json.loads((tmp_path / "out" / "summary.json").read_text())["by"]["type"]
    assert sum(part["episodes"] for part in parts) == 7
    assert len(parts) == 6


def test_eval_by_what_tasks_do_not_have_plays_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "--env", "alfworld", "--agent", "oracle", "--by", "kind"]) == 2
    assert "has no 'kind'" in capsys.readouterr().err


def test_eval_amid_chaos_draws_what_happened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Several faults follow one --inject; what failed and was tried again is in the picture, not in the result."""
    words = ["--inject", "env_crash=0.05,env_hang=0.01", "slow_env=0.05", "slow_seconds=0", "step_seconds=0.1"]
    calm = ["eval", *COLOURS, "--agent", "oracle", "reset_seconds=0.1", "max_attempts=9"]
    assert main([*calm, "--out", "out", "--timeline", *words]) == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["success_rate"], summary["failed"]) == (1.0, 0)
    assert summary["inject"]["env_crash"] == summary["inject"]["slow_env"] == 0.05
    episodes = trace.read(tmp_path / "out" / "timeline.json").of("episodes")
    assert len([one for one in episodes if one.args["stop"] == "terminated"]) == 32
    broken = [one for one in episodes if one.args["stop"] == "failed"]
    assert broken
    assert all("injected" in one.args["failure"] for one in broken)
    assert main([*calm, "--out", "calm"]) == 0
    assert "inject" not in json.loads((tmp_path / "calm" / "summary.json").read_text())
    assert not (tmp_path / "calm" / "timeline.json").exists()


def test_eval_of_webshop_with_its_random_agent(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "--env", "webshop", "--agent", "random", "-n", "5"]) == 0
    assert "5 episodes" in capsys.readouterr().out


def test_eval_refuses_figures_from_failures_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(
        "import toys, rollenv\n"
        "class Bad(toys.Colours):\n"
        "    def step(self, action):\n"
        "        raise ValueError('out of paint')\n"
        "rollenv.register('Bad-v0', Bad)\n"
    )
    assert main(["eval", *IMPORT, "--import", "bad.py", "--env", "bad", "--agent", "random", "--out", "x"]) == 2
    assert "out of paint" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


# -- play ------------------------------------------------------------------------------------------------------------


def play(monkeypatch: pytest.MonkeyPatch, lines: str, *words: str) -> int:
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    return main(["play", *words])


def test_a_person_plays_from_a_pipe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ":help\n:actions\n:what\npurple\nred\n2\nnever read\n"
    assert play(monkeypatch, lines, *COLOURS, "--task", "colour-33") == 0
    out = capsys.readouterr().out
    assert "task colour-33" in out
    assert "no command ':what'" in out
    assert "that action is not possible: purple" in out
    assert "after 3 turns" in out
    assert "2  blue" in out


def test_the_end_of_input_ends_the_play(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert play(monkeypatch, "red\n", *COLOURS, "--seed", "1") == 0
    assert "left after 1 turns" in capsys.readouterr().out
    assert play(monkeypatch, ":quit\nred\n", *COLOURS) == 0
    assert "left after 0 turns" in capsys.readouterr().out


def test_webshop_is_played_by_number(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert play(monkeypatch, "search[shoes]\n3\n", "--env", "webshop", "--seed", "0") == 0
    out = capsys.readouterr().out
    assert "[SEP]" not in out
    assert "Price: $" in out


# -- doctor ----------------------------------------------------------------------------------------------------------


def test_doctor_names_what_is_missing_and_what_mends_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rollenv.cli import doctor

    monkeypatch.setattr(doctor, "SMOKE_SECONDS", 0.1)
    code = main(["doctor", "--json"])
    report = json.loads(capsys.readouterr().out)
    checks = {check["name"]: check for check in report["checks"]}
    assert code == (0 if report["ok"] else 1)
    assert {"python", "torch", "vllm", "docker", "seed policy", "webshop"} <= set(checks)
    assert checks["torch"]["status"] == checks["webshop"]["status"] == "ok"
    assert all(check["mend"] for check in checks.values() if check["status"] in ("missing", "optional"))
    find_spec = doctor.importlib.util.find_spec
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None if name == "torch" else find_spec(name))
    assert main(["doctor", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert {
        "name": "torch",
        "status": "missing",
        "detail": "not installed",
        "mend": "pip install 'rollenv[train]'",
    } in (report["checks"])


# -- the screen ------------------------------------------------------------------------------------------------------


def test_a_bar_in_a_log_speaks_at_the_end_of_each_phase(capsys: pytest.CaptureFixture[str]) -> None:
    with Bar("episodes") as bar:
        for what in ("playing", "learning"):
            for done in range(1, 4):
                bar.update(what, done, 3, unit="x")
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("  ")[:2] for line in lines] == [["playing", "3/3"], ["learning", "3/3"]]


def test_numbers_for_people() -> None:
    assert [duration(s) for s in (0.2, 59.4, 60, 3599, 3600, 90000)] == [
        "0s",
        "59s",
        "1m00s",
        "59m59s",
        "1h00m",
        "25h00m",
    ]
    assert [rate(x) for x in (0.5, 99.94, 100, 9999, 10000)] == ["0.5", "99.9", "100", "9999", "10.0k"]
