"""`rollenv audit`: whether an environment's tasks take the solution, and nothing but the solution."""

from __future__ import annotations

import functools
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from rollenv.cli.options import ConfigOption, EnvOption, ImportOption, Settings, import_user_code
from rollenv.cli.show import Bar

if TYPE_CHECKING:
    from rollenv.evaluation.audit import Finding


def audit(
    env: EnvOption = None,
    settings: Settings = None,
    tasks: Annotated[int, typer.Option("--tasks", "-n", min=1, help="Tasks: the first of the split.")] = 4,
    split: Annotated[
        str | None, typer.Option("--split", help="Which tasks (default: those that the environment is measured on).")
    ] = None,
    probe: Annotated[list[str] | None, typer.Option("--probe", metavar="NAME", help="Only this one.")] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, help="Episodes at a time.")] = 4,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    config: ConfigOption = None,
    imports: ImportOption = None,
) -> None:
    """Play cheats and the solution on some tasks: a cheat must earn 0, the solution 1 (exit code 1: it is not so)."""
    import_user_code(imports)
    from rollenv.config import TrainConfig, load_config
    from rollenv.evaluation.audit import audit as play_all
    from rollenv.evaluation.audit import probe_names
    from rollenv.registration import make, spec

    run = load_config(TrainConfig, env, config, settings or [])
    env_spec = spec(run.env)
    first = make(env_spec, **run.env_args)
    try:
        names = probe_names(first, probe or ())
        every = first.tasks.ids(split or env_spec.eval_split)
        ids = first.tasks.panel(split or env_spec.eval_split, min(tasks, len(every))).ids
    finally:
        first.close()
    findings = []
    with Bar("episodes") as bar:
        for found in play_all(functools.partial(make, env_spec, **run.env_args), ids, names, concurrency):
            findings.append(found)
            bar.update(f"{env_spec.name} audit", len(findings), len(ids) * len(names))
    if as_json:
        print(json.dumps([asdict(found) | {"right": found.right} for found in findings], indent=1))
    else:
        _tell(findings)
    if not all(found.right for found in findings):
        raise typer.Exit(1)


def _tell(findings: list[Finding]) -> None:
    for name in dict.fromkeys(found.probe for found in findings):
        of_it = [found for found in findings if found.probe == name]
        wrong = [found for found in of_it if not found.right]
        must = "must earn 1" if of_it[0].solves else "must earn 0"
        said = "ok" if not wrong else f"WRONG on {len(wrong)}: {', '.join(found.task for found in wrong[:5])}"
        print(f"{name:<16} {must}   {len(of_it) - len(wrong)}/{len(of_it)}   {said}")
