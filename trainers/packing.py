"""Packing: segments of different lengths in one row of tokens, without padding in any linear layer.

Invariant: a token attends only to earlier tokens of its own segment, so the log-probabilities of a packed row equal
those of its segments run alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

ATTENTION = "rollenv_training"
"""The name under which the block-diagonal attention is registered with transformers."""


@dataclass(slots=True)
class PackedRow:
    """S segments in one row of T tokens.

    Attributes:
        ids_T, positions_T: token ids, and each token's place in its segment.
        buckets: groups of segments of similar length, as index tensors `[b, L]` into the row and the
            flat positions of real tokens in them: attention runs per bucket.
    """

    ids_T: Tensor
    positions_T: Tensor
    buckets: list[tuple[Tensor, Tensor, Tensor]]


def pack(segments: Sequence[Sequence[int]], device: torch.device | str = "cpu", slack: float = 0.15) -> PackedRow:
    """Packs segments in their order.

    Args:
        segments: token ids of each.
        slack: segments share a bucket when the shortest is at most this part shorter than the longest.
    """
    lengths = [len(segment) for segment in segments]
    starts = [0]
    for length in lengths:
        starts.append(starts[-1] + length)
    ids_T = torch.tensor([token for segment in segments for token in segment], dtype=torch.long)
    positions_T = torch.cat([torch.arange(length) for length in lengths])
    buckets = []
    for members in _bucket(lengths, slack):
        longest = max(lengths[i] for i in members)
        offsets_L = torch.arange(longest)
        lengths_b = torch.tensor([lengths[i] for i in members])
        starts_b = torch.tensor([starts[i] for i in members])
        real_bL = offsets_L[None] < lengths_b[:, None]
        # Padding reads the segment's last token: finite values that nothing looks at.
        index_bL = starts_b[:, None] + torch.minimum(offsets_L[None], lengths_b[:, None] - 1)
        flat_R = real_bL.flatten().nonzero().squeeze(1)
        buckets.append((index_bL.to(device), flat_R.to(device), index_bL.flatten()[flat_R].to(device)))
    return PackedRow(ids_T.to(device), positions_T.to(device), buckets)


def _bucket(lengths: Sequence[int], slack: float) -> list[list[int]]:
    """Indices of segments, grouped by similar length, longest first."""
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    groups: list[list[int]] = []
    for i in order:
        if groups and lengths[i] >= (1 - slack) * lengths[groups[-1][0]]:
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    packed: PackedRow | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each segment of a packed row: q [1, H, T, D], k and v [1, H_kv, T, D] -> [1, T, H, D].

    Right padding inside a bucket needs no mask: a real token comes before the padding, so it never attends to it.
    """
    if packed is None:
        raise ValueError("packed attention needs the PackedRow: call the model with packed=...")
    query_THD, key_TKD, value_TKD = (x[0].transpose(0, 1) for x in (query, key, value))
    grouped = query.shape[1] != key.shape[1]
    parts, places = [], []
    for index_bL, flat_R, target_R in packed.buckets:
        q, k, v = (x[index_bL].transpose(1, 2) for x in (query_THD, key_TKD, value_TKD))
        out = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=scaling, dropout_p=dropout, enable_gqa=grouped
        )
        parts.append(out.transpose(1, 2).flatten(0, 1)[flat_R])
        places.append(target_R)
    out_THD = torch.cat(parts)
    inverse_T = torch.empty(out_THD.shape[0], dtype=torch.long, device=out_THD.device)
    inverse_T[torch.cat(places)] = torch.arange(out_THD.shape[0], device=out_THD.device)
    return out_THD[inverse_T][None], None


ALL_ATTENTION_FUNCTIONS.register(ATTENTION, packed_attention)


def split_by_tokens(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Indices of segments in micro-batches of at most `max_tokens` tokens (a longer segment goes alone).

    Longest first into the emptiest of the fewest micro-batches that can do: their sizes come out even.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    n_bins = max(1, -(-sum(lengths) // max_tokens))
    while True:
        bins: list[list[int]] = [[] for _ in range(n_bins)]
        loads = [0] * n_bins
        for i in order:
            best = loads.index(min(loads))
            bins[best].append(i)
            loads[best] += lengths[i]
        if all(load <= max_tokens or len(b) == 1 for load, b in zip(loads, bins, strict=True)):
            return [sorted(b) for b in bins if b]
        n_bins += 1
