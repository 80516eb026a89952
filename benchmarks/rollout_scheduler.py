"""The rollout engine's figures: scenarios beside what is published, the scheduler's own cost, simulator and reality.

Scenarios run the real scheduler, controller and episodes in virtual time (`rollenv simulate` shows each one whole); the
baselines beside them play the same episodes. The scheduler's cost is CPU time of one core per turn, where an
environment only sleeps and generation takes no time: what is left is episodes, scheduling and the clock. The curve goes
over the number of episodes in flight, with the same number of turns at each point; memory is the most that a process of
its own takes. The last part plays episodes in real time with real sleeps, and simulates them from what they recorded.

Usage: python benchmarks/rollout_scheduler.py [--quick] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rollenv.config.simulate import ScenarioConfig
from rollenv.core import TextEnv
from rollenv.rollout.controller import collect
from rollenv.rollout.env_pool import EnvPool
from rollenv.rollout.episode import EpisodeLimits
from rollenv.rollout.groups import GroupRequest
from rollenv.rollout.play import ScriptedPlay
from rollenv.rollout.scheduler import Scheduler
from rollenv.simulation.clock import run_virtual
from rollenv.simulation.run import few_collections, simulate
from rollenv.simulation.scenario import load_scenario, run_scenario, shipped

IN_FLIGHT = (100, 1_000, 10_000)
EPISODES, TURNS = 10_000, 10
LONG = {"reset_seconds": 1e6, "step_seconds": 1e6, "generate_seconds": 1e6, "episode_seconds": 1e9}


def scenarios(quick: bool) -> dict[str, Any]:
    """Every comparison of every shipped scenario."""
    figures: dict[str, Any] = {}
    print(f"{'scenario':12s} {'variant':32s} {'s/step':>8s} {'ratio':>7s} {'target':>7s} {'published':>9s}")
    for name in shipped():
        rows = run_scenario(load_scenario(name, ["steps=2"] if quick else []))
        for row in rows:
            about, outcome = row.variant.about, row.outcome
            ratio = f"{row.ratio:.2f}x" if row.ratio is not None else ""
            target = f"{about.at_least:.2f}x" if about.at_least else ""
            published = f"{about.published:.2f}x" if about.published and row.ratio is not None else ""
            more = f"  {100 * row.above_bound:.1f}% above max_i sum_t" if about.within_bound is not None else ""
            verdict = {None: "", True: "  reached", False: "  SHORT"}[row.reached]
            print(
                f"{name:12s} {row.variant.name:32s} {outcome.mean_step:8.1f} {ratio:>7s} {target:>7s} "
                f"{published:>9s}{verdict}{more}"
            )
            figures[f"{name}/{row.variant.name}"] = {
                "seconds_per_step": outcome.mean_step,
                "ratio": row.ratio,
                "target": about.at_least,
                "published": about.published,
                "reached": row.reached,
            }
    return figures


# -- the scheduler's own cost ------------------------------------------------------------------------------------


def crowd(in_flight: int, episodes: int = EPISODES, engine: bool = False) -> ScenarioConfig:
    """Episodes of `TURNS` turns, so many at a time; with `engine`, a model of one generates for them."""
    generation = {"tokens": {"kind": "lognormal", "mean": 100.0, "sigma": 0.5}, "tokens_per_second": 50.0}
    return ScenarioConfig.model_validate(
        {
            "steps": 1,
            "rollout": {"groups": episodes // 10, "group_size": 10, "concurrency": in_flight, "filter": "keep", **LONG},
            "env": {"turns": {"mean": TURNS}, "step": {"kind": "normal", "mean": 10.0, "sigma": 3.0}},
            "engine": {"slots": 64, "device_tokens_per_second": 1500.0, **generation} if engine else {},
            "devices": {"total": max(1, in_flight // 64)},
        }
    )


def turns_per_second(config: ScenarioConfig) -> float:
    """Turns per second of CPU time."""
    began = time.process_time()
    turns = simulate(config).turns
    return turns / (time.process_time() - began)


def loop_alone(in_flight: int, episodes: int) -> float:
    """Turns per second of CPU time when an episode is nothing but its sleeps: what the event loop and the machine's
    caches make of so many tasks, whatever schedules them."""
    draw = random.Random(0)
    seconds = [[max(0.0, draw.gauss(10, 3)) for _ in range(TURNS)] for _ in range(episodes)]

    async def main() -> None:
        places = asyncio.Semaphore(in_flight)

        async def sleep(turns: list[float]) -> None:
            async with places:
                for each in turns:
                    await asyncio.sleep(each)

        await asyncio.gather(*(sleep(turns) for turns in seconds))

    began = time.process_time()
    with few_collections():
        run_virtual(main())
    return episodes * TURNS / (time.process_time() - began)


def cost(quick: bool) -> dict[str, Any]:
    """The curve over episodes in flight, and memory."""
    repeats, episodes = (1, 2_000) if quick else (3, EPISODES)
    points = [n for n in IN_FLIGHT if n <= episodes]
    simulate(crowd(100, 500))  # warm-up
    rates: dict[tuple[int, bool], list[float]] = {(n, engine): [] for n in points for engine in (False, True)}
    for _ in range(repeats):
        for n, engine in rates:
            rates[n, engine].append(turns_per_second(crowd(n, episodes, engine)))
    medians = {key: statistics.median(values) for key, values in rates.items()}
    bare = {n: statistics.median(loop_alone(n, episodes) for _ in range(repeats)) for n in points}
    print(f"\n{'in flight':>10s} {'turns/s':>9s} {'us/turn':>8s} {'with engine model':>18s} {'the loop alone':>15s}")
    for n in points:
        alone, whole = medians[n, False], medians[n, True]
        print(f"{n:10,d} {alone:9,.0f} {1e6 / alone:8.1f} {whole:18,.0f} {bare[n]:15,.0f}")
    mib = memory(points[-1])
    print(f"memory of {points[-1]:,} episodes in flight: {mib:.0f} MiB (target: 1024)")
    return {
        "turns_per_second": {str(n): medians[n, False] for n in points},
        "turns_per_second_with_engine": {str(n): medians[n, True] for n in points},
        "growth": medians[points[0], False] / medians[points[-1], False],
        "growth_of_the_loop_alone": bare[points[0]] / bare[points[-1]],
        "mib": mib,
    }


def memory(in_flight: int) -> float:
    """MiB that a process takes at most while it has so many episodes in flight, beyond what imports take."""
    command = [sys.executable, __file__, "--memory", str(in_flight)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def peak_mib() -> float:
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would count what the parent had at the fork
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # macOS counts bytes


# -- simulator against reality -----------------------------------------------------------------------------------


class Sleeper(TextEnv):
    """Sleeps, really, as long as its seed says: log-normal with a heavy tail."""

    executor = "inline"

    async def areset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        self._draw, self._turns = random.Random(seed), 0
        return "", {}

    async def astep(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        await asyncio.sleep(self._draw.lognormvariate(-3.5, 0.8))
        self._turns += 1
        return "", 0.0, self._turns == 8, False, {"success": True}


class Nobody:
    """An agent that says nothing."""

    def reset(self, seed: int) -> None:
        return None

    def act(self, observation: str, info: dict[str, Any]) -> str:
        return ""


def reality(quick: bool) -> dict[str, float]:
    """Plays episodes in real time, then simulates them as recorded."""
    groups, size, concurrency = (8 if quick else 40), 4, 16
    play = ScriptedPlay(EnvPool(Sleeper), "sleeper", Nobody, EpisodeLimits())

    async def run() -> tuple[list[Any], float]:
        requests = [GroupRequest(i, str(i), size, 0) for i in range(groups)]
        began = time.perf_counter()
        done = await collect(Scheduler(play, concurrency), requests)
        return [t for group in done for t in group.trajectories], time.perf_counter() - began

    trajectories, real = asyncio.run(run())
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trajectories.jsonl"
        file.write_text("".join(json.dumps(t.to_dict()) + "\n" for t in trajectories))
        rollout = {"groups": groups, "group_size": size, "concurrency": concurrency, "filter": "keep"}
        scenario = {"steps": 1, "replay": str(file), "replay_exactly": True, "rollout": rollout}
        simulated = simulate(ScenarioConfig.model_validate(scenario)).mean_step
    off = simulated / real - 1
    print(f"\n{len(trajectories)} episodes with real sleeps: {real:.2f} s; simulated as recorded: {simulated:.2f} s")
    print(f"difference: {100 * off:+.1f}% (target: within 10%)")
    return {"real_seconds": real, "simulated_seconds": simulated, "difference": off}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few steps and episodes: does it run at all?")
    parser.add_argument("--only", choices=("scenarios", "cost", "reality"), help="one part")
    parser.add_argument("--memory", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    if args.memory is not None:
        before = peak_mib()
        simulate(crowd(args.memory, args.memory, engine=True))
        print(peak_mib() - before)
        return
    print(f"load average {os.getloadavg()[0]:.2f}")
    parts = {"scenarios": scenarios, "cost": cost, "reality": reality}
    figures = {name: part(args.quick) for name, part in parts.items() if args.only in (None, name)}
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
