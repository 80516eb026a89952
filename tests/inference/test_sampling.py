"""Draws: their distribution, their independence of company, and what the parameters exclude."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from rollenv.inference.base import SamplingParams  # noqa: E402
from rollenv.inference.sampling import sample, uniforms  # noqa: E402


def logits(rows: int, vocabulary: int, seed: int = 0, scale: float = 2.0) -> torch.Tensor:
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * scale


@given(st.lists(st.tuples(st.integers(), st.integers(0, 2**40)), min_size=1, max_size=20))
def test_uniforms_depend_on_seed_and_index_alone(pairs: list[tuple[int, int]]) -> None:
    seeds, indices = zip(*pairs, strict=True)
    together = uniforms(seeds, indices)
    assert ((together >= 0) & (together < 1)).all()
    assert together.tolist() == [uniforms([s], [i])[0] for s, i in pairs]


def test_uniforms_are_uniform_along_seeds_and_along_indices() -> None:
    for numbers in (uniforms(range(40_000), [0] * 40_000), uniforms([1] * 40_000, range(40_000))):
        counts, _ = np.histogram(numbers, bins=20, range=(0, 1))
        assert ((counts - 2000) ** 2 / 2000).sum() < 50  # chi-squared, 19 degrees of freedom
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.02


def test_frequencies_follow_the_probabilities() -> None:
    row = logits(1, 10)
    params = [SamplingParams(temperature=0.7, seed=i) for i in range(20_000)]
    drawn, logprobs = sample(row.expand(20_000, 10), params, [3] * 20_000)
    expected = torch.softmax(row[0].double() / 0.7, dim=-1)
    frequency = torch.bincount(torch.tensor(drawn), minlength=10) / 20_000
    assert torch.allclose(frequency.double(), expected, atol=0.012)
    assert logprobs[:50] == pytest.approx([float(expected[t].log()) for t in drawn[:50]], abs=1e-5)


PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 5, 1000]),
    top_p=st.sampled_from([1.0, 0.9, 0.3, 1e-6]),
    seed=st.integers(-(2**70), 2**70),
)


@settings(max_examples=60)
@given(st.lists(PARAMS, min_size=1, max_size=12), st.sampled_from([7, 50, 501]), st.integers(0, 100))
def test_a_row_is_the_same_bits_alone_and_in_company(params: list[SamplingParams], vocabulary: int, seed: int) -> None:
    rows = logits(len(params), vocabulary, seed)
    indices = list(range(len(params)))
    together = sample(rows, params, indices)
    alone = [sample(rows[i : i + 1], [p], [i]) for i, p in enumerate(params)]
    assert together == ([t[0] for t, _ in alone], [p[0] for _, p in alone])
    order = random.Random(seed).sample(indices, len(indices))
    shuffled = sample(rows[order], [params[i] for i in order], order)
    assert shuffled == ([together[0][i] for i in order], [together[1][i] for i in order])


def test_temperature_zero_takes_the_best_and_reports_temperature_one() -> None:
    rows = logits(4, 30)
    tokens, logprobs = sample(rows, [SamplingParams(temperature=0, top_k=3, seed=i) for i in range(4)], [0] * 4)
    assert tokens == rows.argmax(-1).tolist()
    assert logprobs == pytest.approx(rows.log_softmax(-1).max(-1).values.tolist(), abs=1e-6)


def test_top_k_and_top_p_exclude_and_renormalise() -> None:
    row = torch.tensor([[0.5, 0.25, 0.15, 0.1]]).log()
    for params, allowed in [
        (SamplingParams(top_k=2), {0: 2 / 3, 1: 1 / 3}),
        (SamplingParams(top_p=0.7), {0: 2 / 3, 1: 1 / 3}),
        (SamplingParams(top_p=0.5), {0: 1.0}),
        (SamplingParams(top_p=0.001), {0: 1.0}),
        (SamplingParams(top_k=3, top_p=0.6), {0: 2 / 3, 1: 1 / 3}),
        (SamplingParams(top_k=4, top_p=1.0), {0: 0.5, 1: 0.25, 2: 0.15, 3: 0.1}),
    ]:
        tokens, logprobs = sample(row.expand(300, 4), [replace(params, seed=s) for s in range(300)], [0] * 300)
        assert set(tokens) == set(allowed)
        for token, logprob in zip(tokens, logprobs, strict=True):
            assert np.exp(logprob) == pytest.approx(allowed[token], abs=1e-5)


def test_ties_at_the_border_of_top_k_are_broken_by_the_lower_id() -> None:
    tokens, _ = sample(torch.zeros(200, 9), [SamplingParams(top_k=2, seed=s) for s in range(200)], [0] * 200)
    assert set(tokens) == {0, 1}


def test_tokens_without_mass_are_never_drawn() -> None:
    row = torch.full((1, 6), float("-inf"))
    row[0, 2] = row[0, 4] = 0.0
    tokens, _ = sample(row.expand(500, 6), [SamplingParams(seed=s) for s in range(500)], [0] * 500)
    assert set(tokens) == {2, 4}
