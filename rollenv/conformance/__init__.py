"""The contract of an environment, as a test that anyone can run on theirs.

>>> import rollenv
>>> report = rollenv.check_env("webshop")  # doctest: +SKIP
>>> print(report)  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable

from rollenv.conformance.bench import Bench
from rollenv.conformance.checks import CHECKS
from rollenv.conformance.player import Policy, kept_global_generators
from rollenv.conformance.report import CheckReport, ConformanceError, Skipped
from rollenv.core import TextEnv
from rollenv.errors import RollenvError

__all__ = ["CheckReport", "ConformanceError", "check_env"]


def check_env(
    env: TextEnv | str | Callable[[], TextEnv],
    *,
    episodes: int = 3,
    steps: int = 30,
    seed: int = 0,
    policy: Policy | None = None,
) -> CheckReport:
    """Holds an environment against the contract of `TextEnv`, by playing several fresh instances of it.

    Checked are: the types and ranges of what `reset` and `step` return; that a seed decides everything, in any
    instance and process; that listed actions are admissible and bad ones change nothing; that unknown tasks and
    misused calls are refused with an error that says so; that snapshots and pickles continue to the same future;
    that `areset` and `astep` give what `reset` and `step` give; and that `close` leaves no thread, open file or
    child process behind.

    Args:
        env: an id or a function that makes an environment; or an environment, which is itself not played: copies
            of it are, by pickling it (its constructor is not checked then).
        episodes: how many episodes to record and compare with.
        steps: the most steps per episode.
        seed: decides which episodes.
        policy: `(observation, info, random.Random) -> action`, how to explore. By default: random admissible
            actions, or any text where the environment lists none.

    Returns:
        Which checks passed, and which were skipped for what reason.

    Raises:
        ConformanceError: the environment breaks the contract; the message names the fault and where it happened.
        RollenvError: `env` is nothing that can be checked, or there is no such id.
    """
    if episodes < 1 or steps < 1:
        raise RollenvError(f"check_env needs at least one episode and one step, not {episodes} and {steps}")
    bench = Bench(env, episodes=episodes, steps=steps, seed=seed, policy=policy)
    with kept_global_generators():
        for name, check in CHECKS.items():
            bench.check = name
            try:
                check(bench)
            except Skipped as reason:
                bench.report.skipped[name] = str(reason)
            else:
                bench.report.passed.append(name)
    return bench.report
