"""Slots, slabs and the budget; and the plan that packs sequences, against a plain attention."""

from __future__ import annotations

import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from rollenv.inference.attention import Chunk, Layout, PackedBatch  # noqa: E402
from rollenv.inference.invariance import probe  # noqa: E402
from rollenv.inference.kernels import attend, store  # noqa: E402
from rollenv.inference.kv_cache import BLOCK, KVCache, KVShape, Slot  # noqa: E402

CPU = torch.device("cpu")
SHAPE = KVShape(layers=2, kv_heads=2, head_dim=8, dtype=torch.float32, device=CPU)
SLOT = BLOCK * SHAPE.bytes_per_token


def test_slots_come_in_classes_and_the_budget_is_never_exceeded() -> None:
    cache = KVCache(SHAPE, 7 * SLOT, slab_slots=4)
    assert cache.max_tokens == 4 * BLOCK
    short = [cache.acquire(10) for _ in range(4)]
    assert [slot.index for slot in short if slot] == [0, 1, 2, 3]
    long = cache.acquire(BLOCK + 1)
    assert long is not None
    assert long.capacity == 2 * BLOCK
    assert cache.acquire(2 * BLOCK) is None  # 4 + 2 of 7 slots' worth are allocated
    fifth = cache.acquire(BLOCK)
    assert fifth is not None
    assert cache.n_bytes == 7 * SLOT
    assert cache.acquire(1) is None
    cache.release(fifth)
    assert cache.acquire(1) == fifth


def test_empty_slabs_give_their_memory_to_another_class() -> None:
    cache = KVCache(SHAPE, 4 * SLOT, slab_slots=4)
    slots = [cache.acquire(1) for _ in range(4)]
    for slot in slots:
        assert slot is not None
        assert cache.acquire(4 * BLOCK) is None
        cache.release(slot)
    assert cache.acquire(4 * BLOCK) is not None
    assert cache.n_bytes == 4 * SLOT


def test_a_budget_below_one_slot_holds_nothing() -> None:
    cache = KVCache(SHAPE, SLOT - 1)
    assert cache.max_tokens == 0
    assert cache.acquire(1) is None


def test_moving_copies_what_is_cached() -> None:
    cache = KVCache(SHAPE, 100 * SLOT)
    source, target = cache.acquire(1), cache.acquire(BLOCK + 1)
    assert source
    assert target
    source.slab.keys[:, source.index] = torch.randn(2, 2, BLOCK, 8)
    cache.move(source, target, 7)
    assert torch.equal(target.slab.keys[:, target.index, :, :7], source.slab.keys[:, source.index, :, :7])
    assert not target.slab.keys[:, target.index, :, 7:].any()


class Sequence:
    """A sequence whose keys and values are known, to attend by hand."""

    def __init__(self, slot: Slot, length: int, heads: int) -> None:
        self.slot, self.done = slot, 0
        self.q, self.k, self.v = torch.randn(length, heads, 8), torch.randn(length, 2, 8), torch.randn(length, 2, 8)

    def expected(self, first: int, end: int) -> Any:
        ratio = self.q.shape[1] // 2
        k, v = (x[:end].repeat_interleave(ratio, dim=1) for x in (self.k, self.v))
        scores = torch.einsum("qhd,khd->hqk", self.q[first:end], k) * 0.3
        hidden = torch.arange(end) > torch.arange(first, end)[:, None]
        return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, float("-inf")).softmax(-1), v)


@pytest.mark.parametrize("heads", [2, 4, 6, 14])
def test_packed_attention_equals_attention_by_hand(heads: int) -> None:
    torch.manual_seed(heads)
    draw = random.Random(heads)
    layout = Layout(heads, 2, 16, 4, (64, 128, 192, 256, 320, 384, 448, 512))
    cache = KVCache(SHAPE, 100 * SLOT, slab_slots=3)
    sequences = []
    for length in [700, 300, 130, 90, 90, 40, 1, 9]:
        slot = cache.acquire(length)
        assert slot is not None
        sequences.append(Sequence(slot, length, heads))
    while active := [s for s in sequences if s.done < len(s.q)]:
        parts = [(s, min(len(s.q) - s.done, draw.choice([1, 1, 3, 70, 300]))) for s in active if draw.random() < 0.7]
        if not parts:
            continue
        chunks = [Chunk(s.slot, s.done, [s.done % 50] * n, draw.random() < 0.5) for s, n in parts]
        batch = PackedBatch(chunks, layout, torch.float32, CPU)
        check(batch, dict(zip(chunks, parts, strict=True)))
        for sequence, n in parts:
            sequence.done += n


def check(batch: PackedBatch, parts: dict[Chunk, tuple[Sequence, int]]) -> None:
    """Feeds the batch each token's vectors and compares what comes out, all rows and sampled rows."""
    order = sorted(parts, key=lambda c: (batch._slabs.index(c.slot.slab), len(c.ids), c.slot.index))
    rows = [(parts[c][0], c.start, c.start + len(c.ids)) for c in order]
    padding = len(batch.ids_T) - batch.n_tokens
    assert 0 <= padding < 16
    q, k, v = (
        torch.cat([*(getattr(s, x)[a:b] for s, a, b in rows), torch.randn(padding, getattr(rows[0][0], x).shape[1], 8)])
        for x in "qkv"
    )
    store(batch.writes, 1, k, v)
    out = attend(batch.plan, 1, q, 2, 0.3)
    expected = torch.cat([s.expected(a, b) for s, a, b in rows])
    torch.testing.assert_close(out[: batch.n_tokens], expected, atol=1e-5, rtol=1e-4)
    assert batch.positions_T[: batch.n_tokens].tolist() == [p for _, a, b in rows for p in range(a, b)]
    last = attend(batch.last_plan, 1, q.index_select(0, batch.logit_rows), 2, 0.3)
    assert batch.sampled == [c for c in order if c.sample]
    n = len(batch.sampled)
    torch.testing.assert_close(last[:n], out.index_select(0, batch.logit_rows)[:n], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_probe_finds_an_exact_layout_on_this_machine(dtype: str) -> None:
    kind = getattr(torch, dtype)
    maps = [(64, torch.nn.Linear(64, 192).to(kind)), (192, torch.nn.Linear(192, 64, bias=False).to(kind))]
    layout, exact = probe(maps, kind, CPU, 4, 2, 32)
    assert exact
    assert layout.remainders[-1] == BLOCK
    for n in (1, 63, 64, 65, 500, 512, 513, 1000):
        assert n <= layout.key_length(n) <= -(-n // BLOCK) * BLOCK
        assert layout.query_length(n) >= n
