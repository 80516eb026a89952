"""From what `--model` says to a model folder (or a hub name)."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from rollenv.errors import RollenvError

if TYPE_CHECKING:
    from rollenv.config.train import TrainConfig
    from rollenv.registration import EnvSpec

SEED_FOLDER = "seed_policy"


def resolve_model(config: TrainConfig, env_spec: EnvSpec, out: Path | None) -> str:
    """The model that a run starts from.

    Args:
        config: `config.model` is `seed`, `scratch`, a folder or a hub name.
        env_spec: the environment, which may ship a seed policy.
        out: the run's folder; `scratch` makes its model in `out/scratch`.

    Raises:
        RollenvError: there is no such model; the message says what to do.
    """
    if config.model == "seed":
        return str(seed_policy(env_spec))
    if config.model == "scratch":
        if out is None:
            raise RollenvError("--model scratch makes its model in the run's folder: it is for 'rollenv train'")
        return str(from_scratch(config, env_spec, out / "scratch"))
    return model_folder(config.model)


def seed_policy(env_spec: EnvSpec) -> Path:
    """The seed policy that the environment ships, beside its settings. Raises RollenvError when there is none."""
    place = env_spec.train_config or (env_spec.entry_point if isinstance(env_spec.entry_point, str) else None)
    if place is not None:
        folder = Path(str(importlib.import_module(place.partition(":")[0]).__file__)).parent / SEED_FOLDER
        if (folder / "config.json").is_file():
            return folder
    raise RollenvError(
        f"environment '{env_spec.name}' ships no seed policy: say --model FOLDER, or --model scratch to make one "
        f"first (as 'rollenv imitate --env {env_spec.name} --out DIR' does)"
    )


def model_folder(name: str) -> str:
    """The model folder that a path means: itself, its `model/`, or the newest checkpoint of a run.

    A name that is no folder here is left as it is: a hub name.

    Raises:
        RollenvError: a folder or file without a model.
    """
    path = Path(name).expanduser()
    if not path.exists():
        return name
    newest = sorted((path / "checkpoints").glob("step-*"), key=lambda folder: folder.name)[-1:]
    for folder in (path, path / "model", *(checkpoint / "model" for checkpoint in newest)):
        if (folder / "config.json").is_file():
            return str(folder.resolve())
    raise RollenvError(f"model '{name}' is not a model folder: it holds no config.json, no 'model/' and no checkpoints")


def from_scratch(config: TrainConfig, env_spec: EnvSpec, folder: Path) -> Path:
    """Makes a model by imitation in `folder`; one that was made there with the same settings is taken as it is."""
    from rollenv.agents import agent_names
    from rollenv.cli.imitate import carry_out
    from rollenv.cli.settings import dump_toml
    from rollenv.config import ImitateConfig, load_config

    expert = [] if "oracle" in agent_names(env_spec) else ["expert.name=random"]
    same = {key: getattr(config, key) for key in ("env_args", "seed", "device", "threads", "agent")}
    imitation = load_config(ImitateConfig, env_spec.id, None, expert)
    imitation = imitation.model_copy(update={**same, "out": str(folder), "max_turns": config.rollout.max_turns})
    made = folder / "config.toml"
    if (folder / "summary.json").is_file() and made.is_file() and made.read_text() == dump_toml(imitation):
        return folder / "model"
    carry_out(imitation)
    return folder / "model"
