"""A sandbox's processes are gone when they have ended, also where the machine's first process sees to none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from in_loop import in_loop

from rollenv.sandboxes import SandboxSpec, create
from rollenv.sandboxes.orphans import _parent_of_zombie

PIDS = 16
SCRIPT = f"""
import asyncio, os, subprocess, sys
from rollenv.sandboxes import SandboxSpec, create

async def main():
    assert os.getpid() == 1
    async with await create(SandboxSpec(pids={PIDS}), backend="bubblewrap") as sandbox:
        for _ in range(4 * {PIDS}):
            done = await sandbox.exec("echo $((6 * 7))", user="root")
            assert (done.exit_code, done.stdout) == (0, "42\\n"), done
        await asyncio.sleep(0.5)
        known = await asyncio.create_subprocess_exec("true")  # others' exit codes are theirs to ask for
        assert await known.wait() == 0
        assert subprocess.run(["sh", "-c", "exit 3"]).returncode == 3
    left = subprocess.run(["ps", "-eo", "stat,comm"], capture_output=True, text=True).stdout
    print("zombies", sum(line.startswith("Z") for line in left.splitlines()))

asyncio.run(main())
"""


@in_loop
async def test_commands_leave_nothing_that_counts_as_a_process(bubblewrap: str) -> None:
    async with await create(SandboxSpec(pids=PIDS), backend=bubblewrap) as sandbox:
        for _ in range(6 * PIDS):
            assert (await sandbox.exec("true")).exit_code == 0


@pytest.mark.skipif(os.getuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare")
def test_as_the_first_process_of_a_container(bubblewrap: str, tmp_path: Path) -> None:
    """`docker run IMAGE python train.py`: this process itself is the one that orphans are left to."""
    script = tmp_path / "first.py"
    script.write_text(SCRIPT)
    words = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, str(script)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    # What was tried before the first sandbox, and what ended before it was clear that nobody sees to it.
    assert int(done.stdout.split()[-1]) <= 3


def test_a_zombie_is_known_by_its_name() -> None:
    script = "import os, sys, time; open('/proc/self/comm', 'w').write('a) Z (b'); print(flush=True); sys.stdin.read()"
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", script], stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.readline()
    assert _parent_of_zombie(process.pid, "a) Z (b") is None  # it lives
    process.stdin.close()
    end = time.monotonic() + 20
    while _parent_of_zombie(process.pid, "a) Z (b") is None:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert _parent_of_zombie(process.pid, "a) Z (b") == os.getpid()
    assert _parent_of_zombie(process.pid, "bwrap") is None
    process.wait()
    process.stdout.close()
    assert _parent_of_zombie(process.pid, "a) Z (b") is None
