"""The timeline: a trace in the right form whatever happens to the run, and no trace of itself where it is off."""

from __future__ import annotations

import asyncio
import json
import math
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inference.clock import run_jumping
from rollout import trace
from rollout.fakes import Fragile, Recorder, babbles, model_play, says

from rollenv.config import InjectConfig
from rollenv.errors import RollenvError
from rollenv.inference import Completion, ScriptedEngine
from rollenv.rollout.chaos import Chaos
from rollenv.rollout.controller import collect
from rollenv.rollout.env_pool import EnvPool
from rollenv.rollout.episode import EpisodeLimits, EpisodeRequest
from rollenv.rollout.groups import GroupRequest
from rollenv.rollout.layers import Layer
from rollenv.rollout.play import ScriptedPlay
from rollenv.rollout.scheduler import Scheduler
from rollenv.rollout.timeline import Timeline, span
from rollenv.trajectory import Trajectory


@pytest.fixture
def freed() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


class Ticks:
    """A clock that goes on by one second whenever it is read."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


class Inline(Fragile):
    executor = "inline"


def fragile(fault: str = "") -> Callable[[], Fragile]:
    return lambda: Inline(lambda task, tried: fault if tried == 0 else "", Counter(), threading.Event())


def loop_clock() -> float:
    return asyncio.get_running_loop().time()


class Distinct:
    """The loop's clock, with a microsecond more at each reading: no two slices begin at once."""

    def __init__(self) -> None:
        self.readings = 0

    def __call__(self) -> float:
        self.readings += 1
        return loop_clock() + self.readings * 1e-6


TURNS = [(f"turn {i}", ["generate", "env"]) for i in range(3)]


def test_an_episode_is_its_turns_and_these_are_their_parts(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "timeline.json", Ticks())
    play = replace(model_play(fragile(), timeline.engine(Recorder(babbles))), layers=(timeline.layer,))
    asyncio.run(play(EpisodeRequest("t1", 7, group=4, sample=2, attempt=1)))
    timeline.close()
    drawn = trace.read(timeline.path)
    (episode,) = drawn.tracks["episodes", "slot 0"]
    assert episode.tree() == ("t1 #2", ["reset", *TURNS])
    assert episode.args == {"group": 4, "attempt": 1, "stop": "terminated", "reward": 0.75}
    assert [turn.inside[1].args for turn in episode.inside[1:]] == [{"reward": 0.25}] * 3
    assert all(turn.inside[0].args["finish"] == "stop" for turn in episode.inside[1:])
    assert [values["episodes"] for _, values in drawn.counters["episodes", "episodes in flight"]] == [1, 0]
    running = [v["completions"] for _, v in drawn.counters["engines", "engine: completions in flight"]]
    assert running == [1, 0] * 3


class Busy(ScriptedEngine):
    """Has a queue: begins two seconds after it was asked, and needs one second for an answer."""

    async def generate(self, *args: Any, **options: Any) -> Completion:
        await asyncio.sleep(3.0)
        completion = await super().generate(*args, **options)
        completion.wait_seconds = 2.0
        return completion


def test_times_are_those_of_the_clock_that_was_given_and_waiting_is_told_apart(tmp_path: Path) -> None:
    async def main() -> None:
        timeline = Timeline(tmp_path / "timeline.json", loop_clock)
        await replace(model_play(fragile(), Busy(says("ok"))), layers=(timeline.layer,))(EpisodeRequest("t", 1))
        timeline.close()

    run_jumping(main())
    (episode,) = trace.read(tmp_path / "timeline.json").of("episodes")
    assert episode.end - episode.begin == 9 * 10**9
    for turn in episode.inside[1:]:
        assert [(part.name, part.end - part.begin) for part in turn.inside] == [
            ("wait", 2 * 10**9),
            ("generate", 10**9),
            ("env", 0),
        ]


@pytest.mark.parametrize("fault", [f for f in Fragile.FAULTS if "hang" not in f])
def test_a_fault_of_the_environment_leaves_whole_slices(tmp_path: Path, fault: str) -> None:
    timeline = Timeline(tmp_path / "timeline.json", Ticks())
    trajectory = asyncio.run(replace(model_play(fragile(fault)), layers=(timeline.layer,))(EpisodeRequest("t", 1)))
    timeline.close()
    (episode,) = trace.read(timeline.path).of("episodes")
    assert episode.args["stop"] == "failed"
    assert trajectory.failure is not None
    assert episode.args["failure"].endswith(trajectory.failure.message)
    turns = [] if fault.startswith("reset") else TURNS[:2]
    assert episode.tree() == ("t #0", ["reset", *turns])


def failing(prompt: Any, sampling: Any) -> list[int]:
    raise MemoryError("the device")


def test_a_fault_of_the_engine_ends_its_turn(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "timeline.json", Ticks())
    play = replace(model_play(fragile(), ScriptedEngine(failing)), layers=(timeline.layer,))
    asyncio.run(play(EpisodeRequest("t", 1)))
    timeline.close()
    (episode,) = trace.read(timeline.path).of("episodes")
    assert episode.tree() == ("t #0", ["reset", ("turn 0", ["generate"])])


