"""What a step trains on: parts of a batch, each under one algorithm, packed into micro-batches.

A `Part` holds its trained tokens one after another, episode by episode; its micro-batches know the places of theirs
among them. Every rank knows the trained tokens of all; the rest, by far the most, only who computes with them.
"""

from __future__ import annotations

import collections
import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rollenv.config.algo import AlgoConfig
from rollenv.rollout.groups import Group
from rollenv.trainers.data import Sample, TrainTokens, train_tokens
from rollenv.trainers.packing import PackedRow, pack, share, split_by_tokens


@dataclass(slots=True)
class Content:
    """The tokens of a micro-batch: `ids` of each sample, and the places in it of the tokens that train."""

    ids: list[list[int]]
    trained: list[list[int]]


@dataclass(slots=True)
class MicroBatch:
    """Some samples of a part, with what their N trained tokens need.

    `places_N` are the tokens' places in the part, `size` the tokens that go through the model, at most. Rank `rank`
    computes it and has its `content`, which `load` packs into `row` and `tokens`; no other rank has these three.
    `weights_N` come from the aggregation over the whole minibatch; `unit_N` numbers the sequence of each token (None
    where no sequence is looked at). What follows is the work of frozen weights, known to every rank: `old_logp_N` of
    the proximal policy, None where it is the current policy itself; `ref_logp_N` of the reference, None without KL;
    `values_N` and `returns_N` of and for a critic, None without one.
    """

    algo: int
    places_N: Tensor
    weights_N: Tensor
    size: int
    rank: int = 0
    content: Content | None = None
    row: PackedRow | None = None
    tokens: TrainTokens | None = None
    unit_N: Tensor | None = None
    old_logp_N: Tensor | None = None
    ref_logp_N: Tensor | None = None
    values_N: Tensor | None = None
    returns_N: Tensor | None = None
    value_weight: float = 0.0

    def load(self, part: Part, algo: AlgoConfig) -> None:
        """Packs its content for the device that the part's tensors are on."""
        assert self.content is not None
        self.row = pack(self.content.ids, part.weights_N.device)
        trained = zip(self.content.trained, self.row.paths, strict=True)
        rows = [path[i - 1] for places, path in trained for i in places]
        self.tokens = part.tokens.at(self.places_N)
        self.tokens.rows_N = torch.tensor(rows, dtype=torch.long, device=part.weights_N.device)
        self.unit_N = _units(self.tokens, algo) if algo.by_sequence else None

    @property
    def packed(self) -> tuple[PackedRow, TrainTokens]:
        """Row and tokens, where they are loaded."""
        assert self.row is not None
        assert self.tokens is not None
        return self.row, self.tokens

    def blank(self) -> MicroBatch:
        """One token with all that these have, and no weight: it goes the same way through the model, and its loss is
        0."""
        device = self.weights_N.device
        # Unlikely by the frozen weights, so that ratios are far from infinity whatever the policy says.
        sample = Sample([0, 0], [0, 1], [0.0, -10.0], [-1, 0], [0, 0], 0, 0, [0.0, 0.0], [0.0, 0.0])
        row = pack([sample.ids], device)
        none_N = torch.zeros(1, device=device)
        return MicroBatch(
            self.algo,
            none_N.long(),
            none_N,
            2,
            row=row,
            tokens=train_tokens([sample], device, row.paths),
            unit_N=none_N.long(),
            old_logp_N=None if self.old_logp_N is None else none_N - 10.0,
            ref_logp_N=None if self.ref_logp_N is None else none_N - 10.0,
            values_N=None if self.values_N is None else none_N,
            returns_N=None if self.returns_N is None else none_N,
        )


Advantages = dict[tuple[int, int], dict[int, list[float]]]
"""By episode (its group's index, its sample), for each turn that trained as a part of it the advantages of its trained
tokens, in their order."""


