"""`rollenv rescore`: what a stored evaluation is worth under the environment as it is now."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollenv.cli.options import ImportOption, Settings, import_user_code
from rollenv.cli.show import Bar, with_interval
from rollenv.errors import RollenvError

if TYPE_CHECKING:
    from rollenv.evaluation.evaluate import Summary
    from rollenv.evaluation.rescore import Rescored

READ_HERE = ("env_args.", "rollout.")
FIGURES = ("split", "by", "tasks_sha256", "env_args")
"""Of a stored summary, what is found anew; the other facts (who played, with which seed) are taken over."""


def rescore(
    run: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that 'rollenv eval --out' wrote.")],
    settings: Settings = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Write the evaluation as it is now there.")
    ] = None,
    imports: ImportOption = None,
) -> None:
    """Play the actions of a stored evaluation again and tell what they earn now, after a change of rewards or rules."""
    from rollenv.evaluation.results import read_results

    import_user_code(imports)
    if out is not None and out.resolve() == run.resolve():
        raise RollenvError(f"--out {out} is the evaluation itself, which stays as it is: give another folder")
    said = read_results(run).summary
    found, now = asyncio.run(_carry_out(run, said, settings or [], out))
    _tell(said, found, now)


async def _carry_out(
    run: Path, said: dict[str, Any], settings: list[str], out: Path | None
) -> tuple[Rescored, Summary]:
    from rollenv.config import TrainConfig, load_config, parse_override
    from rollenv.config.load import resolve_key
    from rollenv.evaluation.evaluate import parts_of, summarize, task_values, write_results
    from rollenv.evaluation.rescore import panel_of, rescore, stored_episodes
    from rollenv.registration import keyword_names, spec
    from rollenv.rollout.setup import env_pool, episode_limits

    env_spec = spec(str(said.get("env")))
    for word in settings:
        key = resolve_key(TrainConfig, parse_override(word)[0], keyword_names(env_spec.load()))
        if not key.startswith(READ_HERE):
            raise RollenvError(f"'{key}' means nothing to episodes that are played again: leave it out")
    config = load_config(TrainConfig, env_spec.id, None, settings)
    arguments = {**said.get("env_args", {}), **config.env_args}
    pool = env_pool(env_spec, arguments, config.rollout)
    try:
        episodes = stored_episodes(run)
        panel = panel_of(pool.tasks, str(said.get("split")), episodes)
        with Bar("episodes") as bar:
            found = await rescore(
                pool,
                env_spec.id,
                episodes,
                episode_limits(config.rollout, env_spec),
                config.rollout.concurrency,
                config.rollout.max_attempts,
                lambda done: bar.update(env_spec.name, done, len(episodes), unit="episodes"),
            )
        summary = summarize(env_spec.id, panel, found.after)
        if out is not None:
            facts = {key: value for key, value in said.items() if key not in asdict(summary) and key not in FIGURES}
            by = {key: task_values(pool.tasks, panel.ids, key) for key in said.get("by", {})}
            parts = {key: [asdict(part) for part in parts_of(found.after, values)] for key, values in by.items()}
            facts |= {"env_args": arguments, "rescored_from": said["tasks_sha256"]} | ({"by": parts} if by else {})
            write_results(out, summary, found.after, facts)
    finally:
        pool.close()
    return found, summary


def _tell(said: dict[str, Any], found: Rescored, now: Summary) -> None:
    print(f"{now.env}, {now.split} split: {now.episodes} episodes played again")
    print(
        f"success  {with_interval(said['success_rate'], said['ci95'])} -> {with_interval(now.success_rate, now.ci95)}"
    )
    print(f"score    {said['mean_reward']:.4f} -> {now.mean_reward:.4f}")
    print(f"changed  the reward of {found.rewards} episodes, the success of {found.successes}")
    if now.tasks_sha256 != said["tasks_sha256"]:
        print(f"panel    {said['tasks_sha256'][:12]} -> {now.tasks_sha256[:12]}: the tasks are others than they were")
    if found.otherwise:
        first, turn = found.otherwise[0]
        print(
            f"differs  the environment said something else in {len(found.otherwise)} episodes, where the actions may "
            f"not mean what they meant; the first: task '{first.task}', turn {turn + 1}"
        )
    if now.failed:
        print(f"failed   {now.failed} episodes, those among them that had failed before (no success)")
