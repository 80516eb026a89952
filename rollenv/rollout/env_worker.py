"""A worker process seen from its parent: requests go in, answers come out in order, deadlines hold. No thread, no wait.

Invariant: every request that somebody awaits is answered, or ends as a `Fault`. When the process ends or is ended, the
request that it was at is to blame; all others that wait there, and all environments that lived there, are collateral.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rollenv.errors import RollenvError
from rollenv.rollout.env_wire import Answer, Frames, Request, Setup, Verb, frame
from rollenv.rollout.episode import Fault

START_SECONDS = 120.0
"""Deadline of a worker's start: imports, on a busy machine."""
READ_BYTES = 1 << 20
SPARE_SECONDS = 60.0


@dataclass(slots=True)
class _Pending:
    """A request without an answer. `future` is None when nobody waits for it."""

    verb: Verb
    seconds: float
    future: asyncio.Future[Any] | None


class Worker:
    """One process, started at once.

    Args:
        setup: what it can make.
        longest: the longest deadline that any request will have, seconds.
        on_end: called once, when the process is gone or has been ended.
    """

    def __init__(self, setup: Setup, longest: float, on_end: Callable[[Worker], None]) -> None:
        self._on_end = on_end
        self._link, theirs = socket.socketpair()
        try:
            self.process = _start(theirs, longest + SPARE_SECONDS, setup.path)
        finally:
            theirs.close()
        self._link.setblocking(False)
        self._frames = Frames()
        self._asked: list[Request] = []  # since the last turn of the loop: they go out together
        self._unsent = bytearray()
        self._writing = False
        self._pending: deque[_Pending] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._due = 0.0  # when the first pending request must have been answered, in the loop's seconds
        self._timer: asyncio.TimerHandle | None = None
        self._stop_asked = False
        self.ended = False
        self.started = False
        self.load = 0
        """Episodes that live here."""
        self._ask(Request("setup", arguments=(setup,)), START_SECONDS, None)

    @property
    def n_pending(self) -> int:
        """Requests without an answer."""
        return len(self._pending)

    # -- asking ---------------------------------------------------------------------------------------------

    def call(self, request: Request, seconds: float) -> asyncio.Future[Any]:
        """Asks for something. `seconds` is its deadline from the moment that the worker is at it, and if it passes the
        worker is killed. The future has the result, or a Fault.
        """
        self._use_loop()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._ask(request, seconds, future)
        return future

    def _ask(self, request: Request, seconds: float, future: asyncio.Future[Any] | None) -> None:
        if self.ended:
            if future is not None:
                future.set_exception(collateral())
            return
        self._asked.append(request)
        self._pending.append(_Pending(request.verb, seconds, future))
        if self._loop is not None and not self._loop.is_closed():
            if len(self._pending) == 1:
                self._watch_first()
            if len(self._asked) == 1:
                self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Sends what was asked since the last turn of the loop, in one frame; as much as goes now, the rest later."""
        if self.ended:
            return
        if self._asked:
            self._unsent += frame(self._asked)
            self._asked = []
        try:
            while self._unsent:
                del self._unsent[: self._link.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:  # it is dying: reading will tell
            self._unsent.clear()
        self._set_writing(bool(self._unsent))

    def _set_writing(self, writing: bool) -> None:
        if self._loop is None or writing == self._writing:
            return
        self._writing = writing
        if writing:
            self._loop.add_writer(self._link, self._flush)
        else:
            self._loop.remove_writer(self._link)

    # -- answers --------------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Takes all answers that are there; the end of the stream is the end of the process."""
        while not self.ended:
            try:
                data = self._link.recv(READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._end(Fault("env", "crash", f"its worker process {self._how_it_died()}"))
                return
            for content in self._frames.feed(data):
                self._take(_loaded(content))

    def _take(self, answer: Answer) -> None:
        pending = self._pending.popleft()
        if pending.verb == "setup" and answer.error is not None:
            self._end(Fault("env", "crash", f"a worker process could not prepare the environment: {answer.error}"))
            return
        self.started = True
        self._watch_first()
        if pending.future is None or pending.future.done():
            return
        if answer.error is None:
            pending.future.set_result(answer.value)
        else:
            what = "" if pending.verb == "make" else f"{pending.verb}: "
            fault = Fault("env", "crash", f"{what}{answer.error}")
            fault.__cause__ = _raised(answer)
            pending.future.set_exception(fault)

    # -- deadlines ------------------------------------------------------------------------------------------

    def _watch_first(self) -> None:
        """The worker is at its first request from now on. The timer is only moved when it would ring too late."""
        if not self._pending or self._loop is None:
            return
        self._due = self._loop.time() + self._pending[0].seconds
        if self._timer is None or self._timer.when() > self._due:
            self._ring_at(self._due)

    def _ring_at(self, when: float) -> None:
        assert self._loop is not None
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._ring)

    def _ring(self) -> None:
        # The loop may have been busy for long: what has been answered meanwhile was in time.
        self._timer = None
        self._read()
        if self.ended or not self._pending or self._loop is None:
            return
        if self._loop.time() < self._due:
            self._ring_at(self._due)
            return
        late = self._pending[0]
        self._end(Fault("env", "timeout", f"{late.verb} took longer than {late.seconds:g} s"))

    # -- the end --------------------------------------------------------------------------------------------

    def _end(self, fault: Fault) -> None:
        """Kills the process and all that it started, and tells everybody who waits."""
        if self.ended:
            return
        self.ended = True
        self._let_go()
        self.kill()
        self._link.close()
        blamed, started = True, self.started
        while self._pending:
            future = self._pending.popleft().future
            if future is not None and not future.done():
                # One that never started has broken nobody's episode: it cannot be started, and that counts.
                future.set_exception(fault if blamed or not started else collateral())
            blamed = False
        self._on_end(self)

    def kill(self) -> None:
        """Kills the process group, unless the process has been reaped already."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def _how_it_died(self) -> str:
        """In words. It is not reaped: its process group keeps its number until `kill` has reached what is left."""
        deadline = time.monotonic() + 0.2  # its socket closes a moment before it can be waited for
        while (status := _status(self.process)) is None and time.monotonic() < deadline:
            time.sleep(0.002)
        if status is None:
            return "closed its connection"
        if status.si_code == os.CLD_EXITED:
            return f"ended with exit code {status.si_status}"
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(status.si_status).name}"
        return f"was killed by signal {status.si_status}"

    def ask_to_stop(self) -> None:
        """Asks it to close its environments and to end; without a loop, and without waiting."""
        if self.ended:
            return
        for pending in self._pending:
            if pending.future is not None and self._loop is not None and not self._loop.is_closed():
                pending.future.cancel()
        self._let_go()
        self._loop = None
        self._asked.append(Request("stop"))
        self._flush()
        self._stop_asked = True

    def wait_or_kill(self, seconds: float) -> bool:
        """Waits for a process that was asked to stop, kills it after `seconds`, and reaps it. Returns whether it ended
        by itself."""
        try:
            if not self._stop_asked:
                raise subprocess.TimeoutExpired("", 0)
            self.process.wait(max(seconds, 0.0))
            return True
        except subprocess.TimeoutExpired:
            self.kill()
            self.process.wait()
            return False
        finally:
            self.ended = True
            self._link.close()

    # -- loops ----------------------------------------------------------------------------------------------

    def _use_loop(self) -> None:
        """Serves the running loop: a run may have several, one after the other."""
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            return
        if self._loop is not None and not self._loop.is_closed() and any(p.future is not None for p in self._pending):
            raise RollenvError("worker processes serve one event loop at a time: use one pool per loop")
        self._let_go()
        for pending in self._pending:
            pending.future = None  # who waited for it has gone with the loop
        self._loop = loop
        loop.add_reader(self._link, self._read)
        loop.call_soon(self._flush)
        self._watch_first()

    def _let_go(self) -> None:
        """Leaves the loop."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._link)
            self._loop.remove_writer(self._link)
        self._writing = False

    def wait_started(self) -> None:
        """Waits, blocking, until the process has imported what it needs; for the time before a loop runs.

        Raises:
            RollenvError: it could not, or did not in time.
        """
        self._flush()
        self._link.settimeout(START_SECONDS)
        try:
            while not (contents := self._frames.feed(data := self._link.recv(READ_BYTES))):
                if not data:
                    raise RollenvError(f"a worker process for environments {self._how_it_died()} before it was ready")
        except TimeoutError:
            raise RollenvError(f"a worker process for environments did not start in {START_SECONDS:g} s") from None
        except OSError as error:
            raise RollenvError(f"a worker process for environments did not start: {error}") from error
        self._link.setblocking(False)
        answer = _loaded(contents[0])
        if answer.error is not None:
            raise RollenvError(f"a worker process could not prepare the environment: {answer.error}")
        self._take(answer)


