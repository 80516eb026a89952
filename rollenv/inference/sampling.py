"""Draws one token per row, each row by its own parameters and its own counter-based random number.

Invariant: what a row draws depends on its logits, its parameters, its seed and its token index alone. There is no
random state, so neither the company in the batch nor an interruption can change a draw.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from rollenv.inference.base import SamplingParams

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of splitmix64: a bijection of 64-bit words that looks random. Wraps around on purpose."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: npt.NDArray[np.uint64] = x ^ (x >> np.uint64(31))
    return mixed


def uniforms(seeds: Sequence[int], indices: Sequence[int]) -> npt.NDArray[np.float64]:
    """R numbers in [0, 1): element i is a pure function of `seeds[i]` (any int, modulo 2**64) and `indices[i]`.

    >>> float(uniforms([7], [0])[0]) == float(uniforms([1, 7], [5, 0])[1])
    True
    """
    seed = np.array([s & _MASK for s in seeds], dtype=np.uint64)
    index = np.array(indices, dtype=np.uint64)
    with np.errstate(over="ignore"):
        words = _mix(_mix(seed + np.uint64(_GOLDEN)) + (index + np.uint64(1)) * np.uint64(_GOLDEN))
    numbers: npt.NDArray[np.float64] = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return numbers


def _restrict(logits_RV: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """Sets what top-k and top-p exclude to -inf; ties at the border are broken by the lower token id."""
    vocab = logits_RV.shape[1]
    device = logits_RV.device
    ranked, order = torch.sort(logits_RV, dim=-1, descending=True, stable=True)
    rank = torch.arange(vocab, device=device)
    top_k = torch.tensor([p.top_k if 0 < p.top_k < vocab else vocab for p in params], device=device)
    ranked = ranked.masked_fill(rank[None] >= top_k[:, None], float("-inf"))
    top_p = torch.tensor([p.top_p for p in params], dtype=torch.float64, device=device)
    mass = torch.softmax(ranked, dim=-1).double().cumsum(dim=-1)
    before = torch.nn.functional.pad(mass[:, :-1], (1, 0))
    ranked = ranked.masked_fill((before >= top_p[:, None]) & (rank[None] > 0), float("-inf"))
    return torch.empty_like(ranked).scatter_(1, order, ranked)


def sample(
    logits_RV: torch.Tensor, params: Sequence[SamplingParams], indices: Sequence[int]
) -> tuple[list[int], list[float]]:
    """One token and its log-probability for each of R rows.

    Args:
        logits_RV: scores over the vocabulary, any float type.
        params: R parameters.
        indices: R positions of the token within its completion, which with the seed decide the draw.

    Returns:
        R token ids, and R natural-log probabilities under the distribution drawn from: after temperature, top-k and
        top-p; with temperature 0 that of temperature 1 over the whole vocabulary.
    """
    device = logits_RV.device
    logits_RV = logits_RV.float()
    if any(p.temperature not in (0.0, 1.0) for p in params):
        temperatures = torch.tensor([p.temperature or 1.0 for p in params], dtype=torch.float32, device=device)
        logits_RV = logits_RV / temperatures[:, None]
    limited = [i for i, p in enumerate(params) if p.temperature > 0 and (p.top_k > 0 or p.top_p < 1)]
    if limited:
        rows = torch.tensor(limited, device=device)
        restricted = _restrict(logits_RV.index_select(0, rows), [params[i] for i in limited])
        logits_RV = logits_RV.index_copy(0, rows, restricted)
    logprobs_RV = torch.log_softmax(logits_RV, dim=-1)
    drawn = [i for i, p in enumerate(params) if p.temperature > 0]
    if len(drawn) < len(params):
        tokens_R = logprobs_RV.argmax(dim=-1)
        if drawn:
            rows = torch.tensor(drawn, device=device)
            picked = [params[i].seed for i in drawn], [indices[i] for i in drawn]
            tokens_R.index_copy_(0, rows, _draw(logprobs_RV.index_select(0, rows), *picked))
    else:
        tokens_R = _draw(logprobs_RV, [p.seed for p in params], indices)
    chosen = logprobs_RV.gather(1, tokens_R[:, None])[:, 0]
    tokens: list[int] = tokens_R.tolist()
    logprobs: list[float] = chosen.tolist()
    return tokens, logprobs


def _draw(logprobs_RV: torch.Tensor, seeds: Sequence[int], indices: Sequence[int]) -> torch.Tensor:
    """Inverts the cumulated probabilities, in double precision, at each row's uniform number: [R] token ids."""
    cumulated_RV = logprobs_RV.exp().cumsum(dim=-1, dtype=torch.float64)
    total_R1 = cumulated_RV[:, -1:]
    uniform_R1 = torch.from_numpy(uniforms(seeds, indices)).to(logprobs_RV.device)[:, None]
    tokens_R1 = torch.searchsorted(cumulated_RV, uniform_R1 * total_R1, right=True)
    # Rounding can put the last uniforms on the total itself: the last token that has any mass takes them.
    last_R1 = torch.searchsorted(cumulated_RV, total_R1.contiguous(), right=False)
    return torch.minimum(tokens_R1, last_R1)[:, 0]
