"""The timeline of a run as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open: who did what when.

The file is in the JSON Trace Event format, in its array form: that form may end without its closing bracket, so that a
process killed at any moment leaves a trace that still opens. Closed in the ordinary way (Ctrl-C included) it is valid
JSON. Events are written as they end, so that memory does not grow with the run.

Processes and their tracks: `trainer` (rollout wait, train, weight sync, evaluation, checkpoint), `engines` (weight
updates; completions in flight), `episodes`, one track per slot, that is per environment in use: an episode, in it its
turns, in these `wait` (the engine has not begun), `generate` and `env` (whose step gives the reward). A run without a
timeline has no layer, no wrapper and no call of this module in its episodes.

Invariant: slices of one track are nested or apart, never half over each other.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollenv.errors import RollenvError
from rollenv.inference.base import Completion, Engine, SamplingParams
from rollenv.rollout.layers import EngineLayer, Layer
from rollenv.trajectory import Trajectory

if TYPE_CHECKING:
    import torch

    from rollenv.rollout.episode import EpisodeEnv, EpisodeRequest

TRAINER, ENGINES, EPISODES = "trainer", "engines", "episodes"
_FLUSH_BYTES, _FLUSH_SECONDS = 1 << 16, 1.0


class Track:
    """One line of the picture."""

    def __init__(self, timeline: Timeline, pid: int, tid: int) -> None:
        self._timeline, self._pid, self._tid = timeline, pid, tid

    def slice(self, name: str, begin: float, end: float, **args: Any) -> None:
        """What went on from `begin` to `end` (seconds of the timeline's clock); `args` are shown when it is chosen."""
        began, ended = self._timeline.nanoseconds(begin), self._timeline.nanoseconds(end)
        event = {"ph": "X", "name": name, "pid": self._pid, "tid": self._tid, "ts": began / 1000}
        self._timeline.emit(event | {"dur": (ended - began) / 1000, "args": args})

    @contextlib.contextmanager
    def span(self, name: str, **args: Any) -> Iterator[None]:
        """A slice as long as its block, also when the block is left by an error or a cancellation."""
        begin = self._timeline.clock()
        try:
            yield
        finally:
            self.slice(name, begin, self._timeline.clock(), **args)


class Timeline:
    """Writes a trace to `path`, replacing what was there.

    Args:
        path: the file; its folder is made.
        clock: seconds, never going back. The default is the clock of asyncio's loops; a simulation gives its own.

    Raises:
        RollenvError: the file cannot be written. (When that happens later, the recording ends and `failure` says so:
            a run does not die of its picture.)
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.path, self.clock = path, clock
        self.failure = ""
        self.queue_depth: Callable[[], int] | None = None
        """How many episodes wait for a slot; drawn whenever an episode begins or ends."""
        self._origin = self._flushed = clock()
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._first = True
        self._processes: dict[str, int] = {}
        self._n_tracks: Counter[str] = Counter()
        self._tracks: dict[tuple[str, str], Track] = {}
        self._free: list[int] = []
        self._slots = self._playing = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: Any = path.open("wb", buffering=0)
            self._file.write(b"[\n")
        except OSError as error:
            raise RollenvError(f"cannot write the timeline '{path}': {error.strerror}") from error

    # -- what is drawn ----------------------------------------------------------------------------------------------

    def track(self, process: str, name: str) -> Track:
        """The track called `name` of `process`, made when it is first asked for."""
        if (process, name) not in self._tracks:
            self._n_tracks[process] += 1
            pid, tid = self._process(process), self._n_tracks[process]
            self._tracks[process, name] = Track(self, pid, tid)
            self._name("thread", pid, name, tid, tid)
        return self._tracks[process, name]

    @property
    def trainer(self) -> Track:
        """The track of the training loop."""
        return self.track(TRAINER, TRAINER)

    def counter(self, process: str, name: str, **values: float) -> None:
        """The values of a curve from now on."""
        ts = self.nanoseconds(self.clock()) / 1000
        self.emit({"ph": "C", "name": name, "pid": self._process(process), "ts": ts, "args": values})

    def engine(self, engine: Engine, name: str = "engine") -> Engine:
        """`engine`, drawn: its weight updates and how many completions it has in flight. One call per replica."""
        return _DrawnEngine(engine, self, name)

    def layer(self, request: EpisodeRequest) -> Layer:
        """Draws one attempt of an episode: to be put among the `layers` of a play, as the last of them."""
        return _DrawnEpisode(self, request)

    # -- slots ------------------------------------------------------------------------------------------------------

    def take_slot(self) -> int:
        """The lowest slot that is free."""
        if not self._free:
            heapq.heappush(self._free, self._slots)
            self._slots += 1
        self._count(+1)
        return heapq.heappop(self._free)

    def leave_slot(self, slot: int) -> None:
        """The episode in `slot` is over."""
        heapq.heappush(self._free, slot)
        self._count(-1)

    def _count(self, change: int) -> None:
        self._playing += change
        self.counter(EPISODES, "episodes in flight", episodes=self._playing)
        if self.queue_depth is not None:
            self.counter(EPISODES, "queue depth", episodes=self.queue_depth())

    # -- the file ---------------------------------------------------------------------------------------------------

    def nanoseconds(self, seconds: float) -> int:
        """A reading of the clock as whole nanoseconds since the timeline began: equal readings stay equal."""
        return round((seconds - self._origin) * 1e9)

    def emit(self, event: Mapping[str, Any]) -> None:
        """Writes one event; nothing once the timeline is closed."""
        if self._file is None:
            return
        text = json.dumps(event, ensure_ascii=False, separators=(",", ":"), default=str)
        line = (b"" if self._first else b",\n") + text.encode("utf-8", "backslashreplace")
        self._first = False
        self._pending.append(line)
        self._pending_bytes += len(line)
        if self._pending_bytes >= _FLUSH_BYTES or self.clock() - self._flushed >= _FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Hands everything to the operating system, in whole events."""
        parts, self._pending, self._pending_bytes = self._pending, [], 0
        self._flushed = self.clock()
        if self._file is None or not parts:
            return
        try:
            self._file.write(b"".join(parts))
        except OSError as error:
            self.failure = f"the timeline '{self.path}' ends early: {error.strerror}"
            self._file.close()
            self._file = None

    def close(self) -> None:
        """Ends the file as valid JSON. Safe to call twice."""
        self._pending.append(b"\n]\n")
        self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _process(self, name: str) -> int:
        if name not in self._processes:
            pid = self._processes[name] = len(self._processes) + 1
            self._name("process", pid, name, (TRAINER, ENGINES, EPISODES, name).index(name))
        return self._processes[name]

    def _name(self, what: str, pid: int, name: str, order: int, tid: int | None = None) -> None:
        of = {"ph": "M", "pid": pid} | ({} if tid is None else {"tid": tid})
        self.emit(of | {"name": f"{what}_name", "args": {"name": name}})
        self.emit(of | {"name": f"{what}_sort_index", "args": {"sort_index": order}})


def span(timeline: Timeline | None, name: str, **args: Any) -> contextlib.AbstractContextManager[None]:
    """A slice of the trainer's track; nothing where there is no timeline."""
    return contextlib.nullcontext() if timeline is None else timeline.trainer.span(name, **args)


def _finite(**values: object) -> dict[str, Any]:
    """Those that JSON can say: an environment may answer anything."""
    return {name: value for name, value in values.items() if isinstance(value, float) and math.isfinite(value)}


class _DrawnEngine(EngineLayer):
    """Draws what an engine does on a track of its own."""

    def __init__(self, inner: Engine, timeline: Timeline, name: str) -> None:
        super().__init__(inner)
        self._timeline, self._name, self._running = timeline, name, 0

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams, *, session: str) -> Completion:
        self._count(+1)
        try:
            return await self.inner.generate(prompt_ids, sampling, session=session)
        finally:
            self._count(-1)

    async def update_weights(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        with self._timeline.track(ENGINES, self._name).span("update weights", version=version):
            await self.inner.update_weights(version, tensors)

    def _count(self, change: int) -> None:
        self._running += change
        self._timeline.counter(ENGINES, f"{self._name}: completions in flight", completions=self._running)


class _DrawnEpisode(Layer):
    """Draws one attempt on the track of the lowest free slot."""

    def __init__(self, timeline: Timeline, request: EpisodeRequest) -> None:
        self._timeline, self._request = timeline, request
        self._slot = timeline.take_slot()
        self._track = timeline.track(EPISODES, f"slot {self._slot}")
        self._began = self._turn_began = timeline.clock()
        self._turns, self._in_turn = 0, False

    def env(self, env: EpisodeEnv) -> EpisodeEnv:
        return _DrawnEnv(env, self)

    def engine(self, engine: Engine) -> Engine:
        return _DrawnCalls(engine, self)

    def reset_over(self, begin: float) -> None:
        """The environment has been reset, or has failed to."""
        self._turn_began = self._timeline.clock()
        self._track.slice("reset", begin, self._turn_began)

    def generated(self, begin: float, completion: Completion | None) -> None:
        """The engine has answered; without a completion it failed or was told to stop."""
        end = self._timeline.clock()
        started = begin if completion is None else min(end, begin + completion.wait_seconds)
        if started > begin:
            self._track.slice("wait", begin, started)
        args = {} if completion is None else {"tokens": len(completion.ids), "finish": completion.finish_reason}
        self._track.slice("generate", started, end, **args)

    def turn_begins(self) -> float:
        """Somebody acts. Returns the time."""
        self._in_turn = True
        return self._timeline.clock()

    def stepped(self, begin: float, result: object) -> None:
        """The environment has taken a step (None: it came to nothing), which ends the turn."""
        end = self._timeline.clock()
        reward = result[1] if isinstance(result, tuple) and len(result) > 1 else None
        self._track.slice("env", begin, end, **_finite(reward=reward))
        self._end_turn(end)

    def ended(self, trajectory: Trajectory) -> None:
        end = self._timeline.clock()
        if self._in_turn:
            self._end_turn(end)
        args = {"group": self._request.group, "attempt": self._request.attempt, "stop": trajectory.stop.value}
        args |= _finite(reward=trajectory.reward)
        if trajectory.failure is not None:
            args["failure"] = f"{trajectory.failure.where} {trajectory.failure.kind}: {trajectory.failure.message}"
        name = f"{self._request.task} #{self._request.place}"
        self._track.slice(name, self._began, end, **args)
        self._timeline.leave_slot(self._slot)

    def _end_turn(self, end: float) -> None:
        self._track.slice(f"turn {self._turns}", self._turn_began, end)
        self._turns, self._turn_began, self._in_turn = self._turns + 1, end, False


class _DrawnEnv:
    """An environment whose calls are drawn."""

    def __init__(self, inner: EpisodeEnv, episode: _DrawnEpisode) -> None:
        self._inner, self._episode = inner, episode

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        begin = self._episode._timeline.clock()
        try:
            return await self._inner.areset(seed=seed, options=options)
        finally:
            self._episode.reset_over(begin)

    async def asnapshot(self) -> bytes:
        snapshot: bytes = await self._inner.asnapshot()  # type: ignore[attr-defined]
        return snapshot

    async def arestore(self, snapshot: bytes, *, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        begin = self._episode._timeline.clock()
        try:
            result: tuple[str, dict[str, Any]] = await self._inner.arestore(snapshot, seed=seed)  # type: ignore[attr-defined]
            return result
        finally:
            self._episode.reset_over(begin)

    async def astep(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        begin, result = self._episode.turn_begins(), None
        try:
            result = await self._inner.astep(action)
            return result
        finally:
            self._episode.stepped(begin, result)


class _DrawnCalls(EngineLayer):
    """An engine whose completions for one episode are drawn."""

    def __init__(self, inner: Engine, episode: _DrawnEpisode) -> None:
        super().__init__(inner)
        self._episode = episode

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams, *, session: str) -> Completion:
        begin, completion = self._episode.turn_begins(), None
        try:
            completion = await self.inner.generate(prompt_ids, sampling, session=session)
            return completion
        finally:
            self._episode.generated(begin, completion)
