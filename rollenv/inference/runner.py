"""Runs the model over one packed batch: token ids in, scores of the rows that are sampled out."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from rollenv.inference.attention import PackedBatch
from rollenv.inference.invariance import LinearMap


class Runner(Protocol):
    """A way to compute a batch, with the model's parameters as they are at that moment."""

    def __call__(self, batch: PackedBatch) -> torch.Tensor:
        """[len(batch.logit_rows), vocabulary] scores."""
        ...

    def linear_maps(self) -> list[LinearMap]:
        """One of each kind of matrix product that it uses, for `rollenv.inference.invariance.probe`."""
        ...


class ModuleRunner:
    """Any transformers model class, by its own forward."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __call__(self, batch: PackedBatch) -> torch.Tensor:
        """See `Runner`."""
        output = self._model(
            input_ids=batch.ids_T[None],
            position_ids=batch.positions_T[None],
            use_cache=False,
            logits_to_keep=batch.logit_rows,
            rollenv_batch=batch,
        )
        logits: torch.Tensor = output.logits[0]
        return logits

    def linear_maps(self) -> list[LinearMap]:
        """See `Runner`."""
        linears = [m for m in self._model.modules() if isinstance(m, torch.nn.Linear)]
        kinds = {(m.in_features, m.out_features, m.bias is not None): m for m in linears}
        return [(m.in_features, m) for m in kinds.values()]
