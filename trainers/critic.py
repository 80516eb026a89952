"""The critic of PPO: values of the states before model tokens, from the same packed rows as the policy's loss.

Invariant: a critic that is loaded from `state_dict` goes on as the one that was saved.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from rollenv.config.train import CriticConfig, OptimConfig
from rollenv.trainers.optim import adamw
from rollenv.trainers.policy import Policy


class Critic:
    """A value head, with a model of its own or on the policy's, and its optimizer.

    Args:
        policy: what is trained; with `kind="head"` it gets a value head, else it is copied as it is now.
        config: which kind, and how it learns.
        optim: betas, epsilon, weight decay and the bound on gradients are those of the policy.
    """

    def __init__(self, policy: Policy, config: CriticConfig, optim: OptimConfig) -> None:
        self.config, self._optim = config, optim
        self.shared = config.kind == "head"
        self.policy = policy if self.shared else _copy_of(policy)
        self.head = self.policy.value_head = _head(self.policy)
        named = list(self.head.named_parameters())
        if not self.shared:
            named += list(self.policy.model.get_decoder().named_parameters())
        self._parameters = [parameter for _, parameter in named]
        self.optimizer = adamw(named, config.value_lr, optim.betas, optim.eps, optim.weight_decay)

    def learns_alone(self, steps_done: int) -> bool:
        """Whether this is a step of its warm-up."""
        return steps_done < self.config.critic_warmup

    def zero_grad(self) -> None:
        """Forgets the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    def step(self, lr_factor: float) -> float | None:
        """One update; returns the norm of the gradient, None where it was not finite and nothing was changed."""
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self._optim.max_grad_norm)
        if not torch.isfinite(norm):
            return None
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.value_lr * lr_factor
        self.optimizer.step()
        return float(norm)

    def state_dict(self) -> dict[str, Any]:
        """Head, optimizer and, where it has one, its own model."""
        state = {"head": self.head.state_dict(), "optimizer": self.optimizer.state_dict()}
        return state if self.shared else state | {"model": self.policy.model.get_decoder().state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from `state_dict`."""
        self.head.load_state_dict(state["head"])
        self.optimizer.load_state_dict(state["optimizer"])
        if not self.shared:
            self.policy.model.get_decoder().load_state_dict(state["model"])


def explained_variance(values_N: Tensor, returns_N: Tensor) -> float:
    """1 - var(R - V) / var(R): 1 for a perfect critic, 0 for one that knows nothing (or where returns are alike)."""
    if returns_N.numel() < 2 or float(returns_N.var()) == 0:
        return 0.0
    return 1 - float((returns_N - values_N).var()) / float(returns_N.var())


def _copy_of(policy: Policy) -> Policy:
    model = copy.deepcopy(policy.model)
    return Policy.of(model, policy.tokenizer, str(policy.device), policy.precision)


def _head(policy: Policy) -> torch.nn.Linear:
    """From nothing: every state is worth 0, until something else is learned. (Random weights would be noise.)"""
    width = int(policy.model.config.get_text_config().hidden_size)
    # Draws nothing from the generator.
    head: torch.nn.Linear = torch.nn.utils.skip_init(torch.nn.Linear, width, 1)  # type: ignore[no-untyped-call]
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    return head.to(policy.device)
