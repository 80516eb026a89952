"""BM25 search with Lucene's numbers.

Invariant: scores equal those of Lucene 9.5 (k1 0.9, b 0.4) to the last bit of float32: document lengths are kept
in one lossy byte, every term's weight is computed in float32 and the sum in float64. Documents of equal score come
in the order of their ids as text, as Anserini sorts them.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

K1 = np.float32(0.9)
B = np.float32(0.4)
_PLACES_KEPT = 100_000

Arrays = dict[str, NDArray[np.generic]]


def _small_float(length: int) -> int:
    """The byte that a length above the exactly kept ones becomes: 3 bits of mantissa, 5 of exponent."""
    if length < 8:
        return length
    shift = length.bit_length() - 4
    return ((length >> shift) & 7) | ((shift + 1) << 3)


_EXACT = 255 - _small_float(2**31 - 1)
"""Lengths below this are kept exactly."""


def encode_length(length: int) -> int:
    """A document's length as the byte Lucene keeps of it."""
    return length if length < _EXACT else _EXACT + _small_float(length - _EXACT)


def decode_length(byte: int) -> int:
    """The length that a byte stands for: never more than the one encoded."""
    if byte < _EXACT:
        return byte
    code = byte - _EXACT
    shift = (code >> 3) - 1
    return _EXACT + (code & 7 if shift < 0 else ((code & 7) | 8) << shift)


_DECODED = np.array([decode_length(byte) for byte in range(256)], dtype=np.float32)