def _status(process: subprocess.Popen[bytes]) -> os.waitid_result | None:
    """How a child has ended, without reaping it; None: it runs, or somebody has reaped it."""
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    except ChildProcessError:
        return None


def collateral() -> Fault:
    """What an episode gets whose environment went down with another's."""
    return Fault("env", "crash", "another environment took their worker process down", collateral=True)


def _raised(answer: Answer) -> Exception | None:
    """The environment's own exception, if this process knows its kind; not what would end a process, such as
    `sys.exit()` there."""
    with contextlib.suppress(Exception):
        error = pickle.loads(answer.raised or b"")
        return error if isinstance(error, Exception) else None
    return None


def _loaded(content: bytes) -> Answer:
    try:
        answer: Answer = pickle.loads(content)
        return answer
    except Exception as error:
        return Answer(error=f"its result cannot be read in this process: {type(error).__name__}: {error}")


def _start(link: socket.socket, stuck_seconds: float, path: list[str]) -> subprocess.Popen[bytes]:
    """Starts the process by exec: a fork of this one, with its threads, would not be safe.

    It leads a session of its own: Ctrl-C at the terminal is for the parent alone, and killing the group ends what the
    environments have started.
    """
    command = [sys.executable, "-P", "-m", "rollenv.rollout.env_worker_main", str(link.fileno()), str(stuck_seconds)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(entry for entry in path if entry)}
    try:
        return subprocess.Popen(
            command, pass_fds=(link.fileno(),), stdin=subprocess.DEVNULL, start_new_session=True, env=environment
        )
    except OSError as error:
        raise RollenvError(f"cannot start a worker process for environments: {error.strerror}") from error
