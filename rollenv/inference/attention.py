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
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from rollenv.inference.kernels import Plan, Writes, attend, store
from rollenv.inference.kv_cache import BLOCK, Slot

IMPLEMENTATION = "rollenv_packed"
"""The name under which transformers knows `packed_attention`."""

MASK_ELEMENTS = 1 << 26
"""A group is split before its mask would have more elements than this."""


SPAN = 256
"""Queries of one sequence are attended at most so many at a time (a quarter of it in chunks no longer than this)."""

Ints: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True)
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

    @property
    def ratio(self) -> int:
        """R, the query heads that share a key/value head."""
        return self.n_heads // self.n_kv_heads

    @functools.cached_property
    def query_lengths(self) -> Ints:
        """`query_length` of 0 to `SPAN` tokens."""
        return np.array([self.query_length(max(n, 1)) for n in range(SPAN + 1)])

    def query_length(self, n_tokens: int) -> int:
        """Q for a span of `n_tokens`: the query tokens that a sequence is lined up to, in a few steps of size."""
        if n_tokens == 1:
            length = -(-self.query_rows // self.ratio)
            while 0 < length * self.ratio % 32 < self.query_rows:
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


@dataclass(frozen=True, slots=True)
class _Spans:
    """Runs of packed query rows, each of one sequence: S of them, one element per span in every array.

    Span i is rows `row[i]`, ... `row[i] + n[i] - 1` at positions `start[i]`, ... of slot `index[i]` of slab number
    `slab[i]`. `part[i]` counts the spans of a sequence: the same slot comes with a part at most once.
    """

    slab: Ints
    index: Ints
    part: Ints
    row: Ints
    n: Ints
    start: Ints

    def pick(self, which: Ints) -> _Spans:
        """Those numbered `which`."""
        columns = (self.slab, self.index, self.part, self.row, self.n, self.start)
        return _Spans(*(column[which] for column in columns))


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
        writes, plan: for `kernels.store` and `kernels.attend`.
        last_plan: as `plan`, for queries that are those of `logit_rows` only.
    """

    def __init__(self, chunks: Sequence[Chunk], layout: Layout, dtype: torch.dtype, device: torch.device) -> None:
        self.layout, self.dtype, self.device = layout, dtype, device
        self._slabs = list({id(c.slot.slab): c.slot.slab for c in chunks}.values())
        number = {id(slab): i for i, slab in enumerate(self._slabs)}
        columns = np.array([(number[id(c.slot.slab)], c.slot.index, len(c.ids), c.start) for c in chunks]).T
        order = np.lexsort((columns[1], columns[2], columns[0]))
        chunks = [chunks[i] for i in order]
        slab, index, n, start = columns[:, order]
        row = np.cumsum(n) - n
        self.n_tokens = int(n.sum())
        positions = np.zeros(self._padded(self.n_tokens), dtype=np.int64)
        positions[: self.n_tokens] = np.arange(self.n_tokens) + np.repeat(start - row, n)
        ids = np.zeros_like(positions)
        ids[: self.n_tokens] = list(itertools.chain.from_iterable(c.ids for c in chunks))
        self.ids_T, self.positions_T = self._put(ids), self._put(positions)
        self.sampled = [c for c in chunks if c.sample]
        asks = np.flatnonzero([c.sample for c in chunks])
        last = np.zeros(self._padded(len(asks)), dtype=np.int64)
        last[: len(asks)] = (row + n - 1)[asks]
        self.logit_rows = self._put(last)
        self.writes = self._plan_writes(np.repeat(slab, n), np.repeat(index, n), positions[: self.n_tokens])
        self.plan = self.last_plan = self._line_up(_cut(slab, index, row, n, start), len(positions))
        if len(asks) < self.n_tokens:
            one = np.ones_like(asks)
            spans = _Spans(slab[asks], index[asks], one, np.arange(len(asks)), one, (start + n - 1)[asks])
            self.last_plan = self._line_up(spans, len(last))

    def _padded(self, n: int) -> int:
        return -(-n // self.layout.tile) * self.layout.tile

    def _put(self, array: Ints) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device, non_blocking=True)

    def _plan_writes(self, slab_T: Ints, index_T: Ints, position_T: Ints) -> Writes:
        """One write per slab; tokens are sorted by slab, so each writes one stretch of them."""
        heads = np.arange(self.layout.n_kv_heads)
        bounds = np.searchsorted(slab_T, np.arange(len(self._slabs) + 1)).tolist()
        targets = []
        for slab, (first, end) in zip(self._slabs, itertools.pairwise(bounds), strict=True):
            row = index_T[first:end, None] * self.layout.n_kv_heads + heads
            targets.append(self._put((row * slab.capacity + position_T[first:end, None]).reshape(-1)))
        keys, values = [s.keys for s in self._slabs], [s.values for s in self._slabs]
        return Writes(keys, values, bounds[:-1], bounds[1:], targets)

    def _line_up(self, spans: _Spans, n_rows: int) -> Plan:
        """Groups spans of the same slab, part and query length: no slot is twice in a group."""
        inverse = np.zeros(n_rows, dtype=np.int64)
        plan = Plan([], [], [], [], [], [], [], [], torch.empty(0))
        base = 0
        query_length = self.layout.query_lengths[spans.n]
        keys = (spans.slab * (1 << 20) + spans.part) * (1 << 20) + query_length
        for key in np.unique(keys):
            members = np.flatnonzero(keys == key)
            q_length = int(query_length[members[0]])
            key_length = self.layout.key_length(int((spans.start + spans.n)[members].max()))
            per_call = max(1, MASK_ELEMENTS // (q_length * self.layout.ratio * key_length))
            for first in range(0, len(members), per_call):
                group = spans.pick(members[first : first + per_call])
                base += q_length * self._add_group(plan, group, q_length, key_length, inverse, base)
        return plan._replace(inverse=self._put(inverse))

    def _add_group(
        self, plan: Plan, spans: _Spans, query_length: int, key_length: int, inverse: Ints, base: int
    ) -> int:
        """Lines spans up and notes in `inverse` where their rows will be, the group's first being `base`.

        A dense range of slots is attended as a view, with the slots between computed in vain. Returns the N lines.
        """
        low, high = int(spans.index.min()), int(spans.index.max()) + 1
        gather = np.empty(0, dtype=np.int64)
        n_lines, line = high - low, spans.index - low
        if n_lines > 1.5 * len(spans.index) + 1:
            gather, n_lines, line = spans.index, len(spans.index), np.arange(len(spans.index))
        token = np.arange(query_length)[None]
        real = token < spans.n[:, None]
        token = np.minimum(token, spans.n[:, None] - 1)
        queries = np.zeros((n_lines, query_length), dtype=np.int64)
        queries[line] = spans.row[:, None] + token
        inverse[queries[line][real]] = (base + line[:, None] * query_length + token)[real]
        limit = np.zeros_like(queries)
        limit[line] = spans.start[:, None] + token
        limit = limit[:, :1] if spans.n.max() == 1 else np.repeat(limit, self.layout.ratio, axis=1)
        slab = self._slabs[int(spans.slab[0])]
        plan.keys.append(slab.keys)
        plan.values.append(slab.values)
        plan.gather.append(self._put(gather))
        plan.low.append(low)
        plan.high.append(high)
        plan.length.append(key_length)
        plan.queries.append(self._put(queries.reshape(-1)))
        mask = _mask(self._put(limit.reshape(-1)), key_length, self.dtype)
        plan.masks.append(mask.view(n_lines, 1, -1, key_length))
        return n_lines


def _cut(slab: Ints, index: Ints, row: Ints, n: Ints, start: Ints) -> _Spans:
    """Cuts chunks into spans, so that early queries of a long prompt need not be lined up against late keys."""
    step = np.where(n <= SPAN, SPAN // 4, SPAN)
    parts = -(-n // step)
    part = np.arange(int(parts.sum())) - np.repeat(np.cumsum(parts) - parts, parts)
    chunk = np.repeat(np.arange(len(n)), parts)
    first = part * step[chunk]
    length = np.minimum(step[chunk], n[chunk] - first)
    return _Spans(slab[chunk], index[chunk], part, row[chunk] + first, length, start[chunk] + first)


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
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    store(rollenv_batch.writes, layer, key[0].transpose(0, 1), value[0].transpose(0, 1))
    out = attend(rollenv_batch.plan, layer, query[0].transpose(0, 1), key.shape[1], scale)
    return out.unsqueeze(0), None


ALL_ATTENTION_FUNCTIONS.register(IMPLEMENTATION, packed_attention)
