"""SWE episodes: how soon one begins, how long judging takes, how many commands run at a time. Backends side by side.

    python benchmarks/swe.py [--json FILE] [--rounds 20] [--concurrent 64]

A start is what an episode waits for: `reset`, with a sandbox ready in the pool and the repository laid out in it.
Judging is a fresh sandbox, the tests of a default task, and its report; next to it, the same tests by pytest alone on
this machine, without any sandbox, which is what cannot be saved. Rounds of all backends alternate; medians and 95th
percentiles are printed. A backend that cannot be used here is left out with its reason.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from backends import usable

import rollenv
from rollenv.agents.swe import GoldPatch
from rollenv.envs.swe.synthesis import repo_files

TARGETS = {"warm start": {"bubblewrap": 30, "docker": 120}, "judging": {"bubblewrap": 1000, "docker": 1000}}
"""Milliseconds of medians that are to be reached."""
LOOK = json.dumps({"name": "bash", "arguments": {"command": "echo hello >/tmp/x && cat /tmp/x"}})
SUBMIT = json.dumps({"name": "submit", "arguments": {}})


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Milliseconds that a call took, and what it returned."""
    began = time.perf_counter()
    result = work()
    return 1000 * (time.perf_counter() - began), result


def episodes(backends: list[str], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Milliseconds of starts, first commands and judging, by backend."""
    kinds = ("warm start", "first command", "a command", "judging")
    envs = {name: rollenv.make("swe", sandbox=name) for name in backends}
    seen: dict[str, dict[str, list[float]]] = {name: {kind: [] for kind in kinds} for name in backends}
    for at in range(-1, rounds):
        for name, env in envs.items():
            ids = env.tasks.ids("test")
            task, agent = {"task": ids[at % len(ids)]}, GoldPatch()
            time.sleep(0.3)  # what was given back is made ready meanwhile: the pool is warm
            start, (observation, info) = timed(lambda env=env, task=task: env.reset(options=task))
            first, _ = timed(lambda env=env: env.step(LOOK))
            command, _ = timed(lambda env=env: env.step(LOOK))
            env.step(agent.act(observation, info))
            judging, (_, reward, *_) = timed(lambda env=env: env.step(SUBMIT))
            assert reward == 1.0, (name, info["task"])
            if at >= 0:  # the first one makes the sandboxes
                for kind, value in zip(kinds, (start, first, command, judging), strict=True):
                    seen[name][kind].append(value)
    for env in envs.values():
        env.close()
    return seen


def bare_pytest(rounds: int) -> list[float]:
    """Milliseconds that Debian's pytest takes for the tests of a repository, without a sandbox."""
    with tempfile.TemporaryDirectory() as folder:
        for path, text in repo_files("romans").items():
            file = Path(folder, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        words = ["/usr/bin/python3", "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]

        def run() -> None:
            subprocess.run(words, cwd=folder, check=True, capture_output=True)

        return [timed(run)[0] for _ in range(rounds)]


async def commands_per_second(concurrent: int, seconds: float = 15.0) -> float:
    """Commands in a second of so many episodes at once, all together, with bubblewrap."""
    envs = [rollenv.make("swe", sandbox="bubblewrap", max_sandboxes=concurrent) for _ in range(concurrent)]
    ids = envs[0].tasks.ids("train")
    await asyncio.gather(*(env.areset(options={"task": ids[n % len(ids)]}) for n, env in enumerate(envs)))
    until = time.perf_counter() + seconds

    async def use(env: Any) -> int:
        count = 0
        while time.perf_counter() < until and count < 49:  # the fiftieth step is judged
            observation, *_ = await env.astep(LOOK)
            assert observation == "hello", observation
            count += 1
        return count

    began = time.perf_counter()
    total = sum(await asyncio.gather(*map(use, envs)))
    took = time.perf_counter() - began
    await asyncio.gather(*(asyncio.to_thread(env.close) for env in envs))
    return total / took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--concurrent", type=int, default=64)
    args = parser.parse_args()
    backends = usable()
    if not backends:
        sys.exit("no sandbox can be made here")
    figures: dict[str, Any] = {}
    for name, kinds in episodes(backends, args.rounds).items():
        for kind, values in kinds.items():
            p50, p95 = statistics.median(values), statistics.quantiles(values, n=20)[-1]
            figures.setdefault(name, {})[kind] = {"p50": p50, "p95": p95}
            target = TARGETS.get(kind, {}).get(name)
            goal = f"  (to reach: {target} ms)" if target else ""
            print(f"{name:<11} {kind:<14} p50 {p50:7.1f} ms   p95 {p95:7.1f} ms{goal}")
    bare = figures["bare pytest"] = statistics.median(bare_pytest(max(3, args.rounds // 4)))
    for name in backends:
        ratio = figures[name]["judging"]["p50"] / bare
        print(f"judging with {name} takes {ratio:.2f} times as long as pytest without a sandbox ({bare:.0f} ms)")
    if "bubblewrap" in backends:
        rate = figures["commands per second"] = asyncio.run(commands_per_second(args.concurrent))
        print(f"bubblewrap  {args.concurrent} episodes at work: {rate:.1f} commands/s in all (to reach: 20)")
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
