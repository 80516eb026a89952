from __future__ import annotations

import math
from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rollenv.envs.webshop.bm25 import Bm25, IndexBuilder, decode_length, encode_length

DOCUMENTS = st.lists(st.lists(st.sampled_from("abcdefg"), max_size=60), min_size=1, max_size=12)


def build(documents: list[list[str]]) -> Bm25:
    builder = IndexBuilder()
    for document in documents:
        builder.add(document)
    return Bm25(builder.finish([f"id{len(documents) - n:03d}" for n in range(len(documents))]))


def slow_scores(documents: list[list[str]], query: list[str]) -> list[float]:
    """BM25 from its definition, in float64."""
    filled = [d for d in documents if d]
    average = sum(map(len, filled)) / len(filled) if filled else 1.0
    scores = [0.0] * len(documents)
    for term in query:
        frequency = sum(term in document for document in documents)
        idf = math.log(1 + (len(filled) - frequency + 0.5) / (frequency + 0.5))
        for number, document in enumerate(documents):
            count = Counter(document)[term]
            norm = 0.9 * (0.6 + 0.4 * decode_length(encode_length(len(document))) / average)
            scores[number] += idf * count / (count + norm)
    return scores


@given(DOCUMENTS, st.lists(st.sampled_from("abcdefgh"), max_size=8), st.integers(1, 15))
def test_scores_are_bm25(documents: list[list[str]], query: list[str], k: int) -> None:
    numbers, scores = build(documents).search(query, k)
    expected = slow_scores(documents, query)
    assert len(numbers) == min(k, sum(score > 0 for score in expected))
    np.testing.assert_allclose(scores, [expected[n] for n in numbers], rtol=1e-5)
    left_out = set(range(len(documents))) - set(numbers.tolist())
    if left_out and len(scores):
        assert max(expected[n] for n in left_out) <= scores[-1] * (1 + 1e-5)


def test_ties_come_in_the_order_of_their_ids() -> None:
    numbers, _ = build([["a"], ["a"], ["b"], ["a"]]).search(["a"], 2)
    assert numbers.tolist() == [3, 1]  # the ids go down


@given(st.integers(0, 2**31 - 1))
def test_lengths_lose_at_most_an_eighth(length: int) -> None:
    kept = decode_length(encode_length(length))
    assert kept <= length
    assert encode_length(kept) == encode_length(length)
    assert length - kept <= length / 8
    if length < 40:
        assert kept == length


@given(st.integers(0, 2**31 - 2))
def test_longer_documents_never_seem_shorter(length: int) -> None:
    assert encode_length(length) <= encode_length(length + 1) <= 255
