"""What a step computes, as free functions on tensors.

They are written in the subset of Python that TorchScript understands: compiled, a whole forward pass runs without the
interpreter's lock, so that two workers share a step on two cores. Where TorchScript is missing the same functions run
as they are, with the same results.

Shape suffixes: T packed tokens, H query heads, G key/value heads, R = H / G, D head dimension, N sequences of a group,
Q query tokens of each, L key length.
"""
# No `from __future__ import annotations`: TorchScript reads the annotations.

import functools
import warnings
from typing import Any, NamedTuple, Optional

import torch
import torch.nn.functional as F


class Writes(NamedTuple):
    """Element i: packed tokens `first[i]`:`end[i]` go into the rows `target[i]` of a slab seen layer by layer as
    [slots * kv_heads * capacity, head_dim]."""

    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    first: list[int]
    end: list[int]
    target: list[torch.Tensor]


class Plan(NamedTuple):
    """Query rows lined up in groups, one call each, element i for group i.

    The cache rows of a group are slots `low[i]`:`high[i]` of its slab, or those named in `gather[i]` when that is not
    empty. `queries[i]` [N * Q] says which packed row is which query. `inverse` [T] says where each packed row is found
    in the groups' outputs laid end to end.
    """

    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    gather: list[torch.Tensor]
    low: list[int]
    high: list[int]
    length: list[int]
    queries: list[torch.Tensor]
    masks: list[torch.Tensor]
    inverse: torch.Tensor


class Weights(NamedTuple):
    """A decoder of the Llama kind; lists have one element per layer. `sin` has its first half negated."""

    embedding: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    attention_norm: list[torch.Tensor]
    qkv: list[torch.Tensor]
    qkv_bias: list[Optional[torch.Tensor]]  # noqa: UP045
    query_norm: list[Optional[torch.Tensor]]  # noqa: UP045
    key_norm: list[Optional[torch.Tensor]]  # noqa: UP045
    out: list[torch.Tensor]
    out_bias: list[Optional[torch.Tensor]]  # noqa: UP045
    mlp_norm: list[torch.Tensor]
    gate_up: list[torch.Tensor]
    gate_up_bias: list[Optional[torch.Tensor]]  # noqa: UP045
    down: list[torch.Tensor]
    down_bias: list[Optional[torch.Tensor]]  # noqa: UP045
    norm: torch.Tensor
    head: torch.Tensor
    n_heads: int
    n_kv_heads: int
    head_dim: int
    epsilon: float
    scale: float


def store(writes: Writes, layer: int, key_TGD: torch.Tensor, value_TGD: torch.Tensor) -> None:
    """Writes a step's keys and values into the cache."""
    dim = key_TGD.size(2)
    for i in range(len(writes.target)):
        first, end, target = writes.first[i], writes.end[i], writes.target[i]
        writes.keys[i][layer].view(-1, dim).index_copy_(0, target, key_TGD[first:end].reshape(-1, dim))
        writes.values[i][layer].view(-1, dim).index_copy_(0, target, value_TGD[first:end].reshape(-1, dim))


def attend(plan: Plan, layer: int, query_THD: torch.Tensor, n_kv_heads: int, scale: float) -> torch.Tensor:
    """Every query attends to its own sequence, as far as its own position: [T, H, D]."""
    n_heads, dim = query_THD.size(1), query_THD.size(2)
    ratio = n_heads // n_kv_heads
    outputs: list[torch.Tensor] = []
    for i in range(len(plan.queries)):
        keys, values = plan.keys[i][layer], plan.values[i][layer]
        if plan.gather[i].numel() > 0:
            keys = keys.index_select(0, plan.gather[i])[:, :, : plan.length[i]]
            values = values.index_select(0, plan.gather[i])[:, :, : plan.length[i]]
        else:
            keys = keys[plan.low[i] : plan.high[i], :, : plan.length[i]]
            values = values[plan.low[i] : plan.high[i], :, : plan.length[i]]
        n = keys.size(0)
        lined = query_THD.index_select(0, plan.queries[i]).view(n, -1, n_kv_heads, ratio, dim)
        query = lined.transpose(1, 2).reshape(n, n_kv_heads, -1, dim)
        out = F.scaled_dot_product_attention(query, keys, values, attn_mask=plan.masks[i], scale=scale)
        outputs.append(out.view(n, n_kv_heads, -1, ratio, dim).transpose(1, 2).reshape(-1, n_heads, dim))
    if len(outputs) == 0:
        return query_THD.new_empty((0, n_heads, dim))
    gathered = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return gathered.index_select(0, plan.inverse)


