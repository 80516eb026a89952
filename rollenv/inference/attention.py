"""Attention of many sequences packed into one row, each against its own slot of the engine's cache.

transformers' model classes call `packed_attention` through their attention interface under the name `IMPLEMENTATION`;
it finds the step's `PackedBatch` among its keyword arguments. No padding exists outside attention: the batch's tokens
lie one after another, and only inside attention are sequences of similar length lined up into a rectangle.

Shape suffixes: T packed tokens (padded to a multiple of the tile), N sequences of one group, Q query tokens of each,
H query heads, G key/value heads, R = H / G, D head dimension, L key length.

Invariant: what a token's row comes to depends neither on the other sequences in the batch nor on how many tokens of its
own sequence are computed in the same step (see `rollenv.inference.invariance` for how far a machine keeps this).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from rollenv.inference.kv_cache import BLOCK, Slab, Slot

IMPLEMENTATION = "rollenv_packed"
"""The name under which transformers knows `packed_attention`."""

MASK_ELEMENTS = 1 << 26
"""A group is split before its mask would have more elements than this."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How tensors are padded so that a row's result does not depend on what it shares a call with.

    Attributes:
        n_heads, n_kv_heads: H and G.
        tile: T is a multiple of this.
        query_rows: attention is given at least so many query rows per key/value head in each of its blocks of 32.
        remainders: the key lengths, modulo `BLOCK`, that attention may be given; ends with `BLOCK` itself.
    """

    n_heads: int
    n_kv_heads: int
    tile: int
    query_rows: int
    remainders: tuple[int, ...]

    def key_length(self, n_tokens: int) -> int:
        """The smallest allowed key length that covers `n_tokens`; never beyond the next multiple of `BLOCK`."""
        whole, rest = divmod(n_tokens - 1, BLOCK)
        return whole * BLOCK + next(r for r in self.remainders if r > rest)

    def query_length(self, n_tokens: int) -> int:
        """Q for a chunk of `n_tokens`: the query tokens that a sequence is lined up to, in a few steps of size."""
        ratio = self.n_heads // self.n_kv_heads
        if n_tokens == 1:
            length = -(-self.query_rows // ratio)
            while 0 < length * ratio % 32 < self.query_rows:
                length += 1
            return length
        step = 4 if n_tokens <= 16 else 16 if n_tokens <= 128 else 64
        step = max(step, self.query_rows)
        return -(-n_tokens // step) * step


@dataclass(slots=True, eq=False)
class Chunk:
    """One sequence's part of a step: `ids` are its tokens at positions `start`, `start` + 1, ... of `slot`.

    `sample` asks for the scores after the last of them.
    """

    slot: Slot
    start: int
    ids: Sequence[int]
    sample: bool


@dataclass(slots=True)
class _Write:
    """Which packed tokens go into which rows of one slab's layer, seen as [slots * kv_heads * capacity, head_dim]."""

    slab: Slab
    tokens: torch.Tensor | slice
    target_TG: torch.Tensor


@dataclass(slots=True)
class _Group:
    """Sequences attended by one call: their cache rows (a view or a gather), queries and mask."""

    slab: Slab
    rows: slice | torch.Tensor
    n: int
    length: int
    queries_NQ: torch.Tensor
    mask: torch.Tensor


