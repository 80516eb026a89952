"""Packing: segments of different lengths in one row of tokens, without padding in any linear layer.

Invariant: a token attends only to itself and the tokens before it in its own segment, so the log-probabilities of a
packed row equal those of its segments run alone. Segments that begin alike share the tokens they begin with: those are
computed once, and their gradient is the sum of what comes from all that follows.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:  # a torch that was built without it
    varlen_attn = None

MOST_SIZE = 192
"""Of a head: up to there the kernel goes backwards on every GPU that has it."""
ATTENTION = "rollenv_training"
"""The name under which the block-diagonal attention is registered with transformers."""


@dataclass(slots=True)
class Bucket:
    """Segments of similar length that attention takes in one call: b of them, Q query and L key tokens each.

    `query_bQ` and `key_bL` index the row's tokens (padding repeats a segment's last one); `mask_bQL` says which key a
    query may see, None for plain causal attention with Q = L; `real_R` are the flat places in [b * Q] of queries that
    are no padding, and `target_R` the row's tokens that they are.
    """

    query_bQ: Tensor
    key_bL: Tensor
    mask_bQL: Tensor | None
    real_R: Tensor
    target_R: Tensor


@dataclass(slots=True)
class Ragged:
    """The whole row in one call of an attention that takes sequences of any length, without padding.

    Queries are the row's tokens as they lie. `key_K` are, segment after segment, the places of all its tokens, shared
    ones too; segment i has queries `queries_N[i]` to `queries_N[i + 1]` and keys `keys_N[i]` to `keys_N[i + 1]`.
    """

    key_K: Tensor
    queries_N: Tensor
    keys_N: Tensor
    most_queries: int
    most_keys: int


@dataclass
class PackedRow:
    """S segments in one row of T tokens. A beginning that several segments share is in the row once.

    Attributes:
        ids_T, positions_T: token ids, and each token's place in its segment.
        paths: per segment, the places of its tokens in the row.
        owned: per segment, how many of its first tokens are others' to compute.
        alike: segments of each bucket.
        ragged: how attention goes over them where the device has a kernel for that; None on a CPU.
        even: whether that is how it went.
    """

    ids_T: Tensor
    positions_T: Tensor
    paths: list[list[int]]
    owned: list[int]
    alike: list[list[int]]
    ragged: Ragged | None = None
    even: bool = False

    @functools.cached_property
    def buckets(self) -> list[Bucket]:
        """How attention goes over them elsewhere. Made when they are asked for: their masks are the largest part of a
        row."""
        return [
            _bucket_of([self.paths[i] for i in b], [self.owned[i] for i in b], self.ids_T.device) for b in self.alike
        ]

    def padding(self) -> tuple[int, int]:
        """Queries that attention computes, and how many of them are padding: none where it needed no buckets. (No other
        layer has any.)"""
        if self.even:
            return self.ids_T.numel(), 0
        slots = sum(len(b) * max(len(self.paths[i]) - self.owned[i] for i in b) for b in self.alike)
        return slots, slots - self.ids_T.numel()


def pack(segments: Sequence[Sequence[int]], device: torch.device | str = "cpu", slack: float = 0.05) -> PackedRow:
    """Packs segments; what a segment shares with the beginning of an earlier one is not packed again.

    The episodes of a group read the same instruction, and often the same pages after it.

    Args:
        segments: token ids of each.
        slack: segments share a bucket when the shortest is at most this part shorter than the longest, so that no
            larger part of what attention over buckets computes is padding.
    """
    paths, owned = share(segments)
    ids: list[int] = []
    positions: list[int] = []
    for segment, own in zip(segments, owned, strict=True):
        ids.extend(segment[own:])
        positions.extend(range(own, len(segment)))
    whole = [i for i, own in enumerate(owned) if own == 0 and segments[i]]
    rest = [i for i, own in enumerate(owned) if 0 < own < len(segments[i])]
    sizes = [(len(path) - own, len(path)) for path, own in zip(paths, owned, strict=True)]
    alike = [*_by_length(whole, sizes, slack), *_by_length(rest, sizes, slack)]
    ragged = ragged_of(paths, owned, device) if torch.device(device).type == "cuda" else None
    return PackedRow(
        torch.tensor(ids, device=device), torch.tensor(positions, device=device), paths, owned, alike, ragged
    )


def share(segments: Sequence[Sequence[int]]) -> tuple[list[list[int]], list[int]]:
    """Per segment, the places of its tokens in a row without repeated beginnings, and how many of its first tokens
    were there already (the row holds, segment by segment, the tokens after those)."""
    paths, owned = [], []
    root: dict[int, Any] = {}
    size = 0
    for segment in segments:
        children, path, own = root, [], None
        for index, token in enumerate(segment):
            node = children.get(token)
            if node is None:
                own = index if own is None else own
                node = children[token] = (size, {})
                size += 1
            path.append(node[0])
            children = node[1]
        paths.append(path)
        owned.append(len(segment) if own is None else own)
    return paths, owned


def _bucket_of(paths: Sequence[list[int]], owned: Sequence[int], device: torch.device | str) -> Bucket:
    """One bucket of segments, each with its path in the row and how many of its first tokens are others' to compute."""
    length = max(len(path) for path in paths)
    queries = max(len(path) - own for path, own in zip(paths, owned, strict=True))
    key_bL = torch.tensor([path + path[-1:] * (length - len(path)) for path in paths])
    lengths_b = torch.tensor([len(path) for path in paths])[:, None]
    owned_b = torch.tensor(list(owned))[:, None]
    place_bQ = owned_b + torch.arange(queries)[None]
    query_bQ = key_bL.gather(1, torch.minimum(place_bQ, lengths_b - 1))
    real_R = (place_bQ < lengths_b).flatten().nonzero().squeeze(1)
    # Right padding inside plain causal attention needs no mask: a real token comes before it.
    causal_bQL = torch.arange(length)[None, None] <= place_bQ[:, :, None] if any(owned) else None
    return Bucket(
        query_bQ.to(device),
        key_bL.to(device),
        None if causal_bQL is None else causal_bQL.to(device),
        real_R.to(device),
        query_bQ.flatten()[real_R].to(device),
    )


