"""Low-rank adapters (LoRA, arXiv 2106.09685): what they are called on their way to engines, and what they make of a
weight."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

DOWN, UP = ".lora_A.weight", ".lora_B.weight"
"""What the names of A and B end with, behind the name of the module whose weight they change."""


def merged(weight: torch.Tensor, down: torch.Tensor, up: torch.Tensor, scale: float) -> torch.Tensor:
    """W [n, m] + scale * B [n, r] @ A [r, m], in fp32."""
    return weight.float() + scale * (up.float() @ down.float())
