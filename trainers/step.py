"""One training step from a batch of groups, whatever the algorithm (`AlgoConfig`), with a critic where it asks for one.

Reads top to bottom: what frozen weights say, credit, updates, figures. Which tokens make up an update is planned before
(`plan.py`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rollenv.config.algo import AlgoConfig, CriticConfig, OptimConfig
from rollenv.inference.parking import Parked, Where
from rollenv.rollout.groups import Group
from rollenv.trainers import credit
from rollenv.trainers.algorithms.gae import whiten
from rollenv.trainers.algorithms.kl import KL, adapted
from rollenv.trainers.algorithms.losses import value_loss
from rollenv.trainers.critic import Critic
from rollenv.trainers.figures import Totals, token_figures, update_figures, value_figures
from rollenv.trainers.minibatch import Advantages, MicroBatch, Part, sizes
from rollenv.trainers.objective import Stream, token_loss
from rollenv.trainers.optim import adamw, clip_gradients, lr_factor
from rollenv.trainers.plan import Plan, Planner, Shard, united
from rollenv.trainers.policy import Policy, local
from rollenv.trainers.state import Shape, make_room, optimizer_tensors
from rollenv.trainers.strategies.base import Strategy, Workers
from rollenv.trainers.strategies.replicated import SINGLE


class PolicyTrainer:
    """Updates a policy from batches of groups.

    Args:
        policy: trained in place.
        algo, optim: settings.
        total_steps: training steps of the run, for the schedule.
        temperature: that of the sampling, so that the trained distribution is the one that sampled.
        critic: settings of the critic, made when an algorithm needs one.
        by_env: algorithms of environments that have one of their own.
        strategy: how it is spread over processes, which all have the same settings and get the same batches.
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
        strategy: Strategy = SINGLE,
    ) -> None:
        self.policy, self._optim = policy, optim
        self._total, self._temperature = total_steps, temperature
        self._planner = Planner(algo, optim, by_env)
        self._algos = self._planner.algos
        self.steps_done = 0
        self.lr_scale = 1.0
        self._parked: Parked | None = None
        self._trained: list[Part] = []
        self._kl_coefs = [a.kl_coef for a in self._algos]
        self._strategy = strategy
        self._reference_workers: Workers | None = None
        if self.needs_reference and policy.adapter is None:  # else the policy without its adapter is the reference
            self.set_reference(_copy(policy))
        self.critic: Critic | None = None
        if any(a.needs_critic for a in self._algos):
            self.critic = Critic(policy, critic or CriticConfig.model_validate({}), optim, strategy.prepare)
        strategy.prepare(policy)
        self._workers = strategy.workers(policy)
        own_model = self.critic is not None and not self.critic.shared
        self._value_workers = strategy.workers(self.critic.policy) if self.critic and own_model else self._workers
        self.optimizer = adamw(policy.model.named_parameters(), optim.lr, optim.betas, optim.eps, optim.weight_decay)

    @property
    def needs_reference(self) -> bool:
        """Whether an algorithm has a KL term."""
        return any(algo.kl_coef > 0 for algo in self._algos)

    def set_reference(self, reference: Policy) -> None:
        """Replaces the reference of the KL term (on resume: the policy the run started from)."""
        reference.model.requires_grad_(False)
        self._strategy.prepare(reference)
        if self._reference_workers is not None:
            self._reference_workers.close()
        self._reference_workers = self._strategy.workers(reference)

    def offload(self, to: Where) -> int:
        """Sends what the optimizers keep away from their device, until it is wanted, and forgets gradients, which are
        used up. Returns the bytes that are free by then."""
        self._bring_back()
        parameters, optimizers = self.policy.parameters(), [self.optimizer]
        if self.critic is not None:
            parameters += self.critic.policy.parameters()
            optimizers.append(self.critic.optimizer)
        freed = 0
        for parameter in dict.fromkeys(parameters):
            if parameter.grad is not None:
                freed += local(parameter.grad).nbytes
                parameter.grad = None
        kept = [value for optimizer in optimizers for state in optimizer.state.values() for value in state.values()]
        self._parked = Parked([local(tensor) for tensor in kept if tensor.ndim], to)
        return freed + self._parked.nbytes

    def _bring_back(self) -> None:
        parked, self._parked = self._parked, None
        if parked is not None:
            parked.bring_back()

    @property
    def offloaded(self) -> bool:
        """Whether `offload` holds."""
        return self._parked is not None

    @property
    def shares(self) -> int:
        """Micro-batches that are computed at the same time, over all ranks: a plan should have so many."""
        return self._workers.shares

    def step(self, groups: Sequence[Group]) -> dict[str, float]:
        """One training step, on a batch that every rank has. Without any group it changes nothing and says so
        (`updates` is 0)."""
        return self.train(self._planner.plan(groups, self.shares, self._strategy.ranks.size))

    def step_on(self, plan: Plan, shard: Shard) -> dict[str, float]:
        """One training step, of which this rank has its own shard."""
        return self.train(united(plan, shard, self._strategy.ranks.rank))

    def train(self, minibatches: Plan) -> dict[str, float]:
        """One training step as it is planned."""
        self._bring_back()
        factor = lr_factor(self.steps_done, self._total, self._optim.schedule, self._optim.warmup) * self.lr_scale
        for group in self.optimizer.param_groups:
            group["lr"] = self._optim.lr * factor
        parts = [part for minibatch in minibatches for part in minibatch]
        for part in parts:
            part.load(self.policy.device, self._strategy.ranks.rank, self._algos[part.algo])
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
        self._trained = [replace(part, micros=[], groups=[]) for part in parts]
        return figures

    def advantages(self) -> Advantages:
        """What the tokens of the last step trained with; of all ranks, in each of them."""
        return {episode: turns for part in self._trained for episode, turns in part.advantages().items()}

    # -- what frozen weights say, and the credit that follows -----------------------------------------------------

    def _ask_frozen(self, parts: Sequence[Part], single: bool) -> None:
        for part in parts:
            algo = self._algos[part.algo]
            costs = algo.kl_in == "reward" and algo.kl_coef > 0
            old: list[Tensor] | None = None
            if (algo.proximal == "recompute" and not single) or costs:
                old = self._mapped(part, self._workers, self._frozen_logprobs)
            if algo.kl_coef > 0:
                workers = self._reference_workers or self._workers
                ref = self._mapped(part, workers, self._reference_logprobs)
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

    def _mapped(self, part: Part, workers: Workers, function: Callable[[Policy, MicroBatch], Tensor]) -> list[Tensor]:
        return workers.map(part.micros, sizes(part.micros), function)

    @torch.no_grad()
    def _frozen_logprobs(self, policy: Policy, micro: MicroBatch) -> Tensor:
        row, tokens = micro.packed
        return policy.logprobs(row, tokens.rows_N, tokens.targets_N, self._temperature)[0]

    def _reference_logprobs(self, policy: Policy, micro: MicroBatch) -> Tensor:
        with policy.reference():
            return self._frozen_logprobs(policy, micro)

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
        """Over all model tokens of the batch that an algorithm trains, whatever minibatch they are in. An episode that
        has none to be compared with keeps its 0, which whitening would move."""
        for number, algo in enumerate(self._algos):
            own = [part for part in parts if part.algo == number]
            if algo.whiten and own:
                white_N = torch.cat([part.tokens.advantages_N for part in own])
                compared_N = torch.cat([part.compared(algo) for part in own])
                white_N[compared_N] = whiten(white_N[compared_N])
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
            norm = clip_gradients(self.policy.model.parameters(), self._optim.max_grad_norm)
            finite = math.isfinite(norm)
            if finite:
                self.optimizer.step()
            else:
                totals[0].values["skipped_updates"] += 1
            norms.policy.append(norm if finite else 0.0)
        if self.critic is not None and valued:
            value_norm = self.critic.step(factor)
            if value_norm is None:
                totals[0].values["skipped_updates"] += 1
            norms.value.append(value_norm or 0.0)

    def _backward(
        self,
        workers: Workers,
        micros: Sequence[MicroBatch],
        loss: Callable[[Policy, MicroBatch], tuple[Tensor, Totals]],
        totals: Sequence[Totals],
    ) -> None:
        for micro, summed in zip(micros, workers.backward(micros, sizes(micros), loss), strict=True):
            totals[micro.algo].add(summed)

    def _loss(self, policy: Policy, micro: MicroBatch) -> tuple[Tensor, Totals]:
        algo, totals, (row, tokens) = self._algos[micro.algo], Totals(), micro.packed
        hidden_ND = policy.hidden_at(row, tokens.rows_N)
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
        slots, padding = row.padding()
        totals.values["slots"] += slots
        totals.values["padding"] += padding
        totals.values["loss"] += float(loss.detach())
        totals.values["entropy"] += float(entropy_N.detach().sum())
        totals.values["clipped"] += float(made.clipped_N.float().sum())
        totals.values["masked"] += float(made.masked_N.float().sum())
        if made.kl_N is not None:
            totals.values["kl"] += float(made.kl_N.detach().sum())
        totals.mismatch.append(made.mismatch_N)
        if self.critic is not None and self.critic.shared:
            if micro.values_N is not None:
                loss = loss + self.critic.config.value_coef * self._value_part(
                    policy.values_of(hidden_ND), micro, totals
                )
            elif policy.sharded:
                # Other ranks may be at a micro-batch with values: the head's shards come together at all or at none.
                loss = loss + 0.0 * policy.values_of(hidden_ND).sum()
        return loss, totals

    def _value_loss(self, policy: Policy, micro: MicroBatch) -> tuple[Tensor, Totals]:
        """The critic's loss by itself; on the policy's own model its gradient stays in the head."""
        assert self.critic is not None
        totals, (row, tokens) = Totals(), micro.packed
        with torch.set_grad_enabled(not self.critic.shared):
            hidden_ND = policy.hidden_at(row, tokens.rows_N)
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
        if self.needs_reference:
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
                episodes = sum(len(part.episodes) for part in parts if part.algo == number)
                self._kl_coefs[number] = adapted(self._kl_coefs[number], kl, algo.kl_target, episodes, algo.kl_horizon)

    def close(self) -> None:
        """Ends the threads that compute gradients."""
        for workers in {self._workers, self._value_workers, self._reference_workers} - {None}:
            workers.close()

    def tensors(self) -> dict[str, Tensor]:
        """What the optimizer keeps, and the critic, by name; the tensors themselves, shards where they are in shards.
        (The policy's weights are saved as a model folder.)"""
        self._bring_back()
        own = optimizer_tensors(self.optimizer, self.policy.model.named_parameters(), "optimizer")
        return own | (self.critic.tensors() if self.critic is not None else {})

    def room_for(self, shapes: Mapping[str, Shape]) -> dict[str, Tensor]:
        """`tensors`, after making room for all of `shapes`: to be filled."""
        make_room(self.optimizer, self.policy.model.named_parameters(), "optimizer", shapes)
        if self.critic is not None:
            self.critic.make_room(shapes)
        return self.tensors()

    def numbers(self) -> dict[str, Any]:
        """Step count and coefficients."""
        return {"steps_done": self.steps_done, "lr_scale": self.lr_scale, "kl_coefs": list(self._kl_coefs)}

    def load_numbers(self, numbers: Mapping[str, Any]) -> None:
        """Continues from `numbers`."""
        self.steps_done = int(numbers["steps_done"])
        self.lr_scale = float(numbers["lr_scale"])
        self._kl_coefs = [float(coef) for coef in numbers["kl_coefs"]]

    def state_dict(self) -> dict[str, Any]:
        """`numbers` and, under "tensors", `tensors`."""
        return self.numbers() | {"tensors": self.tensors()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from the `state_dict` of a trainer of the same kind, whose tensors are copied."""
        self.load_numbers(state)
        room = self.room_for({name: (tensor.shape, tensor.dtype) for name, tensor in state["tensors"].items()})
        with torch.no_grad():
            for name, tensor in state["tensors"].items():
                room[name].copy_(tensor)


def _copy(policy: Policy) -> Policy:
    return Policy.of(copy.deepcopy(policy.model), policy.tokenizer, str(policy.device), policy.precision)


class _Norms:
    """Gradient norms of a step's updates."""

    def __init__(self) -> None:
        self.policy: list[float] = []
        self.value: list[float] = []


@torch.no_grad()
def _frozen_values(policy: Policy, micro: MicroBatch) -> Tensor:
    row, tokens = micro.packed
    return policy.values_of(policy.hidden_at(row, tokens.rows_N))
