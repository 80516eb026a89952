"""A shorter way through Llama, Qwen2, Qwen3 and Mistral: the same weights, fewer and larger operations.

Small models spend more time on calling operations than on arithmetic. For the common decoder this runner merges the
query, key and value maps into one and the gate and up maps into one, and runs `rollenv.inference.kernels.decode`, one
call for the whole model.

Invariant: the model's own parameters become views of the merged ones, so there is one copy of every weight and an
update of the parameters is an update of this runner.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F

from rollenv.inference.attention import PackedBatch
from rollenv.inference.invariance import LinearMap
from rollenv.inference.kernels import Weights, add_linear, compiled_decode

_FAMILIES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "MistralForCausalLM")
_ROPE_TYPES = ("default", "linear", "llama3", "yarn")


def _merge(*parts: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Stacks linear maps of one input and makes their parameters views of the stacks: weight, bias."""
    weight = _stack([part.weight for part in parts])
    return weight, None if parts[0].bias is None else _stack([part.bias for part in parts])


def _stack(parameters: list[torch.nn.Parameter]) -> torch.Tensor:
    if len(parameters) == 1:
        return parameters[0].data
    stacked = torch.cat([p.data for p in parameters])
    first = 0
    for parameter in parameters:
        parameter.data = stacked[first : first + len(parameter)]
        first += len(parameter)
    return stacked


def _weights(model: Any, max_length: int) -> Weights:
    config, base = model.config, model.model
    layers = list(base.layers)
    cos, sin = base.rotary_emb(base.norm.weight, torch.arange(max_length, device=base.norm.weight.device)[None])
    half = cos.shape[-1] // 2
    qkv = [_merge(x.self_attn.q_proj, x.self_attn.k_proj, x.self_attn.v_proj) for x in layers]
    out = [_merge(x.self_attn.o_proj) for x in layers]
    gate_up = [_merge(x.mlp.gate_proj, x.mlp.up_proj) for x in layers]
    down = [_merge(x.mlp.down_proj) for x in layers]
    head_norms = [
        [norm.weight.data if (norm := getattr(x.self_attn, name, None)) is not None else None for x in layers]
        for name in ("q_norm", "k_norm")
    ]
    return Weights(
        embedding=base.embed_tokens.weight.data,
        cos=cos[0],
        sin=torch.cat((-sin[0, :, :half], sin[0, :, half:]), dim=-1),
        attention_norm=[x.input_layernorm.weight.data for x in layers],
        qkv=[weight for weight, _ in qkv],
        qkv_bias=[bias for _, bias in qkv],
        query_norm=head_norms[0],
        key_norm=head_norms[1],
        out=[weight for weight, _ in out],
        out_bias=[bias for _, bias in out],
        mlp_norm=[x.post_attention_layernorm.weight.data for x in layers],
        gate_up=[weight for weight, _ in gate_up],
        gate_up_bias=[bias for _, bias in gate_up],
        down=[weight for weight, _ in down],
        down_bias=[bias for _, bias in down],
        norm=base.norm.weight.data,
        head=model.lm_head.weight.data,
        n_heads=int(config.num_attention_heads),
        n_kv_heads=int(config.num_key_value_heads),
        head_dim=int(cos.shape[-1]),
        epsilon=float(config.rms_norm_eps),
        scale=float(layers[0].self_attn.scaling),
    )


class FusedRunner:
    """A `Runner` for the families above; build it with `fused_runner`.

    Args:
        model: the engine's own copy; its parameters are re-pointed.
        max_length: positions to tabulate.
    """

    def __init__(self, model: Any, max_length: int) -> None:
        self._weights = _weights(model, max_length)
        self._decode = compiled_decode()

    def __call__(self, batch: PackedBatch) -> torch.Tensor:
        """[len(batch.logit_rows), vocabulary] scores."""
        scores: torch.Tensor = self._decode(
            self._weights,
            batch.ids_T,
            batch.positions_T,
            batch.logit_rows,
            batch.writes,
            batch.plan,
            batch.last_plan,
        )
        return scores

    def linear_maps(self) -> list[LinearMap]:
        """See `Runner`."""
        w = self._weights
        maps: list[LinearMap] = []
        for weight, bias in ((w.qkv[0], w.qkv_bias[0]), (w.gate_up[0], w.gate_up_bias[0]), (w.head, None)):
            maps.append((weight.shape[1], functools.partial(F.linear, weight=weight, bias=bias)))
        for weight, bias in ((w.out[0], w.out_bias[0]), (w.down[0], w.down_bias[0])):
            maps.append((weight.shape[1], functools.partial(_add_to_ones, weight, bias)))
        return maps


def _add_to_ones(weight: torch.Tensor, bias: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor:
    return add_linear(x.new_ones(len(x), len(weight)), x, weight, bias)


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
    with torch.no_grad():
        return FusedRunner(model, max_length)