class PackedBatch:
    """The chunks of one step (or of one worker's share of it), laid out once and used by every layer.

    Args:
        chunks: at least one; their slots are distinct.
        layout: paddings and head counts.
        dtype: of queries, and so of the mask.
        device: of the model.

    Attributes:
        ids_T, positions_T: what the model reads; padding repeats token 0 at position 0.
        n_tokens: tokens without padding.
        sampled: the chunks that asked for scores, in the order of `logit_rows`.
        logit_rows: packed rows of their last tokens, padded to a multiple of the tile by repeating row 0.
    """

    def __init__(self, chunks: Sequence[Chunk], layout: Layout, dtype: torch.dtype, device: torch.device) -> None:
        self.layout, self.dtype, self.device = layout, dtype, device
        chunks = sorted(
            chunks, key=lambda c: (len(c.ids) > 1, id(c.slot.slab), layout.query_length(len(c.ids)), c.slot.index)
        )
        lengths = np.array([len(c.ids) for c in chunks], dtype=np.int64)
        starts = np.array([c.start for c in chunks], dtype=np.int64)
        offsets = np.cumsum(lengths) - lengths
        self.n_tokens = int(lengths.sum())
        padded = -(-self.n_tokens // layout.tile) * layout.tile
        positions = np.zeros(padded, dtype=np.int64)
        positions[: self.n_tokens] = np.arange(self.n_tokens) + np.repeat(starts - offsets, lengths)
        ids = np.zeros(padded, dtype=np.int64)
        ids[: self.n_tokens] = np.concatenate([np.asarray(c.ids, dtype=np.int64) for c in chunks])
        self.ids_T, self.positions_T = self._put(ids), self._put(positions)
        self.sampled = [c for c in chunks if c.sample]
        last = [int(o + n - 1) for c, o, n in zip(chunks, offsets, lengths, strict=True) if c.sample]
        last += [0] * (-len(last) % layout.tile)
        self.logit_rows = self._put(np.array(last, dtype=np.int64))
        self._writes = self._plan_writes(chunks, lengths, positions)
        self._groups, self._inverse_T = self._plan_groups(chunks, lengths, starts, offsets, padded)

    def _put(self, array: npt.NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device, non_blocking=True)

    def _plan_writes(
        self, chunks: Sequence[Chunk], lengths: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]
    ) -> list[_Write]:
        heads = np.arange(self.layout.n_kv_heads)
        slabs = {id(c.slot.slab): c.slot.slab for c in chunks}
        owner = np.repeat([id(c.slot.slab) for c in chunks], lengths)
        index = np.repeat([c.slot.index for c in chunks], lengths)
        writes = []
        for key, slab in slabs.items():
            tokens = np.flatnonzero(owner == key)
            row = index[tokens, None] * self.layout.n_kv_heads + heads
            target = row * slab.capacity + positions[tokens, None]
            where = slice(0, self.n_tokens) if len(slabs) == 1 else self._put(tokens)
            writes.append(_Write(slab, where, self._put(target.reshape(-1))))
        return writes

    def _plan_groups(
        self,
        chunks: Sequence[Chunk],
        lengths: npt.NDArray[np.int64],
        starts: npt.NDArray[np.int64],
        offsets: npt.NDArray[np.int64],
        padded: int,
    ) -> tuple[list[_Group], torch.Tensor]:
        members: dict[tuple[int, int], list[int]] = {}
        for i, chunk in enumerate(chunks):
            members.setdefault((id(chunk.slot.slab), self.layout.query_length(len(chunk.ids))), []).append(i)
        inverse = np.zeros(padded, dtype=np.int64)
        groups, base = [], 0
        for (_, query_length), rows in members.items():
            query_rows = query_length * self.layout.n_heads // self.layout.n_kv_heads
            key_length = self.layout.key_length(int((starts + lengths)[rows].max()))
            per_call = max(1, MASK_ELEMENTS // (query_rows * key_length))
            for first in range(0, len(rows), per_call):
                part = np.array(rows[first : first + per_call])
                index = np.array([chunks[i].slot.index for i in part])
                group = self._group(
                    chunks[part[0]].slot.slab, index, lengths[part], starts[part], offsets[part], query_length
                )
                within = np.arange(int(lengths[part].sum())) - np.repeat(
                    np.cumsum(lengths[part]) - lengths[part], lengths[part]
                )
                line = index - group.rows.start if isinstance(group.rows, slice) else np.arange(len(part))
                inverse[np.repeat(offsets[part], lengths[part]) + within] = (
                    base + np.repeat(line, lengths[part]) * query_length + within
                )
                groups.append(group)
                base += group.n * query_length
        return groups, self._put(inverse)

    def _group(
        self,
        slab: Slab,
        index: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64],
        starts: npt.NDArray[np.int64],
        offsets: npt.NDArray[np.int64],
        query_length: int,
    ) -> _Group:
        """Lines sequences up. A dense range of slots is attended as a view, with the idle ones computed in vain."""
        low, high = int(index.min()), int(index.max()) + 1
        rows: slice | torch.Tensor
        if high - low <= 1.5 * len(index) + 1:
            rows, n, line = slice(low, high), high - low, index - low
        else:
            rows, n, line = self._put(index), len(index), np.arange(len(index))
        token = np.minimum(np.arange(query_length)[None], lengths[:, None] - 1)
        queries = np.zeros((n, query_length), dtype=np.int64)
        queries[line] = offsets[:, None] + token
        limit = np.zeros((n, query_length), dtype=np.int64)
        limit[line] = starts[:, None] + token
        length = self.layout.key_length(int((starts + lengths).max()))
        if (lengths == 1).all():
            limit = limit[:, :1]
        else:
            limit = np.repeat(limit, self.layout.n_heads // self.layout.n_kv_heads, axis=1)
        hidden = torch.arange(length, device=self.device) > self._put(limit)[:, None, :, None]
        mask = torch.zeros(hidden.shape, dtype=self.dtype, device=self.device).masked_fill_(hidden, float("-inf"))
        return _Group(slab, rows, n, length, self._put(queries.reshape(-1)), mask)

    def attend(
        self, layer: int, query_THD: torch.Tensor, key_TGD: torch.Tensor, value_TGD: torch.Tensor, scale: float | None
    ) -> torch.Tensor:
        """Stores this step's keys and values in the cache, then attends every query to its own sequence: [T, H, D]."""
        heads, kv_heads, dim = self.layout.n_heads, self.layout.n_kv_heads, query_THD.shape[-1]
        for write in self._writes:
            for cache, new in ((write.slab.keys, key_TGD), (write.slab.values, value_TGD)):
                cache[layer].view(-1, dim).index_copy_(0, write.target_TG, new[write.tokens].reshape(-1, dim))
        outputs = []
        for group in self._groups:
            n, length = group.n, group.length
            lined = query_THD.index_select(0, group.queries_NQ).view(n, -1, kv_heads, heads // kv_heads, dim)
            q = lined.transpose(1, 2).reshape(n, kv_heads, -1, dim)
            keys = group.slab.keys[layer, group.rows, :, :length]
            values = group.slab.values[layer, group.rows, :, :length]
            out = F.scaled_dot_product_attention(q, keys, values, attn_mask=group.mask, scale=scale)
            out = out.view(n, kv_heads, -1, heads // kv_heads, dim).transpose(1, 2)
            outputs.append(out.reshape(-1, heads, dim))
        gathered = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        return gathered.index_select(0, self._inverse_T)


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    rollenv_batch: PackedBatch | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention interface: [1, H, T, D] queries and [1, G, T, D] keys and values to [1, T, H, D].

    Raises:
        RuntimeError: the model was called outside the engine, or asks for a kind of attention that is not supported.
    """
    if rollenv_batch is None:
        raise RuntimeError(
            f"attention '{IMPLEMENTATION}' works inside TorchEngine only; set another attn_implementation"
        )
    for unsupported in ("softcap", "s_aux", "position_bias"):
        if kwargs.get(unsupported) is not None:
            raise RuntimeError(f"{type(module).__name__} uses '{unsupported}' in attention, which TorchEngine lacks")
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    out = rollenv_batch.attend(
        layer, query[0].transpose(0, 1), key[0].transpose(0, 1), value[0].transpose(0, 1), scaling
    )
    return out.unsqueeze(0), None


ALL_ATTENTION_FUNCTIONS.register(IMPLEMENTATION, packed_attention)
