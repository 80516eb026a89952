"""From trajectories to token streams: what a trainer sees. Worlds end here; losses begin.

A `Sample` is one segment with, for every token, whether it trains and with what. What a token's reward and advantage
are is known from the returns of its group alone, or later, when values or divergences are there (`credit.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from rollenv.config.algo import AlgoConfig
from rollenv.errors import RollenvError
from rollenv.rollout.groups import Group
from rollenv.trainers.algorithms.advantages import ADVANTAGES, gigpo_steps, liteppo, raft, turn_returns
from rollenv.trainers.algorithms.gae import branch_values, vine
from rollenv.trainers.algorithms.rewards import overlong_penalty
from rollenv.trajectory import Segment, Trajectory


@dataclass(slots=True)
class Sample:
    """One segment of an episode.

    `ids` T tokens; `mask` 1 where the policy sampled and the token trains; `logprobs` its log-probability there and
    `versions` that of the weights; `turns` the turn of each token; `sequence` the episode's number in the minibatch and
    `group` its group's; `rewards` what each token is rewarded with (a turn's reward lies on the last token that was
    sampled in it); `advantages` that of each token (0 where nothing was sampled).
    """

    ids: list[int]
    mask: list[int]
    logprobs: list[float]
    versions: list[int]
    turns: list[int]
    sequence: int
    group: int
    rewards: list[float]
    advantages: list[float]

    @property
    def trained(self) -> list[int]:
        """Places of the tokens that train: sampled, with a token before them that predicts them."""
        return [i for i, sampled in enumerate(self.mask) if sampled and i]


@dataclass(slots=True)
class TrainTokens:
    """The trained tokens of some samples, N in all, in the order of the samples' tokens.

    `rows_N` is the place, in the packed row, of the token before (whose hidden state predicts the trained one, and is
    the state whose value a critic learns).
    """

    rows_N: Tensor
    targets_N: Tensor
    mu_logp_N: Tensor
    versions_N: Tensor
    turn_N: Tensor
    rewards_N: Tensor
    advantages_N: Tensor
    sequence_N: Tensor

    def at(self, places_M: Tensor) -> TrainTokens:
        """Those at some places."""
        return TrainTokens(*(getattr(self, f.name)[places_M] for f in fields(self)))

    def to(self, device: torch.device) -> TrainTokens:
        """All on a device."""
        return TrainTokens(*(getattr(self, f.name).to(device) for f in fields(self)))


# -- what episodes and turns are worth -------------------------------------------------------------------------


def trained_rewards(trajectory: Trajectory, algo: AlgoConfig) -> list[float]:
    """What each turn is worth to the trainer: its reward (or, with `reward="success"`, 1 for the last turn of an
    episode that succeeded and else 0), minus the penalty where the environment refused the action; the last turn also
    bears the penalty for an episode that is too long."""
    turns = trajectory.turns
    if algo.reward == "success":
        rewards = [0.0] * (len(turns) - 1) + [float(bool(trajectory.success))] * bool(turns)
    else:
        rewards = [turn.reward for turn in turns]
    rewards = [r - algo.invalid_penalty * (not turn.valid_action) for r, turn in zip(rewards, turns, strict=True)]
    if algo.overlong_length is not None and rewards:
        rewards[-1] += overlong_penalty(trajectory.n_completion_tokens, algo.overlong_length, algo.overlong_cache)
    return rewards


def trained_return(trajectory: Trajectory, algo: AlgoConfig) -> float:
    """What an episode is worth to the trainer: the undiscounted sum over its turns."""
    return sum(trained_rewards(trajectory, algo))


def turn_advantages(
    episodes: Sequence[Trajectory],
    algo: AlgoConfig,
    batch_std: float = 1.0,
    costs: Sequence[Sequence[float]] | None = None,
) -> list[list[float]]:
    """Per trainable episode of one group, the advantage of each of its turns, as far as returns decide it. Turns that
    episodes have in common have the mean over these.

    Args:
        batch_std: standard deviation of the returns of the whole batch (`liteppo`).
        costs: per episode, subtracted from the reward of each turn (a KL penalty).

    Raises:
        RollenvError: `vine` without branches.
    """
    return common_means(episodes, _turn_advantages(episodes, algo, batch_std, costs))


def _turn_advantages(
    episodes: Sequence[Trajectory], algo: AlgoConfig, batch_std: float, costs: Sequence[Sequence[float]] | None
) -> list[list[float]]:
    rewards = [trained_rewards(t, algo) for t in episodes]
    if costs is not None:
        rewards = [[r - c for r, c in zip(*pair, strict=True)] for pair in zip(rewards, costs, strict=True)]
    if algo.advantage == "turn_return":
        return turn_returns(rewards, algo.gamma, algo.scale)
    if algo.advantage == "vine":
        return [vine(r, _branch_values(t), algo.gamma) for r, t in zip(rewards, episodes, strict=True)]
    returns_G = torch.tensor([sum(episode) for episode in rewards], dtype=torch.float64)
    if algo.advantage != "gigpo":
        advantages = _episode_advantages(returns_G, algo, batch_std).tolist()
        return [[value] * len(t.turns) for value, t in zip(advantages, episodes, strict=True)]
    whole = ADVANTAGES["grpo" if algo.scale else "dr_grpo"](returns_G).tolist()
    anchors = [[turn.observation for turn in t.turns] for t in episodes]
    steps = gigpo_steps(rewards, anchors, algo.gamma, algo.scale)
    return [[a + algo.step_weight * s for s in episode] for a, episode in zip(whole, steps, strict=True)]


def _episode_advantages(returns_G: Tensor, algo: AlgoConfig, batch_std: float) -> Tensor:
    if algo.advantage in ADVANTAGES:
        return ADVANTAGES[algo.advantage](returns_G)
    if algo.advantage == "liteppo":
        return liteppo(returns_G, batch_std)
    if algo.advantage == "raft":
        return raft(returns_G)
    if algo.advantage == "return":
        return returns_G - algo.baseline
    return torch.zeros_like(returns_G)  # the others need more than returns: see credit.py


def _branch_values(trajectory: Trajectory) -> list[float | None]:
    if not any(turn.branch_returns for turn in trajectory.turns):
        raise RollenvError(
            f"algo.advantage=vine compares with branches played from snapshots, and an episode of task "
            f"'{trajectory.task}' has none (Turn.branch_returns): play some, or take another advantage"
        )
    return branch_values([turn.branch_returns for turn in trajectory.turns])


def branch_worth(trajectory: Trajectory, algo: AlgoConfig) -> float:
    """What a branch earned from where it started on, discounted over its turns."""
    rewards = trained_rewards(trajectory, algo)[len(trajectory.shared) :]
    return sum(algo.gamma**i * reward for i, reward in enumerate(rewards))


# -- turns that several episodes of a group have in common ---------------------------------------------------------


def _owners(trajectory: Trajectory) -> list[tuple[int, int]]:
    """Per turn, what makes it the same turn in several episodes: who played it, and its number."""
    samples = [*trajectory.shared, *[trajectory.sample] * len(trajectory.own_turns)]
    return [(sample, number) for number, sample in enumerate(samples)]


def common_means(episodes: Sequence[Trajectory], values: Sequence[Sequence[float]]) -> list[list[float]]:
    """Values per turn, where a turn that several episodes have in common gets the mean of theirs: of a tree's leaves,
    what the inner nodes are worth."""
    if not any(t.shared for t in episodes):
        return [list(of_turn) for of_turn in values]
    found: defaultdict[tuple[int, int], list[float]] = defaultdict(list)
    for trajectory, of_turn in zip(episodes, values, strict=True):
        for owner, value in zip(_owners(trajectory), of_turn, strict=True):
            found[owner].append(value)
    means = {owner: sum(these) / len(these) for owner, these in found.items()}
    return [[means[owner] for owner in _owners(trajectory)] for trajectory in episodes]


def common_costs(episodes: Sequence[Trajectory], costs: Sequence[Sequence[float]]) -> list[list[float]]:
    """What each turn cost, known where it trained, for every episode that has it."""
    if not any(t.shared for t in episodes):
        return [list(of_turn) for of_turn in costs]
    found: dict[tuple[int, int], float] = {}
    for trajectory, of_turn in zip(episodes, costs, strict=True):
        for owner, cost in zip(_owners(trajectory), of_turn, strict=True):
            found[owner] = found.get(owner, 0.0) + cost
    return [[found[owner] for owner in _owners(trajectory)] for trajectory in episodes]


def _trained_turns(episodes: Sequence[Trajectory]) -> list[set[int]]:
    """Per episode, the turns that train as a part of it: one that several have in common, in the first of them."""
    if not any(t.shared for t in episodes):
        return [set(range(len(t.turns))) for t in episodes]
    taken: set[tuple[int, int]] = set()
    trained = []
    for trajectory in episodes:
        new = [owner for owner in _owners(trajectory) if owner not in taken]
        taken.update(new)
        trained.append({number for _, number in new})
    return trained


# -- token streams -----------------------------------------------------------------------------------------------


def samples_of(
    groups: Sequence[Group], algo: AlgoConfig, batch_std: float = 1.0, first_sequence: int = 0
) -> list[Sample]:
    """Every segment of every trainable episode, with the advantages of its tokens as far as returns decide them. What
    an episode has from another one of its group is context there, and trains as a part of the first that has it."""
    samples: list[Sample] = []
    sequence = first_sequence
    for group in groups:
        episodes = group.trainable
        given = turn_advantages(episodes, algo, batch_std)
        for trajectory, of_turn, own in zip(episodes, given, _trained_turns(episodes), strict=True):
            for s, rewards in _rewarded(trajectory, algo):
                mask = [m if turn in own else 0 for turn, m in zip(s.turns, s.mask, strict=True)]
                if any(s.mask) and not any(mask):
                    continue  # others' turns alone
                advantages = [of_turn[t] if m else 0.0 for t, m in zip(s.turns, mask, strict=True)]
                index = group.request.index
                samples.append(
                    Sample(s.ids, mask, s.logprobs, s.policy_versions, s.turns, sequence, index, rewards, advantages)
                )
            sequence += 1
    return samples


def _rewarded(trajectory: Trajectory, algo: AlgoConfig) -> Iterator[tuple[Segment, list[float]]]:
    """The segments with the reward of each token. A turn in which nothing was sampled rewards the last token before it;
    what was earned before the first one is nobody's."""
    segments = trajectory.segments()
    rewards = [[0.0] * len(segment.ids) for segment in segments]
    trained = [(s, i) for s, segment in enumerate(segments) for i, m in enumerate(segment.mask) if m and i]
    place = -1
    for turn, reward in enumerate(trained_rewards(trajectory, algo)):
        while place + 1 < len(trained) and segments[trained[place + 1][0]].turns[trained[place + 1][1]] <= turn:
            place += 1
        if place >= 0:
            s, i = trained[place]
            rewards[s][i] += reward
    return zip(segments, rewards, strict=True)


