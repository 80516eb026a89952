"""Another process with the same GPU reads the tensors of this one."""

from __future__ import annotations

import multiprocessing
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from rollenv.inference import vllm_engine  # noqa: E402
from rollenv.inference.handles import gpu_of, handles_of, opened  # noqa: E402


def read(handles: Any, answers: Any, done: Any) -> None:
    """In the other process."""
    tensors = opened(handles)
    answers.put(({name: tensor.float().cpu().tolist() for name, tensor in tensors.items()}, gpu_of("cuda")))
    del tensors
    done.wait()


def test_a_cpu_has_no_name() -> None:
    assert gpu_of("cpu") == ""


def test_handles_are_for_engines_on_the_gpu_where_the_tensors_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def named(device: Any) -> str:
        return {"cpu": "", "cuda": "GPU-0"}.get(str(device), f"GPU-{torch.device(device).index}")

    def on(*devices: str) -> Any:
        return {str(i): SimpleNamespace(device=torch.device(device)) for i, device in enumerate(devices)}

    monkeypatch.setattr(vllm_engine, "gpu_of", named)
    assert vllm_engine.on_gpu_of("cuda", on("cuda:0", "cuda:0"))
    assert vllm_engine.on_gpu_of("cuda:1", on("cuda:1"))
    assert not vllm_engine.on_gpu_of("cuda:1", on("cuda:0")), "its process does not see the first one"
    assert not vllm_engine.on_gpu_of("cuda:0", on("cuda:0", "cpu"))
    assert not vllm_engine.on_gpu_of("cpu", on("cpu"))


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
