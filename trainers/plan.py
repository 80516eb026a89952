"""The plan of a step: which groups train, in which updates, in which micro-batches, on which rank.

Made once, where the batch is; a rank gets what all of them need to know (`Plan`) and its own tokens (`Shard`), nothing
else. Texts, and what other ranks read, stay behind.

Invariant: the plan depends on the batch, the settings and the number of ranks and threads, on nothing else; and the
gradient of an update is the same sum, whatever the number of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollenv.config.algo import AlgoConfig, OptimConfig
from rollenv.rollout.groups import Group
from rollenv.trainers import credit
from rollenv.trainers.algorithms.aggregation import token_weights
from rollenv.trainers.data import Sample, TrainTokens, samples_of, train_tokens
from rollenv.trainers.minibatch import Content, MicroBatch, Part, planned_micros, sizes
from rollenv.trainers.parallel import deal
from rollenv.trajectory import Trajectory, Turn

Plan = list[list[Part]]
"""Parts by minibatch."""


@dataclass(frozen=True, slots=True)
class Shard:
    """The tokens of a rank's micro-batches, in the plan's order, sample after sample: `ids` of `lengths` tokens each,
    and `trained` places of `counts` each; `samples` in each micro-batch."""

    samples: NDArray[np.int32]
    lengths: NDArray[np.int32]
    ids: NDArray[np.int32]
    counts: NDArray[np.int32]
    trained: NDArray[np.int32]

    @classmethod
    def of(cls, contents: Sequence[Content]) -> Shard:
        """The shard with these."""
        ids = [sample for content in contents for sample in content.ids]
        trained = [places for content in contents for places in content.trained]
        return cls(
            _ints([len(content.ids) for content in contents]),
            _ints([len(sample) for sample in ids]),
            _ints([token for sample in ids for token in sample]),
            _ints([len(places) for places in trained]),
            _ints([place for places in trained for place in places]),
        )

    def contents(self) -> list[Content]:
        """What it was made of."""
        ids, trained = _cut(self.ids, self.lengths), _cut(self.trained, self.counts)
        ends = np.cumsum(self.samples).tolist()
        begins = [0, *ends]
        return [Content(ids[b:e], trained[b:e]) for b, e in zip(begins, ends, strict=False)]


def divided(plan: Plan, ranks: int) -> tuple[Plan, list[Shard]]:
    """A plan for every rank, and what each of them computes."""
    micros = [micro for parts in plan for part in parts for micro in part.micros]
    shards = [
        Shard.of([micro.content for micro in micros if micro.rank == rank and micro.content is not None])
        for rank in range(ranks)
    ]
    return [[_light(part) for part in parts] for parts in plan], shards


def _light(part: Part) -> Part:
    """A part without the content of its micro-batches, and without what follows from the rest."""
    nothing = part.weights_N[:0]
    micros = [replace(m, content=None, places_N=m.places_N.int(), weights_N=nothing) for m in part.micros]
    tokens = TrainTokens(*(_narrow(getattr(part.tokens, f.name)) for f in fields(TrainTokens)))
    tokens.rows_N = nothing  # a place in a row, which each micro-batch has for itself
    return replace(part, tokens=tokens, micros=micros)


def _narrow(tensor: Tensor) -> Tensor:
    return tensor.int() if tensor.dtype == torch.long else tensor


def _wide(tensor: Tensor) -> Tensor:
    return tensor.long() if tensor.dtype == torch.int else tensor


def united(plan: Plan, shard: Shard, rank: int) -> Plan:
    """A rank's own plan, with the content of its micro-batches. (What it got belongs to others, too, and stays as it
    is.)"""
    contents = iter(shard.contents())

    def micro_of(part: Part, micro: MicroBatch) -> MicroBatch:
        places_N, content = micro.places_N.long(), next(contents) if micro.rank == rank else None
        return replace(micro, content=content, places_N=places_N, weights_N=part.weights_N[places_N])

    def part_of(part: Part) -> Part:
        tokens = TrainTokens(*(_wide(getattr(part.tokens, f.name)) for f in fields(TrainTokens)))
        tokens.rows_N = torch.zeros_like(tokens.targets_N)
        return replace(part, tokens=tokens, micros=[micro_of(part, micro) for micro in part.micros])

    return [[part_of(part) for part in parts] for parts in plan]


class Planner:
    """Makes plans.

    Args:
        algo: the run's algorithm.
        optim: minibatches, and tokens of a micro-batch.
        by_env: algorithms of environments that have one of their own.
    """

    def __init__(self, algo: AlgoConfig, optim: OptimConfig, by_env: Mapping[str, AlgoConfig] | None = None) -> None:
        own = by_env or {}
        self.algos = [algo, *dict.fromkeys(a for a in own.values() if a != algo)]
        self._algo_of = {env: self.algos.index(a) for env, a in own.items()}
        self._optim = optim

    def plan(self, groups: Sequence[Group], shares: int = 1, ranks: int = 1) -> Plan:
        """The plan of a batch.

        Args:
            shares: micro-batches that are computed at the same time.
            ranks: among whom they are dealt.
        """
        stds = [credit.return_std(self._groups_of(groups, i), algo) for i, algo in enumerate(self.algos)]
        cut = [groups[i :: self._optim.minibatches] for i in range(self._optim.minibatches)]
        plan = [self._minibatch(part, stds, shares) for part in cut if part]
        for parts in plan:
            micros = [micro for part in parts for micro in part.micros]
            for rank, share in enumerate(deal(sizes(micros), ranks)):
                for i in share:
                    micros[i].rank = rank
        return plan

    def _groups_of(self, groups: Sequence[Group], algo: int) -> list[Group]:
        return [group for group in groups if self._algo_of.get(group.request.env, 0) == algo]

    def _minibatch(self, groups: Sequence[Group], stds: Sequence[float], shares: int) -> list[Part]:
        parts: list[Part] = []
        streams: list[list[Sample]] = []
        sequences = 0
        for number, algo in enumerate(self.algos):
            own = self._groups_of(groups, number)
            samples = samples_of(own, algo, stds[number], sequences)
            episodes = [(group.request.index, t.sample) for group in own for t in group.trainable]
            if samples:
                tokens = train_tokens(samples)
                late = [_slim(group, algo) for group in own] if credit.looks_at_groups(algo) else []
                parts.append(Part(number, late, episodes, tokens, tokens.advantages_N, sequences, stds[number]))
                streams.append(samples)
            sequences += len(episodes)
        if not any(part.tokens.targets_N.numel() for part in parts):
            return []
        sequence_N = torch.cat([part.tokens.sequence_N for part in parts])
        begin = 0
        for part, samples in zip(parts, streams, strict=True):
            algo, end = self.algos[part.algo], begin + part.tokens.targets_N.numel()
            # Over the whole minibatch, also where another algorithm trains its other parts.
            weights_N = token_weights(sequence_N, sequences, algo.aggregation, algo.constant_length)
            part.weights_N = weights_N[begin:end]
            part.micros = self._micros(part, samples, algo, shares)
            begin = end
        return parts

    def _micros(self, part: Part, samples: Sequence[Sample], algo: AlgoConfig, shares: int) -> list[MicroBatch]:
        """Micro-batches of the samples that can have a gradient. Without a KL or entropy term a token of advantage 0
        has none: its place in the denominator is all it contributes, and the forward pass is saved."""
        kept = list(range(len(samples)))
        if not (credit.comes_late(algo) or algo.kl_coef > 0 or algo.entropy_coef != 0 or algo.loss == "kimi"):
            kept = _with_advantage(samples, whole=algo.by_sequence)
        return planned_micros(part, samples, algo, kept, self._optim.microbatch_tokens, shares) if kept else []


def _with_advantage(samples: Sequence[Sample], whole: bool) -> list[int]:
    """Places of the samples with an advantage; with `whole`, of all samples of an episode that has one."""
    if not whole:
        return [i for i, sample in enumerate(samples) if any(sample.advantages)]
    alive = {sample.sequence for sample in samples if any(sample.advantages)}
    return [i for i, sample in enumerate(samples) if sample.sequence in alive]


def _slim(group: Group, algo: AlgoConfig) -> Group:
    """A group with what rewards and returns are made of, and no more."""

    def turn(of: Turn) -> Turn:
        seen = of.observation if algo.advantage == "gigpo" else ""  # what states are told apart by
        empty = {"prompt_ids": [], "logprobs": [], "policy_versions": [], "completion": "", "action": "", "seconds": {}}
        return replace(of, observation=seen, **empty)

    def episode(of: Trajectory) -> Trajectory:
        return replace(of, turns=[turn(one) for one in of.turns], info={})

    return replace(group, trajectories=[episode(one) for one in group.trainable])


def _ints(values: Sequence[int]) -> NDArray[np.int32]:
    return np.asarray(values, dtype=np.int32)


def _cut(flat: NDArray[np.int32], lengths: NDArray[np.int32]) -> list[list[int]]:
    return [piece.tolist() for piece in np.split(flat, np.cumsum(lengths)[:-1])] if len(lengths) else []
