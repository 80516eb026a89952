"""Aggregations: how the losses of N tokens become one number, as a weight per token.

The loss of a minibatch is sum(weights_N * loss_N). The weights are made for the whole minibatch before it is cut into
micro-batches and before any token is masked, so that accumulation is exact and a masked token keeps its denominator.
`sequence_N` says which of S sequences (episodes) a token belongs to.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Aggregation = Literal["token_mean", "seq_mean_token_sum", "seq_mean_token_mean", "constant"]


def token_weights(sequence_N: Tensor, n_sequences: int, how: Aggregation, constant_length: int | None = None) -> Tensor:
    """Weights of shape N.

    - `token_mean`: 1/N each (DAPO, arXiv 2503.14476);
    - `seq_mean_token_sum`: 1/S each;
    - `seq_mean_token_mean`: 1/(S * tokens of its sequence) (GRPO, arXiv 2402.03300);
    - `constant`: 1/(S * constant_length) (Dr.GRPO, arXiv 2503.20783).

    Raises:
        ValueError: `constant` without `constant_length`.
    """
    n_tokens = sequence_N.numel()
    ones_N = torch.ones(n_tokens, dtype=torch.float32, device=sequence_N.device)
    if how == "token_mean":
        return ones_N / max(n_tokens, 1)
    if how == "seq_mean_token_sum":
        return ones_N / n_sequences
    if how == "seq_mean_token_mean":
        lengths_S = torch.bincount(sequence_N, minlength=n_sequences).clamp(min=1)
        return ones_N / (lengths_S[sequence_N] * n_sequences)
    if constant_length is None:
        raise ValueError("the aggregation 'constant' needs constant_length")
    return ones_N / (n_sequences * constant_length)