class Program:
    def reset(self, seed: int) -> None:
        return None

    def act(self, observation: str, info: dict[str, Any]) -> str:
        return "go"


def test_a_program_is_drawn_too(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "timeline.json", Ticks())
    play = ScriptedPlay(EnvPool(fragile()), "fragile", Program, EpisodeLimits(), (timeline.layer,))
    asyncio.run(play(EpisodeRequest("t", 1)))
    timeline.close()
    (episode,) = trace.read(timeline.path).of("episodes")
    assert episode.tree() == ("t #0", ["reset", *((f"turn {i}", ["env"]) for i in range(3))])


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.integers(1, 7), st.booleans())
def test_any_run_gives_a_trace_in_the_right_form(
    tmp_path_factory: pytest.TempPathFactory, seed: int, concurrency: int, cut: bool
) -> None:
    """Random delays and injected faults, cancelled half-way or not: every attempt is one slice of one slot."""
    path = tmp_path_factory.mktemp("trace") / "timeline.json"
    draw = random.Random(seed)
    faults = InjectConfig(env_crash=0.05, env_hang=0.05, slow_env=0.1, engine_error=0.05, engine_hang=0.03)
    ended: list[Trajectory] = []

    class Listening(Layer):
        def ended(self, trajectory: Trajectory) -> None:
            ended.append(trajectory)

    async def main() -> None:
        timeline = Timeline(path, Distinct())
        engine = timeline.engine(ScriptedEngine(babbles, seconds_per_token=0.1))
        play = model_play(fragile(), engine, reset_seconds=5.0, step_seconds=5.0, generate_seconds=9.0)
        chaos = Chaos(faults, seed, play.limits)
        layers = (chaos.layer, timeline.layer, lambda request: Listening())
        scheduler = Scheduler(replace(play, layers=layers), concurrency, give_up_after=10**6)
        timeline.queue_depth = lambda: scheduler.queued
        work = asyncio.ensure_future(collect(scheduler, [GroupRequest(i, f"t{i}", 3, seed) for i in range(5)]))
        await asyncio.wait({work}, timeout=draw.uniform(0, 20) if cut else None)
        with span(timeline, "closing"):
            work.cancel()
            await scheduler.close()
        timeline.close()
        assert scheduler.ledger.balanced

    run_jumping(main())
    drawn = trace.read(path)
    episodes = drawn.of("episodes")
    assert len(episodes) == len(ended)
    assert Counter(e.args["stop"] for e in episodes) == Counter(t.stop.value for t in ended)
    assert cut or {(t.group, t.sample) for t in ended} == {(i, k) for i in range(5) for k in range(3)}
    assert len([track for track in drawn.tracks if track[0] == "episodes"]) <= concurrency
    for episode in episodes:
        assert {part.name for part in episode.inside} <= {"reset", *(f"turn {i}" for i in range(3))}
        for turn in (part for part in episode.inside if part.name != "reset"):
            assert {part.name for part in turn.inside} <= {"generate", "env"}
    curve = [values["episodes"] for _, values in drawn.counters["episodes", "episodes in flight"]]
    assert curve[-1] == 0
    assert max(curve) <= concurrency
    assert all(values["episodes"] >= 0 for _, values in drawn.counters["episodes", "queue depth"])
    engine = [
        v["completions"]
        for _, v in drawn.counters.get(("engines", "engine: completions in flight"), [(0, {"completions": 0})])
    ]
    assert engine[-1] == 0


def test_weight_updates_and_trainer_slices_have_tracks_of_their_own(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "timeline.json", Ticks())
    engines = [timeline.engine(ScriptedEngine(says("ok")), f"replica-{i}") for i in range(2)]

    async def main() -> None:
        with span(timeline, "step 1"), span(timeline, "weight sync", version=3):
            for engine in engines:
                await engine.update_weights(3, {})
        assert [engine.version for engine in engines] == [3, 3]

    asyncio.run(main())
    timeline.close()
    drawn = trace.read(timeline.path)
    assert [one.tree() for one in drawn.of("trainer")] == [("step 1", ["weight sync"])]
    assert [(t[1], s[0].name, s[0].args) for t, s in drawn.tracks.items() if t[0] == "engines"] == [
        ("replica-0", "update weights", {"version": 3}),
        ("replica-1", "update weights", {"version": 3}),
    ]


# -- the file ----------------------------------------------------------------------------------------------------


def test_an_empty_timeline_is_valid_and_closing_twice_changes_nothing(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "folder" / "timeline.json")
    timeline.close()
    timeline.close()
    timeline.counter("trainer", "late", value=1.0)
    timeline.flush()
    assert json.loads(timeline.path.read_text()) == []


