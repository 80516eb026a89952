"""Plays recorded episodes in another process, where a set of texts has another order than here.

Two files carry it: a job, `(pickled factory, [(seed, actions), ...])`, and an answer, one of
`("events", [[Event, ...], ...])` and `("unavailable", reason)`.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from rollenv.conformance.player import Player
from rollenv.core import TextEnv

CHECK = "another process"
_MAIN = "import sys; from rollenv.conformance.replay import main; main(*sys.argv[1:])"


def replay_elsewhere(factory: bytes, episodes: Sequence[tuple[int, Sequence[str]]]) -> tuple[str, Any]:
    """The answer of the other process, or `("failed", last line of its stderr)`."""
    changed = {
        "PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    with tempfile.TemporaryDirectory(prefix="rollenv-check-") as folder:
        job, answer, errors = Path(folder, "job"), Path(folder, "answer"), Path(folder, "errors")
        job.write_bytes(pickle.dumps((factory, [(seed, list(actions)) for seed, actions in episodes])))
        with errors.open("wb") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-c", _MAIN, str(job), str(answer)],
                env=os.environ | changed,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
            )
        try:
            status = process.wait()
        finally:  # whatever the environment started there ends with it
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if status != 0:
            said = errors.read_text(errors="replace").strip()
            return "failed", said.rpartition("\n")[2] or f"exit status {status}"
        found: tuple[str, Any] = pickle.loads(answer.read_bytes())
        return found


def main(job: str, answer: str) -> NoReturn:
    """What the other process does; it exits at once when it is done, whatever the environment left running."""
    pickled, episodes = pickle.loads(Path(job).read_bytes())
    try:
        factory: Callable[[], TextEnv] = pickle.loads(pickled)
    except (ImportError, AttributeError) as error:
        Path(answer).write_bytes(pickle.dumps(("unavailable", f"cannot be imported in another process: {error}")))
        os._exit(0)
    env = factory()
    player, played = Player(env, CHECK), []
    for seed, actions in episodes:
        player.reset(seed)
        player.play(actions)
        played.append(player.events)
    env.close()
    Path(answer).write_bytes(pickle.dumps(("events", played)))
    os._exit(0)
