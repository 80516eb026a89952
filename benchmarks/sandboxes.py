"""Sandboxes: how soon an episode has one, how many commands run at a time, how many can wait. Backends side by side.

    python benchmarks/sandboxes.py [--json FILE] [--rounds 30] [--concurrent 64] [--idle 200]

A start is what an episode waits for: from asking a pool until the first command has answered. Warm: the pool has a
sandbox ready. Busy: its only sandbox was just given back, so that the reset is in it. Cold: without a pool. Rounds of
all backends alternate; medians and 95th percentiles are printed. A backend that cannot be used here is left out with
its reason; images are made first where they are missing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from pathlib import Path
from typing import Any

from backends import usable

from rollenv.sandboxes import MiB, Pool, Sandbox, SandboxSpec, create

SPEC = SandboxSpec(memory=128 * MiB, disk=16 * MiB, pids=64)
TARGETS = {"bubblewrap": 30, "docker": 120}
"""Milliseconds of a warm start's median that are to be reached."""
IDLE_AT_ONCE = 8


async def timed(work: Any) -> tuple[float, Any]:
    """Milliseconds that a coroutine took, and what it returned."""
    began = time.perf_counter()
    result = await work
    return 1000 * (time.perf_counter() - began), result


async def warm_starts(backends: list[str], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Milliseconds of starts (cold and warm), of their parts, and of a command, by backend."""
    kinds = ("warm start", "busy start", "of it: wait for reset", "cold start", "a command")
    seen: dict[str, dict[str, list[float]]] = {name: {kind: [] for kind in kinds} for name in backends}
    pools = {name: Pool(name, max_live=1, warm=0) for name in backends}
    for name in backends:
        async with pools[name].sandbox(SPEC) as sandbox:
            await sandbox.exec("true")
    for _ in range(rounds):
        for name, pool in pools.items():
            figures = seen[name]
            held = await pool.acquire(SPEC)
            await held.exec("echo x >file")
            pool.release(held)
            wait, sandbox = await timed(pool.acquire(SPEC))
            first, _ = await timed(sandbox.exec("true"))
            figures["of it: wait for reset"].append(wait)
            figures["busy start"].append(wait + first)
            figures["a command"].append((await timed(sandbox.exec("true")))[0])
            pool.release(sandbox)
            while not pool.metrics.ready:
                await asyncio.sleep(0.005)
            wait, sandbox = await timed(pool.acquire(SPEC))
            figures["warm start"].append(wait + (await timed(sandbox.exec("true")))[0])
            pool.release(sandbox)
    for _ in range(max(3, rounds // 5)):
        for name in backends:
            began = time.perf_counter()
            async with await create(SPEC, backend=name) as sandbox:
                await sandbox.exec("true")
                seen[name]["cold start"].append(1000 * (time.perf_counter() - began))
    for pool in pools.values():
        await pool.close()
    return seen


async def commands_per_second(backend: str, concurrent: int, seconds: float = 10.0) -> float:
    """Commands that so many sandboxes answer in a second, all together."""
    sandboxes = await asyncio.gather(*(create(SPEC, backend=backend) for _ in range(concurrent)))
    until = time.perf_counter() + seconds

    async def use(sandbox: Sandbox) -> int:
        count = 0
        while time.perf_counter() < until:
            done = await sandbox.exec("echo hello >file && cat file")
            assert done.stdout == "hello\n", done
            count += 1
        return count

    began = time.perf_counter()
    total = sum(await asyncio.gather(*map(use, sandboxes)))
    took = time.perf_counter() - began
    await asyncio.gather(*(sandbox.close() for sandbox in sandboxes))
    return total / took


async def idle(backend: str, number: int) -> dict[str, float]:
    """Makes so many sandboxes that do nothing, asks a few of them something, and closes them."""
    gate = asyncio.Semaphore(IDLE_AT_ONCE)

    async def make() -> Sandbox:
        async with gate:
            return await create(SPEC, backend=backend)

    before = free_mib()
    took, sandboxes = await timed(asyncio.gather(*(make() for _ in range(number))))
    used = before - free_mib()
    answers = [(await timed(sandbox.exec("true")))[0] for sandbox in sandboxes[:: max(1, number // 10)]]
    closing, _ = await timed(asyncio.gather(*(sandbox.close() for sandbox in sandboxes)))
    return {
        "idle": len(sandboxes),
        "make s": took / 1000,
        "MiB each": used / number,
        "a command ms": statistics.median(answers),
        "close s": closing / 1000,
    }


def free_mib() -> float:
    """Memory that programs can still have."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("MemAvailable:"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--concurrent", type=int, default=64)
    parser.add_argument("--idle", type=int, default=200)
    args = parser.parse_args()
    backends = usable()
    figures: dict[str, Any] = {}
    for name, kinds in asyncio.run(warm_starts(backends, args.rounds)).items():
        for kind, values in kinds.items():
            p50, p95 = statistics.median(values), statistics.quantiles(values, n=20)[-1]
            figures.setdefault(name, {})[kind] = {"p50": p50, "p95": p95}
            target = f"  (to reach: {TARGETS[name]} ms)" if kind == "warm start" else ""
            print(f"{name:<11} {kind:<22} p50 {p50:7.1f} ms   p95 {p95:7.1f} ms{target}")
    if len(backends) == 2:
        ratio = figures["docker"]["warm start"]["p50"] / figures["bubblewrap"]["warm start"]["p50"]
        print(f"a warm start takes {ratio:.1f} times as long with docker as with bubblewrap")
    if "bubblewrap" in backends:
        rate = asyncio.run(commands_per_second("bubblewrap", args.concurrent))
        figures["bubblewrap"]["commands per second"] = rate
        print(f"bubblewrap  {args.concurrent} sandboxes at work: {rate:.1f} commands/s in all (to reach: 20)")
    for name in backends:
        waiting = figures[name]["idle"] = asyncio.run(idle(name, args.idle))
        print(f"{name:<11} " + ", ".join(f"{key} {value:.4g}" for key, value in waiting.items()))
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
