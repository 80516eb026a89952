"""What a step trains on: parts of a batch, each under one algorithm, packed into micro-batches.

A `Part` holds its tokens one after another, episode by episode; its micro-batches know the places of theirs among them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rollenv.config.train import AlgoConfig
from rollenv.rollout.groups import Group
from rollenv.trainers.data import Sample, TrainTokens, train_tokens
from rollenv.trainers.packing import PackedRow, pack, share, split_by_tokens


@dataclass(slots=True)
class MicroBatch:
    """Some samples of a part, packed, with what their N trained tokens need.

    `places_N` are the tokens' places in the part. `weights_N` come from the aggregation over the whole minibatch;
    `unit_N` numbers the sequence of each token (None where no sequence is looked at). What follows is the work of
    frozen weights: `old_logp_N` of the proximal policy, None where it is the current policy itself; `ref_logp_N` of the
    reference, None without KL; `values_N` and `returns_N` of and for a critic, None without one.
    """

    algo: int
    row: PackedRow
    tokens: TrainTokens
    places_N: Tensor
    weights_N: Tensor
    unit_N: Tensor | None = None
    old_logp_N: Tensor | None = None
    ref_logp_N: Tensor | None = None
    values_N: Tensor | None = None
    returns_N: Tensor | None = None
    value_weight: float = 0.0


@dataclass(slots=True)
class Part:
    """The groups of a minibatch that one algorithm trains; `algo` is its number. Episodes are numbered from
    `first_sequence`; `batch_std` is the standard deviation of the returns of all of the algorithm's groups."""

    algo: int
    groups: list[Group]
    samples: list[Sample]
    tokens: TrainTokens
    weights_N: Tensor
    first_sequence: int
    batch_std: float
    returns_N: Tensor | None = None
    micros: list[MicroBatch] = field(default_factory=list)

    def gathered(self, parts: Sequence[Tensor]) -> Tensor:
        """What the micro-batches have for each of their tokens, in the order of the part's."""
        whole_N = torch.zeros(self.tokens.targets_N.numel(), dtype=torch.float32, device=self.weights_N.device)
        for micro, values_N in zip(self.micros, parts, strict=True):
            whole_N[micro.places_N] = values_N.float()
        return whole_N

    def spread(self) -> None:
        """Gives the micro-batches the advantages and returns that their tokens have in the part."""
        for micro in self.micros:
            micro.tokens.advantages_N = self.tokens.advantages_N[micro.places_N]
            micro.returns_N = None if self.returns_N is None else self.returns_N[micro.places_N]


def packed_micros(
    part: Part, algo: AlgoConfig, kept: Sequence[int], max_tokens: int, at_least: int
) -> list[MicroBatch]:
    """The samples of a part, those whose places are `kept`, in micro-batches of at most `max_tokens` packed tokens."""
    device = part.weights_N.device
    begins, total = [], 0
    for sample in part.samples:
        begins.append(total)
        total += len(sample.trained)
    micros = []
    for members in _micro_parts([part.samples[i] for i in kept], max_tokens, at_least, algo.by_sequence):
        samples = [part.samples[kept[i]] for i in members]
        row = pack([sample.ids for sample in samples], device)
        places = [place for i in members for place in _places(part.samples, begins, kept[i])]
        places_N = torch.tensor(places, dtype=torch.long, device=device)
        tokens = train_tokens(samples, device, row.paths)
        unit_N = _units(tokens, algo) if algo.by_sequence else None
        micros.append(MicroBatch(part.algo, row, tokens, places_N, part.weights_N[places_N], unit_N))
    return micros


def _places(samples: Sequence[Sample], begins: Sequence[int], i: int) -> range:
    return range(begins[i], begins[i] + len(samples[i].trained))


def _units(tokens: TrainTokens, algo: AlgoConfig) -> Tensor:
    labels_N = tokens.sequence_N
    if algo.unit == "turn" and labels_N.numel():
        labels_N = labels_N * (int(tokens.turn_N.max()) + 1) + tokens.turn_N
    return torch.unique(labels_N, return_inverse=True)[1]


def _micro_parts(samples: Sequence[Sample], max_tokens: int, at_least: int, whole: bool) -> list[list[int]]:
    """Places of samples in micro-batches of at most `max_tokens` packed tokens, and `at_least` so many, those of a
    group together where they fit: what they share is then computed once. With `whole` an episode is never taken apart.
    """
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
    parts = split_by_tokens([_packed_size(samples, family) for family in families], max_tokens, at_least)
    return [[place for i in part for place in families[i]] for part in parts]


def _packed_size(samples: Sequence[Sample], members: Sequence[int]) -> int:
    """Tokens of the row that they pack into."""
    ids = [samples[place].ids for place in members]
    return sum(map(len, ids)) - sum(share(ids)[1])


def sizes(micros: Sequence[MicroBatch]) -> list[int]:
    """Tokens of each micro-batch."""
    return [micro.row.ids_T.numel() for micro in micros]
