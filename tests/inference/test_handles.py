"""Another process with the same GPU reads the tensors of this one."""

from __future__ import annotations

import multiprocessing
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from rollenv.inference.handles import gpu_of, handles_of, opened  # noqa: E402


def read(handles: Any, answers: Any, done: Any) -> None:
    """In the other process."""
    tensors = opened(handles)
    answers.put(({name: tensor.float().cpu().tolist() for name, tensor in tensors.items()}, gpu_of("cuda")))
    del tensors
    done.wait()


def test_a_cpu_has_no_name() -> None:
    assert gpu_of("cpu") == ""


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_another_process_reads_them_without_a_copy() -> None:
    flat = torch.arange(64, dtype=torch.uint8, device="cuda")
    tensors = {"w": torch.randn(5, 7, device="cuda"), "part": flat[16:32].view(torch.bfloat16)}
    context = multiprocessing.get_context("spawn")
    answers, done = context.Queue(), context.Event()
    other = context.Process(target=read, args=(handles_of(tensors), answers, done))
    other.start()
    values, gpu = answers.get(timeout=120)
    done.set()
    other.join()
    assert gpu == gpu_of("cuda")
    assert values == {name: tensor.float().cpu().tolist() for name, tensor in tensors.items()}
