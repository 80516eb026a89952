"""`rollenv simulate`: scenarios under a clock that jumps. Seconds in the tables are those of the scenario, not of this
machine."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollenv.cli.show import Bar, percent
from rollenv.errors import RollenvError

if TYPE_CHECKING:
    from rollenv.simulation.scenario import Row, Scenario
    from rollenv.simulation.split import Split

SHIPPED = ("agentic", "queue", "redundant", "reference", "replication")
"""What the help names; a test proves that these are the scenarios there are."""


def simulate(
    scenario: Annotated[
        str, typer.Argument(metavar="SCENARIO", help=f"A TOML file, or one that is there: {', '.join(SHIPPED)}.")
    ],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Settings of the scenario, such as rollout.eta=2; they win over its variants'.",
            show_default=False,
        ),
    ] = None,
    devices: Annotated[
        int | None, typer.Option("--devices", min=2, metavar="N", help="Find the best split of N devices instead.")
    ] = None,
    variant: Annotated[
        str | None, typer.Option("--variant", metavar="NAME", help="Only this one (--devices: split that one).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Simulate rollouts and training: time per step, use of devices, waste, staleness, the best split of devices."""
    from rollenv.simulation.scenario import load_scenario

    loaded = _only(load_scenario(scenario, settings or ()), variant)
    began = time.perf_counter()
    if devices is not None:
        _tell_splits(loaded, devices, as_json)
    else:
        _tell_rows(loaded, as_json)
    if not as_json:
        print(f"simulated in {time.perf_counter() - began:.1f} s")


def _only(scenario: Scenario, name: str | None) -> Scenario:
    from dataclasses import replace

    from rollenv.errors import did_you_mean

    if name is None:
        return scenario
    names = [variant.name for variant in scenario.variants]
    chosen = [variant for variant in scenario.variants if variant.name == name]
    if not chosen:
        raise RollenvError(f"no variant '{name}'{did_you_mean(name, names)} (there are: {', '.join(names)})")
    alone = replace(chosen[0], about=chosen[0].about.model_copy(update={"against": None}))
    return replace(scenario, variants=[alone])


# -- variants --------------------------------------------------------------------------------------------------


def _tell_rows(scenario: Scenario, as_json: bool) -> None:
    from rollenv.simulation.scenario import run_scenario

    with Bar("variants") as bar:
        rows = run_scenario(scenario, lambda done, total: bar.update(scenario.config.name, done, total))
    if as_json:
        print(json.dumps({"scenario": scenario.config.name, "variants": [row_figures(row) for row in rows]}, indent=1))
        return
    print(scenario.config.about.strip())
    _table(
        ["variant", "s/step", "published", "ratio", "published", "engine", "trainer", "slots", "waste", "staleness"],
        [_cells(row) for row in rows],
    )


def row_figures(row: Row) -> dict[str, Any]:
    """A variant's figures, JSON-serialisable."""
    from dataclasses import asdict

    about = row.variant.about
    return {
        "variant": row.variant.name,
        "seconds_per_step": row.outcome.mean_step,
        "ratio": row.ratio,
        "against": about.against,
        "published_ratio": about.published,
        "published_seconds": about.published_seconds,
        "at_least": about.at_least,
        "reached": row.reached,
        "above_longest_episode": row.above_bound,
        **asdict(row.outcome),
    }


def _cells(row: Row) -> list[str]:
    outcome, about = row.outcome, row.variant.about
    mark = {None: "", True: " ok", False: " SHORT"}[row.reached]
    return [
        row.variant.name or "-",
        _number(outcome.mean_step),
        _number(about.published_seconds),
        f"{row.ratio:.2f}x{mark}" if row.ratio is not None else mark.strip(),
        f"{about.published:.2f}x" if about.published else "",
        percent(outcome.engine),
        percent(outcome.trainer),
        percent(outcome.slots),
        percent(outcome.waste),
        staleness(outcome.staleness),
    ]


def staleness(groups: dict[int, int]) -> str:
    """Shares of trained groups by how many versions old they were.

    >>> staleness({0: 1, 1: 3})
    '0: 25%  1: 75%'
    """
    total = sum(groups.values())
    return "  ".join(f"{age}: {100 * n / total:.0f}%" for age, n in groups.items())


# -- splits ----------------------------------------------------------------------------------------------------


def _tell_splits(scenario: Scenario, devices: int, as_json: bool) -> None:
    from rollenv.simulation.split import best, sweep

    if len(scenario.variants) > 1:
        names = ", ".join(f"'{variant.name}'" for variant in scenario.variants)
        raise RollenvError(f"which variant's devices are to be split? Say --variant with one of {names}")
    config = scenario.variants[0].config
    with Bar("splits") as bar:
        splits = sweep(config, devices, lambda done, total: bar.update(f"{devices} devices", done, total))
    chosen = best(splits)
    share = chosen.outcome.best_share
    if as_json:
        figures = {
            "scenario": scenario.config.name,
            "devices": devices,
            "best_train": chosen.train,
            "closed_form_train": share * devices,
            "splits": [_split_figures(split) for split in splits],
        }
        print(json.dumps(figures, indent=1))
        return
    _table(
        ["train", "generate", "s/step", "bound", "engine", "trainer", "slots", "waste", "staleness"],
        [_split_cells(split, chosen) for split in splits],
    )
    print(f"best: {_words(chosen)}, {chosen.outcome.mean_step:.4g} s/step")
    print(f"closed form: train on beta* = {percent(share)} of the devices, {share * devices:.1f} of {devices}")


def _split_figures(split: Split) -> dict[str, Any]:
    from dataclasses import asdict

    return {"train": split.train, "seconds_per_step": split.outcome.mean_step, **asdict(split.outcome)}


def _split_cells(split: Split, chosen: Split) -> list[str]:
    outcome = split.outcome
    return [
        ("*" if split is chosen else "") + (str(split.train) if split.train else "by turns"),
        str(split.total - split.train),
        _number(outcome.mean_step),
        _number(outcome.bound),
        percent(outcome.engine),
        percent(outcome.trainer),
        percent(outcome.slots),
        percent(outcome.waste),
        staleness(outcome.staleness),
    ]


def _words(split: Split) -> str:
    if not split.train:
        return f"all {split.total} devices generate and train by turns"
    return f"{split.train} of {split.total} devices train, {split.total - split.train} generate"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _table(titles: list[str], rows: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for index, title in enumerate(titles):
        table.add_column(title, justify="right" if index else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:  # a table that is cut says less than one that is wider than the log
        console.width = 200
    console.print(table)
