"""GRPO: one training step from a batch of groups (arXiv 2402.03300), with the choices of `AlgoConfig`.

Reads top to bottom: samples with advantages, minibatches, micro-batches, loss, update.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rollenv.config.train import AlgoConfig, OptimConfig
from rollenv.rollout.groups import Group
from rollenv.trainers.algorithms import corrections, losses
from rollenv.trainers.algorithms.aggregation import token_weights
from rollenv.trainers.algorithms.kl import KL
from rollenv.trainers.data import Sample, TrainTokens, samples_of, train_tokens
from rollenv.trainers.optim import adamw, lr_factor
from rollenv.trainers.packing import PackedRow, pack, share, split_by_tokens
from rollenv.trainers.parallel import GradientWorkers
from rollenv.trainers.policy import Policy


@dataclass(slots=True)
class MicroBatch:
    """Some samples of a minibatch, packed, with what their N trained tokens need.

    `weights_N` come from the aggregation over the whole minibatch; `old_logp_N` is the proximal policy's
    log-probability, None where it is the current policy itself; `ref_logp_N` the reference's, None without KL.
    """

    row: PackedRow
    tokens: TrainTokens
    weights_N: Tensor
    old_logp_N: Tensor | None = None
    ref_logp_N: Tensor | None = None


@dataclass(slots=True)
class Totals:
    """Sums over the tokens of a step, for its metrics."""

    values: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    tokens: int = 0
    log_rho: list[Tensor] = field(default_factory=list)

    def add(self, other: Totals) -> None:
        """Counts what a micro-batch has summed up."""
        for key, value in other.values.items():
            self.values[key] += value
        self.tokens += other.tokens
        self.log_rho += other.log_rho


class GRPOTrainer:
    """Updates a policy from batches of groups.

    Args:
        policy: trained in place.
        algo, optim: settings.
        total_steps: training steps of the run, for the schedule.
        temperature: that of the sampling, so that the trained distribution is the one that sampled.
    """

    def __init__(
        self, policy: Policy, algo: AlgoConfig, optim: OptimConfig, total_steps: int, temperature: float = 1.0
    ) -> None:
        self.policy, self._algo, self._optim = policy, algo, optim
        self._total, self._temperature = total_steps, temperature
        self.steps_done = 0
        self._workers = GradientWorkers(policy)
        self.optimizer = adamw(policy.model.named_parameters(), optim.lr, optim.betas, optim.eps, optim.weight_decay)
        self._reference: Policy | None = None
        if algo.kl_coef > 0:
            model = copy.deepcopy(policy.model).requires_grad_(False)
            self._reference = Policy.of(model, policy.tokenizer, str(policy.device), policy.precision)

    def set_reference(self, reference: Policy) -> None:
        """Replaces the reference of the KL term (on resume: the policy the run started from)."""
        reference.model.requires_grad_(False)
        self._reference = reference

    def step(self, groups: Sequence[Group]) -> dict[str, float]:
        """One training step. Without any group it changes nothing and says so (`updates` is 0)."""
        lr = self._optim.lr * lr_factor(self.steps_done, self._total, self._optim.schedule, self._optim.warmup)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        parts = [list(groups[i :: self._optim.minibatches]) for i in range(self._optim.minibatches)]
        minibatches = [self._minibatch(part) for part in parts if part]
        # With a single update the proximal policy is the current one: r is exactly 1 and needs no forward pass.
        if len(minibatches) * self._optim.epochs > 1:
            for minibatch in minibatches:
                old = self._workers.map(minibatch, _sizes(minibatch), self._frozen_logprobs)
                for micro, old_logp_N in zip(minibatch, old, strict=True):
                    micro.old_logp_N = old_logp_N
        totals, norms = Totals(), []
        for _ in range(self._optim.epochs):
            norms += [self._update(minibatch, totals) for minibatch in minibatches if minibatch]
        self.steps_done += 1
        return self._metrics(totals, norms, lr)

    def _minibatch(self, groups: Sequence[Group]) -> list[MicroBatch]:
        samples = samples_of(groups, self._algo)
        everything = train_tokens(samples, self.policy.device)
        if not everything.targets_N.numel():
            return []
        n_sequences = 1 + max(sample.sequence for sample in samples)
        weights_N = token_weights(
            everything.sequence_N, n_sequences, self._algo.aggregation, self._algo.constant_length
        )
        # Without a KL or entropy term a token of advantage 0 has no gradient: its place in the denominator is all
        # it contributes, and the forward pass is saved.
        idle = self._reference is None and self._algo.entropy_coef == 0
        weight_of = _weight_per_sequence(everything, weights_N, n_sequences)
        kept = [sample for sample in samples if any(sample.advantages) or not idle]
        if not kept:
            return []
        parts = _micro_parts(kept, self._optim.microbatch_tokens, self._workers.n)
        return [self._micro(part, weight_of) for part in parts]

    def _micro(self, samples: Sequence[Sample], weight_of: Tensor) -> MicroBatch:
        row = pack([sample.ids for sample in samples], self.policy.device)
        tokens = train_tokens(samples, self.policy.device, row.paths)
        micro = MicroBatch(row, tokens, weight_of[tokens.sequence_N])
        if self._reference is not None:
            micro.ref_logp_N = self._frozen_logprobs(self._reference, micro)
        return micro

    @torch.no_grad()
    def _frozen_logprobs(self, policy: Policy, micro: MicroBatch) -> Tensor:
        return policy.logprobs(micro.row, micro.tokens.rows_N, micro.tokens.targets_N, self._temperature)[0]

    def _update(self, minibatch: Sequence[MicroBatch], totals: Totals) -> float:
        self.optimizer.zero_grad(set_to_none=True)
        for part in self._workers.backward(minibatch, _sizes(minibatch), self._loss):
            totals.add(part)
        norm = torch.nn.utils.clip_grad_norm_(self.policy.model.parameters(), self._optim.max_grad_norm)
        if not torch.isfinite(norm):
            totals.values["skipped_updates"] += 1
            return 0.0
        self.optimizer.step()
        return float(norm)

    def _loss(self, policy: Policy, micro: MicroBatch) -> tuple[Tensor, Totals]:
        algo, tokens, totals = self._algo, micro.tokens, Totals()
        logp_N, entropy_N = policy.logprobs(
            micro.row, tokens.rows_N, tokens.targets_N, self._temperature, entropy_gradient=algo.entropy_coef != 0
        )
        old_N = logp_N.detach() if micro.old_logp_N is None else micro.old_logp_N
        if algo.loss == "ppo_clip":
            loss_N, clipped_N = losses.ppo_clip(
                logp_N, old_N, tokens.advantages_N, algo.clip_low, algo.clip_high, algo.dual_clip
            )
        else:
            loss_N, clipped_N = losses.plain(logp_N, tokens.advantages_N), torch.zeros_like(logp_N)
        if algo.correction == "tis":
            loss_N = loss_N * corrections.tis(old_N, tokens.mu_logp_N, algo.tis_cap)
        if micro.ref_logp_N is not None:
            kl_N = KL[algo.kl_estimator](logp_N, micro.ref_logp_N)
            loss_N = loss_N + algo.kl_coef * kl_N
            totals.values["kl"] += float(kl_N.detach().sum())
        if algo.entropy_coef:
            loss_N = loss_N - algo.entropy_coef * entropy_N
        loss = (micro.weights_N * loss_N).sum()
        totals.tokens += logp_N.numel()
        totals.values["loss"] += float(loss.detach())
        totals.values["entropy"] += float(entropy_N.detach().sum())
        totals.values["clipped"] += float(clipped_N.float().sum())
        totals.log_rho.append((old_N - tokens.mu_logp_N).detach())
        return loss, totals

    def _metrics(self, totals: Totals, norms: Sequence[float], lr: float) -> dict[str, float]:
        tokens = max(1, totals.tokens)
        log_rho_N = torch.cat(totals.log_rho) if totals.log_rho else torch.zeros(0)
        metrics = {
            "loss": totals.values["loss"] / max(1, len(norms)),
            "entropy": totals.values["entropy"] / tokens,
            "clipped_share": totals.values["clipped"] / tokens,
            "grad_norm": sum(norms) / len(norms) if norms else 0.0,
            "lr": lr,
            "updates": float(len(norms)),
            "skipped_updates": totals.values["skipped_updates"],
            "trained_tokens": float(totals.tokens),
            **corrections.mismatch(log_rho_N, torch.zeros_like(log_rho_N)),
        }
        if self._reference is not None:
            metrics["kl"] = totals.values["kl"] / tokens
        return metrics

    def close(self) -> None:
        """Ends the threads that compute gradients."""
        self._workers.close()

    def state_dict(self) -> dict[str, Any]:
        """Optimizer and step count (the weights are saved as a model folder)."""
        return {"optimizer": self.optimizer.state_dict(), "steps_done": self.steps_done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from `state_dict`."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.steps_done = int(state["steps_done"])


def _micro_parts(samples: Sequence[Sample], max_tokens: int, at_least: int) -> list[list[Sample]]:
    """Samples in micro-batches of at most `max_tokens` packed tokens, and `at_least` so many, those of a group together
    where they fit: what they share is then computed once."""
    groups: defaultdict[int, list[Sample]] = defaultdict(list)
    for sample in samples:
        groups[sample.group].append(sample)
    families: list[list[Sample]] = []
    for family in groups.values():
        if packed_size(family) <= max_tokens:
            families.append(family)
        else:
            families += [[family[i] for i in part] for part in split_by_tokens(_lengths(family), max_tokens)]
    parts = split_by_tokens([packed_size(family) for family in families], max_tokens, at_least)
    return [[sample for i in part for sample in families[i]] for part in parts]


def _sizes(minibatch: Sequence[MicroBatch]) -> list[int]:
    """Tokens of each micro-batch."""
    return [micro.row.ids_T.numel() for micro in minibatch]


def packed_size(samples: Sequence[Sample]) -> int:
    """Tokens of the row that they pack into."""
    return sum(len(sample.ids) for sample in samples) - sum(share([sample.ids for sample in samples])[1])


def _lengths(samples: Sequence[Sample]) -> list[int]:
    return [len(sample.ids) for sample in samples]


def _weight_per_sequence(tokens: TrainTokens, weights_N: Tensor, n_sequences: int) -> Tensor:
    """Every aggregation gives the tokens of one sequence the same weight: that weight, shape [S]."""
    weight_S = torch.zeros(n_sequences, dtype=weights_N.dtype, device=weights_N.device)
    weight_S[tokens.sequence_N] = weights_N
    return weight_S
