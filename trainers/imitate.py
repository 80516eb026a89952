"""Imitation: supervised learning from any agent's episodes, as a warm start.

The loss is next-token cross-entropy on what the agent wrote, and with weight `observation_weight` on what it read:
a small model learns to read pages that way (the ids are those the policy will see, piece by piece).
"""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from rollenv.trainers.optim import Muon, Schedule, adamw, lr_factor
from rollenv.trainers.packing import pack, split_by_tokens
from rollenv.trainers.parallel import GradientWorkers
from rollenv.trainers.policy import Policy
from rollenv.trajectory import Segment


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One segment of an episode to imitate: T ids, and 1 in `mask` where the agent wrote.

    Kept as arrays: tens of thousands of episodes as lists of Python numbers take gigabytes.
    """

    ids: array[int]
    mask: bytes

    @classmethod
    def of(cls, segment: Segment) -> Demonstration:
        """What a segment of an episode leaves to imitate."""
        return cls(array("i", segment.ids), bytes(segment.mask))


@dataclass(frozen=True, slots=True)
class ImitateSettings:
    """How to learn from demonstrations. `batch` counts segments; `observation_weight` is the loss weight of tokens
    that were read; `microbatch_tokens` bounds memory."""

    epochs: int = 2
    batch: int = 16
    optimizer: Literal["adamw", "muon"] = "adamw"
    lr: float = 2e-3
    schedule: Schedule = "cosine"
    warmup: int = 50
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    observation_weight: float = 1.0
    microbatch_tokens: int = 8192
    seed: int = 0


def imitate(
    policy: Policy,
    demonstrations: Sequence[Demonstration],
    settings: ImitateSettings,
    progress: Callable[[dict[str, float]], None] | None = None,
) -> dict[str, float]:
    """Trains `policy` in place and returns the last figures. `progress` gets step, loss, tokens/s after each step."""
    parameters = policy.model.named_parameters()
    optimizer = (
        Muon(parameters, settings.lr, settings.weight_decay)
        if settings.optimizer == "muon"
        else adamw(parameters, settings.lr, (0.9, 0.95), 1e-8, settings.weight_decay)
    )
    workers = GradientWorkers(policy)
    total = -(-len(demonstrations) // settings.batch) * settings.epochs
    figures: dict[str, float] = {}
    tokens, began = 0, time.perf_counter()
    try:
        for step, batch in enumerate(_batches(demonstrations, settings)):
            for group in optimizer.param_groups:
                group["lr"] = settings.lr * lr_factor(step, total, settings.schedule, settings.warmup)
            loss, action_loss = _gradients(workers, batch, settings)
            torch.nn.utils.clip_grad_norm_(policy.model.parameters(), settings.max_grad_norm)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            tokens += sum(len(d.ids) for d in batch)
            figures = {
                "step": step + 1,
                "total": total,
                "loss": loss,
                "action_loss": action_loss,
                "tokens_per_second": tokens / (time.perf_counter() - began),
            }
            if progress is not None:
                progress(figures)
    finally:
        workers.close()
    return figures


def _batches(demonstrations: Sequence[Demonstration], settings: ImitateSettings) -> Iterator[list[Demonstration]]:
    """The batches of all epochs, each epoch in a new order."""
    order = random.Random(settings.seed)
    for _ in range(settings.epochs):
        indices = list(range(len(demonstrations)))
        order.shuffle(indices)
        for first in range(0, len(indices), settings.batch):
            yield [demonstrations[i] for i in indices[first : first + settings.batch]]


def _gradients(
    workers: GradientWorkers, batch: Sequence[Demonstration], settings: ImitateSettings
) -> tuple[float, float]:
    """Accumulates the gradient of one batch; returns the weighted loss and the mean loss of written tokens."""
    weights = [[1.0 if m else settings.observation_weight for m in d.mask[1:]] for d in batch]
    total_weight = max(sum(map(sum, weights)), 1e-9)
    written = max(1, sum(sum(d.mask[1:]) for d in batch))
    lengths = [len(d.ids) for d in batch]
    parts = split_by_tokens(lengths, settings.microbatch_tokens, workers.n)

    def loss(policy: Policy, members: list[int]) -> tuple[Tensor, tuple[float, float]]:
        loss_N, weight_N, acted_N = _token_losses(policy, [batch[i] for i in members], [weights[i] for i in members])
        value = (loss_N * weight_N).sum() / total_weight
        return value, (float(value.detach()), float((loss_N.detach() * acted_N).sum()) / written)

    sums = workers.backward(parts, [sum(lengths[i] for i in part) for part in parts], loss)
    return sum(whole for whole, _ in sums), sum(action for _, action in sums)


def _token_losses(
    policy: Policy, batch: Sequence[Demonstration], weights: Sequence[Sequence[float]]
) -> tuple[Tensor, Tensor, Tensor]:
    """Per token with a weight: cross-entropy, weight, and whether the agent wrote it; shapes N."""
    row = pack([list(d.ids) for d in batch], policy.device)
    rows, targets, weight, acted = [], [], [], []
    for d, of_token, path in zip(batch, weights, row.paths, strict=True):
        keep = [j for j in range(1, len(d.ids)) if of_token[j - 1] > 0]
        rows += [path[j - 1] for j in keep]
        targets += [d.ids[j] for j in keep]
        weight += [of_token[j - 1] for j in keep]
        acted += [d.mask[j] for j in keep]
    with policy.arithmetic():
        logits_NV = policy.logits(policy.hidden(row)[torch.tensor(rows, device=policy.device)])
    loss_N = F.cross_entropy(logits_NV, torch.tensor(targets, device=policy.device), reduction="none")
    return loss_N, torch.tensor(weight, device=policy.device), torch.tensor(acted, device=policy.device)