def add_linear(
    residual: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: Optional[torch.Tensor],  # noqa: UP045
) -> torch.Tensor:
    """`residual` + the linear map of x, written over `residual`."""
    if bias is None:
        return residual.addmm_(x, weight.t())
    return residual.add_(F.linear(x, weight, bias))


def rotated_heads(
    w: Weights, layer: int, heads_TND: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> torch.Tensor:
    """The queries and keys among `heads_TND` (queries, keys, values), normalised if the model does, and rotated."""
    n_rotated, half = w.n_heads + w.n_kv_heads, w.head_dim // 2
    rotated = heads_TND[:, :n_rotated]
    query_norm, key_norm = w.query_norm[layer], w.key_norm[layer]
    if query_norm is not None and key_norm is not None:
        queries = F.rms_norm(rotated[:, : w.n_heads], (w.head_dim,), query_norm, w.epsilon)
        keys = F.rms_norm(rotated[:, w.n_heads :], (w.head_dim,), key_norm, w.epsilon)
        rotated = torch.cat((queries, keys), dim=1)
    swapped = torch.cat((rotated[:, :, half:], rotated[:, :, :half]), dim=2)
    return (rotated * cos).addcmul_(swapped, sin)


def decode(
    w: Weights,
    ids_T: torch.Tensor,
    positions_T: torch.Tensor,
    logit_rows: torch.Tensor,
    writes: Writes,
    plan: Plan,
    last_plan: Plan,
) -> torch.Tensor:
    """[len(logit_rows), vocabulary] scores; behind its keys and values the last layer computes `logit_rows` only."""
    x = F.embedding(ids_T, w.embedding)
    hidden = x.size(1)
    cos = w.cos.index_select(0, positions_T).unsqueeze(1)
    sin = w.sin.index_select(0, positions_T).unsqueeze(1)
    for i in range(len(w.qkv)):
        normed = F.rms_norm(x, (hidden,), w.attention_norm[i], w.epsilon)
        heads = F.linear(normed, w.qkv[i], w.qkv_bias[i]).view(x.size(0), -1, w.head_dim)
        rotated = rotated_heads(w, i, heads, cos, sin)
        store(writes, i, rotated[:, w.n_heads :], heads[:, w.n_heads + w.n_kv_heads :])
        queries = rotated[:, : w.n_heads]
        if i == len(w.qkv) - 1:
            queries, x = queries.index_select(0, logit_rows), x.index_select(0, logit_rows)
            attended = attend(last_plan, i, queries, w.n_kv_heads, w.scale)
        else:
            attended = attend(plan, i, queries, w.n_kv_heads, w.scale)
        x = add_linear(x, attended.flatten(1), w.out[i], w.out_bias[i])
        normed = F.rms_norm(x, (hidden,), w.mlp_norm[i], w.epsilon)
        gate_up = F.linear(normed, w.gate_up[i], w.gate_up_bias[i])
        half = gate_up.size(1) // 2
        x = add_linear(x, F.silu(gate_up[:, :half]).mul_(gate_up[:, half:]), w.down[i], w.down_bias[i])
    return F.linear(F.rms_norm(x, (hidden,), w.norm, w.epsilon), w.head)


@functools.cache
def compiled_decode() -> Any:
    """`decode` by TorchScript where it exists, else `decode`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch._C._jit_override_can_fuse_on_gpu(False)  # it would compile kernels at run time, again for new shapes
            return torch.jit.script(decode)
        except Exception:  # TorchScript is on its way out; the function does as well
            return decode