@dataclass(slots=True)
class Part:
    """The groups of a minibatch that one algorithm trains; `algo` is its number. Its `episodes` (the index of their
    group, their sample) are numbered from `first_sequence`; `batch_std` is the standard deviation of the returns of all
    of the algorithm's groups. `groups` are there where credit is given late and looks at them, else it is empty."""

    algo: int
    groups: list[Group]
    episodes: list[tuple[int, int]]
    tokens: TrainTokens
    weights_N: Tensor
    first_sequence: int
    batch_std: float
    returns_N: Tensor | None = None
    micros: list[MicroBatch] = field(default_factory=list)

    def advantages(self) -> Advantages:
        """What its tokens train with."""
        found: Advantages = {episode: {} for episode in self.episodes}
        tokens = self.tokens
        columns = (tokens.sequence_N - self.first_sequence, tokens.turn_N, tokens.advantages_N)
        for place, turn, advantage in zip(*(column.tolist() for column in columns), strict=True):
            found[self.episodes[place]].setdefault(turn, []).append(advantage)
        return found

    def compared(self, algo: AlgoConfig) -> Tensor:
        """Whether each token's advantage says something, shape N: with an algorithm that compares, not that of an
        episode that is alone in its group."""
        sizes = collections.Counter(group for group, _ in self.episodes)
        said = torch.tensor([not algo.compares or sizes[group] > 1 for group, _ in self.episodes])
        return said.to(self.weights_N.device)[self.tokens.sequence_N - self.first_sequence]

    def load(self, device: torch.device, rank: int, algo: AlgoConfig) -> None:
        """Moves what every rank has to a device, and packs the micro-batches of `rank` there."""
        self.tokens, self.weights_N = self.tokens.to(device), self.weights_N.to(device)
        for micro in self.micros:
            micro.places_N, micro.weights_N = micro.places_N.to(device), micro.weights_N.to(device)
            if micro.rank == rank:
                micro.load(self, algo)

    def gathered(self, parts: Sequence[Tensor]) -> Tensor:
        """What the micro-batches have for each of their tokens, in the order of the part's."""
        whole_N = torch.zeros(self.tokens.targets_N.numel(), dtype=torch.float32, device=self.weights_N.device)
        for micro, values_N in zip(self.micros, parts, strict=True):
            whole_N[micro.places_N] = values_N.float()
        return whole_N

    def spread(self) -> None:
        """Gives the micro-batches the advantages and returns that their tokens have in the part."""
        for micro in self.micros:
            if micro.tokens is not None:
                micro.tokens.advantages_N = self.tokens.advantages_N[micro.places_N]
            micro.returns_N = None if self.returns_N is None else self.returns_N[micro.places_N]


def planned_micros(
    part: Part, samples: Sequence[Sample], algo: AlgoConfig, kept: Sequence[int], max_tokens: int, at_least: int
) -> list[MicroBatch]:
    """The samples of a part, those whose places are `kept`, in micro-batches of at most `max_tokens` packed tokens."""
    trained = [sample.trained for sample in samples]
    begins = [0, *itertools.accumulate(map(len, trained))]
    micros = []
    for members, size in _micro_parts([samples[i] for i in kept], max_tokens, at_least, algo.by_sequence):
        chosen = [kept[i] for i in members]
        places_N = torch.tensor([place for i in chosen for place in range(begins[i], begins[i + 1])], dtype=torch.long)
        content = Content([samples[i].ids for i in chosen], [trained[i] for i in chosen])
        micros.append(MicroBatch(part.algo, places_N, part.weights_N[places_N], size, content=content))
    return micros


def _units(tokens: TrainTokens, algo: AlgoConfig) -> Tensor:
    labels_N = tokens.sequence_N
    if algo.unit == "turn" and labels_N.numel():
        labels_N = labels_N * (int(tokens.turn_N.max()) + 1) + tokens.turn_N
    return torch.unique(labels_N, return_inverse=True)[1]


def _micro_parts(samples: Sequence[Sample], max_tokens: int, at_least: int, whole: bool) -> list[tuple[list[int], int]]:
    """Places of samples in micro-batches of at most `max_tokens` packed tokens, each with their number (less what
    groups share with each other), and `at_least` so many, those of a group together where they fit: what they share is
    then computed once. With `whole` an episode is never taken apart."""
    groups: defaultdict[int, list[list[int]]] = defaultdict(list)
    for place, sample in enumerate(samples):
        family = groups[sample.group]
        if whole and family and samples[family[-1][-1]].sequence == sample.sequence:
            family[-1].append(place)
        else:
            family.append([place])
    families: list[list[int]] = []
    for atoms in groups.values():
        members = [place for atom in atoms for place in atom]
        if _packed_size(samples, members) <= max_tokens:
            families.append(members)
        else:
            lengths = [sum(len(samples[place].ids) for place in atom) for atom in atoms]
            families += [[p for i in part for p in atoms[i]] for part in split_by_tokens(lengths, max_tokens)]
    sizes = [_packed_size(samples, family) for family in families]
    parts = split_by_tokens(sizes, max_tokens, at_least)
    return [([place for i in part for place in families[i]], sum(sizes[i] for i in part)) for part in parts]


def _packed_size(samples: Sequence[Sample], members: Sequence[int]) -> int:
    """Tokens of the row that they pack into."""
    ids = [samples[place].ids for place in members]
    return sum(map(len, ids)) - sum(share(ids)[1])


def sizes(micros: Sequence[MicroBatch]) -> list[int]:
    """Tokens of each micro-batch."""
    return [micro.size for micro in micros]
