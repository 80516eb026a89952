"""Presets: a paper's name stands for settings, all of them, and later words override them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import toys

from rollenv.config import AlgoConfig, TrainConfig, load_config
from rollenv.config.load import known_keys
from rollenv.config.presets import PRESETS, find_preset
from rollenv.errors import RollenvError


@pytest.fixture(autouse=True)
def colours(temp_registry: Any) -> None:
    toys.register()


def load(*words: str, file: Path | None = None, env: str = "colours") -> TrainConfig:
    return load_config(TrainConfig, env, file, words)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_says_everything_about_the_algorithm(name: str) -> None:
    """Whatever was set before, the algorithm is the same; what an episode is worth stays."""
    plain = load(f"algo={name}")
    before = ("algo.reward=success", "invalid_penalty=0.1", "clip_high=0.5", "dual_clip=9", "loss=kimi", "whiten=true")
    after = load(*before, "correction=tis", "rejection=opsm", f"algo={name}")
    assert after.algo == plain.algo.model_copy(update={"reward": "success", "invalid_penalty": 0.1})
    assert (after.rollout, after.critic) == (plain.rollout, plain.critic)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_nothing_but_settings(name: str) -> None:
    """What it sets is there to be read, each by a name that a word can set as well."""
    preset = PRESETS[name]
    assert set(preset.settings) <= set(known_keys(TrainConfig))
    config = load(f"algo={name}").model_dump()
    for key, value in preset.settings.items():
        section, last = key.split(".")
        assert config[section][last] == value
    by_hand = load(*(f"{key}={str(value).lower()}" for key, value in preset.settings.items()))
    assert by_hand.algo == load(f"algo={name}").algo
    assert preset.paper.replace(".", "").isdigit()


def test_later_words_override_a_preset() -> None:
    config = load("algo=dapo", "clip_high=0.4", "rollout.filter=keep")
    assert (config.algo.clip_low, config.algo.clip_high, config.rollout.filter) == (0.2, 0.4, "keep")
    assert load("clip_high=0.4", "algo=dapo").algo.clip_high == 0.28


@pytest.mark.parametrize(
    ("written", "meant"),
    [("Dr.GRPO", "dr_grpo"), ("REINFORCE++", "reinforce_pp"), ("RAFT++", "raft_pp"), ("StarPO-S", "starpo_s")],
)
def test_names_as_papers_write_them(written: str, meant: str) -> None:
    assert find_preset(written) is PRESETS[meant]


def test_a_preset_that_there_is_not_is_refused_with_the_nearest() -> None:
    with pytest.raises(RollenvError, match=r"algo=gppo: there is no such preset; did you mean .*there are grpo"):
        load("algo=gppo")


def test_a_loss_comes_with_its_own_bounds() -> None:
    """Also over an environment that has set others (WebShop's clip_high is 0.28)."""
    for env in ("colours", "webshop"):
        bounds = {loss: load(f"loss={loss}", env=env).algo for loss in ("gspo", "cispo", "plain")}
        assert [(a.clip_low, a.clip_high) for a in bounds.values()] == [(3e-4, 4e-4), (1, 4), (0.2, 0.2)]
    assert load("loss=cispo", "clip_high=3").algo.clip_high == 3
    assert load("loss=ppo_clip", env="webshop").algo.clip_high == 0.28  # no other loss than before
    assert AlgoConfig.model_validate({"loss": "gspo", "clip_low": 0.1}).clip_high == 4e-4


def test_the_short_forms_name_one_setting() -> None:
    algo = load("loss=cispo", "correction=tis", "advantage=rloo", "rejection=geometric", "proximal=interpolate").algo
    assert (algo.loss, algo.correction, algo.advantage) == ("cispo", "tis", "rloo")
    assert (algo.rejection, algo.proximal) == ("geometric", "interpolate")


def test_a_file_may_name_a_preset_in_two_ways(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('algo = "gspo"\n')
    assert load(file=file).algo == load("algo=gspo").algo
    file.write_text('[algo]\npreset = "ppo"\nlam = 0.9\n[rollout]\nfilter = "drop"\n')
    config = load(file=file)
    assert (config.algo.advantage, config.algo.lam, config.rollout.filter) == ("gae", 0.9, "drop")
    assert load("algo=gspo", file=file).algo == load("algo=gspo").algo


def test_an_environment_of_a_mixture_may_have_its_own_algorithm() -> None:
    """A preset's name, or what differs from the run's own."""
    words = ['mixture=[{env="webshop", algo="rloo"}, {env="maze", algo={clip_high=0.5}}, {env="shop"}]']
    config = load("clip_low=0.1", *words)
    assert config.algo.clip_low == 0.1
    rloo, differs, same = (entry.algo for entry in config.mixture)
    assert rloo == load("algo=rloo").algo
    assert differs == config.algo.model_copy(update={"clip_high": 0.5})
    assert same is None
    assert config.rollout.filter == "drop"
    again = TrainConfig.model_validate(config.model_dump(mode="json"))
    assert again == config


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["loss=decoupled_ppo", "correction=tis"], "leave algo.correction at 'none'"),
        (["loss=decoupled_ppo", "proximal=sampler"], "needs algo.proximal"),
        (["correction=tis", "proximal=sampler"], "correction 'tis' goes by pi_old / mu"),
        (["rejection=geometric", "proximal=sampler"], "leave algo.rejection at 'none'"),
        (["kl_target=0.1"], "kl_coef above 0"),
        (["algo.preset=ppo"], r"no key 'algo\.preset'"),
        (["algo={clip=1}"], r"no key 'algo\.clip'"),
        (["algo=3"], "algo=3"),
    ],
)
def test_what_does_not_go_together_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(RollenvError, match=message) as refusal:
        load(*words)
    assert "\n" not in str(refusal.value)
