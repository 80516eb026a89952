"""Configuration: from TOML and `key=value` to checked settings, every mistake in one sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import toys
from hypothesis import given, settings
from hypothesis import strategies as st

from rollenv.config import ImitateConfig, TrainConfig, load_config, parse_override
from rollenv.config.load import known_keys, resolve_key
from rollenv.errors import RollenvError
from rollenv.registration import register


@pytest.fixture(autouse=True)
def colours(temp_registry: Any) -> None:
    toys.register()


def load(*words: str, file: Path | None = None, env: str | None = "colours") -> TrainConfig:
    return load_config(TrainConfig, env, file, words)


# -- imports -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "module",
    [
        "rollenv.config",
        "rollenv.rollout.controller",
        "rollenv.rollout.play",
        "rollenv.rollout.scheduler",
        "rollenv.evaluation.evaluate",
        "rollenv.inference",
        "rollenv.agents",
        "rollenv.agents.webshop",
    ],
)
def test_importing_loads_no_torch(module: str) -> None:
    code = (
        f"import sys, {module}; "
        "heavy = {'torch', 'ray', 'transformers', 'tokenizers', 'safetensors'} & set(sys.modules); "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# -- overrides -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "key", "value"),
    [
        ("lr=1e-4", "lr", 1e-4),
        ("optim.betas=[0.9, 0.95]", "optim.betas", [0.9, 0.95]),
        ("steps=7", "steps", 7),
        ("x=true", "x", True),
        ("model=Qwen/Qwen2.5-1.5B", "model", "Qwen/Qwen2.5-1.5B"),
        ("data=/tmp/a b", "data", "/tmp/a b"),
        ('model="seed"', "model", "seed"),
        ("agent.system=", "agent.system", ""),
        ("a=b=c", "a", "b=c"),
        ("max_turns=none", "max_turns", "none"),
        ("max_turns=None", "max_turns", "none"),
        ("max_turns=null", "max_turns", "none"),
    ],
)
def test_parse_override(word: str, key: str, value: Any) -> None:
    assert parse_override(word) == (key, value)


@pytest.mark.parametrize("word", ["steps", "=3", ""])
def test_a_word_that_is_no_override_is_refused(word: str) -> None:
    with pytest.raises(RollenvError, match="not of the form key=value"):
        parse_override(word)


def test_full_keys_last_parts_and_environment_arguments() -> None:
    config = load("optim.lr=0.5", "eta=1.5", "n_tasks=9", "env_args.say=name", "agent.history=3", "groups=2")
    assert config.optim.lr == 0.5
    assert config.rollout.eta == 1.5
    assert config.rollout.groups == 2
    assert config.env_args == {"n_tasks": 9, "say": "name"}
    assert config.agent.arguments == {"history": 3}
    assert config.env == "Colours-v0"


def test_bare_data_is_the_environments() -> None:
    config = load("data=/some/where", env="webshop")
    assert config.env_args == {"data": "/some/where"}
    assert config.env == "WebShop-v1"


def test_every_key_resolves_to_itself_and_each_unambiguous_last_part_to_its_key() -> None:
    for model in (TrainConfig, ImitateConfig):
        keys = known_keys(model)
        assert len(keys) == len(set(keys)) > 20
        lasts = [key.rpartition(".")[2] for key in keys]
        for key, last in zip(keys, lasts, strict=True):
            assert resolve_key(model, key, []) == key
            if last in keys:
                assert resolve_key(model, last, []) == last  # a top-level key goes before a nested one
            elif lasts.count(last) == 1:
                assert resolve_key(model, last, []) == key
            else:
                with pytest.raises(RollenvError, match="ambiguous") as refusal:
                    resolve_key(model, last, [])
                assert all(full in str(refusal.value) for full in keys if full.endswith("." + last))


MISTAKES = {
    "typo": (["optim.lrr=1"], r"no key 'optim\.lrr'; did you mean 'optim\.lr'\?"),
    "short typo": (
        ["tempertaure=1"],
        r"no key 'tempertaure'; did you mean 'temperature'\?|did you mean '.*temperature'",
    ),
    "ambiguous": (["max_tokens=5"], r"key 'max_tokens' is ambiguous: say .*sampling\.max_tokens"),
    "environment's typo": (["n_task=5"], r"no key 'n_task'; did you mean '(env_args\.)?n_tasks'\?"),
    "environment's argument": (["env_args.n_task=5"], r"no key 'env_args\.n_task'|no argument 'n_task'"),
    "wrong type": (["steps=many"], r"steps=\"many\": .*integer"),
    "out of range": (["steps=0"], r"steps=0: .*greater than or equal to 1"),
    "negative": (["eta=-1"], r"rollout\.eta=-1"),
    "a torch engine on two devices": (["runtime=ray", "per_engine=2"], r"say rollout\.engine=vllm"),
    "tensor parallel on a cluster": (["runtime=ray", "tensor_parallel=2"], r"on a cluster say devices\.per_engine"),
    "Ray's client": (["runtime=ray", "ray.address=ray://head:10001"], r"ray\.address=.*give HOST:6379"),
    "no such choice": (["loss=ppo"], r"algo\.loss=\"ppo\": .*'ppo_clip'"),
    "top_p": (["top_p=1.5"], r"sampling\.top_p=1\.5"),
    "needs another": (["aggregation=constant"], r"constant_length"),
    "not a number": (["lr=nan"], r"optim\.lr"),
    "no value": (["lr=none"], r"optim\.lr=\"none\""),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_every_mistake_is_one_sentence_that_names_the_key(name: str) -> None:
    words, message = MISTAKES[name]
    with pytest.raises(RollenvError, match=message) as refusal:
        load(*words)
    assert "\n" not in str(refusal.value)


def test_an_unknown_environment_is_refused_with_the_nearest() -> None:
    with pytest.raises(RollenvError, match=r"no environment 'colour'; did you mean 'colours'\?"):
        load(env="colour")


def test_no_environment_at_all() -> None:
    with pytest.raises(RollenvError, match="say --env NAME"):
        load(env=None)


@settings(max_examples=200)
@given(
    st.sampled_from(
        ["steps", "optim", "optim.lr", "env_args.say", "agent", "agent.name", "agent.x", "nothing", "eval"]
    ),
    st.sampled_from(["1", "-1", "nan", "inf", "text", "none", "[1, 2]", "{a = 1}", "true", "2024-01-01", '""']),
)
def test_no_override_whatever_ends_in_anything_but_a_configuration_or_a_sentence(key: str, value: str) -> None:
    try:
        outcome: object = load(f"{key}={value}")
    except RollenvError as refusal:
        outcome = refusal
    assert isinstance(outcome, TrainConfig) or "\n" not in str(outcome)


@pytest.mark.parametrize("word", ["eta=inf", "entropy_coef=nan", "lr=inf", "kl_coef=inf"])
def test_numbers_that_are_not_finite_are_refused(word: str) -> None:
    with pytest.raises(RollenvError, match="finite"):
        load(word)


@pytest.mark.parametrize("word", ["env_args=1", "env_args=[1]"])
def test_environment_arguments_that_are_no_table_are_refused(word: str) -> None:
    with pytest.raises(RollenvError, match=r"env_args=.*dictionary"):
        load(word)


def test_none_takes_the_default_where_there_is_one_and_stays_text_for_an_environment() -> None:
    assert load("max_turns=none").rollout.max_turns is None
    assert load("say=none").env_args in ({"say": "none"}, {"say": None})


# -- files -----------------------------------------------------------------------------------------------------


def toml(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_layers_later_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defaults, the environment's own settings, the user's file, overrides."""
    package = tmp_path / "layered_env"
    package.mkdir()
    (package / "__init__.py").write_text("from toys import Colours as Env\n")
    (package / "own.toml").write_text(
        "steps = 11\n[optim]\nlr = 0.1\nwarmup = 3\n[agent]\nname = 'llm'\nsystem = 'own'\n[rollout]\neta = 2.0\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    register("Layered-v0", "layered_env:Env", train_config="layered_env:own.toml")
    file = toml(tmp_path, "steps = 12\n[optim]\nlr = 0.2\n[agent]\nhistory = 4\n[rollout]\nmax_turns = 'none'\n")
    config = load_config(TrainConfig, "layered", file, ["lr=0.3"])
    assert (config.steps, config.optim.lr, config.optim.warmup, config.rollout.eta) == (12, 0.3, 3, 2.0)
    assert config.agent.arguments == {"system": "own", "history": 4}
    assert config.rollout.max_turns is None
    assert config.optim.schedule == "constant"
    assert load_config(TrainConfig, "layered").steps == 11
    assert load_config(ImitateConfig, "layered").episodes == 6000  # the other kind of run has its own


def test_the_environment_may_come_from_the_file_and_the_word_wins(tmp_path: Path) -> None:
    file = toml(tmp_path, 'env = "colours"\n')
    assert load(file=file, env=None).env == "Colours-v0"
    assert load("env=webshop", file=file, env=None).env == "WebShop-v1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("steps = ", "is not TOML"),
        ("stpes = 3", r"run\.toml: no key 'stpes'; did you mean 'steps'"),
        ("[optim]\nlrr = 3", r"no key 'optim\.lrr'; did you mean 'optim\.lr'"),
        ("[optim]\nlr = 'fast'", r"run\.toml: optim\.lr=\"fast\""),
        ("[env_args]\nn_task = 3", r"takes no argument 'n_task'; did you mean 'n_tasks'"),
        ("optim = 3", "optim"),
        ("env_args = 3", "env_args"),
        ("agent = 'llm'", "agent"),
    ],
)
def test_a_files_mistake_is_one_sentence(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(RollenvError, match=message) as refusal:
        load("optim.warmup=1" if "optim = 3" in text else "steps=2", file=toml(tmp_path, text))
    assert "\n" not in str(refusal.value)


def test_a_missing_and_a_binary_file(tmp_path: Path) -> None:
    with pytest.raises(RollenvError, match=r"cannot read configuration '.*gone\.toml': No such file"):
        load(file=tmp_path / "gone.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RollenvError, match="is not TOML"):
        load(file=tmp_path / "binary.toml")
    with pytest.raises(RollenvError, match="cannot read configuration"):
        load(file=tmp_path)


# -- the model itself ------------------------------------------------------------------------------------------


def test_a_configuration_survives_json_and_cannot_be_changed() -> None:
    """A checkpoint keeps it as JSON."""
    config = load("n_tasks=9", "agent.history=3", "max_turns=none", "lr=0.25")
    assert TrainConfig.model_validate(config.model_dump(mode="json")) == config
    with pytest.raises(ValueError, match="frozen"):
        config.steps = 3  # type: ignore[misc]


@pytest.mark.parametrize("model", [TrainConfig, ImitateConfig])
def test_every_field_says_what_it_means(model: Any) -> None:
    from rollenv.config.section import Section

    def fields(m: Any) -> Any:
        for name, field in m.model_fields.items():
            nested = isinstance(field.annotation, type) and issubclass(field.annotation, Section)
            yield from fields(field.annotation) if nested else [(m.__name__, name, field.description)]

    assert [entry[:2] for entry in fields(model) if not entry[2]] == []


# -- strategies and adapters -----------------------------------------------------------------------------------


def test_a_strategy_is_a_word_a_text_in_a_file_or_a_table(tmp_path: Path) -> None:
    assert load().strategy.kind == "auto"
    config = load("runtime=ray", "strategy=fsdp2", "strategy.reshard=false", "recompute=true")
    assert (config.strategy.kind, config.strategy.reshard, config.strategy.recompute) == ("fsdp2", False, True)
    assert load("strategy.reshard=false", "strategy=fsdp2", "runtime=ray").strategy == config.strategy.model_copy(
        update={"recompute": False}
    )
    assert load(file=toml(tmp_path, "runtime = 'ray'\nstrategy = 'ddp'\n")).strategy.kind == "ddp"
    file = toml(tmp_path, "runtime = 'ray'\n[strategy]\nkind = 'fsdp2'\nreduce = 'bf16'\n[optim]\nprecision = 'bf16'\n")
    assert load(file=file).strategy.reduce == "bf16"
    assert load("lora.rank=4", "lora.targets=['q_proj', 'v_proj']").lora.targets == "q_proj,v_proj"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["strategy=fsdp"], "fsdp"),
        (["strategy=ddp"], "runtime 'local' has one process: say runtime=ray"),
        (
            ["strategy=ddp", "runtime=ray", "strategy.reshard=false"],
            r"strategy\.reshard is an option of strategy=f",
        ),
        (["runtime=ray", "strategy.cpu_offload=true"], r"strategy\.cpu_offload is an option of strategy=fsdp2"),
        (["strategy=fsdp2", "runtime=ray", "strategy.reduce=bf16"], r"needs optim\.precision=bf16"),
        (["lora.rank=4", "rollout.engine=vllm"], r"takes whole weights only: say lora\.sync=merged"),
        (["strategy=fsdp2", "runtime=ray", "device=cpu", "strategy.cpu_offload=true"], "needs a GPU to offload from"),
        (["runtime=ray", "devices.offload=disk"], r"say devices\.share=true"),
        (["lora.rank=-1"], r"configuration: lora\.rank=-1: input should be"),
        (["algo.aggregation=constant"], r"configuration: algo: aggregation 'constant' needs algo\.constant_length$"),
        (["devices.policy=0-1"], r"configuration: devices\.\* say where"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_starts(words: list[str], message: str) -> None:
    with pytest.raises(RollenvError, match=message) as refusal:
        load(*words)
    assert "\n" not in str(refusal.value)
