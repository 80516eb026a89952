"""A model of an inference engine on many devices: slots, shared speed, a queue, and pauses for new weights.

Invariant: a device with b running completions works on each of them at min(1, capacity / b) of full speed. The
finishing time of each is exact, computed when somebody comes or goes; nothing is stepped through token by token.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import deque
from dataclasses import dataclass

from rollenv.config.simulate import SimulatedEngineConfig

_TOLERANCE = 1e-9


@dataclass(slots=True, eq=False)
class _Job:
    """A completion: `work` in seconds at full speed, done when its device's `mark` has reached `until`."""

    work: float
    done: asyncio.Future[None]
    device: _Device | None = None
    until: float = 0.0
    version: int = 0
    """Of the weights when it began."""


class _Device:
    """One device. `mark` is the work that a completion present from the beginning would have got so far, seconds."""

    __slots__ = ("busy", "capacity", "heap", "index", "last", "mark", "n", "number", "paused", "timer", "work")

    def __init__(self, index: int, capacity: float) -> None:
        self.index, self.capacity = index, capacity
        self.n = self.number = 0
        self.heap: list[tuple[float, int, _Job]] = []
        self.mark = self.last = self.busy = self.work = 0.0
        self.paused = False
        self.timer: asyncio.TimerHandle | None = None

    @property
    def speed(self) -> float:
        """Of each completion, as a share of full speed."""
        if self.paused or not self.n:
            return 0.0
        return min(1.0, self.capacity / self.n)

    def advance(self, now: float) -> None:
        """Books the time since the last change."""
        passed, self.last = now - self.last, now
        if passed > 0 and self.n and not self.paused:
            speed = self.speed
            self.mark += speed * passed
            self.busy += passed
            self.work += speed * passed * self.n


class SimulatedEngine:
    """Completions on `devices` devices; a new one goes to the device with the fewest, or waits, the first come first.

    To be used in one event loop, whose time it lives in.
    """

    def __init__(self, config: SimulatedEngineConfig, devices: int) -> None:
        rate, whole = config.tokens_per_second, config.device_tokens_per_second
        self._slots = config.slots
        self.capacity = min(float(config.slots), whole / rate if whole and rate else math.inf)
        """Completions at full speed that keep one device busy."""
        self._pause_seconds = config.update_seconds
        self._devices = [_Device(index, self.capacity) for index in range(devices)]
        self._least: list[tuple[int, int]] = []
        """(load, device) as a heap. Of each device one entry is no higher than its load; others may be outdated."""
        self._list_devices()
        self._waiting: deque[_Job] = deque()
        self.version = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop it is used in, looked up once: that is a system call in some versions of Python."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop

    async def generate(self, work: float) -> list[int]:
        """Makes a completion of `work` seconds at full speed. Returns the versions of the weights that made it.

        A caller that is cancelled frees its slot at once.
        """
        if work <= 0:
            return [self.version]
        job = _Job(work, self.loop.create_future())
        device = None if self._waiting else self._free_device()
        if device is None:
            self._waiting.append(job)
        else:
            self._start(job, device)
        try:
            await job.done
        except asyncio.CancelledError:
            self._remove(job)
            raise
        return list(range(job.version, self.version + 1))

    def pause(self) -> None:
        """Nothing is generated until `resume`."""
        self._set_paused(True)

    def resume(self) -> None:
        """Goes on where it was."""
        self._set_paused(False)

    async def update_weights(self, version: int) -> None:
        """New weights, after a pause; running completions go on with them."""
        if self._pause_seconds > 0:
            self.pause()
            await asyncio.sleep(self._pause_seconds)
            self.resume()
        self.version = version

    def work_done(self) -> float:
        """Seconds at full speed of all completions, cancelled ones included, so far."""
        now = self.loop.time()
        for device in self._devices:
            device.advance(now)
        return sum(device.work for device in self._devices)

    @property
    def running(self) -> int:
        """Completions on a device."""
        return sum(device.n for device in self._devices)

    # -- devices ---------------------------------------------------------------------------------------------

    def _list_devices(self) -> None:
        self._least = sorted((device.n, device.index) for device in self._devices)

    def _free_device(self) -> _Device | None:
        while True:
            load, index = self._least[0]
            device = self._devices[index]
            if load == device.n:
                return device if load < self._slots else None
            heapq.heapreplace(self._least, (device.n, index))

    def _start(self, job: _Job, device: _Device) -> None:
        device.advance(self.loop.time())
        device.n += 1
        device.number += 1
        job.device, job.until, job.version = device, device.mark + job.work, self.version
        heapq.heappush(device.heap, (job.until, device.number, job))
        self._arm(device)

    def _remove(self, job: _Job) -> None:
        """The caller of `job` was cancelled."""
        device, job.device = job.device, None
        if device is None:  # it waits, and is passed over when its turn comes, or it has just been finished
            return
        device.advance(self.loop.time())
        self._left(device)
        self._arm(device)

    def _left(self, device: _Device) -> None:
        """A slot of `device` is free: the next in the queue gets it."""
        device.n -= 1
        if len(self._least) > 4 * len(self._devices):
            self._list_devices()
        else:
            heapq.heappush(self._least, (device.n, device.index))
        while self._waiting:
            job = self._waiting.popleft()
            if not job.done.done():
                self._start(job, device)
                return

    def _arm(self, device: _Device) -> None:
        """Sets the device's timer to its next completion; one that rings too early is only moved when it rings."""
        heap = device.heap
        while heap and heap[0][2].device is None:
            heapq.heappop(heap)
        speed = device.speed
        if not heap or not speed:
            return
        loop = self.loop
        when = loop.time() + max(0.0, heap[0][0] - device.mark) / speed
        if device.timer is not None:
            if device.timer.when() <= when:
                return
            device.timer.cancel()
        device.timer = loop.call_at(when, self._ring, device)

    def _ring(self, device: _Device) -> None:
        device.timer = None
        device.advance(self.loop.time())
        heap, finished = device.heap, []
        while heap and heap[0][0] <= device.mark * (1 + _TOLERANCE) + _TOLERANCE:
            job = heapq.heappop(heap)[2]
            if job.device is not None:
                job.device = None
                finished.append(job)
        for job in finished:
            if not job.done.done():
                job.done.set_result(None)
            self._left(device)
        self._arm(device)

    def _set_paused(self, paused: bool) -> None:
        now = self.loop.time()
        for device in self._devices:
            device.advance(now)
            device.paused = paused
            self._arm(device)
