"""`rollenv eval`: how good an agent or a model is on a fixed panel of tasks."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollenv.cli.eval_players import Order, Plan, Scene, player_of
from rollenv.cli.models import resolve_model
from rollenv.cli.options import (
    ConfigOption,
    EnvOption,
    EnvUrlOption,
    ImportOption,
    InjectOption,
    SeedOption,
    Settings,
    TimelineOption,
    as_words,
    env_of,
    import_user_code,
    inject_words,
)
from rollenv.cli.show import Bar, percent, with_interval
from rollenv.errors import RollenvError

if TYPE_CHECKING:
    from rollenv.evaluation.evaluate import Part, Summary
    from rollenv.evaluation.records import Journal
    from rollenv.rollout.env_pool import Environments
    from rollenv.tasks import Panel
    from rollenv.trajectory import Trajectory

DEFAULT_EPISODES = 200
READ_HERE = ("env", "env_url", "env_args.", "agent.", "sampling.", "rollout.", "vllm.", "inject.", "device", "threads")
NOT_READ = (
    "sampling.temperature",
    "rollout.groups",
    "rollout.group_size",
    "rollout.eta",
    "rollout.filter",
    "rollout.quarantine_after",
)
"""Settings of a training run that mean something, or nothing, to an evaluation."""


def evaluate(
    env: EnvOption = None,
    settings: Settings = None,
    env_url: EnvUrlOption = None,
    agent: Annotated[str | None, typer.Option("--agent", metavar="NAME", help="oracle, random, llm, ...")] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="seed|PATH|HUB", help="A model to act: implies --agent llm.")
    ] = None,
    base_url: Annotated[
        str | None,
        typer.Option("--base-url", metavar="URL", help="--model is a name on this OpenAI-compatible server."),
    ] = None,
    requests_per_minute: Annotated[
        float, typer.Option("--requests-per-minute", min=0.0, help="At most so many to --base-url; 0: no bound.")
    ] = 0.0,
    price: Annotated[
        str | None, typer.Option("--price", metavar="IN,OUT", help="Dollars per million tokens of that model.")
    ] = None,
    episodes: Annotated[
        int | None, typer.Option("--episodes", "-n", min=1, help="Tasks: the first of the split (default: 200).")
    ] = None,
    split: Annotated[
        str | None, typer.Option("--split", help="Which tasks (default: those that the environment is measured on).")
    ] = None,
    panel: Annotated[
        str | None,
        typer.Option("--panel", metavar="SPLIT:N@SHA", help="A frozen panel, as another evaluation has named it."),
    ] = None,
    samples: Annotated[int, typer.Option("--samples", min=1, help="Episodes per task.")] = 1,
    temperature: Annotated[
        float | None,
        typer.Option("--temperature", min=0.0, help="0: the most probable token (default: as while training)."),
    ] = None,
    seed: SeedOption = None,
    by: Annotated[
        str | None, typer.Option("--by", metavar="KEY", help="Also per value of what tasks say under KEY: type, ...")
    ] = None,
    concurrency: Annotated[int | None, typer.Option("--concurrency", min=1, help="Episodes in flight.")] = None,
    engine: Annotated[
        str | None, typer.Option("--engine", metavar="torch|vllm", help="What generates, where a model acts.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Write summary.json and trajectories.jsonl there.")
    ] = None,
    config: ConfigOption = None,
    inject: InjectOption = None,
    timeline: TimelineOption = False,
    imports: ImportOption = None,
) -> None:
    """Measure an agent or a model: success rate with its 95% confidence interval, mean score, mean turns."""
    import_user_code(imports)
    if out is not None and out.exists() and not out.is_dir():
        raise RollenvError(f"--out {out} is a file: give a folder")
    if timeline and out is None:
        raise RollenvError("--timeline needs a folder to write timeline.json into: say --out DIR")
    if requests_per_minute and base_url is None:
        raise RollenvError("--requests-per-minute bounds what --base-url is asked: say --base-url URL")
    plan = _planned(
        env,
        [*inject_words(inject), *(settings or [])],
        config,
        agent,
        model,
        {"rollout.concurrency": concurrency, "rollout.engine": engine, "env_url": env_url},
        None if base_url is None else {"base_url": base_url, "requests_per_minute": requests_per_minute},
    )
    prices = _prices(price)
    temperature = plan.config.eval.temperature if temperature is None else temperature
    split, episodes, sha256 = _frozen(panel, split, episodes)
    order = Order(split or plan.spec.eval_split, episodes, samples, temperature, seed or 0, out, by, timeline, sha256)
    try:
        summary, parts, failure = asyncio.run(_carry_out(plan, order))
    except KeyboardInterrupt:
        if out is not None:
            print("the same command goes on where it stands", file=sys.stderr)
        raise
    _tell(plan, samples, summary, parts, failure, prices)


def _frozen(panel: str | None, split: str | None, episodes: int | None) -> tuple[str | None, int | None, str]:
    """Split, number of tasks and what their hash begins with: of `SPLIT[:N]@SHA`, or of the two other options."""
    if panel is None:
        return split, episodes, ""
    if split is not None or episodes is not None:
        raise RollenvError(f"--panel {panel} says which tasks: leave out --split and --episodes")
    found = re.fullmatch(r"([^:@]+)(?::([1-9][0-9]*))?@([0-9a-f]{8,64})", panel)
    if found is None:
        raise RollenvError(f"--panel {panel}: say SPLIT:N@SHA, as evaluations name it, such as test:200@9f31c2ab")
    return found[1], None if found[2] is None else int(found[2]), found[3]


def _prices(text: str | None) -> tuple[float, float] | None:
    """Dollars per million tokens read and written."""
    if text is None:
        return None
    try:
        read, wrote = map(float, text.split(","))
    except ValueError:
        raise RollenvError(f"--price {text}: say IN,OUT, dollars per million tokens, such as 0.15,0.60") from None
    return read, wrote


def _planned(
    env: str | None,
    settings: Sequence[str],
    file: Path | None,
    agent: str | None,
    model: str | None,
    options: dict[str, Any],
    server: dict[str, Any] | None,
) -> Plan:
    from rollenv.agents import make_agent
    from rollenv.agents.base import ChatAgent
    from rollenv.agents.harness import Harness
    from rollenv.config import AgentConfig, TrainConfig, load_config, parse_override
    from rollenv.config.load import resolve_key
    from rollenv.inference.endpoint import Endpoint
    from rollenv.registration import keyword_names, spec

    words = [*as_words(options), *settings]
    config = load_config(TrainConfig, env_of(env, options["env_url"]), file, words)
    env_of(config.env, config.env_url)  # a file may have said so
    env_spec = spec(config.env)
    for word in words:
        key = resolve_key(TrainConfig, parse_override(word)[0], keyword_names(env_spec.load()))
        if key in NOT_READ or not key.startswith(READ_HERE):
            raise RollenvError(f"'{key}' means nothing to an evaluation: leave it out ('rollenv eval --help')")
    name = agent or config.agent.name
    if agent is None or agent == config.agent.name:
        arguments = config.agent.arguments
    else:  # the environment's own settings are those of another agent
        given = (parse_override(word) for word in settings)
        own = {key.removeprefix("agent."): value for key, value in given if key.startswith("agent.")}
        arguments = AgentConfig(**own).arguments
    if name == "chat-completions" and server is not None:  # it asks servers by itself, with their own tool calls
        return Plan(config, env_spec, name, {**arguments, **server, "model": model or "default"}, None)
    acting = make_agent(env_spec, name, arguments)
    if isinstance(acting, Harness) and server is not None:
        raise RollenvError(f"agent '{name}' is recorded token by token, which takes a model here: leave out --base-url")
    if not isinstance(acting, ChatAgent | Harness):
        if model is not None or server is not None:
            raise RollenvError(f"agent '{name}' is a program: leave out --model and --base-url, or say --agent llm")
        return Plan(config, env_spec, name, arguments, None)
    if server is not None:
        named = model or "default"
        return Plan(config, env_spec, name, arguments, named, Endpoint(model=named, **server))
    path = resolve_model(config.model_copy(update={"model": model or config.model}), env_spec, None)
    return Plan(config, env_spec, name, arguments, path)


async def _carry_out(plan: Plan, order: Order) -> tuple[Summary, list[Part], str]:
    """Plays the panel, writes the results, and returns them with what the first failure was ("" for none)."""
    from rollenv.evaluation.evaluate import play_panel, task_values
    from rollenv.rollout.setup import env_pool
    from rollenv.rollout.timeline import Timeline
    from rollenv.seeding import derive_seed

    config = plan.config
    scene = Scene.of(plan)
    pool = env_pool(plan.spec, scene.env_args, scene.rollout)
    close: Any = None
    timeline = Timeline(order.out / "timeline.json") if order.timeline and order.out is not None else None
    try:
        panel = _panel(pool, order)
        values = None if order.by is None else task_values(pool.tasks, panel.ids, order.by)
        play, close = player_of(plan, order, scene, pool, timeline)
        with Bar("episodes") as bar, _journal(plan, order, panel, scene) as journal:
            trajectories = await play_panel(
                play,
                panel,
                derive_seed(order.seed, "eval"),
                config.rollout.concurrency,
                order.samples,
                config.rollout.max_attempts,
                lambda done: bar.update(f"{plan.spec.name} {order.split}", done, len(panel.ids), unit="tasks"),
                journal,
            )
            summary, parts, failure = _found(plan, order, panel, trajectories, values)
            if journal is not None:
                journal.remove()
    finally:
        if close is not None:
            await close()
        pool.close()
        if timeline is not None:
            timeline.close()
            if timeline.failure:
                print(timeline.failure, file=sys.stderr)
    if summary.failed == summary.episodes:
        raise RollenvError(f"all {summary.episodes} episodes failed; the first with {failure}")
    return summary, parts, failure


def _found(
    plan: Plan, order: Order, panel: Panel, trajectories: Sequence[Trajectory], values: dict[str, str] | None
) -> tuple[Summary, list[Part], str]:
    """Sums the episodes up, and writes the results where they are wanted, if any episode ended."""
    from rollenv.evaluation.evaluate import parts_of, summarize, write_results

    summary = summarize(plan.spec.id, panel, trajectories)
    parts = [] if values is None or summary.failed == summary.episodes else parts_of(trajectories, values)
    if order.out is not None and summary.failed < summary.episodes:
        by = {} if order.by is None else {"by": {order.by: [asdict(part) for part in parts]}}
        write_results(order.out, summary, trajectories, _facts(plan, order) | by)
    return summary, parts, _first_failure(trajectories)


@contextlib.contextmanager
def _journal(plan: Plan, order: Order, panel: Panel, scene: Scene) -> Iterator[Journal | None]:
    """What has been finished so far, where results are wanted."""
    from rollenv.evaluation.records import Journal
    from rollenv.files import stamp

    if order.out is None:
        yield None
        return
    config = plan.config
    said = {"env": plan.spec.id, "split": panel.split, "tasks_sha256": panel.sha256} | _facts(plan, order)
    if plan.model is not None and Path(plan.model).is_dir():
        said["files of the model"] = stamp(Path(plan.model))
    if (program := getattr(scene.agent, "sha256", None)) is not None:
        said["sha256 of the agent"] = program
    said["sampling"] = config.sampling.model_dump(mode="json", exclude={"temperature"})
    said["rollout"] = config.rollout.model_dump(mode="json", exclude={"concurrency"})
    with Journal.opened(order.out, said) as journal:
        yield journal


def _panel(pool: Environments, order: Order) -> Panel:
    tasks = pool.tasks
    default = min(DEFAULT_EPISODES, len(tasks.ids(order.split)))
    panel = tasks.panel(order.split, default if order.episodes is None else order.episodes)
    if not panel.sha256.startswith(order.sha256):
        raise RollenvError(
            f"--panel: the {len(panel.ids)} tasks of split '{order.split}' are not those any more, here their hash is "
            f"{panel.sha256[:12]}, not {order.sha256[:12]}: other data, other arguments, or another version of them"
        )
    return panel


def _facts(plan: Plan, order: Order) -> dict[str, Any]:
    who = {"agent": plan.agent_name, "agent_args": plan.agent, "model": plan.model, "env_args": plan.config.env_args}
    who |= {} if plan.endpoint is None else {"base_url": plan.endpoint.base_url}
    injected = {"inject": plan.config.inject.model_dump()} if plan.config.inject.active else {}
    return who | {"seed": order.seed, "samples": order.samples, "temperature": order.temperature} | injected


def _first_failure(trajectories: Sequence[Trajectory]) -> str:
    failure = next((t.failure for t in trajectories if t.failure is not None), None)
    return f"{failure.where} {failure.kind}: {failure.message}" if failure else ""


def _cost(summary: Summary, prices: tuple[float, float] | None) -> str:
    if prices is None:
        return ""
    return f": ${(prices[0] * summary.prompt_tokens + prices[1] * summary.completion_tokens) / 1e6:.4f}"


def _tell(
    plan: Plan, samples: int, summary: Summary, parts: Sequence[Part], failure: str, prices: tuple[float, float] | None
) -> None:
    who = f"{plan.agent_name} with {plan.model}" if plan.model else plan.agent_name
    print(f"{plan.spec.id}, {summary.split} split, {who}: {summary.episodes} episodes")
    print(f"panel    {summary.split}:{summary.episodes // samples}@{summary.tasks_sha256[:12]}")
    print(f"success  {with_interval(summary.success_rate, summary.ci95)}")
    width = max((len(part.value) for part in parts), default=0)
    for part in parts:
        rate = with_interval(part.success_rate, part.ci95)
        print(f"  {part.value:{width}}  {rate}  {part.episodes} episodes")
    print(f"score    {summary.mean_reward:.4f}")
    print(f"turns    {summary.mean_turns:.2f}")
    for k in summary.pass_at_k:
        if k > 1:
            at_k, hat_k = percent(summary.pass_at_k[k]), percent(summary.pass_hat_k[k])
            print(f"pass@{k}   {at_k} (one of {k} samples succeeds), pass^{k} {hat_k} (all do)")
    if summary.prompt_tokens or summary.completion_tokens:
        print(f"tokens   {summary.prompt_tokens} read, {summary.completion_tokens} written{_cost(summary, prices)}")
    if summary.failed:
        print(f"failed   {percent(summary.failed / summary.episodes)} (no success); the first with {failure}")
