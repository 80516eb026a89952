"""A shorter way through Llama, Qwen2, Qwen3 and Mistral: the same weights, fewer and larger operations.

Small models spend more time on calling operations than on arithmetic. For the common decoder this runner merges the
query, key and value maps into one and the gate and up maps into one, drops dimensions of size one, and computes the
last layer behind its keys and values only for the rows that are sampled (no other row is read any more).

Invariant: the model's own parameters become views of the merged ones, so there is one copy of every weight and an
update of the parameters is an update of this runner.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from rollenv.inference.attention import PackedBatch

_FAMILIES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "MistralForCausalLM")
_ROPE_TYPES = ("default", "linear", "llama3", "yarn")


class _Linear:
    """Several linear maps of the same input as one, their outputs side by side."""

    def __init__(self, *parts: Any) -> None:
        self.weight = _merge([part.weight for part in parts])
        self.bias: torch.Tensor | None = None
        if parts[0].bias is not None:
            self.bias = _merge([part.bias for part in parts])

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """`residual` + the map of x, written over `residual`."""
        if self.bias is None:
            return residual.addmm_(x, self.weight.t())
        return residual.add_(F.linear(x, self.weight, self.bias))


def _merge(parameters: list[torch.nn.Parameter]) -> torch.Tensor:
    """Stacks along the first dimension and makes the parameters views of the stack."""
    if len(parameters) == 1:
        return parameters[0].data
    merged = torch.cat([p.data for p in parameters])
    first = 0
    for parameter in parameters:
        parameter.data = merged[first : first + len(parameter)]
        first += len(parameter)
    return merged


class _Layer:
    """One decoder layer's weights."""

    def __init__(self, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.qkv = _Linear(attention.q_proj, attention.k_proj, attention.v_proj)
        self.out = _Linear(attention.o_proj)
        self.gate_up = _Linear(mlp.gate_proj, mlp.up_proj)
        self.down = _Linear(mlp.down_proj)
        self.norms = layer.input_layernorm, layer.post_attention_layernorm
        self.head_norms = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
        self.scale = float(attention.scaling)


def _norm(norm: Any, x: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, (x.shape[-1],), norm.weight, norm.variance_epsilon)


class FusedRunner:
    """A `Runner` for the families above; build it with `fused_runner`.

    Args:
        model: the engine's own copy; its parameters are re-pointed.
        max_length: positions to tabulate.
    """

    def __init__(self, model: Any, max_length: int) -> None:
        config = model.config
        self._n_heads, self._n_kv_heads = config.num_attention_heads, config.num_key_value_heads
        self._embed, self._norm, self._head = model.model.embed_tokens, model.model.norm, model.lm_head
        self._layers = [_Layer(layer) for layer in model.model.layers]
        parameter = self._norm.weight
        positions = torch.arange(max_length, device=parameter.device)[None]
        cos, sin = model.model.rotary_emb(parameter, positions)
        half = cos.shape[-1] // 2
        self._cos, self._sin = cos[0], torch.cat((-sin[0, :, :half], sin[0, :, half:]), dim=-1)
        self._head_dim, self._half = cos.shape[-1], half

    def __call__(self, batch: PackedBatch) -> torch.Tensor:
        """[len(batch.logit_rows), vocabulary] scores."""
        x = F.embedding(batch.ids_T, self._embed.weight)
        cos = self._cos.index_select(0, batch.positions_T)[:, None]
        sin = self._sin.index_select(0, batch.positions_T)[:, None]
        for index, layer in enumerate(self._layers):
            last = index == len(self._layers) - 1
            attended = self._attend(index, layer, _norm(layer.norms[0], x), cos, sin, batch, last)
            if last:
                x = x.index_select(0, batch.logit_rows)
            x = layer.out.add_to(x, attended)
            gate, up = layer.gate_up(_norm(layer.norms[1], x)).chunk(2, dim=-1)
            x = layer.down.add_to(x, F.silu(gate).mul_(up))
        return F.linear(_norm(self._norm, x), self._head.weight)

    def _attend(
        self,
        index: int,
        layer: _Layer,
        x: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        batch: PackedBatch,
        last: bool,
    ) -> torch.Tensor:
        """Attention of all rows, or with `last` of the sampled ones: [T, heads * head_dim]."""
        n_heads, n_rotated = self._n_heads, self._n_heads + self._n_kv_heads
        heads = layer.qkv(x).view(len(x), -1, self._head_dim)
        rotated = heads[:, :n_rotated]
        if layer.head_norms[0] is not None:
            queries, keys = heads[:, :n_heads], heads[:, n_heads:n_rotated]
            rotated = torch.cat((_norm(layer.head_norms[0], queries), _norm(layer.head_norms[1], keys)), dim=1)
        swapped = torch.cat((rotated[..., self._half :], rotated[..., : self._half]), dim=-1)
        rotated = (rotated * cos).addcmul_(swapped, sin)
        batch.store(index, rotated[:, n_heads:], heads[:, n_rotated:])
        queries = rotated[:, :n_heads]
        if last:
            queries = queries.index_select(0, batch.logit_rows)
        return batch.attend(index, queries, layer.scale, last).flatten(1)


def fused_runner(model: Any, max_length: int) -> FusedRunner | None:
    """The fused runner for `model`, or None when the model is not exactly one of the families it knows."""
    config = model.config
    rope = getattr(config, "rope_parameters", None) or {}
    plain = all(type(m) is torch.nn.Linear for m in model.modules() if isinstance(m, torch.nn.Linear))
    known = type(model).__name__ in _FAMILIES and type(model).__module__.startswith("transformers.")
    if not (known and plain and config.hidden_act == "silu" and rope.get("rope_type", "default") in _ROPE_TYPES):
        return None
    if rope.get("partial_rotary_factor", 1.0) != 1.0 or any(len(m._forward_hooks) for m in model.modules()):
        return None
    with torch.inference_mode(False), torch.no_grad():
        return FusedRunner(model, max_length)
