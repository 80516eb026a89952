"""What any engine refuses before it costs anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rollenv.errors import did_you_mean
from rollenv.inference.base import InvalidRequest, SamplingParams

if TYPE_CHECKING:
    import torch


def check_ids(prompt: Sequence[int], vocabulary: int) -> None:
    """Raises InvalidRequest for a prompt, not empty, that is not made of ids of so large a vocabulary."""
    if min(prompt) < 0 or max(prompt) >= vocabulary:
        raise InvalidRequest(f"the prompt has token ids outside 0..{vocabulary - 1}; is it the model's own tokenizer?")


def check_not_empty(prompt: Sequence[int]) -> None:
    """Raises InvalidRequest for a prompt without tokens."""
    if not prompt:
        raise InvalidRequest("the prompt is empty; give at least one token, such as the beginning-of-text token")


def check_sampling(sampling: SamplingParams) -> None:
    """Raises InvalidRequest for parameters that make no sense."""
    if sampling.max_tokens < 1:
        raise InvalidRequest(f"max_tokens must be at least 1, not {sampling.max_tokens}")
    if sampling.temperature < 0 or not 0 < sampling.top_p <= 1 or sampling.top_k < 0:
        raise InvalidRequest(f"sampling needs temperature >= 0, 0 < top_p <= 1 and top_k >= 0: {sampling}")


def check_tensors(tensors: Mapping[str, torch.Tensor], shapes: Mapping[str, Sequence[int]]) -> None:
    """Raises InvalidRequest for weights that the model, whose shapes these are, does not have."""
    for name, tensor in tensors.items():
        if name not in shapes:
            raise InvalidRequest(f"the model has no weight '{name}'{did_you_mean(name, shapes)}")
        if tuple(tensor.shape) != tuple(shapes[name]):
            raise InvalidRequest(
                f"weight '{name}' has shape {tuple(tensor.shape)}, the model's is {tuple(shapes[name])}"
            )
