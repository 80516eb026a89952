"""How fast the native ALFWorld is, next to TextWorld on the same games. Prints one line per claim.

    python benchmarks/alfworld_env.py [--data FOLDER_OR_ARCHIVE] [--games 50] [--json FILE]

Needs the extra `[alfworld]` for the ratios (`--games 0` leaves them out). Both engines play the same commands of the
same games, in turn, in one process; ratios are per game, and their median is printed. All times are CPU time of the
one core in use, so that other work on the machine does not count. Without --data the games are generated ones.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="ALFWorld's games, a folder or an archive (default: generated games)")
    parser.add_argument("--games", type=int, default=50, help="how many games both engines play (0: none)")
    parser.add_argument("--steps", type=int, default=10, help="commands per game, for the ratios")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long to step in each mode")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rollenv-bench-") as scratch:
        os.environ["ROLLENV_CACHE"] = scratch  # the first look at the games below is a real first one
        figures = measure(arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


def measure(arguments: argparse.Namespace) -> dict[str, float]:
    """All figures by name; each is printed when it is known."""
    figures: dict[str, float] = {}

    def claim(name: str, value: float, text: str) -> None:
        figures[name] = value
        print(text, flush=True)

    import rollenv
    from rollenv.envs.alfworld.library import open_library

    cold, env = timed(lambda: rollenv.make("alfworld", data=arguments.data))
    tasks = [task for ids in env.tasks.splits.values() for task in ids]
    random.Random(0).shuffle(tasks)
    claim("index_cold_s", cold, f"first look at {len(tasks):,} games: {cold:.2f} s")
    open_library.cache_clear()
    warm, env = timed(lambda: rollenv.make("alfworld", data=arguments.data))
    claim("index_warm_s", warm, f"every further look: {warm:.3f} s")
    for name, listing in (("without", False), ("with", True)):
        rate = step_rate(
            rollenv.make("alfworld", data=arguments.data, admissible_actions=listing), tasks, arguments.seconds
        )
        claim(f"steps_per_s_{name}", rate, f"steps {name} admissible commands: {rate:,.0f} /s")
    for name, value in times_of_an_episode(env, tasks[:200]).items():
        claim(f"{name}_us", value, f"{name.replace('_', ' ')}: {value:,.0f} microseconds")
    mib = memory_of(lambda: rollenv.make("alfworld", data=arguments.data), tasks[:1000])
    claim(
        "mib_1000_games",
        mib,
        f"memory of 1,000 games amid their episodes, with their admissible commands: {mib:.0f} MiB",
    )
    if arguments.games and importlib.util.find_spec("fast_downward") is None:
        print("the ratios are left out: pip install 'rollenv[alfworld]' for the engine to compare with")
    elif arguments.games:
        for name, value in ratios(env, tasks[: arguments.games], arguments.steps).items():
            claim(name, value, f"{name.replace('_', ' ')}: {value:,.4g}")
    return figures


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds that `action` took, and what it returned."""
    start = time.process_time()
    result = action()
    return time.process_time() - start, result


def commands_of(env: Any, task: str, count: int) -> list[str]:
    """Admissible commands of an episode, each verb as likely as any other; fewer when the game is won."""
    rng = random.Random(task)
    _, info = env.reset(options={"task": task})
    commands = []
    for _ in range(count):
        verb = rng.choice(sorted({command.split()[0] for command in info["admissible_actions"]}))
        commands.append(rng.choice([c for c in info["admissible_actions"] if c.split()[0] == verb]))
        _, _, over, _, info = env.step(commands[-1])
        if over:
            break
    return commands


def step_rate(env: Any, tasks: list[str], seconds: float) -> float:
    """Steps a second over episodes of 50 commands, drawn beforehand."""
    import rollenv

    listing = rollenv.make("alfworld", data=env._data)
    plans = [(task, commands_of(listing, task, 50)) for task in tasks[:100]]
    steps, spent = 0, 0.0
    while spent < seconds:
        for task, commands in plans:
            env.reset(options={"task": task})
            start = time.process_time()
            for command in commands:
                env.step(command)
            spent += time.process_time() - start
            steps += len(commands)
    return steps / spent


def times_of_an_episode(env: Any, tasks: list[str]) -> dict[str, float]:
    """Medians in microseconds: a game's first reset ever, from the compiled file, again; snapshot and restore."""
    from rollenv.envs.alfworld import boards

    def reset(task: str) -> float:
        return timed(lambda: env.reset(options={"task": task}))[0]

    def forget() -> None:
        env._simulator = None
        boards._recent.clear()

    # The grammar is read, and the first games are compiled, outside of what is measured.
    env.reset(options={"task": tasks[0]})
    figures = {"first_reset_of_a_game_ever": statistics.median(reset(task) for task in tasks[-40:])}
    forget()
    figures["reset_from_its_compiled_file"] = statistics.median(reset(task) for task in tasks[-40:])
    figures["reset_again"] = statistics.median(reset(task) for task in tasks[-40:])
    commands = commands_of(env, tasks[0], 20)
    snapshot = env.snapshot()
    figures["snapshot"] = statistics.median(timed(env.snapshot)[0] for _ in range(200))
    figures["restore"] = statistics.median(timed(lambda: env.restore(snapshot))[0] for _ in commands * 10)
    return {name: value * 1e6 for name, value in figures.items()}


def memory_of(make: Callable[[], Any], tasks: list[str]) -> float:
    """MiB of Python memory for environments that are each amid an episode of a game of their own."""
    from rollenv.envs.alfworld import boards

    boards._recent.clear()
    tracemalloc.start()
    envs = []
    for task in tasks:
        env = make()
        _, info = env.reset(options={"task": task})
        for number in range(5):
            _, _, over, _, info = env.step(info["admissible_actions"][number])
            if over:
                break
        envs.append((env, info))
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return used / 2**20


def ratios(env: Any, tasks: list[str], steps: int) -> dict[str, float]:
    """How many times faster the native engine resets and steps: medians over games, and both engines' own times."""
    from rollenv.envs.alfworld import boards
    from rollenv.envs.alfworld.reference import ReferenceSimulator

    rows = []
    for number, task in enumerate(tasks, 1):
        commands = commands_of(env, task, steps)
        env._simulator = None
        boards._recent.clear()
        native_reset, _ = timed(lambda task=task: env.reset(options={"task": task}))
        native_step = statistics.median(_time_of_pass(env, task, commands) for _ in range(20)) / len(commands)
        data = env._library.read(task)
        reference_reset, reference = timed(lambda data=data, task=task: ReferenceSimulator(data, task))
        reference_step = timed(lambda r=reference, c=commands: [r.command(command) for command in c])[0] / len(commands)
        reference.close()
        rows.append((native_reset, native_step, reference_reset, reference_step))
        print(f"  {number}/{len(tasks)}: reset {reference_reset:.1f} s, step {reference_step * 1e3:.0f} ms", flush=True)
    columns = [statistics.median(column) for column in zip(*rows, strict=True)]
    return {
        "textworld_reset_s": columns[2],
        "textworld_step_ms": columns[3] * 1e3,
        "native_reset_ms": columns[0] * 1e3,
        "native_step_us": columns[1] * 1e6,
        "reset_ratio": statistics.median(reference / native for native, _, reference, _ in rows),
        "step_ratio": statistics.median(reference / native for _, native, _, reference in rows),
    }


def _time_of_pass(env: Any, task: str, commands: list[str]) -> float:
    env.reset(options={"task": task})
    return timed(lambda: [env.step(command) for command in commands])[0]


if __name__ == "__main__":
    main()
