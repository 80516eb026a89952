"""From trajectories to token streams: what a trainer sees. Worlds end here; losses begin.

A `Sample` is one segment with, for every token, whether it trains and with what; algorithms fill in advantages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rollenv.config.train import AlgoConfig
from rollenv.rollout.groups import Group
from rollenv.trainers.algorithms.advantages import ADVANTAGES, gigpo_steps
from rollenv.trajectory import Trajectory


@dataclass(slots=True)
class Sample:
    """One segment of an episode.

    `ids` T tokens; `mask` 1 where the policy sampled; `logprobs` its log-probability there; `sequence` the episode's
    number in the minibatch and `group` its group's; `advantages` that of each token (0 where nothing was sampled).
    """

    ids: list[int]
    mask: list[int]
    logprobs: list[float]
    sequence: int
    group: int
    advantages: list[float]


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


def trained_rewards(trajectory: Trajectory, algo: AlgoConfig) -> list[float]:
    """What each turn is worth to the trainer: its reward (or, with `reward="success"`, 1 for the last turn of an
    episode that succeeded and else 0), minus the penalty where the environment refused the action."""
    turns = trajectory.turns
    if algo.reward == "success":
        rewards = [0.0] * (len(turns) - 1) + [float(bool(trajectory.success))] * bool(turns)
    else:
        rewards = [turn.reward for turn in turns]
    return [r - algo.invalid_penalty * (not turn.valid_action) for r, turn in zip(rewards, turns, strict=True)]


def trained_return(trajectory: Trajectory, algo: AlgoConfig) -> float:
    """What an episode is worth to the trainer: the undiscounted sum over its turns."""
    return sum(trained_rewards(trajectory, algo))


def turn_advantages(episodes: Sequence[Trajectory], algo: AlgoConfig) -> list[list[float]]:
    """Per trainable episode of one group, the advantage of each of its turns."""
    returns_G = torch.tensor([trained_return(t, algo) for t in episodes], dtype=torch.float64)
    if algo.advantage != "gigpo":
        advantages = ADVANTAGES[algo.advantage](returns_G).tolist()
        return [[value] * len(t.turns) for value, t in zip(advantages, episodes, strict=True)]
    whole = ADVANTAGES["grpo"](returns_G).tolist()
    rewards = [trained_rewards(t, algo) for t in episodes]
    anchors = [[turn.observation for turn in t.turns] for t in episodes]
    steps = gigpo_steps(rewards, anchors, algo.gamma)
    return [[a + algo.step_weight * s for s in episode] for a, episode in zip(whole, steps, strict=True)]


def samples_of(groups: Sequence[Group], algo: AlgoConfig) -> list[Sample]:
    """Every segment of every trainable episode, with the advantages of its tokens."""
    samples: list[Sample] = []
    sequence = 0
    for group in groups:
        episodes = group.trainable
        for trajectory, of_turn in zip(episodes, turn_advantages(episodes, algo), strict=True):
            for s in trajectory.segments():
                advantages = [of_turn[t] if m else 0.0 for t, m in zip(s.turns, s.mask, strict=True)]
                samples.append(Sample(s.ids, s.mask, s.logprobs, sequence, group.request.index, advantages))
            sequence += 1
    return samples


def train_tokens(
    samples: Sequence[Sample], device: torch.device | str = "cpu", paths: Sequence[Sequence[int]] | None = None
) -> TrainTokens:
    """The trained tokens of `samples`, as they lie in the row whose `paths` are given (None: one after another).

    A token at the very beginning of a segment has nothing before it and cannot be trained.
    """
    rows, targets, mu, advantages, sequences = [], [], [], [], []
    start = 0
    for number, sample in enumerate(samples):
        for i in range(1, len(sample.ids)):
            if sample.mask[i]:
                rows.append(start + i - 1 if paths is None else paths[number][i - 1])
                targets.append(sample.ids[i])
                mu.append(sample.logprobs[i])
                advantages.append(sample.advantages[i])
                sequences.append(sample.sequence)
        start += len(sample.ids)
    return TrainTokens(
        torch.tensor(rows, dtype=torch.long, device=device),
        torch.tensor(targets, dtype=torch.long, device=device),
        torch.tensor(mu, dtype=torch.float32, device=device),
        torch.tensor(advantages, dtype=torch.float32, device=device),
        torch.tensor(sequences, dtype=torch.long, device=device),
    )
