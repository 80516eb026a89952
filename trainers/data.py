"""From trajectories to token streams: what a trainer sees. Worlds end here; losses begin.

A `Sample` is one segment with, for every token, whether it trains and with what; algorithms fill in advantages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rollenv.rollout.groups import Group
from rollenv.trainers.algorithms.advantages import ADVANTAGES
from rollenv.trajectory import Trajectory


@dataclass(slots=True)
class Sample:
    """One segment of an episode.

    `ids` T tokens; `mask` 1 where the policy sampled; `logprobs` its log-probability there; `sequence` the episode's
    number in the minibatch; `advantage` of that episode.
    """

    ids: list[int]
    mask: list[int]
    logprobs: list[float]
    sequence: int
    advantage: float


@dataclass(slots=True)
class TrainTokens:
    """The trained tokens of some samples, N in all, in the order of the samples' tokens.

    `rows_N` is the place, in the packed row, of the token before (whose hidden state predicts the trained one).
    """

    rows_N: Tensor
    targets_N: Tensor
    mu_logp_N: Tensor
    advantages_N: Tensor
    sequence_N: Tensor


def shaped_return(trajectory: Trajectory, invalid_penalty: float) -> float:
    """The return minus `invalid_penalty` for each action that the environment refused."""
    return trajectory.reward - invalid_penalty * sum(not turn.valid_action for turn in trajectory.turns)


def samples_of(groups: Sequence[Group], advantage: str, invalid_penalty: float = 0.0) -> list[Sample]:
    """Every segment of every trainable episode, with its group-relative advantage.

    Args:
        advantage: a name in `ADVANTAGES`.
    """
    samples: list[Sample] = []
    sequence = 0
    for group in groups:
        episodes = group.trainable
        returns_G = torch.tensor([shaped_return(t, invalid_penalty) for t in episodes], dtype=torch.float64)
        advantages_G = ADVANTAGES[advantage](returns_G).tolist()
        for trajectory, value in zip(episodes, advantages_G, strict=True):
            samples += [Sample(s.ids, s.mask, s.logprobs, sequence, value) for s in trajectory.segments()]
            sequence += 1
    return samples


def train_tokens(samples: Sequence[Sample], device: torch.device | str = "cpu") -> TrainTokens:
    """The trained tokens of `samples`, as they lie in a row packed in the same order.

    A token at the very beginning of a segment has nothing before it and cannot be trained.
    """
    rows, targets, mu, advantages, sequences = [], [], [], [], []
    start = 0
    for sample in samples:
        for i in range(1, len(sample.ids)):
            if sample.mask[i]:
                rows.append(start + i - 1)
                targets.append(sample.ids[i])
                mu.append(sample.logprobs[i])
                advantages.append(sample.advantage)
                sequences.append(sample.sequence)
        start += len(sample.ids)
    return TrainTokens(
        torch.tensor(rows, dtype=torch.long, device=device),
        torch.tensor(targets, dtype=torch.long, device=device),
        torch.tensor(mu, dtype=torch.float32, device=device),
        torch.tensor(advantages, dtype=torch.float32, device=device),
        torch.tensor(sequences, dtype=torch.long, device=device),
    )
