"""Packed rows against each segment run alone through plain transformers attention."""

from __future__ import annotations

import copy
import functools
import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import toys  # noqa: E402

from rollenv.trainers import packing  # noqa: E402
from rollenv.trainers.packing import ATTENTION, pack, packed_attention, split_by_tokens  # noqa: E402
from rollenv.trainers.policy import Policy  # noqa: E402

VOCAB = 97
PATIENT = settings(max_examples=20)
LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=7)


@functools.cache
def models(family: str) -> tuple[Policy, Any, Any]:
    """A tiny model with grouped queries: as a policy, and the same weights under eager and sdpa attention."""
    torch.set_num_threads(1)
    config = getattr(transformers, f"{family}Config")(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2 if family == "Llama" else 1,
        max_position_embeddings=128,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
        attn_implementation="eager",
    )
    torch.manual_seed(0)
    eager = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in eager.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4.0)
    sdpa = copy.deepcopy(eager)
    sdpa.config._attn_implementation = "sdpa"
    return Policy.of(copy.deepcopy(eager), toys.tokenizer()), eager, sdpa


def segments_of(lengths: list[int], seed: int) -> list[list[int]]:
    """Random segments; of every three, the third begins like the first of them."""
    draw = torch.Generator().manual_seed(seed)
    segments = [torch.randint(1, VOCAB, (n,), generator=draw).tolist() for n in lengths]
    for i in range(2, len(segments), 3):
        alike = min(len(segments[i]), len(segments[i - 2])) * (seed % 5) // 4
        segments[i][:alike] = segments[i - 2][:alike]
    return segments


def packed_logprobs(policy: Policy, segments: list[list[int]], temperature: float) -> Any:
    row = packing.pack(segments)
    rows = [place for path in row.paths for place in path[:-1]]
    targets = [token for segment in segments for token in segment[1:]]
    places = torch.tensor(rows, dtype=torch.long), torch.tensor(targets, dtype=torch.long)
    return policy.logprobs(row, *places, temperature)[0]


def lone_logprobs(model: Any, segments: list[list[int]], temperature: float) -> Any:
    parts = []
    for segment in segments:
        logits = model(torch.tensor([segment])).logits[0, :-1].float() / temperature
        parts.append(logits.log_softmax(-1).gather(1, torch.tensor(segment[1:], dtype=torch.long)[:, None])[:, 0])
    return torch.cat(parts)


@pytest.mark.parametrize("family", ["Llama", "Qwen2"])
@PATIENT
@given(lengths=LENGTHS, seed=st.integers(0, 1000), temperature=st.sampled_from([1.0, 0.7]))
def test_packed_logprobs_equal_each_segment_alone(
    family: str, lengths: list[int], seed: int, temperature: float
) -> None:
    policy, eager, sdpa = models(family)
    segments = segments_of(lengths, seed)
    with torch.no_grad():
        packed = packed_logprobs(policy, segments, temperature)
        for reference in (eager, sdpa):
            torch.testing.assert_close(packed, lone_logprobs(reference, segments, temperature), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["Llama", "Qwen2"])
def test_packed_gradients_equal_each_segment_alone(family: str) -> None:
    policy, eager, _ = models(family)
    segments = segments_of([31, 2, 17, 30, 1, 9, 18], seed=3)
    weights = torch.randn(sum(map(len, segments)) - len(segments), generator=torch.Generator().manual_seed(1))
    gradients = []
    for model, logprobs in (
        (policy.model, packed_logprobs(policy, segments, 1.0)),
        (eager, lone_logprobs(eager, segments, 1.0)),
    ):
        model.zero_grad()
        (weights * logprobs).sum().backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters()})
    for name, gradient in gradients[0].items():
        scale = float(gradients[1][name].abs().max())
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-3, atol=1e-5 * max(1.0, scale), msg=name)


def plain_varlen(
    query: Any, key: Any, value: Any, queries: Any, keys: Any, most_queries: int, most_keys: int, **options: Any
) -> Any:
    """What `torch.nn.attention.varlen` says that its kernel computes, one sequence after the other."""
    assert options["window_size"] == (-1, 0), "causal"
    parts = []
    for (q, q_end), (k, k_end) in zip(
        itertools.pairwise(queries.tolist()), itertools.pairwise(keys.tolist()), strict=True
    ):
        assert q_end - q <= most_queries
        assert k_end - k <= most_keys
        rows, columns = torch.arange(q_end - q)[:, None], torch.arange(k_end - k)[None]
        seen = columns <= rows + (k_end - k) - (q_end - q)
        heads = (x.transpose(0, 1)[None] for x in (query[q:q_end], key[k:k_end], value[k:k_end]))
        made = torch.nn.functional.scaled_dot_product_attention(
            *heads, attn_mask=seen, scale=options["scale"], enable_gqa=options["enable_gqa"]
        )
        parts.append(made[0].transpose(0, 1))
    return torch.cat(parts)


@pytest.mark.parametrize("family", ["Llama", "Qwen2"])
@PATIENT
@given(lengths=LENGTHS, seed=st.integers(0, 1000))
def test_one_ragged_call_is_all_buckets(family: str, lengths: list[int], seed: int) -> None:
    policy, _, _ = models(family)
    segments = segments_of(lengths, seed)
    by_buckets = packed_logprobs(policy, segments, 1.0)
    weights = torch.randn(by_buckets.shape, generator=torch.Generator().manual_seed(1))
    gradients = []
    with pytest.MonkeyPatch.context() as patch:
        for way in ("buckets", "ragged"):
            if way == "ragged":
                patch.setattr(packing, "varlen_attn", plain_varlen)
                patch.setattr(packing, "has_flash", lambda query, dtype: True)
                patch.setattr(packing, "pack", ragged_pack)
            logprobs = packed_logprobs(policy, segments, 1.0)
            torch.testing.assert_close(logprobs, by_buckets, rtol=1e-4, atol=1e-5)
            policy.model.zero_grad()
            (weights * logprobs).sum().backward()
            gradients.append([p.grad.clone() for p in policy.model.parameters()])
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4 * max(1.0, float(theirs.abs().max())))


