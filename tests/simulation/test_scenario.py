"""Scenario files: what comes with rollenv, what a user may write, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rollenv.cli import main
from rollenv.cli.simulate import SHIPPED
from rollenv.errors import RollenvError
from rollenv.simulation.scenario import load_scenario, run_scenario, shipped

SMALL = """
about = "two ways"
steps = 2
[rollout]
groups = 2
group_size = 2
filter = "keep"
[env]
turns = { mean = 3 }
step = { kind = "normal", mean = 1.0, sigma = 1.0 }
[variants.together]
loop = "lock_step"
[variants.apart]
against = "together"
at_least = 1.0
set = { "rollout.concurrency" = 4 }
"""


@pytest.fixture
def small(tmp_path: Path) -> str:
    file = tmp_path / "small.toml"
    file.write_text(SMALL)
    return str(file)


def test_the_help_names_the_scenarios_there_are() -> None:
    assert list(SHIPPED) == shipped()


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_scenario_says_where_its_figures_are_from_and_runs(name: str) -> None:
    scenario = load_scenario(name, ["steps=1", "rollout.groups=2", "rollout.group_size=2", "env.turns.mean=2"])
    assert scenario.config.name == name
    assert "ublished" in scenario.config.about
    rows = run_scenario(scenario)
    assert [row.variant.name for row in rows] == list(scenario.config.variants)
    assert all(row.outcome.seconds > 0 for row in rows)
    assert any(row.variant.about.at_least for row in rows)


def test_a_simulation_loads_no_torch() -> None:
    code = "import sys, rollenv.simulation.split, rollenv.simulation.scenario; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_variants_have_their_settings_and_the_command_line_wins(small: str) -> None:
    plain = load_scenario(small)
    assert [v.config.rollout.concurrency for v in plain.variants] == [128, 4]
    assert [v.config.loop for v in plain.variants] == ["lock_step", "controller"]
    told = load_scenario(small, ["concurrency=5", "env.step.sigma=0"])
    assert [v.config.rollout.concurrency for v in told.variants] == [5, 5]
    assert {v.config.env.step.sigma for v in told.variants} == {0.0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("[env]", "[env]\nturn = 5"), r"small.toml: no key 'env.turn'"),
        (("steps = 2", "steps = 0"), r"small.toml: steps=0: input should be greater than or equal to 1"),
        (('kind = "normal"', 'kind = "gauss"'), r"small.toml: env.step.kind=\"gauss\""),
        (('against = "together"', 'against = "nobody"'), r"'nobody', which is none of them"),
        (('"rollout.concurrency" = 4', '"rollout.concurency" = 4'), r"did you mean 'rollout.concurrency'"),
        (('"rollout.concurrency" = 4', '"rollout.concurrency" = 0'), r"small.toml, variant 'apart': rollout.conc"),
        (("[rollout]", "[rollout"), r"small.toml' is not TOML"),
    ],
)
def test_mistakes_are_told_with_file_and_key(small: str, change: tuple[str, str], message: str) -> None:
    Path(small).write_text(SMALL.replace(*change))
    with pytest.raises(RollenvError, match=message):
        load_scenario(small)


def test_unknown_scenarios_and_keys_name_the_nearest() -> None:
    with pytest.raises(RollenvError, match="did you mean 'reference'"):
        load_scenario("referense")
    with pytest.raises(RollenvError, match="agentic, queue"):
        load_scenario("zzz")
    with pytest.raises(RollenvError, match="cannot read configuration"):
        load_scenario("none.toml")
    with pytest.raises(RollenvError, match=r"did you mean 'rollout.eta'"):
        load_scenario("reference", ["rollout.etta=1"])


def test_a_replay_is_meant_from_the_scenarios_folder(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text('replay = "run.jsonl"\nreplay_exactly = true\n')
    assert load_scenario(str(tmp_path / "s.toml")).config.replay == str(tmp_path / "run.jsonl")


def test_the_verb_prints_a_table_or_json(small: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", small]) == 0
    shown = capsys.readouterr().out
    assert "two ways" in shown
    assert "apart" in shown
    assert "x ok" in shown
    assert main(["simulate", small, "--json", "seed=4"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert [variant["variant"] for variant in figures["variants"]] == ["together", "apart"]
    assert figures["variants"][1]["ratio"] >= 1.0
    assert figures["variants"][1]["reached"] is True


def test_the_verb_finds_the_best_split(small: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", small, "--devices", "3", "--variant", "apart", "trainer.seconds_per_sample=1"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "best: " in shown
    assert "closed form: train on beta*" in shown
    assert main([*words, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert [split["train"] for split in figures["splits"]] == [0, 1, 2]


def test_the_verb_refuses_what_it_cannot_do(small: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", small, "--devices", "3"]) == 2
    assert "which variant's devices" in capsys.readouterr().err
    assert main(["simulate", small, "--variant", "apat"]) == 2
    assert "did you mean 'apart'" in capsys.readouterr().err
