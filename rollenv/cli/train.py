"""`rollenv train`: the main job. A run lives in a folder, can be interrupted at any time, and continues from there."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rollenv.cli import INTERRUPTED
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
from rollenv.cli.screen import TrainScreen
from rollenv.cli.settings import differences, dump_toml
from rollenv.cli.show import percent, with_interval
from rollenv.errors import RollenvError

if TYPE_CHECKING:
    from rollenv.config import TrainConfig
    from rollenv.rollout.timeline import Timeline
    from rollenv.trainers.checkpoint import Checkpoint
    from rollenv.trainers.parts import Parts

MAY_CHANGE = (
    "steps",
    "out",
    "env_url",
    "device",
    "threads",
    "rollout.env_executor",
    "rollout.env_workers",
    "rollout.quarantine_after",
    "eval.every",
    "checkpoint.every",
    "checkpoint.keep",
    "checkpoint.upload",
    "health.action",
    "runtime",
    "strategy.kind",
    "strategy.recompute",
    "strategy.reshard",
    "strategy.cpu_offload",
    "devices.policy",
    "devices.rollout",
    "devices.ranks",
    "devices.per_engine",
    "devices.share",
    "devices.offload",
    "ray.address",
    "ray.fake_gpus",
    "ray.head_seconds",
    "ray.logs",
    "trajectories",
    "track",
    "track_project",
)
"""Settings that a resumed run may change: none of them touches what a step computes, but for the schedule's length, and
for a collapse that comes."""

_BARE = "--resume="


def train(
    env: EnvOption = None,
    settings: Settings = None,
    env_url: EnvUrlOption = None,
    config: ConfigOption = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Folder of the run.")] = None,
    seed: SeedOption = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="seed|scratch|PATH|HUB", help="Policy to start from.")
    ] = None,
    steps: Annotated[int | None, typer.Option("--steps", min=1, help="Training steps.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the settings as TOML and stop.")] = False,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="[DIR]", help="Continue the run in DIR (or in --out).")
    ] = None,
    inject: InjectOption = None,
    timeline: TimelineOption = False,
    imports: ImportOption = None,
) -> None:
    """Train a policy: seed, rollouts, updates, evaluation on a fixed panel, checkpoints."""
    import_user_code(imports)
    from rollenv.config import TrainConfig, load_config

    options = {"seed": seed, "model": model, "steps": steps, "env_url": env_url}
    words = [*as_words(options), *inject_words(inject), *(settings or [])]
    env = env_of(env, env_url)
    if resume is not None:
        plan = _continued(_run_folder(resume, out), env, config, words)
    else:
        run = load_config(TrainConfig, env, config, [*as_words({"out": None if out is None else str(out)}), *words])
        env_of(run.env, run.env_url)  # a file may have said so
        plan = _Plan(run, _folder_of(run))
    if dry_run:
        print(dump_toml(plan.config), end="")
        return
    command = ["rollenv", "train", *(part for name in imports or () for part in ("--import", name))]
    _carry_out(plan, shlex.join([*command, "--resume", str(plan.folder)]), timeline)


def name_bare_resume(args: Sequence[str]) -> list[str]:
    """`--resume` without a folder, as an option that has a value (the run is then the one in `--out`).

    >>> name_bare_resume(["train", "--resume", "--out", "runs/a"])
    ['train', '--resume=', '--out', 'runs/a']
    """
    following = [*args[1:], "-"]
    return [
        _BARE if word == "--resume" and (after.startswith("-") or "=" in after) else word
        for word, after in zip(args, following, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Plan:
    """What to run, where, and the checkpoint to continue from with the model the run began with."""

    config: TrainConfig
    folder: Path
    checkpoint: Checkpoint | None = None
    model: str | None = None


# -- a new run ---------------------------------------------------------------------------------------------------


def _folder_of(config: TrainConfig) -> Path:
    from rollenv.registration import spec

    if config.out is None:
        return Path("runs") / f"{spec(config.env).name}-{time.strftime('%Y%m%d-%H%M%S')}"
    return Path(config.out)


def _check_free(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise RollenvError(f"--out {folder} is a file: give a folder")
    if any((folder / name).exists() for name in ("metrics.jsonl", "checkpoints")):
        raise RollenvError(f"--out {folder} already holds a run: continue it with --resume {folder}, or give another")


# -- a run that goes on ------------------------------------------------------------------------------------------


def _run_folder(resume: str, out: Path | None) -> Path:
    if not resume and out is None:
        raise RollenvError("--resume needs the run's folder: --resume DIR, or --out DIR --resume")
    folder = Path(resume) if resume else Path(str(out))
    if resume and out is not None and out.resolve() != folder.resolve():
        raise RollenvError(f"--resume {folder} and --out {out} are different folders: a run stays in its own")
    if not folder.is_dir():
        raise RollenvError(f"--resume {folder}: there is no such folder")
    return folder


def _continued(folder: Path, env: str | None, file: Path | None, words: Sequence[str]) -> _Plan:
    from rollenv.config import TrainConfig

    checkpoint = _newest_whole(folder)
    if checkpoint is None:
        raise RollenvError(f"'{folder}' holds no checkpoint to continue from: start the run anew with another --out")
    state = checkpoint.state()
    old = TrainConfig.model_validate(state["config"]).model_copy(update={"out": str(folder)})
    env_of(env or old.env, _url_of(old, file, words))  # it may be known by its server alone
    new = _with_changes(old, env, file, words)
    for key, (was, now) in differences(old, new).items():
        if key not in MAY_CHANGE:
            raise RollenvError(
                f"the run in '{folder}' has {key}={was}, not {now}: a resumed run keeps its settings "
                f"(but for {', '.join(key for key in MAY_CHANGE if key != 'out')}); start a new one with --out"
            )
    if new.steps < checkpoint.step:
        raise RollenvError(f"the run in '{folder}' is at step {checkpoint.step} already, beyond steps={new.steps}")
    return _Plan(new, folder, checkpoint, str(state["model"]))


def _url_of(old: TrainConfig, file: Path | None, words: Sequence[str]) -> str | None:
    """Where the environment is played from now on: as a word says, or the file that is given now, or as before."""
    from rollenv.config.load import parse_override, read_toml

    before = {"env_url": old.env_url} if file is None else read_toml(file)
    url = (before | dict(map(parse_override, words))).get("env_url")
    return None if url in (None, "none") else str(url)


def _with_changes(old: TrainConfig, env: str | None, file: Path | None, words: Sequence[str]) -> TrainConfig:
    """The old settings with those that were given now."""
    from rollenv.config import TrainConfig, load_config
    from rollenv.config.load import apply_words, parse_override
    from rollenv.registration import keyword_names, spec

    if file is not None:
        given = load_config(TrainConfig, env, file, words)
        return given.model_copy(update={"out": old.out})
    data = old.model_dump(mode="json")
    env_spec = spec(env or old.env)
    data["env"] = env_spec.id
    apply_words(TrainConfig, data, map(parse_override, words), keyword_names(env_spec.load()))
    return _validated(data)


def _validated(data: dict[str, Any]) -> TrainConfig:
    from rollenv.config import TrainConfig
    from rollenv.config.load import validated

    return validated(TrainConfig, data, "configuration")


def _newest_whole(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that can be read, if there is one; torn ones are passed over with a word on stderr."""
    from rollenv.trainers import checkpoint

    for candidate in reversed(checkpoint.found(folder)):
        try:
            candidate.state()
            candidate.rollouts()
            candidate.tensors()
        except RollenvError as error:
            print(f"passed over: {error}", file=sys.stderr)
            continue
        return candidate
    return None