def ragged_pack(segments: Any, *args: Any) -> Any:
    row = pack(segments, *args)
    row.ragged = packing.ragged_of(row.paths, packing.share(segments)[1], "cpu")
    row.buckets = []
    return row


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_torchs_kernel_computes_what_it_says() -> None:
    segments = segments_of([31, 2, 70, 30, 1, 9, 55], seed=4)
    here, there = pack(segments), pack(segments, "cuda")
    assert there.ragged is not None
    draw = torch.Generator().manual_seed(3)
    plain = [torch.randn(len(here.ids_T), heads, 32, generator=draw) for heads in (4, 2, 2)]
    inputs = [x.cuda().bfloat16().requires_grad_() for x in plain]
    made = packing.flash(*inputs, there.ragged, torch.bfloat16, None)
    rows = [x.bfloat16().float().transpose(0, 1)[None] for x in plain]
    expected = packed_attention(torch.nn.Identity(), *rows, None, packed=here)[0][0]
    torch.testing.assert_close(made.float().cpu(), expected, rtol=2e-2, atol=2e-2)
    made.float().sum().backward()
    assert all(x.grad is not None and bool(x.grad.isfinite().all()) for x in inputs)


def test_a_segment_cannot_see_its_neighbours() -> None:
    """Changing one segment changes no log-probability of another, to the last bit."""
    policy, _, _ = models("Llama")
    first, second = segments_of([12, 12], seed=5)
    other = segments_of([12, 12], seed=6)[1]
    with torch.no_grad():
        a, b = (packed_logprobs(policy, [first, neighbour], 1.0) for neighbour in (second, other))
    assert torch.equal(a[:11], b[:11])
    assert not torch.equal(a[11:], b[11:])


def test_entropy_by_hand_and_its_gradient_only_on_request() -> None:
    policy, eager, _ = models("Llama")
    (segment,) = segments_of([9], seed=2)
    row, places = pack([segment]), (torch.arange(8), torch.tensor(segment[1:]))
    entropy = policy.logprobs(row, *places, entropy_gradient=True)[1]
    assert entropy.requires_grad
    assert not policy.logprobs(row, *places)[1].requires_grad
    with torch.no_grad():
        probabilities = eager(torch.tensor([segment])).logits[0, :-1].softmax(-1)
    torch.testing.assert_close(entropy.detach(), torch.special.entr(probabilities).sum(-1), rtol=1e-4, atol=1e-4)


@PATIENT
@given(LENGTHS, st.integers(0, 9))
def test_rows_hold_every_distinct_beginning_once_and_positions_restart(lengths: list[int], seed: int) -> None:
    segments = segments_of(lengths, seed)
    row = pack(segments)
    for segment, path in zip(segments, row.paths, strict=True):
        assert row.ids_T[path].tolist() == segment
        assert row.positions_T[path].tolist() == list(range(len(segment)))
    beginnings = {tuple(segment[: i + 1]) for segment in segments for i in range(len(segment))}
    assert len(row.ids_T) == len(beginnings)
    computed = torch.cat([bucket.target_R for bucket in row.buckets])
    assert sorted(computed.tolist()) == list(range(len(beginnings)))
    for bucket in row.buckets:  # at most a twentieth of it is padding
        used = [len(set(line.tolist())) for line in bucket.key_bL]
        assert min(used) >= 0.95 * bucket.key_bL.shape[1]
        assert len(bucket.real_R) >= 0.95 * bucket.query_bQ.numel()


def test_packed_attention_outside_a_packed_row_is_refused() -> None:
    x = torch.zeros(1, 2, 3, 4)
    with pytest.raises(ValueError, match="packed="):
        packed_attention(torch.nn.Identity(), x, x, x, None)


def test_a_saved_policy_names_no_attention_of_ours(tmp_path: Any) -> None:
    policy, _, _ = models("Llama")
    policy.save(tmp_path)
    assert policy.model.config._attn_implementation == ATTENTION
    assert ATTENTION not in (tmp_path / "config.json").read_text()


@PATIENT
@given(st.lists(st.integers(1, 300), max_size=30), st.integers(1, 400))
def test_split_by_tokens_places_each_segment_once_within_the_bound(lengths: list[int], bound: int) -> None:
    parts = split_by_tokens(lengths, bound)
    assert sorted(i for part in parts for i in part) == list(range(len(lengths)))
    assert all(part == sorted(part) and part for part in parts)
    for part in parts:
        assert sum(lengths[i] for i in part) <= bound or len(part) == 1
    if lengths and sum(lengths) <= bound:
        assert len(parts) == 1


@PATIENT
@given(st.lists(st.integers(50, 100), min_size=1, max_size=40))
def test_split_by_tokens_comes_out_even(lengths: list[int]) -> None:
    """Longest first into the emptiest: no two micro-batches differ by more than the longest segment."""
    loads = [sum(lengths[i] for i in part) for part in split_by_tokens(lengths, 500)]
    assert max(loads) - min(loads) <= max(lengths)
