"""What the list of episodes needs to know of each: read from the lines of a run's files, one after the other."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from rollenv.evaluation.records import TIMINGS, TRAJECTORIES
from rollenv.files import as_text
from rollenv.trajectory import Failure

ABOUT = 300
"""Characters of an episode's first observation that are kept: they say what its task is, and are searched."""
LINES = 2**24
"""An episode's number is `step * LINES + its line`: JavaScript has it exactly up to step 2**29."""

Facts = dict[str, Any]


def lines_of(path: Path) -> Iterator[tuple[int, Facts | None]]:
    """The lines of a file of episodes: how many bytes each has, and what is known of its episode (None: it is torn, or
    no episode).

    Raises:
        OSError: it cannot be read.
    """
    beside = path.with_name(TIMINGS)
    with contextlib.ExitStack() as files:
        lines = files.enter_context(path.open("rb"))
        timings: Iterator[bytes | None] = repeat(None)
        if path.name == TRAJECTORIES and beside.is_file():
            timings = chain(files.enter_context(beside.open("rb")), repeat(None))
        start = timing_start = 0
        for number, (line, timing) in enumerate(zip(lines, timings, strict=False)):
            place = {"start": start, "length": len(line), "timing": None, "timing_length": None}
            if timing is not None:
                place |= {"timing": timing_start, "timing_length": len(timing)}
                timing_start += len(timing)
            start += len(line)
            yield len(line), _facts(number, line, timing, place)


def _facts(number: int, line: bytes, timing: bytes | None, place: Facts) -> Facts | None:
    try:
        episode = parsed(line)
        turns = episode["turns"]
        seconds = [turn.get("seconds", {}) for turn in turns] if timing is None else parsed(timing)
        step, trained, success = episode.get("step"), episode.get("trained"), episode["success"]
        return place | {
            "id": (step or 0) * LINES + number,
            "env": as_text(episode["env"]),
            "task": as_text(episode["task"]),
            "about": as_text(turns[0]["observation"])[:ABOUT] if turns else "",
            "step": step,
            "trained": None if trained is None else int(trained),
            "group": int(episode["group"]),
            "sample": int(episode["sample"]),
            "attempt": int(episode["attempt"]),
            "turns": len(turns),
            "stop": as_text(episode["stop"]),
            "failure": Failure(**episode["failure"]).label if episode["failure"] else None,
            "success": None if success is None else int(success),
            "reward": float(episode["reward"]),
            "above": None,
            "tokens": sum(len(turn["completion_ids"]) for turn in turns),
            "seconds": sum(sum(each.values()) for each in seconds) if any(seconds) else None,
            "invalid": sum(not turn["valid_action"] for turn in turns),
            "version": max((max(turn["policy_versions"]) for turn in turns if turn["policy_versions"]), default=None),
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def parsed(line: bytes) -> Any:
    """A line of JSON. Raises ValueError."""
    try:
        return from_json(line)
    except ValueError:  # half of a surrogate pair, which models do write, is an error to it, and none to Python
        return json.loads(line)


def rank_in_group(members: Sequence[Facts]) -> None:
    """Sets `above` of the episodes of a group: how far each one's reward is above the mean of those that ended by
    themselves or by a limit, which are compared with each other; None for a single one, and for those that did not."""
    ended = [facts for facts in members if facts["stop"] not in ("failed", "aborted")]
    if len(ended) > 1:
        mean = sum(facts["reward"] for facts in ended) / len(ended)
        for facts in ended:
            facts["above"] = facts["reward"] - mean
