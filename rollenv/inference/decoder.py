"""What an engine has to know of a model: its heads, its vocabulary, its context, and where its weights are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from rollenv.inference.kv_cache import KVShape


@dataclass(frozen=True, slots=True)
class Decoder:
    """A decoder-only model in numbers.

    Attributes:
        n_heads: heads of the queries.
        hidden: numbers of a token's state.
        vocab: tokens that the embedding has a row for.
        context: the most tokens of a session; a sliding window bounds it.
        kv: what a token leaves behind in the cache, and the type and place of the weights.
    """

    n_heads: int
    hidden: int
    vocab: int
    context: int
    kv: KVShape

    @classmethod
    def of(cls, model: Any) -> Decoder:
        """Reads a transformers model and its config."""
        config = model.config.get_text_config()
        parameter = next(model.parameters())
        n_heads, hidden = int(config.num_attention_heads), int(config.hidden_size)
        n_kv_heads = int(getattr(config, "num_key_value_heads", None) or n_heads)
        head_dim = int(getattr(config, "head_dim", None) or hidden // n_heads)
        context = int(config.max_position_embeddings)
        window = getattr(config, "sliding_window", None)
        if window and getattr(config, "use_sliding_window", True):
            context = min(context, int(window))
        return cls(
            n_heads,
            hidden,
            vocab=int(model.get_input_embeddings().weight.shape[0]),
            context=context,
            kv=KVShape(int(config.num_hidden_layers), n_kv_heads, head_dim, parameter.dtype, parameter.device),
        )

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and cache."""
        return self.kv.dtype

    @property
    def device(self) -> torch.device:
        """Where weights and cache are."""
        return self.kv.device

    @property
    def default_kv_budget(self) -> int:
        """Bytes for keys and values if nobody says how many: 1 GiB on the CPU, half of the free memory on a GPU."""
        if self.device.type == "cuda":
            return int(torch.cuda.mem_get_info(self.device)[0]) // 2
        return 1 << 30
