"""The inside of a worker process: hosts environments, and answers one request after another.

Invariant: it does not outlive its parent. A thread watches the socket; when the other end is gone, the whole process
group is killed, also in the middle of a step, and with it whatever the environments have started.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

from rollenv.core import TextEnv, restored
from rollenv.rollout.env_wire import Answer, Frames, Request, Setup, frame
from rollenv.rollout.episode import describe

READ_BYTES = 1 << 18
WATCH_SECONDS = 5.0


class Host:
    """The environments of this process, by number."""

    def __init__(self) -> None:
        self._make: Callable[[], TextEnv] | None = None
        self._envs: dict[int, TextEnv] = {}

    def answer(self, request: Request) -> Answer:
        """Carries a request out, whatever it does."""
        try:
            return Answer(self._carry_out(request))
        except BaseException as error:  # an environment that calls sys.exit() ends itself, not its neighbours
            return Answer(error=describe(error), raised=_pickled(error))

    def _carry_out(self, request: Request) -> Any:
        match request.verb:
            case "step":
                return self._envs[request.env].step(*request.arguments)
            case "reset":
                seed, options = request.arguments
                return self._envs[request.env].reset(seed=seed, options=options)
            case "snapshot":
                return self._envs[request.env].snapshot()
            case "reseed":
                self._envs[request.env].reseed(*request.arguments)
            case "restore":
                return restored(self._envs[request.env], *request.arguments)
            case "make":
                assert self._make is not None
                self._envs[request.env] = self._make()
            case "drop":
                if (env := self._envs.pop(request.env, None)) is not None:
                    env.close()
            case "setup":
                self._set_up(*request.arguments)
        return None

    def _set_up(self, setup: Setup) -> None:
        """Imports what the parent has, and finds the environment's entry point."""
        from rollenv.registration import make

        sys.path[:] = setup.path
        os.environ.pop("PYTHONPATH", None)
        if setup.python_path is not None:
            os.environ["PYTHONPATH"] = setup.python_path
        spec, arguments = pickle.loads(setup.made_of)
        spec.load()
        self._make = lambda: make(spec, **arguments)

    def close(self) -> None:
        """Closes all environments, whatever they say to it."""
        for env in self._envs.values():
            with contextlib.suppress(BaseException):
                env.close()


def serve(link: socket.socket) -> None:
    """Answers requests until it is told to stop, or nobody is there to ask."""
    host, frames = Host(), Frames()
    while data := link.recv(READ_BYTES):
        for content in frames.feed(data):
            for request in pickle.loads(content):
                if request.verb == "stop":
                    host.close()
                    return
                # At once: the parent takes the first request without an answer for the one that is running.
                link.sendall(_sendable(host.answer(request)))


def _pickled(error: BaseException) -> bytes | None:
    """None for an exception that does not survive it; many cannot be made from their own arguments."""
    with contextlib.suppress(Exception):
        content = pickle.dumps(error)
        pickle.loads(content)
        return content
    return None


def _sendable(answer: Answer) -> bytes:
    try:
        return frame(answer)
    except Exception as error:
        return frame(Answer(error=f"its result cannot be sent to another process: {describe(error)}"))


def _end() -> None:
    """The end of this process and of all that its environments have left behind."""
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _watch(link: socket.socket, stuck_seconds: float) -> None:
    """Ends everything when the parent's end of the socket closes.

    Native code that keeps the interpreter's lock keeps this thread from running, too: after `stuck_seconds` of that the
    process exits all the same (a parent that lives has ended it long before).
    """
    poll = select.poll()
    poll.register(link, 0)  # nothing to read or write: only whether it is still there
    with open(os.devnull, "w") as nowhere:
        while True:
            faulthandler.dump_traceback_later(stuck_seconds, exit=True, file=nowhere)
            if poll.poll(WATCH_SECONDS * 1000):
                _end()


def main() -> None:
    """The process: `python -m rollenv.rollout.env_worker_main SOCKET STUCK_SECONDS`, leader of its own group."""
    link = socket.socket(fileno=int(sys.argv[1]))
    threading.Thread(target=_watch, args=(link, float(sys.argv[2])), name="watch-parent", daemon=True).start()
    with contextlib.suppress(ConnectionError):
        serve(link)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    _end()


if __name__ == "__main__":
    main()
