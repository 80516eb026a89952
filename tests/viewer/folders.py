"""Folders as runs leave them, made of any episodes, and the viewer that shows them, for tests."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from server.serving import running

from rollenv.evaluation.export import Exported, keep
from rollenv.evaluation.records import write_episodes
from rollenv.trajectory import Failure, StopReason, Trajectory, Turn
from rollenv.viewer.app import make_server
from rollenv.viewer.library import Library

TEXT = st.text(max_size=12)  # half surrogate pairs too: models write what they like
NUMBERS = st.floats(-1e6, 1e6)
TURNS = st.builds(
    Turn,
    observation=TEXT,
    completion_ids=st.lists(st.integers(0, 100), max_size=3),
    policy_versions=st.lists(st.integers(0, 9), max_size=3),
    completion=TEXT,
    action=TEXT,
    reward=NUMBERS,
    valid_action=st.booleans(),
    seconds=st.dictionaries(st.sampled_from(["generate", "env"]), st.floats(0, 100)),
)
EPISODES = st.builds(
    Trajectory,
    env=st.sampled_from(["Shop-v0", "House-v0"]),
    task=st.sampled_from(["a%b", "A_1", "ü\\", "d"]),
    seed=st.integers(0, 2**63 - 1),
    group=st.integers(0, 2),
    sample=st.integers(0, 3),
    turns=st.lists(TURNS, max_size=3),
    stop=st.sampled_from(StopReason),
    failure=st.none() | st.just(Failure("env", "timeout", "no answer", 1)),
    success=st.none() | st.booleans(),
    info=st.dictionaries(TEXT, TEXT, max_size=2),
)


def evaluation(folder: Path, episodes: Sequence[Trajectory], **facts: Any) -> Path:
    """What `rollenv eval --out` leaves."""
    write_episodes(folder, episodes, "sha")
    summary = {"env": "Shop-v0", "agent": "llm", "tasks_sha256": "sha", "episodes": len(episodes), **facts}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def training(folder: Path, steps: dict[int, Sequence[Trajectory]], *metrics: dict[str, Any], config: str = "") -> Path:
    """What `rollenv train --out` leaves."""
    folder.mkdir(parents=True, exist_ok=True)
    for step, episodes in steps.items():
        keep(folder, step, [Exported(episode, step, True) for episode in episodes])
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    (folder / "config.toml").write_text(config or 'env = "shop"\nsteps = 9\n')
    return folder


def episode(
    number: int, turns: int = 2, reward: float = 1.0, success: bool | None = True, samples: int = 2, **facts: Any
) -> Trajectory:
    """A plain episode: the `number`th of a run of groups of `samples`."""
    group = number // samples
    played = [
        Turn(
            f"buy thing {group}, turn {i}",
            [1, 2],
            [3, 4],
            [-0.5, -2.0],
            [i, i],
            completion=f"take {i}",
            action=f"take[{i}]",
            seconds={"generate": 0.25, "env": 0.5},
        )
        for i in range(turns)
    ]
    if played:
        played[-1].reward = reward
    facts = {"stop": StopReason.TERMINATED, "success": success} | facts
    return Trajectory("Shop-v0", f"task-{group}", number, group, number % samples, turns=played, **facts)


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """The viewer at an address of its own."""
    with running(make_server(Library(folder), ["127.0.0.1"])) as address:
        yield address
