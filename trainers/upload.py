"""Where checkpoints go beside the run's folder: a hook of the user's. Its failure is a warning, never the run's end."""

from __future__ import annotations

import asyncio
import importlib
import re
import shlex
from pathlib import Path

_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


async def uploaded(hook: str, folder: Path) -> str | None:
    """Calls a hook with a checkpoint's folder.

    Args:
        hook: `module:function`, called with the path, or a shell command, to which the path is appended.

    Returns:
        None, or a sentence that says what failed and what to do.
    """
    try:
        reason = await (_call(hook, folder) if _FUNCTION.fullmatch(hook) else _run(hook, folder))
    except Exception as error:
        reason = f"{type(error).__name__}: {error!s:.200}"
    if reason is None:
        return None
    return (
        f"checkpoint '{folder}' was not uploaded: checkpoint.upload={hook!r} failed ({reason}); the run goes on, and "
        "the folder is kept until checkpoint.keep newer ones are there: upload it by hand, or mend the hook"
    )


async def _call(hook: str, folder: Path) -> str | None:
    module, _, name = hook.partition(":")
    await asyncio.to_thread(getattr(importlib.import_module(module), name), folder)
    return None


async def _run(hook: str, folder: Path) -> str | None:
    """Its exit status and last line, when it failed."""
    command = f"{hook} {shlex.quote(str(folder))}"
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_shell(
        command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=pipe
    )
    try:
        _, errors = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        raise
    if process.returncode == 0:
        return None
    said = errors.decode(errors="replace").strip().splitlines()
    return f"status {process.returncode}" + (f": {said[-1]:.200}" if said else "")
