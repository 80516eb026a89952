"""Inside a worker process of vLLM: takes new weights in place, and ends when who started it is gone.

vLLM mixes `WorkerExtension` into its own worker class; `rollenv.inference.vllm_engine` calls its methods by name.
"""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from rollenv.inference.buckets import Manifest, Place, SharedReader, unpacked
from rollenv.inference.handles import opened

Wire: TypeAlias = list[tuple[str, str, list[int], int]]
"""The manifest of one bucket in plain values: (name, type, shape, first byte) of each tensor."""

PROBES = 4
"""Inputs that an output layer is tried with after an update."""


def to_wire(manifest: Manifest) -> Wire:
    """What `from_wire` reads."""
    return [(p.name, str(p.dtype).removeprefix("torch."), list(p.shape), p.start) for p in manifest]


def from_wire(wire: Iterable[Sequence[Any]]) -> Manifest:
    """The manifest of one bucket.

    >>> one = (Place("w", torch.bfloat16, (2, 3), 0, 64),)
    >>> from_wire(to_wire(one)) == one
    True
    """
    return tuple(Place(name, getattr(torch, dtype), tuple(shape), 0, start) for name, dtype, shape, start in wire)


class WorkerExtension:
    """Methods of a worker of vLLM. The attributes are the worker's own."""

    model_runner: Any
    model_config: Any
    vllm_config: Any
    device: Any

    def rollenv_load(self, path: str, size: int, wire: Wire, first: bool, last: bool) -> None:
        """Loads one bucket of an update, out of shared memory. When the last one is loaded, all weights are in place.

        Args:
            path, size: of the shared buffer.
            wire: the tensors in it, in the names and shapes of the model's checkpoints.
            first, last: whether it is the first, or the last, bucket of its update.
        """
        self._rollenv_load(unpacked(from_wire(wire), self._rollenv_reader(path).read([(path, size)])), first, last)

    def rollenv_load_handles(self, handles: bytes, wire: Wire, first: bool, last: bool) -> None:
        """The same, out of another process's memory on a GPU: pickled `Handles` of the bucket, a flat tensor."""
        (bucket,) = opened(pickle.loads(handles)).values()
        self._rollenv_load(unpacked(from_wire(wire), [bucket]), first, last)

    def _rollenv_load(self, tensors: Mapping[str, torch.Tensor], first: bool, last: bool) -> None:
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

        model = self.model_runner.get_model()
        with torch.no_grad(), set_current_vllm_config(self.vllm_config):
            if first:
                initialize_layerwise_reload(model)
            # A layer is put together when all of it is here; until then its parts wait, while the bucket is used again.
            model.load_weights((name, tensor if last else tensor.clone()) for name, tensor in tensors.items())
            if last:
                finalize_layerwise_reload(model, self.model_config)
                _refresh_tied(model)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def rollenv_end_with(self, path: str) -> int:
        """From now on this process ends when the one whose pipe `path` is has ended, however that happened. Returns its
        process id."""
        watch = os.open(path, os.O_RDONLY)

        def wait() -> None:
            os.read(watch, 1)  # nothing is ever written: it returns when the last writer is gone
            os._exit(1)

        threading.Thread(target=wait, name="rollenv-watch", daemon=True).start()
        return os.getpid()

    def _rollenv_reader(self, path: str) -> SharedReader:
        """The reader of one of the buffers that take turns."""
        readers: dict[str, SharedReader] = self.__dict__.setdefault("_rollenv_readers", {})
        return readers.setdefault(path, SharedReader())


def _refresh_tied(model: torch.nn.Module) -> None:
    """Prepares embeddings and output layers again. On a CPU an output layer multiplies with a packed copy of its
    weights, and one that is tied to the embedding is not loaded itself, so that its copy would stay the old one.

    Raises:
        RuntimeError: an output layer still has other weights than its own.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

    for name, module in model.named_modules():
        if isinstance(module, VocabParallelEmbedding):
            module.quant_method.process_weights_after_loading(module)
        if isinstance(module, ParallelLMHead) and not _multiplies_with_its_weights(module):
            raise RuntimeError(f"'{name}' still multiplies with its old weights after an update")


def _multiplies_with_its_weights(head: Any) -> bool:
    """Tries an output layer with some inputs. One without plain weights (quantized) is taken on trust."""
    weight = getattr(head, "weight", None)
    if weight is None or weight.dim() != 2 or not weight.is_floating_point() or not weight.numel():
        return True
    n = weight.shape[1]
    inputs = torch.sin(torch.arange(PROBES * n, dtype=torch.float32, device=weight.device)).view(PROBES, n)
    inputs = inputs.to(weight.dtype)
    made, expected = head.quant_method.apply(head, inputs).float(), (inputs @ weight.T).float()
    return bool((made - expected).norm() <= 0.02 * expected.norm() + 1e-6)
