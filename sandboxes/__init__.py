"""Sandboxes: where code runs that nobody trusts.

>>> import asyncio
>>> from rollenv.sandboxes import SandboxSpec, create
>>> async def main():
...     async with await create(SandboxSpec(), backend="bubblewrap") as sandbox:
...         return (await sandbox.exec("echo $((6 * 7))")).stdout
>>> asyncio.run(main())  # doctest: +SKIP
'42\\n'
"""

from rollenv.sandboxes.archives import pack, unpack
from rollenv.sandboxes.backends import available, backend_names, create
from rollenv.sandboxes.errors import EngineUnavailable, PoolBusy, SandboxDied, SandboxError, UnknownImage
from rollenv.sandboxes.pool import Pool, PoolMetrics
from rollenv.sandboxes.protocol import Command, ExecResult, FileInfo, Sandbox, Snapshot
from rollenv.sandboxes.shell import Shell
from rollenv.sandboxes.spec import DEFAULT_IMAGE, GiB, MiB, SandboxSpec

__all__ = [
    "Command",
    "DEFAULT_IMAGE",
    "EngineUnavailable",
    "ExecResult",
    "FileInfo",
    "GiB",
    "MiB",
    "Pool",
    "PoolBusy",
    "PoolMetrics",
    "Sandbox",
    "SandboxDied",
    "SandboxError",
    "SandboxSpec",
    "Shell",
    "Snapshot",
    "UnknownImage",
    "available",
    "backend_names",
    "create",
    "pack",
    "unpack",
]
