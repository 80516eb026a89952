"""What rollenv adds to vLLM's worker processes, as far as it needs no vLLM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from rollenv.inference.buckets import Place  # noqa: E402
from rollenv.inference.vllm_worker import from_wire, to_wire  # noqa: E402

CHILD = """
import sys, time
from rollenv.inference.vllm_worker import WorkerExtension
print(WorkerExtension().rollenv_end_with(sys.argv[1]), flush=True)
time.sleep(600)
"""
PARENT = f"""
import os, subprocess, sys, time
reading, _ = os.pipe2(os.O_CLOEXEC)
subprocess.Popen([sys.executable, "-c", {CHILD!r}, f"/proc/{{os.getpid()}}/fd/{{reading}}"])
time.sleep(600)
"""


def test_a_worker_ends_with_the_process_that_started_its_engine_however_that_ends() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        os.kill(worker, 0)
        parent.send_signal(signal.SIGKILL)
        assert parent.stdout.read() == ""  # returns when the worker, which has it as well, is gone


def test_a_manifest_survives_as_plain_values() -> None:
    manifest = (Place("w", torch.bfloat16, (2, 3), 0, 64), Place("b", torch.float32, (), 0, 128))
    wire = to_wire(manifest)
    assert from_wire(wire) == manifest
    assert all(type(value) in (str, int, list) for row in wire for value in row)
