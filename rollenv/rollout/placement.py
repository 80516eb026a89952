"""Where environments run: as the settings say, else as the environment says, else as a short measurement advises.

The episodes are the same everywhere; only who waits for whom is not.
"""

from __future__ import annotations

import contextlib
import logging
import random
import statistics
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal

from rollenv.core import TextEnv
from rollenv.executor import DaemonThread
from rollenv.registration import EnvSpec, Placement
from rollenv.rollout.env_workers import is_portable

log = logging.getLogger(__name__)

Setting = Literal["auto", "inline", "thread", "process"]

QUICK_STEP_SECONDS = 200e-6
"""A step that takes less costs more on a thread than on the loop."""
QUICK_RESET_SECONDS = 2e-3
"""A longer reset would be felt by all other episodes on the loop."""
HEAVY_SECONDS = 1e-3
"""A step that computes longer holds the interpreter's lock for so long that it is worth a message to a process."""
COMPUTING_SHARE = 0.25
"""One that mostly waits would keep its neighbours in the process waiting. Not more than this: on a busy machine, who
computes waits for a core as well."""
PROBE_STEPS = 8
PROBE_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Cost:
    """What an environment was measured to take, in seconds: a reset, a median step, and how much of the step was
    spent computing (CPU time of the calling thread)."""

    reset: float
    step: float
    computing: float


def advised(cost: Cost) -> Placement:
    """The placement for such a cost."""
    if cost.step <= QUICK_STEP_SECONDS and cost.reset <= QUICK_RESET_SECONDS:
        return "inline"
    if cost.computing >= HEAVY_SECONDS and cost.computing >= COMPUTING_SHARE * cost.step:
        return "process"
    return "thread"


def declared(setting: Setting, spec: EnvSpec, kind: type[TextEnv]) -> Placement | None:
    """What the settings say, else the spec, else the class; None: nobody says anything."""
    if setting != "auto":
        return setting
    if spec.placement is not None:
        return spec.placement
    says_so = any("executor" in parent.__dict__ for parent in kind.__mro__[: kind.__mro__.index(TextEnv)])
    return kind.executor if says_so else None


def measured(spec: EnvSpec, env: TextEnv, arguments: Mapping[str, Any]) -> Placement:
    """What a few steps of `env` advise; nobody may use it afterwards.

    Args:
        arguments: what it was made with.
    """
    cost = probe(env)
    if cost is None:
        return "thread"  # deadlines can give up on those
    placement = advised(cost)
    if placement == "process" and not is_portable(spec, arguments):
        placement = "thread"
    log.info(
        "environment '%s': a step takes %.2f ms, %.2f of it computing: placement '%s'",
        spec.id,
        cost.step * 1e3,
        cost.computing * 1e3,
        placement,
    )
    return placement


def probe(env: TextEnv, seconds: float = PROBE_SECONDS) -> Cost | None:
    """Plays a few steps on a thread. None: it broke, ended at once, or took longer than `seconds`."""
    thread = DaemonThread("env-probe")
    future: Future[Cost | None] = thread.submit(lambda: _played(env))
    try:
        return future.result(seconds)
    except (Exception, SystemExit):
        return None
    finally:
        thread.stop(timeout=0)


def _played(env: TextEnv) -> Cost | None:
    draw = random.Random(0)
    env.reset(seed=0)  # whatever it loads the first time
    began = time.perf_counter()
    _, info = env.reset(seed=0)
    reset = time.perf_counter() - began
    steps, computing = [], []
    for _ in range(PROBE_STEPS):
        action = _some_action(env, info, draw)
        wall, cpu = time.perf_counter(), time.thread_time()
        _, _, terminated, truncated, info = env.step(action)
        steps.append(time.perf_counter() - wall)
        computing.append(time.thread_time() - cpu)
        if terminated or truncated:
            break
    return Cost(reset, statistics.median(steps), statistics.median(computing))


def _some_action(env: TextEnv, info: Mapping[str, Any], draw: random.Random) -> str:
    with contextlib.suppress(Exception):
        if actions := info.get("admissible_actions"):
            return str(draw.choice(actions))
    return str(env.action_space.sample())
