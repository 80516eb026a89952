"""From TOML files and `key=value` words to a checked configuration, with one sentence for every mistake.

Later wins: defaults, the environment's own `train_config`, the user's TOML file, then overrides.
"""

from __future__ import annotations

import copy
import importlib
import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from rollenv.config.imitate import ImitateConfig
from rollenv.config.presets import find_preset, replaced_algo
from rollenv.config.section import Section
from rollenv.config.train import TrainConfig
from rollenv.errors import RollenvError, did_you_mean
from rollenv.registration import EnvSpec, keyword_names, spec

Config = TypeVar("Config", TrainConfig, ImitateConfig)
Checked = TypeVar("Checked", bound=BaseModel)


def load_config(
    model: type[Config], env: str | None, file: Path | None = None, overrides: Iterable[str] = ()
) -> Config:
    """The configuration of a run.

    Args:
        model: which kind of run.
        env: `--env`; may be left out when `file` names it.
        file: the user's TOML file.
        overrides: `key=value` words. A key is dotted (`optim.lr`), or its last part alone where that is unambiguous
            (`lr`); arguments of the environment may be given bare (`data=DIR`); `algo=NAME` takes a preset.

    Raises:
        RollenvError: whatever is wrong, with the key and the nearest right one.
    """
    user = read_toml(file) if file is not None else {}
    words = [parse_override(word) for word in overrides]
    name = next((str(value) for key, value in reversed(words) if key == "env"), None) or env or user.get("env")
    if not isinstance(name, str):
        raise RollenvError("no environment: say --env NAME ('rollenv envs' lists them)")
    env_spec = spec(name)
    env_keys = keyword_names(env_spec.load())
    data: dict[str, Any] = {}
    for layer in (shipped_config(env_spec, model), user):
        merge_layer(data, layer)
    data["env"] = env_spec.id
    apply_words(model, data, [word for word in words if word[0] != "env"], env_keys)
    given = data.get("env_args")
    unknown = [key for key in given if key not in env_keys] if isinstance(given, Mapping) else []
    if unknown:
        raise RollenvError(
            f"environment '{env_spec.name}' takes no argument '{unknown[0]}'{did_you_mean(unknown[0], env_keys)}"
        )
    return validated(model, data, str(file) if file else "configuration")


def apply_words(
    model: type[BaseModel], data: dict[str, Any], words: Iterable[tuple[str, Any]], env_keys: Iterable[str]
) -> None:
    """Puts `key=value` words, already parsed, into nested tables, one after another.

    Raises:
        RollenvError: a key or a preset that there is not.
    """
    for key, value in words:
        if key in ("algo", "strategy") and key in model.model_fields:
            merge_layer(data, {key: value})
        else:
            full = resolve_key(model, key, env_keys)
            if full == "algo.loss":
                _forget_bounds(data, value)
            put(data, full, value)
    _complete_mixture(data)


def merge_layer(data: dict[str, Any], layer: Mapping[str, Any]) -> None:
    """Merges `layer` into `data`, its values over those there. `algo` may be a preset's name, or a table that names one
    (`preset`) beside what it sets itself; `strategy` may be its kind.

    Raises:
        RollenvError: there is no such preset.
    """
    if isinstance(layer.get("strategy"), str):
        layer = {**layer, "strategy": {"kind": layer["strategy"]}}
    algo = layer.get("algo")
    if isinstance(algo, str):
        algo = {"preset": algo}
    if isinstance(algo, Mapping):
        name = algo.get("preset")
        if name is not None:
            data["algo"] = replaced_algo(data.get("algo"))
            for key, value in find_preset(str(name)).settings.items():
                put(data, key, value)
        if "loss" in algo:
            _forget_bounds(data, algo["loss"])
        layer = {**layer, "algo": {key: value for key, value in algo.items() if key != "preset"}}
    _merge(data, layer)


def _forget_bounds(data: Mapping[str, Any], loss: Any) -> None:
    """Another loss comes with its own clipping bounds."""
    algo = data.get("algo")
    if isinstance(algo, dict) and algo.get("loss", "ppo_clip") != loss:
        for key in ("clip_low", "clip_high", "dual_clip"):
            algo.pop(key, None)


