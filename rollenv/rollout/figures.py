"""The figures of a training step that come from its rollouts: what was played, how long it took, what went to waste.

Pure functions over batches and ledgers. `FIGURES` says what each figure means; it is the one place that does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from rollenv.rollout.buffer import Batch
from rollenv.rollout.groups import Group
from rollenv.rollout.ledger import Ledger
from rollenv.trajectory import Trajectory

PERCENTILES = (50, 95, 99)

FIGURES = {
    "success": "share of the episodes that solved their task",
    "success/*": "the same, by environment, in a run of several",
    "reward": "mean return",
    "turns": "mean turns per episode",
    "invalid_actions": "share of the actions that the environment refused",
    "episodes": "episodes played for this step that ended by themselves or by a limit",
    "groups": "groups that were trained",
    "groups_without_signal": "groups that were played and left out, as all their returns are equal",
    "tokens": "tokens read and sampled in those episodes; where they have turns in common, once",
    "completion_tokens": "tokens sampled in them, likewise",
    "branch_episodes": "episodes played from snapshots to value their turns",
    "branch_tokens": "tokens sampled in these",
    "shared_tokens": "tokens that members of trees have from their trunks, and that were not sampled again",
    "staleness_max": "versions by which the oldest token of the oldest trained group is older than the weights",
    "staleness_mean": "the same, mean over the trained groups",
    "stale_tokens/*": "trained tokens that were made by weights so many versions old",
    "generate_seconds_p*": "percentile over turns of the time until the engine had answered",
    "env_seconds_p*": "percentile over turns of the time of the environment's step",
    "episode_seconds_p*": "percentile over episodes of their turns' time, both parts together",
    "failed": "attempts that failed during this step, by their environment, agent, engine, sandbox or reward",
    "failed/*": "the same, by place and kind (env/timeout), or by name when it was injected (injected/env_hang)",
    "retried": "of these, attempts that were followed by another one",
    "cancelled": "attempts that were cancelled during this step",
    "discarded": "episodes that ended well during this step, or before, and turned out not to be needed",
    "wasted_tokens": "tokens sampled in attempts that failed, were cancelled or were discarded during this step",
    "wasted_env_seconds": "time of their environments' steps",
    "queue_begin": "episodes that waited for a slot when the step began to wait for its batch",
    "queue_end": "the same, when the batch was complete",
}
"""Name -> meaning; `*` stands for a number or a label. Seconds are of the clock, tokens and episodes are counts."""


def depends_on_speed(name: str) -> bool:
    """Whether a figure may differ between two equal runs because the machine was faster or slower."""
    return "second" in name or name.startswith("queue_")


def batch_figures(batch: Batch) -> dict[str, float]:
    """What a batch was like: success, reward, length, invalid actions, tokens, staleness."""
    episodes = [t for group in batch.played for t in group.trainable]
    n = max(1, len(episodes))
    turns = sum(len(t.turns) for t in episodes)
    own = [turn for t in episodes for turn in t.own_turns]
    return (
        _success_figures(episodes)
        | {
            "reward": sum(t.reward for t in episodes) / n,
            "turns": turns / n,
            "invalid_actions": sum(not turn.valid_action for t in episodes for turn in t.turns) / max(1, turns),
            "episodes": float(len(episodes)),
            "groups": float(len(batch.groups)),
            "groups_without_signal": float(len(batch.idle)),
            "tokens": float(sum(len(turn.prompt_ids) + len(turn.completion_ids) for turn in own)),
            "completion_tokens": float(sum(len(turn.completion_ids) for turn in own)),
            "staleness_max": float(max(batch.staleness, default=0)),
            "staleness_mean": sum(batch.staleness) / max(1, len(batch.staleness)),
        }
        | {f"stale_tokens/{age}": float(count) for age, count in staleness_histogram(batch.groups, batch.version)}
        | _branch_figures(episodes)
    )


def _branch_figures(episodes: Sequence[Trajectory]) -> dict[str, float]:
    """What branches cost, and what trees saved, where there are any."""
    figures = {}
    if any(t.branch_cost for t in episodes):
        figures["branch_episodes"] = sum(t.branch_cost.get("episodes", 0.0) for t in episodes)
        figures["branch_tokens"] = sum(t.branch_cost.get("tokens", 0.0) for t in episodes)
    if any(t.shared for t in episodes):
        figures["shared_tokens"] = float(sum(t.n_completion_tokens - t.n_spent_tokens for t in episodes))
    return figures


def _success_figures(episodes: Sequence[Trajectory]) -> dict[str, float]:
    by_env: dict[str, list[bool]] = {}
    for t in episodes:
        by_env.setdefault(t.env, []).append(bool(t.success))
    parts = {f"success/{env}": sum(these) / len(these) for env, these in sorted(by_env.items()) if len(by_env) > 1}
    return {"success": sum(bool(t.success) for t in episodes) / max(1, len(episodes))} | parts


def staleness_histogram(groups: Iterable[Group], version: int) -> list[tuple[int, int]]:
    """How many sampled tokens are how many versions old when `groups` train at `version`: (age, count), from age 0
    to the oldest without a gap."""
    trained = (turn for group in groups for t in group.trainable for turn in t.own_turns)
    counts = Counter(version - made for turn in trained for made in turn.policy_versions)
    return [(age, counts[age]) for age in range(min(0, *counts), max(counts) + 1)] if counts else []


def latency_figures(episodes: Sequence[Trajectory]) -> dict[str, float]:
    """Percentiles of how long turns and episodes took, seconds; those that failed for good are among them."""
    timed = [[turn.seconds for turn in t.own_turns if turn.seconds] for t in episodes]
    parts = {
        "generate": [turn.get("generate", 0.0) for turns in timed for turn in turns],
        "env": [turn.get("env", 0.0) for turns in timed for turn in turns],
        "episode": [sum(sum(turn.values()) for turn in turns) for turns in timed if turns],
    }
    return {
        f"{part}_seconds_p{p}": float(value)
        for part, seconds in parts.items()
        if seconds
        for p, value in zip(PERCENTILES, np.percentile(seconds, PERCENTILES), strict=True)
    }


def waste_figures(before: Ledger, now: Ledger) -> dict[str, float]:
    """What failed and what it cost between two states of a run's ledger. A label once seen is told for ever, as 0
    where it did not occur."""
    counts = ("failed", "retried", "cancelled", "discarded", "wasted_tokens", "wasted_env_seconds")
    return {name: float(getattr(now, name) - getattr(before, name)) for name in counts} | {
        f"failed/{label}": float(now.failures[label] - before.failures[label]) for label in sorted(now.failures)
    }
