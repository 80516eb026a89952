"""An environment server under load: steps per second and latency by WebSocket, and what idle sessions cost.

A server process on one core, as many clients as sessions in this process on the others, all of them WebShop episodes of
random clicks with a search at their beginning. Printed: steps per second of the whole server when every client steps as
soon as it has an answer; the median and the 99th percentile of a step's latency, as clients see it, then and when they
think for a while between steps (exponentially, so long that 2,500 steps/s are asked for); and the server's memory per
idle session. With OpenEnv's own package installed (`pip install openenv-core`), its server hosts the same environment
on the same core, by turns with ours, and the ratio of both is printed.

Usage: python benchmarks/serving.py [--sessions 500] [--idle 5000] [--seconds 10] [--rounds 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.uri import parse_uri

SERVE = [sys.executable, "-m", "rollenv", "serve", "--env", "webshop"]
HERE = str(Path(__file__).parent)
OPENENV = [
    sys.executable,
    "-c",
    f"import sys; sys.path.insert(0, {HERE!r}); import openenv_webshop; openenv_webshop.serve()",
]
OFFERED = 2500.0
"""Steps per second that all clients together ask for when they think between steps."""
AT_ONCE = 64
"""Connections that are opened at the same time."""


@contextlib.contextmanager
def server(command: list[str], core: int) -> Iterator[tuple[str, psutil.Process]]:
    """Its WebSocket address and its process, which has one core to itself."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    os.sched_setaffinity(process.pid, {core})
    try:
        assert process.stdout is not None
        address = process.stdout.readline().split()[-1].replace("http", "ws", 1)
        yield f"{address}/ws", psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


class Client(asyncio.Protocol):
    """A WebSocket that costs little: with the usual clients, which do more, the clients would be what is measured."""

    def __init__(self, address: str) -> None:
        self._connection = ClientProtocol(parse_uri(address), max_size=None)
        self._answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._connection.send_request(self._connection.connect())
        self._flush()

    def data_received(self, data: bytes) -> None:
        self._connection.receive_data(data)
        for event in self._connection.events_received():
            if isinstance(event, Response):
                self._answer.set_result("")
            elif isinstance(event, Frame) and event.opcode is Opcode.TEXT:
                self._answer.set_result(bytes(event.data).decode())
        self._flush()  # pongs

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._answer.done():
            self._answer.set_exception(exc or self._connection.handshake_exc or ConnectionError("the server hung up"))

    def _flush(self) -> None:
        for part in self._connection.data_to_send():
            self._transport.write(part)

    async def begun(self) -> None:
        """Waits until it is open."""
        await self._answer

    async def said(self, kind: str, **data: Any) -> dict[str, Any]:
        """A request and its answer."""
        self._answer = asyncio.get_running_loop().create_future()
        self._connection.send_text(json.dumps({"type": kind, "data": data}).encode())
        self._flush()
        answer: dict[str, Any] = json.loads(await self._answer)
        if answer["type"] == "error":
            raise RuntimeError(answer["data"]["message"])
        return answer["data"]

    def close(self) -> None:
        """Hangs up."""
        self._transport.close()


async def opened(address: str, n: int) -> list[Client]:
    """So many connections, each with an episode begun."""
    places, where = asyncio.Semaphore(AT_ONCE), urllib.parse.urlsplit(address)

    async def one(seed: int) -> Client:
        async with places:
            loop = asyncio.get_running_loop()
            _, client = await loop.create_connection(lambda: Client(address), str(where.hostname), where.port or 80)
            await client.begun()
            await client.said("reset", seed=seed)
            return client

    return list(await asyncio.gather(*map(one, range(n))))


async def played(client: Client, seed: int, until: float, latencies: list[float], think: float) -> None:
    """Episodes of a search and of random clicks, with so many seconds between two steps in the mean."""
    draw = random.Random(seed)
    action = "search[wool hat]"
    while time.perf_counter() < until:
        if think:
            await asyncio.sleep(draw.expovariate(1 / think))
        began = time.perf_counter()
        seen = (await client.said("step", action=action))["observation"]
        latencies.append(time.perf_counter() - began)
        info, over = seen.get("info") or {}, seen.get("terminated") or seen.get("truncated")
        choices = info.get("admissible_actions") or []
        if over or not choices or len(latencies) % 20 == 0:
            await client.said("reset", seed=draw.randrange(10**6))
            action = "search[wool hat]"
        else:
            action = draw.choice(choices)


