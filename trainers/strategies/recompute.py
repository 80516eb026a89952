"""Activation checkpointing (arXiv 1604.06174): a layer keeps only what goes into it, and is computed once more in the
backward pass. It costs a third more arithmetic, and the memory of a long context no longer grows with the layers.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from rollenv.trainers.policy import Policy


def recompute_activations(policy: Policy) -> None:
    """Has every layer of a policy's decoder do so, in place; layers that do already are left alone.

    The layers' class is exchanged, not their `forward`: a copy of the model must compute with its own layers.
    """
    for layer in policy.layers():
        if not isinstance(layer, _Recomputed):
            layer.__class__ = _recomputed(type(layer))


@functools.cache
def _recomputed(layer: type) -> type:
    return type(layer.__name__, (_Recomputed, layer), {})


class _Recomputed:
    """In front of a layer's class."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        forward = super().forward  # type: ignore[misc]
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)
