"""The critic of PPO: values of the states before model tokens, from the same packed rows as the policy's loss.

Invariant: a critic whose `tensors` are those of another one goes on as that would.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from rollenv.config.algo import CriticConfig, OptimConfig
from rollenv.trainers.optim import adamw, clip_gradients
from rollenv.trainers.policy import Policy
from rollenv.trainers.state import Shape, make_room, optimizer_tensors


class Critic:
    """A value head, with a model of its own or on the policy's, and its optimizer.

    Args:
        policy: what is trained; with `kind="head"` it gets a value head, else it is copied as it is now.
        config: which kind, and how it learns.
        optim: betas, epsilon, weight decay and the bound on gradients are those of the policy.
        prepare: lays the weights out (see `Strategy.prepare`).
    """

    def __init__(
        self,
        policy: Policy,
        config: CriticConfig,
        optim: OptimConfig,
        prepare: Callable[[Policy], None] = lambda policy: None,
    ) -> None:
        self.config, self._optim = config, optim
        self.shared = config.kind == "head"
        self.policy = policy if self.shared else _copy_of(policy)
        self.head = self.policy.value_head = _head(self.policy)
        prepare(self.policy)
        named = list(self.head.named_parameters(prefix="head"))
        if not self.shared:
            named += list(self.policy.model.get_decoder().named_parameters(prefix="model"))
        self._named = [(name, parameter) for name, parameter in named if parameter.requires_grad]
        self._parameters = [parameter for _, parameter in self._named]
        self.optimizer = adamw(self._named, config.value_lr, optim.betas, optim.eps, optim.weight_decay)

    def learns_alone(self, steps_done: int) -> bool:
        """Whether this is a step of its warm-up."""
        return steps_done < self.config.critic_warmup

    def zero_grad(self) -> None:
        """Forgets the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    def step(self, lr_factor: float) -> float | None:
        """One update; returns the norm of the gradient, None where it was not finite and nothing was changed."""
        norm = clip_gradients(self._parameters, self._optim.max_grad_norm)
        if not math.isfinite(norm):
            return None
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.value_lr * lr_factor
        self.optimizer.step()
        return norm

    def tensors(self) -> dict[str, Tensor]:
        """What it has learned and what its optimizer keeps, by name; the tensors themselves."""
        learned = {f"critic/{name}": parameter.detach() for name, parameter in self._named}
        return learned | optimizer_tensors(self.optimizer, self._named, "critic.optimizer")

    def make_room(self, shapes: Mapping[str, Shape]) -> None:
        """Lets `tensors` have all of `shapes` that are its own."""
        make_room(self.optimizer, self._named, "critic.optimizer", shapes)


def explained_variance(values_N: Tensor, returns_N: Tensor) -> float:
    """1 - var(R - V) / var(R): 1 for a perfect critic, 0 for one that knows nothing (or where returns are alike)."""
    if returns_N.numel() < 2 or float(returns_N.var()) == 0:
        return 0.0
    return 1 - float((returns_N - values_N).var()) / float(returns_N.var())


def _copy_of(policy: Policy) -> Policy:
    model = copy.deepcopy(policy.model)
    copied = Policy.of(model, policy.tokenizer, str(policy.device), policy.precision)
    copied.adapter = policy.adapter
    return copied


def _head(policy: Policy) -> torch.nn.Linear:
    """From nothing: every state is worth 0, until something else is learned. (Random weights would be noise.)"""
    width = int(policy.model.config.get_text_config().hidden_size)
    # Draws nothing from the generator.
    head: torch.nn.Linear = torch.nn.utils.skip_init(torch.nn.Linear, width, 1)  # type: ignore[no-untyped-call]
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    return head.to(policy.device)