# -- running -----------------------------------------------------------------------------------------------------


def _carry_out(plan: _Plan, continue_with: str, draw: bool = False) -> None:
    from rollenv.files import write_atomically
    from rollenv.registration import spec
    from rollenv.trainers.checkpoint import found
    from rollenv.trainers.run import Interrupted

    folder = plan.folder
    if plan.checkpoint is None:
        _check_free(folder)
    env_spec = spec(plan.config.env)
    config = plan.config.model_copy(update={"out": str(folder)})
    model = plan.model or resolve_model(config, env_spec, folder)
    start = plan.checkpoint.step if plan.checkpoint else 0
    with _sigterm_as_ctrl_c(), TrainScreen(config, start) as screen, _drawn(folder, start, draw) as timeline:

        def begin() -> None:
            write_atomically(folder / "config.toml", [dump_toml(config)])
            screen.begin(f"{env_spec.id} in {folder}, from {model}")

        try:
            asyncio.run(_train_on(config, model, plan.checkpoint, screen, timeline, begin))
        except Interrupted as stopped:
            screen.close()
            print(f"interrupted at step {stopped.step}; continue with: {continue_with}", flush=True)
            raise typer.Exit(INTERRUPTED) from None
        except KeyboardInterrupt:
            screen.close()
            goes_on = f"; continue with: {continue_with}" if found(folder) else " before training began"
            print(f"interrupted{goes_on}", file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from None
    _tell_result(folder)
    if config.rollout.extra_groups or config.rollout.extra_samples:
        _tell_bias(folder)


async def _train_on(
    config: TrainConfig,
    model: str,
    checkpoint: Checkpoint | None,
    screen: TrainScreen,
    timeline: Timeline | None,
    begin: Callable[[], None],
) -> None:
    """Trains to the end; when ranks of a cluster die, again from the last checkpoint. `begin` is called when everything
    is made and nothing has been refused."""
    from rollenv.cluster.runtime import WorkerDied
    from rollenv.trainers.learner import LearnerDied
    from rollenv.trainers.run import TrainRun

    for n, wait in enumerate(_restarts()):
        try:
            async with _elsewhere(config, model, checkpoint, timeline) as parts:
                run = TrainRun(config, model, checkpoint, screen.on_figures, timeline, parts)
                begin()
                await _train(run, screen)
            return
        except (LearnerDied, WorkerDied) as died:
            if wait is None or (n == 0 and isinstance(died, WorkerDied)):  # in the beginning it is no accident
                raise
            checkpoint = _newest_whole(Path(str(config.out)))
            print(f"{died}: now, by itself, in {wait:.0f} s", file=sys.stderr, flush=True)
            await asyncio.sleep(wait)


def _restarts() -> Iterator[float | None]:
    """The seconds to wait before each restart of a learner that died; None in the end."""
    from rollenv.cluster.supervision import Backoff

    backoff = Backoff()
    wait: float | None = 0.0
    while wait is not None:
        wait = backoff.next(time.monotonic())
        yield wait


@contextlib.asynccontextmanager
async def _elsewhere(
    config: TrainConfig, model: str, checkpoint: Checkpoint | None, timeline: Timeline | None
) -> AsyncIterator[Parts | None]:
    """What lives in workers of a cluster, when the settings say so; the plan is printed before they start."""
    if config.runtime == "local":
        yield None
        return
    from rollenv.cluster.ray_runtime import RayRuntime
    from rollenv.trainers.learner import TrainJob
    from rollenv.trainers.parts import cluster_parts, devices_here, planned
    from rollenv.trainers.world import algorithms

    planned(config, None if config.ray.address else devices_here(config.ray.fake_gpus))  # before anything starts
    runtime = RayRuntime(config.ray)
    try:
        laid = planned(config, runtime.n_devices)
        for line in (f"{runtime.n_devices} devices, {laid.layout}", *laid.lines(runtime.nodes)):
            print(line, flush=True)
        runtime.reserve(laid.devices)
        yield await cluster_parts(TrainJob(config, model, checkpoint, algorithms(config)), runtime, laid, timeline)
    finally:
        await runtime.close()


@contextlib.contextmanager
def _drawn(folder: Path, start: int, wanted: bool) -> Iterator[Timeline | None]:
    """The run's timeline when it is wanted. One that goes on has a file of its own: clocks begin anew."""
    if not wanted:
        yield None
        return
    from rollenv.rollout.timeline import Timeline

    timeline = Timeline(folder / (f"timeline-{start:06d}.json" if start else "timeline.json"))
    try:
        yield timeline
    finally:
        timeline.close()
        if timeline.failure:
            print(timeline.failure, file=sys.stderr)


@contextlib.contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    """While a run starts there is nothing to keep, but workers to end: SIGTERM does what Ctrl-C does."""

    def stop(number: int, frame: Any) -> None:
        interrupt = signal.getsignal(signal.SIGINT)
        if not callable(interrupt):  # whoever started us has switched Ctrl-C off
            raise KeyboardInterrupt
        interrupt(signal.SIGINT, frame)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


async def _train(run: Any, screen: TrainScreen) -> None:
    """Trains. The first SIGINT or SIGTERM asks the run to stop at its last boundary, the second ends the process."""
    loop = asyncio.get_running_loop()
    asked = False

    def stop(number: int, frame: object) -> None:
        nonlocal asked
        if asked:
            screen.close()
            os._exit(INTERRUPTED)
        asked = True
        loop.call_soon_threadsafe(begin_to_stop)  # nothing is printed here: a signal may have come in mid-print

    def begin_to_stop() -> None:
        screen.say("stopping: writing a checkpoint (once more to leave at once)")
        run.request_stop()

    # Not the loop's own handlers: those would wait for the training step that blocks it.
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        await run.train()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tell_result(folder: Path) -> None:
    """Where the run began, where it ended, and where its last checkpoint is."""
    from rollenv.trainers import checkpoint
    from rollenv.trainers.metrics import read_metrics

    panels = [line for line in read_metrics(folder) if "eval_success" in line]
    newest = checkpoint.newest(folder)
    if panels:
        first, last = panels[0], panels[-1]
        now = with_interval(last["eval_success"], last["eval_ci95"])
        print(f"success  {percent(first['eval_success'])} (step {first['step']}) -> {now} (step {last['step']})")
        print(f"score    {first['eval_reward']:.3f} -> {last['eval_reward']:.3f}")
    if newest is not None:
        print(f"checkpoint  {newest.folder}  (rollenv eval --model {newest.model})", flush=True)


def _tell_bias(folder: Path) -> None:
    """What redundant rollouts chose: attempts dispatched against episodes trained."""
    print("trained of dispatched, by environment, turns, tokens and the task's running success:")
    for row in json.loads((folder / "bias.json").read_text()):
        counts = f"{row['trained']:>7} of {row['dispatched']:<7}"
        print(f"  {row['by']:<11}{row['bin']:<18}{counts}{percent(row['share']):>7}")