def train_tokens(
    samples: Sequence[Sample], device: torch.device | str = "cpu", paths: Sequence[Sequence[int]] | None = None
) -> TrainTokens:
    """The trained tokens of `samples`, as they lie in the row whose `paths` are given (None: one after another).

    A token at the very beginning of a segment has nothing before it and cannot be trained.
    """
    rows, targets, turns, versions, sequences = [], [], [], [], []
    mu, rewards, advantages = [], [], []
    start = 0
    for number, sample in enumerate(samples):
        for i in sample.trained:
            rows.append(start + i - 1 if paths is None else paths[number][i - 1])
            targets.append(sample.ids[i])
            mu.append(sample.logprobs[i])
            versions.append(sample.versions[i])
            turns.append(sample.turns[i])
            rewards.append(sample.rewards[i])
            advantages.append(sample.advantages[i])
            sequences.append(sample.sequence)
        start += len(sample.ids)
    return TrainTokens(
        torch.tensor(rows, dtype=torch.long, device=device),
        torch.tensor(targets, dtype=torch.long, device=device),
        torch.tensor(mu, dtype=torch.float32, device=device),
        torch.tensor(versions, dtype=torch.long, device=device),
        torch.tensor(turns, dtype=torch.long, device=device),
        torch.tensor(rewards, dtype=torch.float32, device=device),
        torch.tensor(advantages, dtype=torch.float32, device=device),
        torch.tensor(sequences, dtype=torch.long, device=device),
    )
