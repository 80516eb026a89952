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

import functools
import itertools
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
    tokens: slice
    target_TG: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Span:
    """`n` query rows of one sequence: packed rows `row`, `row` + 1, ... at positions `start`, `start` + 1, ..."""

    slot: Slot
    row: int
    n: int
    start: int


@dataclass(slots=True)
class _Group:
    """Spans attended by one call: N cache rows (a view or a gather), L keys, [N * Q] query rows, and the mask."""

    slab: Slab
    rows: slice | torch.Tensor
    n: int
    length: int
    queries_NQ: torch.Tensor
    mask: torch.Tensor


@dataclass(slots=True)
class _Plan:
    """Packed query rows lined up in groups, and where each row is found in the groups' outputs laid end to end."""

    groups: list[_Group]
    inverse_T: torch.Tensor


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
        chunks = sorted(chunks, key=lambda c: (id(c.slot.slab), len(c.ids), c.slot.index))
        lengths = np.array([len(c.ids) for c in chunks], dtype=np.int64)
        starts = np.array([c.start for c in chunks], dtype=np.int64)
        offsets = np.cumsum(lengths) - lengths
        self.n_tokens = int(lengths.sum())
        positions = np.zeros(self._padded(self.n_tokens), dtype=np.int64)
        positions[: self.n_tokens] = np.arange(self.n_tokens) + np.repeat(starts - offsets, lengths)
        ids = np.zeros_like(positions)
        ids[: self.n_tokens] = np.fromiter((token for c in chunks for token in c.ids), np.int64, self.n_tokens)
        self.ids_T, self.positions_T = self._put(ids), self._put(positions)
        self.sampled = [c for c in chunks if c.sample]
        last = [int(o + n - 1) for c, o, n in zip(chunks, offsets, lengths, strict=True) if c.sample]
        self.logit_rows = self._put(np.array(last + [0] * (-len(last) % layout.tile), dtype=np.int64))
        self._writes = self._plan_writes(chunks, lengths, positions)
        self._plan = self._line_up(_spans(chunks, offsets.tolist()), len(positions))
        self._last_plan = self._plan
        if len(last) < self.n_tokens:
            spans = [_Span(c.slot, i, 1, c.start + len(c.ids) - 1) for i, c in enumerate(self.sampled)]
            self._last_plan = self._line_up(spans, len(self.logit_rows))

    def _padded(self, n: int) -> int:
        return -(-n // self.layout.tile) * self.layout.tile

    def _put(self, array: npt.NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device, non_blocking=True)

    def _plan_writes(
        self, chunks: Sequence[Chunk], lengths: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]
    ) -> list[_Write]:
        """One write per slab; chunks are sorted by slab, so each writes one stretch of the packed tokens."""
        heads = np.arange(self.layout.n_kv_heads)
        index = np.repeat([c.slot.index for c in chunks], lengths)
        writes, first = [], 0
        for _, members in itertools.groupby(chunks, key=lambda c: id(c.slot.slab)):
            of_slab = list(members)
            slab = of_slab[0].slot.slab
            tokens = slice(first, first + sum(len(c.ids) for c in of_slab))
            target = (index[tokens, None] * self.layout.n_kv_heads + heads) * slab.capacity + positions[tokens, None]
            writes.append(_Write(slab, tokens, self._put(target.reshape(-1))))
            first = tokens.stop
        return writes

    def _line_up(self, spans: Sequence[_Span], n_rows: int) -> _Plan:
        """Groups spans of the same slab and similar length; no slot is twice in a group."""
        members: dict[tuple[int, int, int], list[_Span]] = {}
        seen: dict[tuple[int, int, int], int] = {}
        for span in spans:
            key = (id(span.slot.slab), self.layout.query_length(span.n))
            turn = seen[*key, span.slot.index] = seen.get((*key, span.slot.index), -1) + 1
            members.setdefault((*key, turn), []).append(span)
        inverse = np.zeros(n_rows, dtype=np.int64)
        groups: list[_Group] = []
        base = 0
        for (_, query_length, _), group in members.items():
            key_length = self.layout.key_length(max(s.start + s.n for s in group))
            query_rows = query_length * self.layout.n_heads // self.layout.n_kv_heads
            per_call = max(1, MASK_ELEMENTS // (query_rows * key_length))
            for first in range(0, len(group), per_call):
                made = self._group(group[first : first + per_call], query_length, key_length, inverse, base)
                groups.append(made)
                base += made.n * query_length
        return _Plan(groups, self._put(inverse))

    def _group(
        self, spans: Sequence[_Span], query_length: int, key_length: int, inverse: npt.NDArray[np.int64], base: int
    ) -> _Group:
        """Lines spans up and notes in `inverse` where their rows will be, the group's first being `base`.

        A dense range of slots is attended as a view, with the slots between computed in vain.
        """
        index, row, n, start = np.array([(s.slot.index, s.row, s.n, s.start) for s in spans], dtype=np.int64).T
        low, high = int(index.min()), int(index.max()) + 1
        rows: slice | torch.Tensor
        if high - low <= 1.5 * len(spans) + 1:
            rows, n_lines, line = slice(low, high), high - low, index - low
        else:
            rows, n_lines, line = self._put(index), len(spans), np.arange(len(spans))
        token = np.arange(query_length)[None]
        real = token < n[:, None]
        token = np.minimum(token, n[:, None] - 1)
        queries = np.zeros((n_lines, query_length), dtype=np.int64)
        queries[line] = row[:, None] + token
        inverse[queries[line][real]] = (base + line[:, None] * query_length + token)[real]
        limit = np.zeros_like(queries)
        limit[line] = start[:, None] + token
        if (n == 1).all():
            limit = limit[:, :1]
        else:
            limit = np.repeat(limit, self.layout.n_heads // self.layout.n_kv_heads, axis=1)
        mask = _mask(self._put(limit.reshape(-1)), key_length, self.dtype).view(n_lines, 1, -1, key_length)
        return _Group(spans[0].slot.slab, rows, n_lines, key_length, self._put(queries.reshape(-1)), mask)

    def store(self, layer: int, key_TGD: torch.Tensor, value_TGD: torch.Tensor) -> None:
        """Writes this step's keys and values into the cache."""
        dim = key_TGD.shape[-1]
        for write in self._writes:
            keys, values = write.slab.keys[layer].view(-1, dim), write.slab.values[layer].view(-1, dim)
            keys.index_copy_(0, write.target_TG, key_TGD[write.tokens].reshape(-1, dim))
            values.index_copy_(0, write.target_TG, value_TGD[write.tokens].reshape(-1, dim))

    def attend(self, layer: int, query_THD: torch.Tensor, scale: float | None, last: bool = False) -> torch.Tensor:
        """Every query attends to its own sequence, as far as its own position: [T, H, D].

        With `last` the queries are those of `logit_rows` only (what the last layer needs), and so is the result.
        """
        plan = self._last_plan if last else self._plan
        heads, kv_heads, dim = self.layout.n_heads, self.layout.n_kv_heads, query_THD.shape[-1]
        outputs = []
        for group in plan.groups:
            n, length = group.n, group.length
            lined = query_THD.index_select(0, group.queries_NQ).view(n, -1, kv_heads, heads // kv_heads, dim)
            q = lined.transpose(1, 2).reshape(n, kv_heads, -1, dim)
            keys = group.slab.keys[layer, group.rows, :, :length]
            values = group.slab.values[layer, group.rows, :, :length]
            out = F.scaled_dot_product_attention(q, keys, values, attn_mask=group.mask, scale=scale)
            out = out.view(n, kv_heads, -1, heads // kv_heads, dim).transpose(1, 2)
            outputs.append(out.reshape(-1, heads, dim))
        if not outputs:
            return query_THD.new_empty(0, heads, dim)
        gathered = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        return gathered.index_select(0, plan.inverse_T)


def _spans(chunks: Sequence[Chunk], offsets: Sequence[int]) -> list[_Span]:
    """Cuts chunks into spans, so that early queries of a long prompt need not be lined up against late keys."""
    spans = []
    for chunk, offset in zip(chunks, offsets, strict=True):
        step = 64 if len(chunk.ids) <= 256 else 256
        for first in range(0, len(chunk.ids), step):
            n = min(step, len(chunk.ids) - first)
            spans.append(_Span(chunk.slot, offset + first, n, chunk.start + first))
    return spans


def _mask(limits: torch.Tensor, length: int, dtype: torch.dtype) -> torch.Tensor:
    """[len(limits), length]: 0 for the keys up to and including each limit, -inf behind it."""
    if length <= 2 * BLOCK:
        return _mask_table(length, dtype, limits.device).index_select(0, limits)
    hidden = torch.arange(length, device=limits.device) > limits[:, None]
    return torch.zeros(hidden.shape, dtype=dtype, device=limits.device).masked_fill_(hidden, float("-inf"))


@functools.lru_cache(maxsize=32)
def _mask_table(length: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """[length, length]: the mask for every limit; copying rows is cheaper than comparing."""
    return torch.full((length, length), float("-inf"), dtype=dtype, device=device).triu_(1)


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
    rollenv_batch.store(layer, key[0].transpose(0, 1), value[0].transpose(0, 1))
    out = rollenv_batch.attend(layer, query[0].transpose(0, 1), scaling)
    return out.unsqueeze(0), None


ALL_ATTENTION_FUNCTIONS.register(IMPLEMENTATION, packed_attention)
