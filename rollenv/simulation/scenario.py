"""Scenarios: TOML files, some of which come with rollenv; their variants, and what each gave and was to give."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollenv.config.load import parse_override, put, read_toml, resolve_key, validated
from rollenv.config.simulate import ScenarioConfig, VariantConfig
from rollenv.errors import RollenvError, did_you_mean
from rollenv.simulation.run import Outcome, simulate

FOLDER = Path(__file__).parent / "scenarios"


def shipped() -> list[str]:
    """The names of the scenarios that come with rollenv."""
    return sorted(file.stem for file in FOLDER.glob("*.toml"))


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to run a scenario: its whole configuration."""

    name: str
    about: VariantConfig
    config: ScenarioConfig


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario and its variants (one without a name when the file has none)."""

    config: ScenarioConfig
    variants: list[Variant]


def load_scenario(name: str, overrides: Iterable[str] = ()) -> Scenario:
    """Reads a scenario.

    Args:
        name: a TOML file, or the name of one that comes with rollenv.
        overrides: `key=value` words; they win over the variants' own settings.

    Raises:
        RollenvError: what is wrong, with the file and the key.
    """
    file = _file_of(name)
    data = {"name": file.stem, **read_toml(file)}
    if "replay" in data:  # a path in a file is meant from that file
        data["replay"] = str(file.parent / str(data["replay"]))
    words = [parse_override(word) for word in overrides]
    words = [(resolve_key(ScenarioConfig, key, ()), value) for key, value in words]
    where = str(name)
    config = validated(ScenarioConfig, _with(data, words), where)
    variants = [
        Variant(key, about, _variant(data, about, words, f"{where}, variant '{key}'"))
        for key, about in config.variants.items()
    ]
    return Scenario(config, variants or [Variant("", VariantConfig.model_validate({"loop": config.loop}), config)])


def _file_of(name: str) -> Path:
    if name in shipped():
        return FOLDER / f"{name}.toml"
    if not name.endswith(".toml") and not Path(name).exists():
        hint = did_you_mean(name, shipped()) or f": give a TOML file, or one of {', '.join(shipped())}"
        raise RollenvError(f"no scenario '{name}'{hint}")
    return Path(name)


def _with(data: dict[str, Any], settings: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    data = copy.deepcopy(data)
    for key, value in settings:
        put(data, key, value)
    return data


def _variant(data: dict[str, Any], about: VariantConfig, words: list[tuple[str, Any]], where: str) -> ScenarioConfig:
    own = [(resolve_key(ScenarioConfig, key, ()), value) for key, value in about.set.items()]
    plain = {key: value for key, value in data.items() if key != "variants"}
    return validated(ScenarioConfig, _with(plain, [("loop", about.loop), *own, *words]), where)


@dataclass(frozen=True, slots=True)
class Row:
    """A variant's outcome and, where it is compared, how many times faster it was than which other."""

    variant: Variant
    outcome: Outcome
    ratio: float | None

    @property
    def above_bound(self) -> float:
        """How much longer than the longest episode a step's rollout took, as a share."""
        longest = self.outcome.longest
        return max(self.outcome.rollout_seconds) / longest - 1 if longest else 0.0

    @property
    def reached(self) -> bool | None:
        """Whether it reached what it is to reach; None when nothing is demanded of it."""
        about = self.variant.about
        if about.at_least is None and about.within_bound is None:
            return None
        fast = about.at_least is None or (self.ratio is not None and self.ratio >= about.at_least)
        return fast and (about.within_bound is None or self.above_bound <= about.within_bound)


def run_scenario(scenario: Scenario, progress: Callable[[int, int], None] = lambda done, total: None) -> list[Row]:
    """Simulates all variants.

    Raises:
        RollenvError: episodes fail and fail.
    """
    outcomes: dict[str, Outcome] = {}
    for variant in scenario.variants:
        outcomes[variant.name] = simulate(variant.config)
        progress(len(outcomes), len(scenario.variants))
    return [_row(variant, outcomes) for variant in scenario.variants]


def _row(variant: Variant, outcomes: dict[str, Outcome]) -> Row:
    outcome, against = outcomes[variant.name], variant.about.against
    ratio = None if against is None else outcomes[against].mean_step / outcome.mean_step
    return Row(variant, outcome, ratio)
