"""Finds, on the machine at hand, the tensor sizes at which a row's result does not depend on its company.

Matrix products on a CPU choose their kernels, and with them the order of summation, by the shape of the whole product:
a row computed alone can differ in its last bit from the same row computed in a batch. Padding to certain sizes avoids
it. Which sizes depends on the processor and the library, so they are measured when an engine is built (milliseconds).

Invariant: a layout from `probe` with `exact` True gave bitwise equal rows in every combination of sizes tried.
On accelerators nothing is probed and nothing promised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from rollenv.inference.attention import Layout
from rollenv.inference.kv_cache import BLOCK

_TILES = (16, 32, 64)
_QUERY_ROWS = (4, 8, 16, 32)
_REMAINDERS = tuple(range(64, BLOCK, 64))


LinearMap = tuple[int, Callable[[torch.Tensor], torch.Tensor]]
"""The number of input features, and the map from [rows, features] to [rows, ...] as the forward pass computes it."""


def probe(
    maps: Sequence[LinearMap], dtype: torch.dtype, device: torch.device, n_heads: int, n_kv_heads: int, head_dim: int
) -> tuple[Layout, bool]:
    """The layout for a model with these linear maps, and whether every row is exact with it (False off the CPU)."""
    if device.type != "cpu":
        return Layout(n_heads, n_kv_heads, 16, 1, (*_REMAINDERS, BLOCK)), False
    with torch.inference_mode():
        generator = torch.Generator().manual_seed(0)
        tile = next((t for t in _TILES if _rows_agree(maps, t, dtype, generator)), None)
        rows, remainders = _attention_sizes(head_dim, dtype, generator)
    layout = Layout(n_heads, n_kv_heads, tile or _TILES[-1], rows or _QUERY_ROWS[-1], (*remainders, BLOCK))
    return layout, tile is not None and rows is not None


def _rows_agree(maps: Sequence[LinearMap], tile: int, dtype: torch.dtype, generator: torch.Generator) -> bool:
    """Whether every map gives equal rows for every multiple of `tile` rows tried."""
    for features, linear in maps:
        x = torch.randn(8 * tile, features, generator=generator).to(dtype)
        whole = linear(x)
        for n in (tile, 2 * tile, 3 * tile, 5 * tile):
            if not torch.equal(linear(x[:n]), whole[:n]) or not torch.equal(linear(x[-n:]), whole[-n:]):
                return False
    return True


def _attention_sizes(
    head_dim: int, dtype: torch.dtype, generator: torch.Generator
) -> tuple[int | None, tuple[int, ...]]:
    """The fewest query rows, and the key lengths below `BLOCK`, that give what 32 rows and `BLOCK` keys give."""
    query, keys, values = (torch.randn(2, 2, n, head_dim, generator=generator).to(dtype) for n in (784, BLOCK, BLOCK))

    def attend(rows: int, length: int, visible: int) -> torch.Tensor:
        mask = torch.zeros(1, 1, 1, length, dtype=dtype)
        mask[..., visible:] = float("-inf")
        return F.scaled_dot_product_attention(
            query[:, :, :rows], keys[:, :, :length], values[:, :, :length], attn_mask=mask.expand(2, 1, rows, length)
        )

    def agree(rows: int, length: int) -> bool:
        tried = sorted({1, length // 3, length // 2 + 1, length - 63, length - 40, length - 9, length - 1, length})
        return all(torch.equal(attend(rows, length, v)[:, :, :32], attend(32, BLOCK, v)[:, :, :rows]) for v in tried)

    wide = all(agree(n, BLOCK) for n in (96, 224, 784))
    rows = next((r for r in _QUERY_ROWS if wide and all(agree(n, BLOCK) for n in range(r, 33))), None)
    return rows, tuple(r for r in _REMAINDERS if agree(rows or 32, r) and agree(32, r))
