"""`rollenv imitate`: a first policy, from the episodes of an agent that is a program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollenv.cli.options import ConfigOption, EnvOption, ImportOption, SeedOption, Settings, as_words, import_user_code
from rollenv.cli.settings import dump_toml
from rollenv.cli.show import Bar, rate, with_interval
from rollenv.errors import RollenvError

if TYPE_CHECKING:
    from rollenv.config import ExpertConfig, ImitateConfig


def imitate(
    env: EnvOption = None,
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Folder of the result.")] = None,
    episodes: Annotated[int | None, typer.Option("--episodes", "-n", min=1, help="Episodes to imitate.")] = None,
    agent: Annotated[str | None, typer.Option("--agent", metavar="NAME", help="Who is imitated: oracle, ...")] = None,
    noise: Annotated[
        float | None, typer.Option("--noise", min=0.0, max=1.0, help="Share of mistakes that agent makes.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="scratch|PATH|HUB", help="Model to start from.")
    ] = None,
    seed: SeedOption = None,
    config: ConfigOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the settings as TOML and stop.")] = False,
    imports: ImportOption = None,
) -> None:
    """Teach a model to act like an agent that is a program: a warm start for training."""
    import_user_code(imports)
    from rollenv.config import ImitateConfig, load_config

    options = {
        "out": None if out is None else str(out),
        "episodes": episodes,
        "expert.name": agent,
        "expert.noise": noise,
        "model": model,
        "seed": seed,
    }
    words = [*as_words(options), *(settings or [])]
    run = load_config(ImitateConfig, env, config, words)
    if run.expert.name != load_config(ImitateConfig, run.env, config).expert.name:
        run = run.model_copy(update={"expert": _only_given(words)})  # what was set belongs to the other expert
    if dry_run:
        print(dump_toml(run), end="")
        return
    if run.out is None:
        raise RollenvError("say where the model goes: --out DIR")
    taken = [name for name in ("model", "config.toml", "metrics.jsonl") if (Path(run.out) / name).exists()]
    if taken:
        raise RollenvError(f"--out {run.out} already holds a '{taken[0]}': give another folder, or remove that one")
    figures = carry_out(run)
    print(f"imitated {figures['episodes']} episodes (expert: {100 * figures['expert_success']:.1f}% success)")
    print(f"success  {with_interval(figures['eval_success'], figures['eval_ci95'])}")
    print(f"score    {figures['eval_reward']:.4f}")
    print(f"model    {Path(run.out) / 'model'}")


def _only_given(words: list[str]) -> ExpertConfig:
    """The expert that `words` describe, without the environment's settings."""
    from rollenv.config import ExpertConfig, parse_override

    given = (parse_override(word) for word in words)
    return ExpertConfig(**{key.removeprefix("expert."): value for key, value in given if key.startswith("expert.")})


def carry_out(config: ImitateConfig) -> dict[str, Any]:
    """Runs the recipe with bars, and leaves `model/`, `summary.json` and `config.toml` in its folder."""
    from rollenv.files import write_atomically
    from rollenv.trainers.recipe import ImitationRun

    assert config.out is not None

    with Bar("episodes") as bar:

        def on_figures(kind: str, figures: dict[str, Any]) -> None:
            if kind == "play":
                bar.update(f"playing {config.expert.name}", figures["step"], figures["total"])
            elif kind == "learn":
                note = f"loss {figures['loss']:.3f}  {rate(figures['tokens_per_second'])} tokens/s"
                bar.update("learning", figures["step"], figures["total"], note, unit="updates")

        figures: dict[str, Any] = ImitationRun(config, on_figures).run()
    folder = Path(config.out)
    write_atomically(folder / "config.toml", [dump_toml(config)])
    write_atomically(folder / "summary.json", [json.dumps(figures, indent=2) + "\n"])
    return figures
