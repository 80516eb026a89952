"""Audits: an environment's own probes, played task by task, before anybody trains on them.

An environment that can be audited has `probes`: name -> an object with `what` (in words), `solves` (whether it has to
succeed), and an `actions(task)`; and `probe_actions(name, task_id)`, which gives these actions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from rollenv.core import TextEnv
from rollenv.errors import RollenvError, did_you_mean


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of one probe on one task."""

    task: str
    probe: str
    solves: bool
    """Whether it has to succeed."""
    solved: bool
    reward: float
    note: str = ""

    @property
    def right(self) -> bool:
        """Whether it came as it has to: the solution earns 1, a cheat nothing."""
        return self.solved == self.solves and self.reward == float(self.solves)


def probe_names(env: TextEnv, wanted: Sequence[str] = ()) -> list[str]:
    """The probes of an environment, or those of them that are wanted.

    Raises:
        RollenvError: it has none, or not these.
    """
    known = getattr(env, "probes", None)
    if not known:
        raise RollenvError(f"{type(env).__name__} has no probes: it cannot be audited")
    for name in wanted:
        if name not in known:
            raise RollenvError(f"no probe '{name}'{did_you_mean(name, known)} (there are {', '.join(known)})")
    return list(wanted or known)


def audit(
    make: Callable[[], TextEnv], tasks: Sequence[str], probes: Sequence[str], concurrency: int = 4
) -> Iterator[Finding]:
    """Plays every probe on every task; findings come in that order.

    Args:
        make: makes an environment; each of `concurrency` threads has one.
        tasks: ids.
        probes: names (see `probe_names`).
        concurrency: how many are played at a time.
    """
    idle = [make() for _ in range(max(1, min(concurrency, len(tasks) * len(probes))))]
    envs = list(idle)

    def play(pair: tuple[str, str]) -> Finding:
        env = idle.pop()
        try:
            return _played(env, *pair)
        finally:
            idle.append(env)

    try:
        with ThreadPoolExecutor(len(envs)) as threads:
            yield from threads.map(play, [(task, probe) for task in tasks for probe in probes])
    finally:
        for env in envs:
            env.close()


def _played(env: TextEnv, task: str, name: str) -> Finding:
    probe = env.probes[name]  # type: ignore[attr-defined]
    _, info = env.reset(seed=0, options={"task": task})
    reward = 0.0
    for action in env.probe_actions(name, task):  # type: ignore[attr-defined]
        _, gained, terminated, truncated, info = env.step(action)
        reward += float(gained)
        if terminated or truncated:
            break
    return Finding(task, name, probe.solves, bool(info.get("success")), reward, str(info.get("reason") or ""))