@pytest.mark.parametrize("text", ['quotes " and \\', "line\nbreak", "lone \udcff surrogate", "日本語", "\x00"])
def test_any_text_is_written_as_json(tmp_path: Path, text: str) -> None:
    timeline = Timeline(tmp_path / "timeline.json", Ticks())
    timeline.trainer.slice(text, 101.5, 102.5, note=text, thing=object)
    timeline.close()
    (one,) = trace.read(timeline.path).of("trainer")
    assert (one.name, one.args["note"]) == (text, text)


def test_memory_does_not_grow_and_events_are_written_whole(tmp_path: Path) -> None:
    """Without being closed, what is in the file at any moment is a trace that lacks its bracket alone."""
    clock = Ticks()
    clock.now = 0.0
    timeline = Timeline(tmp_path / "timeline.json", lambda: 0.0)
    for i in range(5000):
        timeline.counter("trainer", "curve", value=float(i))
        assert timeline._pending_bytes < 1 << 17
    seen = trace.read_torn(timeline.path).counters["trainer", "curve"]
    assert 1000 < len(seen) < 5000
    assert [values["value"] for _, values in seen] == list(range(len(seen)))
    timeline.close()
    assert len(trace.read(timeline.path).counters["trainer", "curve"]) == 5000


def test_what_was_drawn_a_second_ago_is_on_the_disk(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "timeline.json", Ticks())
    with span(timeline, "one"):
        pass
    assert [one.name for one in trace.read_torn(timeline.path).of("trainer")] == ["one"]
    timeline.close()


def test_a_timeline_that_cannot_be_made_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RollenvError, match="cannot write the timeline"):
        Timeline(tmp_path / "file" / "timeline.json")
    with pytest.raises(RollenvError, match="Is a directory"):
        Timeline(tmp_path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_ends_the_picture_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timeline = Timeline(tmp_path / "timeline.json", Ticks())
    timeline._file.close()
    timeline._file = open("/dev/full", "wb", buffering=0)  # noqa: SIM115
    for _ in range(5):
        with span(timeline, "step"):
            pass
    assert "No space left on device" in timeline.failure
    timeline.close()


def test_without_a_timeline_nothing_stands_between_an_episode_and_its_world() -> None:
    seen: list[Any] = []

    class Watching(Layer):
        def env(self, env: Any) -> Any:
            seen.append(env)
            return env

        def engine(self, engine: Any) -> Any:
            seen.append(engine)
            return engine

    play = model_play(fragile())
    assert play.layers == ()
    asyncio.run(replace(play, layers=(lambda request: Watching(),))(EpisodeRequest("t", 1)))
    assert seen[0] is play.engine
    assert type(seen[1]) is Inline
    with span(None, "anything"):
        pass


SCRIPT = """
import asyncio, sys
sys.path.insert(0, {tests!r})
from dataclasses import replace
from pathlib import Path
from rollout.fakes import babbles, model_play
from rollout.test_timeline import fragile
from rollenv.inference import ScriptedEngine
from rollenv.rollout.controller import collect
from rollenv.rollout.groups import GroupRequest
from rollenv.rollout.scheduler import Scheduler
from rollenv.rollout.timeline import Timeline

async def main():
    timeline = Timeline(Path({path!r}))
    play = model_play(fragile(), ScriptedEngine(babbles, seconds_per_token=0.001))
    scheduler = Scheduler(replace(play, layers=(timeline.layer,)), 8)
    def progress(finished):
        timeline.flush()
        print("going", flush=True)
    try:
        await collect(scheduler, [GroupRequest(i, f"t{{i}}", 2, 1) for i in range(100_000)], progress)
    finally:
        await scheduler.close()
        timeline.close()

asyncio.run(main())
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_the_file_of_an_interrupted_process(tmp_path: Path, root: Path, how: signal.Signals) -> None:
    """Ctrl-C: valid JSON. kill -9: an array without its bracket."""
    path = tmp_path / "timeline.json"
    code = SCRIPT.format(tests=str(root / "tests"), path=str(path))
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        for _ in range(3):
            assert process.stdout.readline() == "going\n"
        process.send_signal(how)
        process.stdout.read()
    drawn = trace.read(path) if how is signal.SIGINT else trace.read_torn(path)
    stops = Counter(episode.args["stop"] for episode in drawn.of("episodes") if "stop" in episode.args)
    assert stops["terminated"] >= 6
    assert (stops["aborted"] > 0) == (how is signal.SIGINT)


def test_numbers_that_json_cannot_say_are_left_out(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "timeline.json", Ticks())
    layer = timeline.layer(EpisodeRequest("t", 1))
    for reward in (math.nan, math.inf, 10**400, "text", None):
        layer.stepped(timeline.clock(), ("", reward))  # type: ignore[attr-defined]
    layer.ended(Trajectory("e", "t", 1))
    timeline.close()
    (episode,) = trace.read(timeline.path).of("episodes")
    assert [turn.inside[0].args for turn in episode.inside] == [{}] * 5
