"""Configurations as TOML text: what `--dry-run` prints and a run folder keeps, and `--config` reads back equal."""

from __future__ import annotations

from typing import Any

import tomli_w
from pydantic import BaseModel


def dump_toml(config: BaseModel) -> str:
    """The whole configuration as TOML; settings that are none are written as "none"."""
    return tomli_w.dumps(_without_null(config.model_dump(mode="json")))


def _without_null(value: Any) -> Any:
    if isinstance(value, dict):
        # Plain values before tables: TOML would take what follows a table for a part of it.
        items = sorted(value.items(), key=lambda item: isinstance(item[1], dict))
        return {key: _without_null(item) for key, item in items}
    if isinstance(value, list):
        return [_without_null(item) for item in value]
    return "none" if value is None else value


def differences(old: BaseModel, new: BaseModel) -> dict[str, tuple[Any, Any]]:
    """Dotted key -> (old, new) of the settings that differ."""
    was, now = _flat(old.model_dump(mode="json")), _flat(new.model_dump(mode="json"))
    return {key: (was.get(key), now.get(key)) for key in sorted({*was, *now}) if was.get(key) != now.get(key)}


def _flat(data: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