def ragged_of(paths: Sequence[list[int]], owned: Sequence[int], device: torch.device | str) -> Ragged:
    """Segments (all of a row) by their paths, and how many of their first tokens are others' to compute."""
    own = [(path, len(path) - first) for path, first in zip(paths, owned, strict=True) if len(path) > first]
    queries, keys = [n for _, n in own], [len(path) for path, _ in own]
    ends = [torch.tensor([0, *itertools.accumulate(ns)], dtype=torch.int32, device=device) for ns in (queries, keys)]
    key_K = torch.tensor([place for path, _ in own for place in path], dtype=torch.long, device=device)
    return Ragged(key_K, *ends, max(queries, default=0), max(keys, default=0))


def _by_length(members: Sequence[int], sizes: Sequence[tuple[int, int]], slack: float) -> list[list[int]]:
    """`members` grouped by similar (queries, keys), the longest first."""
    groups: list[list[int]] = []
    for i in sorted(members, key=lambda i: (-sizes[i][0], -sizes[i][1], i)):
        first = sizes[groups[-1][0]] if groups else (0, 0)
        if groups and all((1 - slack) * f <= size <= f / (1 - slack) for size, f in zip(sizes[i], first, strict=True)):
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
    """Causal attention within each segment of a packed row: q [1, H, T, D], k and v [1, H_kv, T, D] -> [1, T, H, D]."""
    if packed is None:
        raise ValueError("packed attention needs the PackedRow: call the model with packed=...")
    query_THD, key_TKD, value_TKD = (x[0].transpose(0, 1) for x in (query, key, value))
    if packed.ragged is not None and not dropout and has_flash(query, _arithmetic(query)):
        packed.even = True
        return flash(query_THD, key_TKD, value_TKD, packed.ragged, _arithmetic(query), scaling)[None], None
    grouped = query.shape[1] != key.shape[1]
    parts, places = [], []
    for bucket in packed.buckets:
        out = F.scaled_dot_product_attention(
            query_THD[bucket.query_bQ].transpose(1, 2),
            key_TKD[bucket.key_bL].transpose(1, 2),
            value_TKD[bucket.key_bL].transpose(1, 2),
            attn_mask=None if bucket.mask_bQL is None else bucket.mask_bQL[:, None],
            is_causal=bucket.mask_bQL is None,
            scale=scaling,
            dropout_p=dropout,
            enable_gqa=grouped,
        )
        parts.append(out.transpose(1, 2).flatten(0, 1)[bucket.real_R])
        places.append(bucket.target_R)
    out_THD = torch.cat(parts)
    inverse_T = torch.empty(out_THD.shape[0], dtype=torch.long, device=out_THD.device)
    inverse_T[torch.cat(places)] = torch.arange(out_THD.shape[0], device=out_THD.device)
    return out_THD[inverse_T][None], None


def _arithmetic(query: Tensor) -> torch.dtype:
    """What attention computes in: under autocast, rotated queries come in fp32 all the same."""
    device = query.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else query.dtype


def has_flash(query: Tensor, dtype: torch.dtype) -> bool:
    """Whether `flash` can compute in that type, with such queries: on a GPU that has the kernel, in half precision."""
    if not query.is_cuda or dtype not in (torch.bfloat16, torch.float16) or not _torch_has_varlen():
        return False
    size = query.shape[-1]
    return size % 8 == 0 and size <= MOST_SIZE and torch.cuda.get_device_capability(query.device) >= (8, 0)


@functools.cache
def _torch_has_varlen() -> bool:
    return varlen_attn is not None and "enable_gqa" in inspect.signature(varlen_attn).parameters


def flash(
    query_THD: Tensor, key_TKD: Tensor, value_TKD: Tensor, ragged: Ragged, dtype: torch.dtype, scale: float | None
) -> Tensor:
    """Causal attention within each segment, where the last query of a segment is its last key, [T, H, D]: Dao,
    FlashAttention-2 (arXiv 2307.08691), as torch has it. Gradients of shared tokens are summed in their own type."""
    assert varlen_attn is not None
    made_THD: Tensor = varlen_attn(
        query_THD.to(dtype).contiguous(),
        key_TKD[ragged.key_K].to(dtype),
        value_TKD[ragged.key_K].to(dtype),
        ragged.queries_N,
        ragged.keys_N,
        ragged.most_queries,
        ragged.most_keys,
        scale=scale,
        window_size=(-1, 0),
        enable_gqa=query_THD.shape[1] != key_TKD.shape[1],
    )
    return made_THD


ALL_ATTENTION_FUNCTIONS.register(ATTENTION, packed_attention)


def split_by_tokens(lengths: Sequence[int], max_tokens: int, at_least: int = 1) -> list[list[int]]:
    """Indices of segments in micro-batches of at most `max_tokens` tokens (a longer segment goes alone).

    Longest first into the emptiest of the fewest micro-batches that can do, but `at_least` so many (when there are as
    many segments): their sizes come out even.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    n_bins = max(at_least, -(-sum(lengths) // max_tokens))
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
