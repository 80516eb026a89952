"""One training step from a batch of groups, whatever the algorithm (`AlgoConfig`), with a critic where it asks for one.

Reads top to bottom: minibatches, what frozen weights say, credit, updates, figures.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rollenv.config.train import AlgoConfig, CriticConfig, OptimConfig
from rollenv.rollout.groups import Group
from rollenv.trainers import credit
from rollenv.trainers.algorithms.aggregation import token_weights
from rollenv.trainers.algorithms.gae import whiten
from rollenv.trainers.algorithms.kl import KL, adapted
from rollenv.trainers.algorithms.losses import value_loss
from rollenv.trainers.critic import Critic
from rollenv.trainers.data import Sample, samples_of, train_tokens
from rollenv.trainers.figures import Totals, token_figures, update_figures, value_figures
from rollenv.trainers.minibatch import MicroBatch, Part, packed_micros, sizes
from rollenv.trainers.objective import Stream, token_loss
from rollenv.trainers.optim import adamw, lr_factor
from rollenv.trainers.parallel import ALONE, GradientWorkers
from rollenv.trainers.policy import Policy
from rollenv.trainers.ranks import Ranks


class PolicyTrainer:
    """Updates a policy from batches of groups.

    Args:
        policy: trained in place.
        algo, optim: settings.
        total_steps: training steps of the run, for the schedule.
        temperature: that of the sampling, so that the trained distribution is the one that sampled.
        critic: settings of the critic, made when an algorithm needs one.
        by_env: algorithms of environments that have one of their own.
        ranks: the other processes that train the same policy, with the same settings, on the same batches.
    """

    def __init__(
        self,
        policy: Policy,
        algo: AlgoConfig,
        optim: OptimConfig,
        total_steps: int,
        temperature: float = 1.0,
        critic: CriticConfig | None = None,
        by_env: Mapping[str, AlgoConfig] | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.policy, self._optim = policy, optim
        self._total, self._temperature = total_steps, temperature
        own = by_env or {}
        self._algos = [algo, *dict.fromkeys(a for a in own.values() if a != algo)]
        self._algo_of = {env: self._algos.index(a) for env, a in own.items()}
        self.steps_done = 0
        self.lr_scale = 1.0
        self._kl_coefs = [a.kl_coef for a in self._algos]
        self.critic: Critic | None = None
        if any(a.needs_critic for a in self._algos):
            self.critic = Critic(policy, critic or CriticConfig.model_validate({}), optim)
        self._workers = GradientWorkers(policy, ranks=ranks)
        own_model = self.critic is not None and not self.critic.shared
        self._value_workers = (
            GradientWorkers(self.critic.policy, ranks=ranks) if self.critic and own_model else self._workers
        )
        self.optimizer = adamw(policy.model.named_parameters(), optim.lr, optim.betas, optim.eps, optim.weight_decay)
        self._reference: Policy | None = None
        if self.needs_reference:
            model = copy.deepcopy(policy.model).requires_grad_(False)
            self._reference = Policy.of(model, policy.tokenizer, str(policy.device), policy.precision)

    @property
    def needs_reference(self) -> bool:
        """Whether an algorithm has a KL term."""
        return any(algo.kl_coef > 0 for algo in self._algos)

    def set_reference(self, reference: Policy) -> None:
        """Replaces the reference of the KL term (on resume: the policy the run started from)."""
        reference.model.requires_grad_(False)
        self._reference = reference

    def step(self, groups: Sequence[Group]) -> dict[str, float]:
        """One training step. Without any group it changes nothing and says so (`updates` is 0)."""
        factor = lr_factor(self.steps_done, self._total, self._optim.schedule, self._optim.warmup) * self.lr_scale
        for group in self.optimizer.param_groups:
            group["lr"] = self._optim.lr * factor
        minibatches = self._minibatches(groups)
        parts = [part for minibatch in minibatches for part in minibatch]
        # With a single update the proximal policy is the current one: r is exactly 1 and needs no forward pass.
        self._ask_frozen(parts, single=len(minibatches) * self._optim.epochs == 1)
        self._whiten(parts)
        totals, norms = [Totals() for _ in self._algos], _Norms()
        for _ in range(self._optim.epochs):
            for minibatch in minibatches:
                self._update([micro for part in minibatch for micro in part.micros], totals, norms, factor)
        self.steps_done += 1
        figures = self._figures(parts, totals, norms, self._optim.lr * factor)
        self._steer_kl(parts, totals)
        return figures

    # -- minibatches -------------------------------------------------------------------------------------------

    def _minibatches(self, groups: Sequence[Group]) -> list[list[Part]]:
        chosen: list[Group] = list(groups)
        if any(algo.train_share < 1 for algo in self._algos):
            kept = [credit.chosen(self._groups_of(groups, i), algo) for i, algo in enumerate(self._algos)]
            indices = {group.request.index for part in kept for group in part}
            chosen = [group for group in groups if group.request.index in indices]
        stds = [credit.return_std(self._groups_of(chosen, i), algo) for i, algo in enumerate(self._algos)]
        cut = [chosen[i :: self._optim.minibatches] for i in range(self._optim.minibatches)]
        return [self._minibatch(part, stds) for part in cut if part]

    def _groups_of(self, groups: Sequence[Group], algo: int) -> list[Group]:
        return [group for group in groups if self._algo_of.get(group.request.env, 0) == algo]

    def _minibatch(self, groups: Sequence[Group], stds: Sequence[float]) -> list[Part]:
        parts: list[Part] = []
        sequences = 0
        for number, algo in enumerate(self._algos):
            own = self._groups_of(groups, number)
            samples = samples_of(own, algo, stds[number], sequences)
            if samples:
                tokens = train_tokens(samples, self.policy.device)
                parts.append(Part(number, own, samples, tokens, tokens.advantages_N, sequences, stds[number]))
            sequences += sum(len(group.trainable) for group in own)
        if not any(part.tokens.targets_N.numel() for part in parts):
            return []
        sequence_N = torch.cat([part.tokens.sequence_N for part in parts])
        begin = 0
        for part in parts:
            algo, end = self._algos[part.algo], begin + part.tokens.targets_N.numel()
            # Over the whole minibatch, also where another algorithm trains its other parts.
            weights_N = token_weights(sequence_N, sequences, algo.aggregation, algo.constant_length)
            part.weights_N = weights_N[begin:end]
            part.micros = self._packed(part, algo)
            begin = end
        return parts

    def _packed(self, part: Part, algo: AlgoConfig) -> list[MicroBatch]:
        """Micro-batches of the samples that can have a gradient. Without a KL or entropy term a token of advantage 0
        has none: its place in the denominator is all it contributes, and the forward pass is saved."""
        kept = list(range(len(part.samples)))
        if not (credit.comes_late(algo) or algo.kl_coef > 0 or algo.entropy_coef != 0 or algo.loss == "kimi"):
            kept = _with_advantage(part.samples, whole=algo.by_sequence)
        if not kept:
            return []
        return packed_micros(part, algo, kept, self._optim.microbatch_tokens, self._workers.shares)

    # -- what frozen weights say, and the credit that follows -----------------------------------------------------

    def _ask_frozen(self, parts: Sequence[Part], single: bool) -> None:
        for part in parts:
            algo = self._algos[part.algo]
            costs = algo.kl_in == "reward" and algo.kl_coef > 0
            old: list[Tensor] | None = None
            if (algo.proximal == "recompute" and not single) or costs:
                old = self._mapped(part, self._workers, self._frozen_logprobs)
            if algo.kl_coef > 0:
                ref = self._mapped(part, self._workers, self._reference_logprobs)
                for micro, ref_N in zip(part.micros, ref, strict=True):
                    micro.ref_logp_N = ref_N
            if algo.needs_critic:
                values = self._mapped(part, self._value_workers, _frozen_values)
                for micro, values_N in zip(part.micros, values, strict=True):
                    micro.values_N = values_N
            if credit.comes_late(algo):
                self._give_credit(part, algo, self._kl_coefs[part.algo], old if costs else None)
            if old is not None and algo.proximal == "recompute" and not single:
                for micro, old_N in zip(part.micros, old, strict=True):
                    micro.old_logp_N = old_N

    def _mapped(
        self, part: Part, workers: GradientWorkers, function: Callable[[Policy, MicroBatch], Tensor]
    ) -> list[Tensor]:
        return workers.map(part.micros, sizes(part.micros), function)

    @torch.no_grad()
    def _frozen_logprobs(self, policy: Policy, micro: MicroBatch) -> Tensor:
        return policy.logprobs(micro.row, micro.tokens.rows_N, micro.tokens.targets_N, self._temperature)[0]

    def _reference_logprobs(self, _: Policy, micro: MicroBatch) -> Tensor:
        assert self._reference is not None
        return self._frozen_logprobs(self._reference, micro)

    def _give_credit(self, part: Part, algo: AlgoConfig, coef: float, old: Sequence[Tensor] | None) -> None:
        costs_N = None
        if old is not None:
            ref = [micro.ref_logp_N for micro in part.micros if micro.ref_logp_N is not None]
            estimates = [KL[algo.kl_estimator](o, r) for o, r in zip(old, ref, strict=True)]
            costs_N = coef * part.gathered(estimates)
        values = [micro.values_N for micro in part.micros if micro.values_N is not None]
        values_N = part.gathered(values) if values else None
        given = credit.credit(part.groups, part.tokens, algo, part.batch_std, costs_N, values_N, part.first_sequence)
        part.tokens.advantages_N, part.returns_N = given.advantages_N, given.returns_N
        part.spread()

    def _whiten(self, parts: Sequence[Part]) -> None:
        """Over all model tokens of the batch that an algorithm trains, whatever minibatch they are in."""
        for number, algo in enumerate(self._algos):
            own = [part for part in parts if part.algo == number]
            if algo.whiten and own:
                white_N = whiten(torch.cat([part.tokens.advantages_N for part in own]))
                for part, advantages_N in zip(own, white_N.split([p.weights_N.numel() for p in own]), strict=True):
                    part.tokens.advantages_N = advantages_N
                    part.spread()

    # -- updates ---------------------------------------------------------------------------------------------------

    def _update(self, micros: Sequence[MicroBatch], totals: Sequence[Totals], norms: _Norms, factor: float) -> None:
        """One update of the policy, and of the critic where there is one."""
        if not micros:
            return
        valued = [micro for micro in micros if micro.values_N is not None]
        for micro in valued:
            micro.value_weight = 1 / sum(m.places_N.numel() for m in valued)
        alone = self.critic is not None and self.critic.learns_alone(self.steps_done)
        self.optimizer.zero_grad(set_to_none=True)
        if self.critic is not None:
            self.critic.zero_grad()
        if not alone:
            self._backward(self._workers, micros, self._loss, totals)
        if self.critic is not None and (alone or not self.critic.shared):
            self._backward(self._value_workers, valued, self._value_loss, totals)
        if not alone:
            norm = torch.nn.utils.clip_grad_norm_(self.policy.model.parameters(), self._optim.max_grad_norm)
            finite = bool(torch.isfinite(norm))
            if finite:
                self.optimizer.step()
            else:
                totals[0].values["skipped_updates"] += 1
            norms.policy.append(float(norm) if finite else 0.0)
        if self.critic is not None and valued:
            value_norm = self.critic.step(factor)
            if value_norm is None:
                totals[0].values["skipped_updates"] += 1
            norms.value.append(value_norm or 0.0)

    def _backward(
        self,
        workers: GradientWorkers,
        micros: Sequence[MicroBatch],
        loss: Callable[[Policy, MicroBatch], tuple[Tensor, Totals]],
        totals: Sequence[Totals],
    ) -> None:
        for micro, summed in zip(micros, workers.backward(micros, sizes(micros), loss), strict=True):
            totals[micro.algo].add(summed)

    def _loss(self, policy: Policy, micro: MicroBatch) -> tuple[Tensor, Totals]:
        algo, tokens, totals = self._algos[micro.algo], micro.tokens, Totals()
        hidden_ND = policy.hidden_at(micro.row, tokens.rows_N)
        with_gradient = algo.entropy_coef != 0
        logp_N, entropy_N = policy.logprobs_of(hidden_ND, tokens.targets_N, self._temperature, with_gradient)
        stream = Stream(
            logp_N,
            entropy_N,
            tokens.mu_logp_N,
            tokens.advantages_N,
            tokens.versions_N,
            micro.old_logp_N,
            micro.ref_logp_N,
            micro.unit_N,
        )
        made = token_loss(stream, algo, self.steps_done, self._kl_coefs[micro.algo])
        loss = (micro.weights_N * made.loss_N).sum()
        totals.tokens += logp_N.numel()
        totals.values["loss"] += float(loss.detach())
        totals.values["entropy"] += float(entropy_N.detach().sum())
        totals.values["clipped"] += float(made.clipped_N.float().sum())
        totals.values["masked"] += float(made.masked_N.float().sum())
        if made.kl_N is not None:
            totals.values["kl"] += float(made.kl_N.detach().sum())
        totals.log_rho.append(made.log_rho_N)
        if micro.values_N is not None and self.critic is not None and self.critic.shared:
            loss = loss + self.critic.config.value_coef * self._value_part(policy.values_of(hidden_ND), micro, totals)
        return loss, totals

    def _value_loss(self, policy: Policy, micro: MicroBatch) -> tuple[Tensor, Totals]:
        """The critic's loss by itself; on the policy's own model its gradient stays in the head."""
        assert self.critic is not None
        totals = Totals()
        with torch.set_grad_enabled(not self.critic.shared):
            hidden_ND = policy.hidden_at(micro.row, micro.tokens.rows_N)
        return self._value_part(policy.values_of(hidden_ND), micro, totals), totals

    def _value_part(self, values_N: Tensor, micro: MicroBatch, totals: Totals) -> Tensor:
        assert self.critic is not None
        assert micro.values_N is not None
        assert micro.returns_N is not None
        loss_N, clipped_N = value_loss(values_N, micro.values_N, micro.returns_N, self.critic.config.value_clip)
        loss = micro.value_weight * loss_N.sum()
        totals.values["value_loss"] += float(loss.detach())
        totals.values["value_clipped"] += float(clipped_N.float().sum())
        totals.values["value_tokens"] += loss_N.numel()
        return loss

    # -- after the updates -----------------------------------------------------------------------------------------

    def _figures(self, parts: Sequence[Part], totals: Sequence[Totals], norms: _Norms, lr: float) -> dict[str, float]:
        whole = Totals()
        for each in totals:
            whole.add(each)
        figures = update_figures(whole, norms.policy, lr) | token_figures([part.tokens for part in parts])
        if self._reference is not None:
            with_kl = sum(t.tokens for t, algo in zip(totals, self._algos, strict=True) if algo.kl_coef > 0)
            figures["kl"] = whole.values["kl"] / max(1, with_kl)
        if any(algo.kl_target is not None for algo in self._algos):
            figures["kl_coef"] = self._kl_coefs[0]
        if self.critic is not None:
            valued = [part for part in parts if part.returns_N is not None]
            values = [part.gathered([m.values_N for m in part.micros if m.values_N is not None]) for part in valued]
            returns = [part.returns_N for part in valued if part.returns_N is not None]
            joined = (torch.cat(values), torch.cat(returns)) if valued else (torch.zeros(0), torch.zeros(0))
            figures |= value_figures(whole, norms.value, *joined)
        return figures

    def _steer_kl(self, parts: Sequence[Part], totals: Sequence[Totals]) -> None:
        for number, algo in enumerate(self._algos):
            if algo.kl_target is not None and totals[number].tokens:
                kl = totals[number].values["kl"] / totals[number].tokens
                episodes = sum(len(group.trainable) for part in parts if part.algo == number for group in part.groups)
                self._kl_coefs[number] = adapted(self._kl_coefs[number], kl, algo.kl_target, episodes, algo.kl_horizon)

    def close(self) -> None:
        """Ends the threads that compute gradients."""
        self._workers.close()
        if self._value_workers is not self._workers:
            self._value_workers.close()

    def state_dict(self) -> dict[str, Any]:
        """Optimizer, step count, coefficients and critic (the weights are saved as a model folder)."""
        state = {
            "optimizer": self.optimizer.state_dict(),
            "steps_done": self.steps_done,
            "lr_scale": self.lr_scale,
            "kl_coefs": list(self._kl_coefs),
        }
        return state | ({"critic": self.critic.state_dict()} if self.critic is not None else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from `state_dict`."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.steps_done = int(state["steps_done"])
        self.lr_scale = float(state.get("lr_scale", 1.0))
        self._kl_coefs = [float(coef) for coef in state.get("kl_coefs", self._kl_coefs)]
        if self.critic is not None:
            self.critic.load_state_dict(state["critic"])


class _Norms:
    """Gradient norms of a step's updates."""

    def __init__(self) -> None:
        self.policy: list[float] = []
        self.value: list[float] = []


@torch.no_grad()
def _frozen_values(policy: Policy, micro: MicroBatch) -> Tensor:
    return policy.values_of(policy.hidden_at(micro.row, micro.tokens.rows_N))


def _with_advantage(samples: Sequence[Sample], whole: bool) -> list[int]:
    """Places of the samples with an advantage; with `whole`, of all samples of an episode that has one."""
    if not whole:
        return [i for i, sample in enumerate(samples) if any(sample.advantages)]
    alive = {sample.sequence for sample in samples if any(sample.advantages)}
    return [i for i, sample in enumerate(samples) if sample.sequence in alive]
