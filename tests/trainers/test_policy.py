"""The weights that a policy gives away: whole, tied where they are tied, and in the type of who gets them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import toys  # noqa: E402
from spawned import in_ranks, strategy  # noqa: E402

from rollenv.inference.buckets import first_names, layout  # noqa: E402
from rollenv.trainers.policy import Policy, in_bf16  # noqa: E402

TIED = ("model.embed_tokens.weight", "lm_head.weight")


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose output layer is its embedding, as in the policies that ship."""
    policy = toys.warm_policy()
    policy.model.config.tie_word_embeddings = True
    policy.model.tie_weights()
    folder = tmp_path_factory.mktemp("tied") / "model"
    policy.save(folder)
    return folder


def given_away(folder: Path) -> tuple[dict[str, Any], dict[str, str], int]:
    """In a rank with a shard: its policy's state, which names are one tensor there, and the bytes that travel."""
    policy = Policy.load(folder)
    shards = strategy("fsdp2")
    shards.prepare(policy)
    state = policy.state(keep=shards.ranks.rank == 0)
    return {name: tensor.clone() for name, tensor in state.items()}, first_names(state), sum(layout(state)[1])


def test_shards_of_tied_weights_are_put_together_once(tied: Path) -> None:
    expected = Policy.load(tied).state()
    assert first_names(expected)[TIED[1]] == TIED[0]
    (state, firsts, n_bytes), (nothing, _, _) = in_ranks(2, partial(given_away, tied))
    assert firsts == first_names(expected)
    assert n_bytes == sum(layout(expected)[1])
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], expected[name]) for name in expected)
    assert not nothing


def test_weights_in_bf16_are_half_as_many_bytes_and_what_an_engine_would_make_of_them(tied: Path) -> None:
    state = Policy.load(tied).state() | {"frequencies": torch.rand(8)}
    rounded = in_bf16(state, {"frequencies"})
    assert list(rounded) == list(state)
    assert first_names(rounded) == first_names(state)
    assert torch.equal(rounded.pop("frequencies"), state.pop("frequencies"))
    for name, tensor in rounded.items():
        assert tensor.dtype == torch.bfloat16
        assert torch.equal(tensor, torch.empty_like(tensor).copy_(state[name]))
