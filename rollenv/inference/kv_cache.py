"""Where keys and values of past tokens live: slots of equal capacity in preallocated slabs, under a budget in bytes.

A slab is one pair of tensors [layers, slots, kv_heads, capacity, head_dim]; a session owns one slot of one slab.
Capacities come in classes (512, 1024, 2048, ... tokens), so sessions of similar length lie side by side and a whole
slab is attended by one call over a view, without gathering. A slab is allocated when a class runs out of slots; empty
slabs are given back when another class needs their memory.

Invariant: the bytes of all slabs never exceed the budget.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

BLOCK = 512
"""Capacities are this many tokens times a power of two; also the block in which CPU attention walks over the keys."""


@dataclass(frozen=True, slots=True)
class KVShape:
    """What one token leaves behind: `layers` x 2 x `kv_heads` x `head_dim` numbers of `dtype` on `device`."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes_per_token(self) -> int:
        """Bytes of K and V over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype.itemsize


@dataclass(slots=True, eq=False)
class Slab:
    """`n_slots` slots of `capacity` tokens. `keys` and `values` are [layers, n_slots, kv_heads, capacity, head_dim]."""

    capacity: int
    n_slots: int
    keys: torch.Tensor
    values: torch.Tensor
    free: list[int] = field(default_factory=list)

    @property
    def n_bytes(self) -> int:
        """Bytes allocated for both tensors."""
        return self.keys.nbytes + self.values.nbytes


@dataclass(frozen=True, slots=True)
class Slot:
    """One session's place: row `index` of `slab`."""

    slab: Slab
    index: int

    @property
    def capacity(self) -> int:
        """How many tokens fit."""
        return self.slab.capacity


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros, because attention also multiplies (by zero) what lies behind a session's last token.

    On the CPU numpy allocates: it asks the kernel for huge pages, which makes walking over the cache some 15% faster.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    n_bytes = int(np.prod(shape)) * dtype.itemsize
    return torch.from_numpy(np.zeros(n_bytes, dtype=np.uint8)).view(dtype).view(shape)


class KVCache:
    """Hands out slots. It knows nothing of sessions: who is evicted when `acquire` fails is the engine's decision.

    Args:
        shape: what one token leaves behind.
        budget_bytes: upper bound for all slabs together.
        slab_slots: slots that a slab has when the budget allows.
    """

    def __init__(self, shape: KVShape, budget_bytes: int, slab_slots: int = 32) -> None:
        self.shape = shape
        self.budget_bytes = budget_bytes
        self.slab_slots = slab_slots
        self.slabs: list[Slab] = []

    @property
    def n_bytes(self) -> int:
        """Bytes allocated now."""
        return sum(slab.n_bytes for slab in self.slabs)

    def class_of(self, n_tokens: int) -> int:
        """The smallest capacity class that holds `n_tokens`."""
        capacity = BLOCK
        while capacity < n_tokens:
            capacity *= 2
        return capacity

    @property
    def max_tokens(self) -> int:
        """The longest session the budget can hold when nothing else is cached; 0 when it cannot hold even one slot."""
        capacity = 0
        while max(BLOCK, 2 * capacity) * self.shape.bytes_per_token <= self.budget_bytes:
            capacity = max(BLOCK, 2 * capacity)
        return capacity

    def acquire(self, n_tokens: int) -> Slot | None:
        """A slot for `n_tokens`, or None when the budget is used up: free or evict something and ask again."""
        capacity = self.class_of(n_tokens)
        for slab in self.slabs:
            if slab.capacity == capacity and slab.free:
                return Slot(slab, slab.free.pop())
        slab_or_none = self._allocate(capacity)
        return Slot(slab_or_none, slab_or_none.free.pop()) if slab_or_none else None

    def release(self, slot: Slot) -> None:
        """Gives a slot back."""
        slot.slab.free.append(slot.index)
        slot.slab.free.sort(reverse=True)  # the lowest index is taken next, so that views stay dense

    def move(self, source: Slot, target: Slot, n_tokens: int) -> None:
        """Copies the first `n_tokens` of one slot into another (of another class)."""
        for to, of in ((target.slab.keys, source.slab.keys), (target.slab.values, source.slab.values)):
            to[:, target.index, :, :n_tokens] = of[:, source.index, :, :n_tokens]

    def clear(self) -> None:
        """Forgets every slab."""
        self.slabs.clear()

    def _allocate(self, capacity: int) -> Slab | None:
        per_slot = capacity * self.shape.bytes_per_token
        empty = [slab for slab in self.slabs if len(slab.free) == slab.n_slots]
        while empty and self.budget_bytes - self.n_bytes < self.slab_slots * per_slot:
            self.slabs.remove(empty.pop())
        n_slots = min(self.slab_slots, (self.budget_bytes - self.n_bytes) // per_slot)
        if n_slots < 1:
            return None
        shape = (self.shape.layers, n_slots, self.shape.kv_heads, capacity, self.shape.head_dim)
        keys = _zeros(shape, self.shape.dtype, self.shape.device)
        values = _zeros(shape, self.shape.dtype, self.shape.device)
        slab = Slab(capacity, n_slots, keys, values, list(range(n_slots - 1, -1, -1)))
        self.slabs.append(slab)
        return slab
