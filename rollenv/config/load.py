"""From TOML files and `key=value` words to a checked configuration, with one sentence for every mistake.

Later wins: defaults, the environment's own `train_config`, the user's TOML file, then overrides.
"""

from __future__ import annotations

import importlib
import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from rollenv.config.imitate import ImitateConfig
from rollenv.config.train import Section, TrainConfig
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
            (`lr`); arguments of the environment may be given bare (`data=DIR`).

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
        _merge(data, layer)
    data["env"] = env_spec.id
    for key, value in words:
        if key != "env":
            put(data, resolve_key(model, key, env_keys), value)
    given = data.get("env_args")
    unknown = [key for key in given if key not in env_keys] if isinstance(given, Mapping) else []
    if unknown:
        raise RollenvError(
            f"environment '{env_spec.name}' takes no argument '{unknown[0]}'{did_you_mean(unknown[0], env_keys)}"
        )
    return validated(model, data, str(file) if file else "configuration")


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
        given = json.dumps(first.get("input"), default=str)
        message = first["msg"].removeprefix("Value error, ")
        raise RollenvError(f"{where}: {key or 'settings'}={given:.60}: {message[:1].lower()}{message[1:]}") from None


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