def term_hash(term: str) -> int:
    """64 bits that stand for a term in the index."""
    return int.from_bytes(hashlib.blake2b(term.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


class IndexBuilder:
    """Collects documents in order and makes the arrays of an index."""

    def __init__(self) -> None:
        self._term_ids: dict[str, int] = {}
        self._terms = array("i")
        self._docs = array("i")
        self._counts = array("i")
        self._lengths = array("i")

    def add(self, terms: Sequence[str]) -> None:
        """Adds the next document."""
        doc = len(self._lengths)
        ids = self._term_ids
        for term, count in Counter(terms).items():
            self._terms.append(ids.setdefault(term, len(ids)))
            self._docs.append(doc)
            self._counts.append(count)
        self._lengths.append(len(terms))

    def finish(self, names: Sequence[str]) -> Arrays:
        """The index, `names` being the documents' ids, which break ties.

        Arrays: `terms` uint64 (T,) sorted hashes, `starts` int64 (T + 1,) into the postings, `docs` int32 and
        `counts` int32 and `impacts` float32 (P,), `norms` float32 (N,), `idf` float32 (T,), `rank` int32 (N,).
        """
        lengths = np.frombuffer(self._lengths, dtype=np.int32) if self._lengths else np.zeros(0, np.int32)
        by_id = np.frombuffer(self._terms, dtype=np.int32) if self._terms else np.zeros(0, np.int32)
        hashes = np.fromiter((term_hash(term) for term in self._term_ids), np.uint64, len(self._term_ids))
        order = np.argsort(hashes)
        if len(hashes) != len(np.unique(hashes)):
            raise RuntimeError("two search terms have one hash: change bm25.term_hash")
        place = np.empty(len(order), dtype=np.int32)
        place[order] = np.arange(len(order), dtype=np.int32)
        sorted_postings = np.argsort(place[by_id], kind="stable")
        frequency = np.bincount(place[by_id], minlength=len(order))
        starts = np.concatenate([[0], np.cumsum(frequency)]).astype(np.int64)
        docs = np.frombuffer(self._docs, dtype=np.int32)[sorted_postings] if self._docs else by_id
        counts = np.frombuffer(self._counts, dtype=np.int32)[sorted_postings] if self._counts else by_id
        norms = _norms(lengths)
        idf = _idf(frequency, int((lengths > 0).sum()))
        weights = np.repeat(idf, frequency)
        rank = np.empty(len(names), dtype=np.int32)
        rank[sorted(range(len(names)), key=lambda i: names[i].encode("utf-8", "surrogatepass"))] = np.arange(
            len(names), dtype=np.int32
        )
        impacts = _impact(weights, counts, norms[docs])
        return {
            "terms": hashes[order],
            "starts": starts,
            "docs": docs,
            "counts": counts,
            "impacts": impacts,
            "norms": norms,
            "idf": idf,
            "rank": rank,
        }


def _norms(lengths_N: NDArray[np.int32]) -> NDArray[np.float32]:
    """For each document 1 / (k1 (1 - b + b length / average length)), the length as its byte tells it."""
    filled = lengths_N[lengths_N > 0]
    average = np.float32(filled.sum() / len(filled)) if len(filled) else np.float32(1)
    table = np.float32(1) / (K1 * ((np.float32(1) - B) + B * _DECODED / average))
    sizes, inverse = np.unique(lengths_N, return_inverse=True)
    codes = np.array([encode_length(int(size)) for size in sizes], dtype=np.int64)
    return table[codes[inverse]].astype(np.float32) if len(sizes) else np.zeros(0, np.float32)


def _idf(frequency_T: NDArray[np.int64], documents: int) -> NDArray[np.float32]:
    idf: NDArray[np.float32] = np.log(1 + (documents - frequency_T + 0.5) / (frequency_T + 0.5)).astype(np.float32)
    return idf


def _impact(
    weights: NDArray[np.float32] | np.float32, counts: NDArray[np.int32], norms: NDArray[np.float32]
) -> NDArray[np.float32]:
    impact: NDArray[np.float32] = weights - weights / (np.float32(1) + counts.astype(np.float32) * norms)
    return impact


class Bm25:
    """A searchable index over the arrays that `IndexBuilder.finish` made (possibly memory-mapped)."""

    __slots__ = ("_counts", "_docs", "_idf", "_impacts", "_norms", "_places", "_rank", "_starts", "_terms")

    def __init__(self, arrays: Mapping[str, NDArray[np.generic]]) -> None:
        # A plain view of a memory map: numpy's memmap class costs microseconds at every slice.
        plain = {name: np.asarray(value) for name, value in arrays.items()}
        self._terms, self._starts, self._docs = plain["terms"], plain["starts"], plain["docs"]
        self._counts, self._impacts, self._norms = plain["counts"], plain["impacts"], plain["norms"]
        self._idf, self._rank = plain["idf"], plain["rank"]
        self._places: dict[str, tuple[int, int, int]] = {}

    def search(self, terms: Sequence[str], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The best `k` documents for the terms (a repeated term counts as often), and their scores."""
        docs, impacts = [], []
        for term, boost in Counter(terms).items():
            at, start, end = self._places.get(term) or self._place(term)
            if at < 0:
                continue
            docs.append(self._docs[start:end])
            if boost == 1:
                impacts.append(self._impacts[start:end])
            else:
                weight = np.float32(np.float32(boost) * self._idf[at])
                impacts.append(_impact(weight, self._counts[start:end], self._norms[docs[-1]]))
        if not docs or k <= 0:
            return np.zeros(0, np.int64), np.zeros(0, np.float32)
        # Sums in float64, and each document's in the order of the terms.
        totals = np.bincount(np.concatenate(docs), np.concatenate(impacts), len(self._norms))
        return self._best(totals.astype(np.float32), k)

    def _place(self, term: str) -> tuple[int, int, int]:
        """The number of a term, -1 when it is in no document, and from where to where its documents are."""
        key = np.uint64(term_hash(term))
        at = int(np.searchsorted(self._terms, key))
        known = at < len(self._terms) and self._terms[at] == key
        place = (at, int(self._starts[at]), int(self._starts[at + 1])) if known else (-1, 0, 0)
        if len(self._places) >= _PLACES_KEPT:
            self._places.clear()
        self._places[term] = place
        return place

    def _best(self, scores_N: NDArray[np.float32], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        if k < len(scores_N):
            bound = np.partition(scores_N, len(scores_N) - k)[len(scores_N) - k]
            hits = np.flatnonzero(scores_N >= bound) if bound > 0 else np.flatnonzero(scores_N)
        else:
            hits = np.flatnonzero(scores_N)
        best = hits[np.lexsort((self._rank[hits], -scores_N[hits]))[:k]]
        return best, scores_N[best]
