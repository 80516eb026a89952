"""What an engine reads of a model: heads, vocabulary, context, where they are said and where they follow."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from inference.engines import ARCHITECTURES, VOCAB, build  # noqa: E402

from rollenv.inference.decoder import Decoder  # noqa: E402
from rollenv.inference.kv_cache import KVShape  # noqa: E402


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_token_leaves_behind_what_the_projections_make(name: str) -> None:
    model = build(name)
    decoder = Decoder.of(model)
    attention = model.model.layers[0].self_attn
    assert decoder.kv.kv_heads * decoder.kv.head_dim == attention.k_proj.out_features
    assert decoder.n_heads * decoder.kv.head_dim == attention.q_proj.out_features
    assert (decoder.vocab, decoder.context, decoder.kv.layers) == (VOCAB, 1024, 3)
    assert (decoder.dtype, decoder.device) == (torch.float32, torch.device("cpu"))


def test_a_sliding_window_bounds_the_context_where_it_is_used() -> None:
    model = build("mistral")
    model.config.sliding_window = 128
    assert Decoder.of(model).context == 128
    model.config.use_sliding_window = False
    assert Decoder.of(model).context == 1024


def test_one_head_each_where_nothing_is_said_of_shared_ones() -> None:
    model = build("llama")
    model.config.num_key_value_heads = None
    model.config.head_dim = None
    assert Decoder.of(model).kv == KVShape(3, 4, 16, torch.float32, torch.device("cpu"))