def _complete_mixture(data: dict[str, Any]) -> None:
    """The algorithm of a further environment is the run's own with what differs. (What a preset sets outside of `algo`
    is the whole run's.)"""
    entries = data.get("mixture")
    if not isinstance(entries, list):
        return
    data["mixture"] = list(entries)
    for place, entry in enumerate(entries):
        if isinstance(entry, Mapping) and isinstance(entry.get("algo"), (str, Mapping)) and entry["algo"] != "none":
            own: dict[str, Any] = copy.deepcopy({"algo": data.get("algo", {})})
            merge_layer(own, {"algo": entry["algo"]})
            data["mixture"][place] = {**entry, "algo": own["algo"]}


def parse_override(word: str) -> tuple[str, Any]:
    """`"optim.lr=1e-4"` -> `("optim.lr", 0.0001)`. Values are TOML; what is not TOML is text. `none` stays
    text until the section that it is for is read (see `Section`).

    Raises:
        RollenvError: there is no `=`.
    """
    key, sign, text = word.partition("=")
    if not sign or not key:
        raise RollenvError(f"'{word}' is not of the form key=value")
    try:
        return key, tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return key, "none" if text in ("None", "null") else text


def read_toml(file: Path) -> dict[str, Any]:
    """The content of a TOML file. Raises RollenvError when it is missing or not TOML."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise RollenvError(f"cannot read configuration '{file}': {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RollenvError(f"configuration '{file}' is not TOML: {error}") from error


def shipped_config(env_spec: EnvSpec, model: type[TrainConfig | ImitateConfig]) -> dict[str, Any]:
    """The settings that the environment comes with for this kind of run."""
    place = env_spec.train_config if model is TrainConfig else env_spec.imitate_config
    if place is None:
        return {}
    module, _, name = place.partition(":")
    folder = Path(str(importlib.import_module(module).__file__)).parent
    return read_toml(folder / name)


def known_keys(model: type[BaseModel]) -> list[str]:
    """Every dotted key of a kind of run."""
    return list(_keys(model, ""))


def _keys(model: type[BaseModel], prefix: str) -> Iterable[str]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from _keys(field.annotation, f"{prefix}{name}.")
        else:
            yield prefix + name


def resolve_key(model: type[BaseModel], key: str, env_keys: Iterable[str]) -> str:
    """The full dotted key that `key` stands for.

    Raises:
        RollenvError: unknown or ambiguous; the message names the nearest or the candidates.
    """
    keys = known_keys(model)
    env_full = [f"env_args.{name}" for name in env_keys]
    if key in keys or key in env_full or key.startswith(("agent.", "expert.")):
        return key
    candidates = [full for full in [*keys, *env_full] if full.rpartition(".")[2] == key]
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise RollenvError(f"key '{key}' is ambiguous: say {' or '.join(candidates)}")
    short = [full.rpartition(".")[2] for full in [*keys, *env_full]]
    raise RollenvError(f"no key '{key}'{did_you_mean(key, [*keys, *env_full, *short])}")


def validated(model: type[Checked], data: Mapping[str, Any], where: str) -> Checked:
    """`data` as a checked configuration; the first mistake as one sentence."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            raise RollenvError(f"{where}: no key '{key}'{did_you_mean(key, known_keys(model))}") from None
        message = first["msg"].removeprefix("Value error, ")
        message = message[:1].lower() + message[1:]
        if isinstance(first["input"], Mapping):  # of a whole section: what does not fit is in the message
            raise RollenvError(": ".join(part for part in (where, key, message) if part)) from None
        given = json.dumps(first["input"], default=str)
        raise RollenvError(f"{where}: {key}={given:.60}: {message}") from None


def _merge(into: dict[str, Any], layer: Mapping[str, Any]) -> None:
    for key, value in layer.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = dict(value) if isinstance(value, Mapping) else value


def put(data: dict[str, Any], key: str, value: Any) -> None:
    """Sets a dotted key in nested tables.

    Raises:
        RollenvError: a part of the key is a value, not a table.
    """
    *path, last = key.split(".")
    for part in path:
        data = data.setdefault(part, {})
        if not isinstance(data, dict):
            raise RollenvError(f"'{part}' is a section, so '{key}' cannot be set while {part}={data!r:.60}")
    data[last] = value