def cpu_seconds(process: psutil.Process) -> float:
    """Processor time that a process has taken so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


async def load(
    address: str, process: psutil.Process, sessions: int, seconds: float, think: float = 0.0
) -> dict[str, float]:
    """What so many clients get out of a server in that time."""
    clients = await opened(address, sessions)
    latencies: list[float] = []
    began, worked = time.perf_counter(), cpu_seconds(process)
    until = began + seconds
    await asyncio.gather(*(played(client, i, until, latencies, think) for i, client in enumerate(clients)))
    took, worked = time.perf_counter() - began, cpu_seconds(process) - worked
    for client in clients:
        client.close()
    cuts = statistics.quantiles(latencies, n=100)
    return {
        "steps_per_second": len(latencies) / took,
        "p50_ms": 1e3 * cuts[49],
        "p99_ms": 1e3 * cuts[98],
        "server_us": 1e6 * worked / len(latencies),
        "server_busy": worked / took,
    }


def medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    """The median of each figure."""
    return {key: statistics.median(found[key] for found in rounds) for key in rounds[0]}


async def idle(address: str, process: psutil.Process, n: int) -> float:
    """MiB that so many sessions, each at the beginning of an episode, take in the server."""
    before = process.memory_info().rss
    clients = await opened(address, n)
    taken = (process.memory_info().rss - before) / 2**20
    for client in clients:
        client.close()
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=500)
    parser.add_argument("--idle", type=int, default=5000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument(
        "--rounds", type=int, default=3, help="of clients that step as soon as they can; medians are told"
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    first, *others = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, others or [first])
    places = max(options.sessions, options.idle) + 10
    with contextlib.ExitStack() as servers:
        ours = servers.enter_context(server([*SERVE, "--port", "0", "--sessions", str(places)], first))
        paced = asyncio.run(load(*ours, options.sessions, options.seconds, options.sessions / OFFERED))
        beside = importlib.util.find_spec("openenv") is not None
        rivals = [ours, servers.enter_context(server(OPENENV, first))] if beside else [ours]
        # By turns, as the machine is not the same from one minute to the next; who has no clients costs nothing.
        rounds = [
            [asyncio.run(load(*one, options.sessions, options.seconds)) for one in rivals]
            for _ in range(options.rounds)
        ]
        figures = medians([found[0] for found in rounds])
        figures |= {f"paced_{key}": value for key, value in paced.items()}
        figures["idle_mib"] = asyncio.run(idle(*ours, options.idle))
    print(f"{options.sessions} sessions: {figures['steps_per_second']:,.0f} steps/s (goal 2,000)")
    print(f"  a step: median {figures['p50_ms']:.1f} ms, 99% within {figures['p99_ms']:.1f} ms")
    print(f"  the server: {figures['server_us']:.0f} us a step, busy {100 * figures['server_busy']:.0f}% of the time")
    print(f"the same that think between steps: {paced['steps_per_second']:,.0f} steps/s")
    print(f"  a step: median {paced['p50_ms']:.1f} ms, 99% within {paced['p99_ms']:.1f} ms (goal 50)")
    print(f"{options.idle} idle sessions: {figures['idle_mib']:.0f} MiB (goal 500)")
    if not beside:
        print("OpenEnv's own server is left out: pip install openenv-core")
    else:
        theirs = medians([found[1] for found in rounds])
        ratios = [mine["steps_per_second"] / other["steps_per_second"] for mine, other in rounds]
        ratio = statistics.median(ratios)
        figures |= {f"openenv_{key}": value for key, value in theirs.items()} | {"against_openenv": ratio}
        print(f"OpenEnv's server: {theirs['steps_per_second']:,.0f} steps/s, 99% within {theirs['p99_ms']:.1f} ms")
        print(f"  {theirs['server_us']:.0f} us a step, busy {100 * theirs['server_busy']:.0f}% of the time")
        print(f"against it: {ratio:.1f} times the steps per second (goal 5; {min(ratios):.1f} to {max(ratios):.1f})")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
