"""Imitation: supervised learning from any agent's episodes, as a warm start.

The loss is next-token cross-entropy on what the agent wrote, and with weight `observation_weight` on what it read:
a small model learns to read pages that way (the ids are those the policy will see, piece by piece).
"""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F

from rollenv.trainers.optim import Muon, Schedule, adamw, lr_factor
from rollenv.trainers.packing import pack, split_by_tokens
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
    order = random.Random(settings.seed)
    parameters = policy.model.named_parameters()
    optimizer = (
        Muon(parameters, settings.lr, settings.weight_decay)
        if settings.optimizer == "muon"
        else adamw(parameters, settings.lr, (0.9, 0.95), 1e-8, settings.weight_decay)
    )
    per_epoch = -(-len(demonstrations) // settings.batch)
    total = per_epoch * settings.epochs
    figures: dict[str, float] = {}
    tokens, began, step = 0, time.perf_counter(), 0
    for _ in range(settings.epochs):
        indices = list(range(len(demonstrations)))
        order.shuffle(indices)
        for first in range(0, len(indices), settings.batch):
            batch = [demonstrations[i] for i in indices[first : first + settings.batch]]
            for group in optimizer.param_groups:
                group["lr"] = settings.lr * lr_factor(step, total, settings.schedule, settings.warmup)
            loss, action_loss = _step(policy, batch, settings)
            torch.nn.utils.clip_grad_norm_(policy.model.parameters(), settings.max_grad_norm)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
            tokens += sum(len(d.ids) for d in batch)
            figures = {
                "step": step,
                "total": total,
                "loss": loss,
                "action_loss": action_loss,
                "tokens_per_second": tokens / (time.perf_counter() - began),
            }
            if progress is not None:
                progress(figures)
    return figures


def _step(policy: Policy, batch: Sequence[Demonstration], settings: ImitateSettings) -> tuple[float, float]:
    """Accumulates the gradient of one batch; returns the weighted loss and the mean loss of written tokens."""
    weights = [[1.0 if m else settings.observation_weight for m in d.mask[1:]] for d in batch]
    total_weight = max(sum(map(sum, weights)), 1e-9)
    written = max(1, sum(sum(d.mask[1:]) for d in batch))
    loss_sum, action_sum = 0.0, 0.0
    for members in split_by_tokens([len(d.ids) for d in batch], settings.microbatch_tokens):
        row = pack([list(batch[i].ids) for i in members], policy.device)
        rows, targets, weight, acted = [], [], [], []
        for i, path in zip(members, row.paths, strict=True):
            ids = batch[i].ids
            keep = [j for j in range(1, len(ids)) if weights[i][j - 1] > 0]
            rows += [path[j - 1] for j in keep]
            targets += [ids[j] for j in keep]
            weight += [weights[i][j - 1] for j in keep]
            acted += [batch[i].mask[j] for j in keep]
        with policy.arithmetic():
            logits_NV = policy.logits(policy.hidden(row)[torch.tensor(rows, device=policy.device)])
        loss_N = F.cross_entropy(logits_NV, torch.tensor(targets, device=policy.device), reduction="none")
        loss = (loss_N * torch.tensor(weight, device=policy.device)).sum() / total_weight
        loss.backward()
        loss_sum += loss.item()
        action_sum += float((loss_N.detach() * torch.tensor(acted, device=policy.device)).sum()) / written
    return loss_sum, action_sum
