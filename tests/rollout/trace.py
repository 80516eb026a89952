"""Reads a trace and checks its form: what Perfetto needs, and what we promise beyond."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Slice:
    """A slice with what lies in it. Times are whole nanoseconds."""

    name: str
    begin: int
    end: int
    args: dict[str, Any]
    inside: list[Slice] = field(default_factory=list)

    def tree(self) -> Any:
        """Its name, or its name with those inside it."""
        return (self.name, [child.tree() for child in self.inside]) if self.inside else self.name


@dataclass
class Trace:
    """`tracks[process, thread]` are outermost slices by time; `counters[process, name]` are (nanoseconds, values)."""

    tracks: dict[tuple[str, str], list[Slice]]
    counters: dict[tuple[str, str], list[tuple[int, dict[str, float]]]]

    def of(self, process: str) -> list[Slice]:
        """All outermost slices of a process."""
        return [one for (owner, _), slices in sorted(self.tracks.items()) for one in slices if owner == process]


def read(path: Path) -> Trace:
    """The checked trace of a file that was closed."""
    return check(json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_constant))


def read_torn(path: Path) -> Trace:
    """The checked trace of a file that may lack its end, read as Perfetto reads it."""
    text = path.read_text(encoding="utf-8").rstrip()
    return check(json.loads(text if text.endswith("]") else text.rstrip(",") + "]"))


def check(events: Any) -> Trace:
    assert isinstance(events, list)
    names: dict[tuple[int, int | None], str] = {}
    slices: dict[tuple[int, int], list[Slice]] = defaultdict(list)
    counters: dict[tuple[int, str], list[tuple[int, dict[str, float]]]] = defaultdict(list)
    for event in events:
        match event["ph"]:
            case "M":
                if event["name"] in ("process_name", "thread_name"):
                    place = (event["pid"], event.get("tid"))
                    assert place not in names, f"{place} is named twice"
                    names[place] = event["args"]["name"]
                else:
                    assert event["name"] in ("process_sort_index", "thread_sort_index")
            case "X":
                assert event["dur"] >= 0
                begin = _nanoseconds(event["ts"])
                one = Slice(event["name"], begin, begin + _nanoseconds(event["dur"]), event["args"])
                track = slices[event["pid"], event["tid"]]
                assert not track or track[-1].end <= one.end, "slices are written as they end"
                track.append(one)
            case "C":
                assert all(isinstance(value, (int, float)) for value in event["args"].values())
                curve = counters[event["pid"], event["name"]]
                assert not curve or curve[-1][0] <= _nanoseconds(event["ts"]), "a curve goes back in time"
                curve.append((_nanoseconds(event["ts"]), event["args"]))
            case other:
                raise AssertionError(f"an event of kind {other!r}")
    return Trace(
        {(names[pid, None], names[pid, tid]): nested(track) for (pid, tid), track in slices.items()},
        {(names[pid, None], name): curve for (pid, name), curve in counters.items()},
    )


def nested(slices: list[Slice]) -> list[Slice]:
    """The outermost slices, with the others put inside; slices half over each other are an error.

    They come as they ended, so that what lies inside a slice stands before it.
    """
    outermost: list[Slice] = []
    for one in slices:
        assert one.begin >= 0
        while outermost and outermost[-1].begin >= one.begin:
            one.inside.insert(0, outermost.pop())
        assert not outermost or outermost[-1].end <= one.begin, f"{one.name} lies half over {outermost[-1].name}"
        outermost.append(one)
    return outermost


def _nanoseconds(microseconds: float) -> int:
    whole = round(microseconds * 1000)
    assert abs(microseconds * 1000 - whole) < 1e-3, "a time that is no whole nanosecond"
    return whole


def _no_constant(name: str) -> Any:
    raise AssertionError(f"{name} is not JSON")
