"""Means and sums over the sequences that tokens belong to.

`unit_N` numbers the sequence of each of N tokens, from 0 to U - 1 without gaps; the results have shape N: every token
gets what its sequence came to.
"""

from __future__ import annotations

import torch
from torch import Tensor


def sequence_sum(values_N: Tensor, unit_N: Tensor) -> Tensor:
    """The sum over the tokens of each token's sequence."""
    size = int(unit_N.max()) + 1 if unit_N.numel() else 0
    sums_U = torch.zeros(size, dtype=values_N.dtype, device=values_N.device).index_add(0, unit_N, values_N)
    return sums_U[unit_N]


def sequence_mean(values_N: Tensor, unit_N: Tensor) -> Tensor:
    """The mean over the tokens of each token's sequence."""
    return sequence_sum(values_N, unit_N) / sequence_sum(torch.ones_like(values_N), unit_N)
