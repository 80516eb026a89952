"""Evaluation: an agent on a frozen panel of tasks, as numbers and as trajectories."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rollenv.errors import RollenvError, did_you_mean
from rollenv.evaluation.records import Journal, write_episodes
from rollenv.evaluation.statistics import pass_at_k, pass_hat_k, wilson
from rollenv.files import write_atomically
from rollenv.rollout.controller import stream
from rollenv.rollout.groups import GroupRequest
from rollenv.rollout.play import Play
from rollenv.rollout.scheduler import Scheduler
from rollenv.tasks import Panel, TaskSet
from rollenv.trajectory import StopReason, Trajectory


@dataclass(frozen=True, slots=True)
class Summary:
    """What an evaluation found.

    `success_rate` counts over all episodes that were to be played: one that failed for good (`failed`) is no success.
    `ci95` is Wilson's interval; `mean_reward` and `mean_turns` are over the episodes that ended. `pass_at_k` is the
    chance that one of k samples of a task succeeds, `pass_hat_k` that all do, for k = 1, 2, 4, ... up to the samples
    that there are; `prompt_tokens` and `completion_tokens` are what servers counted.
    """

    env: str
    split: str
    tasks_sha256: str
    episodes: int
    failed: int
    success_rate: float
    ci95: tuple[float, float]
    mean_reward: float
    mean_turns: float
    pass_at_k: dict[int, float] = field(default_factory=dict)
    pass_hat_k: dict[int, float] = field(default_factory=dict)
    prompt_tokens: int = 0
    completion_tokens: int = 0


async def play_panel(
    play: Play,
    panel: Panel,
    seed: int,
    concurrency: int,
    samples: int = 1,
    max_attempts: int = 3,
    progress: Callable[[int], None] = lambda finished: None,
    journal: Journal | None = None,
) -> list[Trajectory]:
    """Plays every task of the panel `samples` times; the trajectories come in the panel's order.

    Args:
        seed: decides every episode's seed, together with its place on the panel.
        progress: gets the number of tasks finished so far.
        journal: has the tasks that are finished already, and gets the others as they finish.

    Raises:
        RollenvError: episodes fail and fail (see Scheduler).
    """
    played = {} if journal is None else dict(journal.finished)
    missing = [GroupRequest(i, task, samples, seed) for i, task in enumerate(panel.ids) if i not in played]
    scheduler = Scheduler(play, concurrency, max_attempts)
    try:
        async for group in stream(scheduler, missing):
            place = group.request.index
            played[place] = list(group.trajectories)
            if journal is not None:
                journal.add(place, played[place])
            progress(len(played))
    finally:
        await scheduler.close()
    return [trajectory for place in sorted(played) for trajectory in played[place]]


def summarize(env: str, panel: Panel, trajectories: Sequence[Trajectory]) -> Summary:
    """The figures of an evaluation of at least one episode."""
    ended = [t for t in trajectories if t.stop is not StopReason.FAILED]
    successes = sum(bool(t.success) for t in ended)
    at_k, hat_k = _passes(trajectories)
    return Summary(
        env=env,
        split=panel.split,
        tasks_sha256=panel.sha256,
        episodes=len(trajectories),
        failed=len(trajectories) - len(ended),
        success_rate=successes / len(trajectories),
        ci95=wilson(successes, len(trajectories)),
        mean_reward=sum(t.reward for t in ended) / max(1, len(ended)),
        mean_turns=sum(len(t.turns) for t in ended) / max(1, len(ended)),
        pass_at_k=at_k,
        pass_hat_k=hat_k,
        prompt_tokens=sum(t.info.get("usage", {}).get("prompt_tokens", 0) for t in trajectories),
        completion_tokens=sum(t.info.get("usage", {}).get("completion_tokens", 0) for t in trajectories),
    )


def _passes(trajectories: Sequence[Trajectory]) -> tuple[dict[int, float], dict[int, float]]:
    """pass@k and pass^k, means over the tasks."""
    found: dict[str, list[bool]] = {}
    for t in trajectories:
        found.setdefault(t.task, []).append(t.stop is not StopReason.FAILED and bool(t.success))
    tasks = [(len(outcomes), sum(outcomes)) for outcomes in found.values()]
    most = min(samples for samples, _ in tasks)
    at_k, hat_k = {}, {}
    for k in sorted({*(2**i for i in range(most.bit_length())), most}):
        at_k[k] = sum(pass_at_k(*task, k) for task in tasks) / len(tasks)
        hat_k[k] = sum(pass_hat_k(*task, k) for task in tasks) / len(tasks)
    return at_k, hat_k


@dataclass(frozen=True, slots=True)
class Part:
    """What an evaluation found on the tasks that have `value` in common. Counted as in `Summary`."""

    value: str
    episodes: int
    success_rate: float
    ci95: tuple[float, float]


def task_values(tasks: TaskSet, ids: Iterable[str], key: str) -> dict[str, str]:
    """Task id -> what its data say under `key`, as text.

    Raises:
        RollenvError: a task's data have no such key.
    """
    values = {}
    for task in ids:
        data = tasks.get(task).data
        known = list(data) if isinstance(data, Mapping) else []
        if key not in known:
            raise RollenvError(
                f"--by {key}: task '{task}' of '{tasks.name}' has no '{key}'{did_you_mean(key, known)} "
                f"(it has: {', '.join(known) or 'nothing to go by'})"
            )
        values[task] = str(data[key])
    return values


def parts_of(trajectories: Iterable[Trajectory], values: Mapping[str, str]) -> list[Part]:
    """An evaluation by the values of its tasks, in the values' order."""
    found: dict[str, list[bool]] = {}
    for t in trajectories:
        found.setdefault(values[t.task], []).append(t.stop is not StopReason.FAILED and bool(t.success))
    return [
        Part(value, len(each), sum(each) / len(each), wilson(sum(each), len(each)))
        for value, each in sorted(found.items())
    ]


def write_results(
    folder: Path, summary: Summary, trajectories: Iterable[Trajectory], facts: dict[str, Any] | None = None
) -> None:
    """Writes `summary.json`, `trajectories.jsonl` and `timings.jsonl` into `folder`, each atomically.

    Args:
        facts: further keys of the summary (which agent, which model, which seed).

    Raises:
        RollenvError: the folder cannot be written.
    """
    write_episodes(folder, list(trajectories), summary.tasks_sha256)
    write_atomically(folder / "summary.json", [json.dumps(asdict(summary) | (facts or {}), indent=2) + "\n"])
