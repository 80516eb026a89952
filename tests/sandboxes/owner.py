"""An owner that a test kills: makes sandboxes, keeps something running in each, says `ready`, and waits.

python owner.py BACKEND NUMBER
"""

from __future__ import annotations

import asyncio
import sys

from rollenv.sandboxes import MiB, SandboxSpec, create


async def main(backend: str, number: int) -> None:
    spec = SandboxSpec(memory=64 * MiB, disk=4 * MiB, pids=32)
    sandboxes = await asyncio.gather(*(create(spec, backend=backend) for _ in range(number)))
    for sandbox in sandboxes[:2]:
        await sandbox.write("file", "x" * 100_000)
        await sandbox.snapshot()
    running = [asyncio.create_task(sandbox.exec("sleep 600", timeout=600)) for sandbox in sandboxes]
    await asyncio.sleep(1)
    print("ready", flush=True)
    await asyncio.gather(*running)
    await asyncio.sleep(600)


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
