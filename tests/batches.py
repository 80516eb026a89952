"""Groups of episodes with random tokens, and settings for trainers, for tests that make training steps."""

from __future__ import annotations

import copy
import random
from typing import Any

from rollenv.config.algo import AlgoConfig, OptimConfig
from rollenv.rollout.groups import Group, GroupRequest
from rollenv.trainers.policy import Policy
from rollenv.trajectory import Failure, StopReason, Trajectory, Turn


def algo(**settings: Any) -> AlgoConfig:
    return AlgoConfig.model_validate(settings)


def optim(**settings: Any) -> OptimConfig:
    return OptimConfig.model_validate({"lr": 1e-2, "eps": 1e-4, "max_grad_norm": 1e9} | settings)


def fresh(origin: Policy) -> Policy:
    return Policy.of(copy.deepcopy(origin.model), origin.tokenizer)


def episode(draw: random.Random, group: int, sample: int, reward: float, forks: bool) -> Trajectory:
    turns = []
    for index in range(draw.randint(1, 4)):
        read = [draw.randrange(4, 280) for _ in range(draw.randint(1, 9))]
        wrote = [draw.randrange(4, 280) for _ in range(draw.randint(1, 5))]
        logprobs = [draw.uniform(-7, -3) for _ in wrote]
        turns.append(Turn("", read, wrote, logprobs, [0] * len(wrote), fork=forks and index % 2 == 1))
        turns[-1].valid_action = draw.random() < 0.7
    turns[-1].reward = reward
    return Trajectory("toy", f"t{group}", 0, group, sample, turns=turns, stop=StopReason.TERMINATED)


def make_groups(seed: int = 0, forks: bool = True) -> list[Group]:
    """Five groups: two with signal, one without, one of a single episode, one with a failure among good ones."""
    draw = random.Random(seed)
    rewards = [[0.0, 1.0, 0.3], [1.0, 0.0], [0.5, 0.5], [1.0], [0.0, 1.0, 1.0]]
    groups = []
    for index, row in enumerate(rewards):
        trajectories = [episode(draw, index, sample, reward, forks) for sample, reward in enumerate(row)]
        groups.append(Group(GroupRequest(index, f"t{index}", len(row), 0), trajectories))
    broken = groups[4].trajectories[1]
    broken.stop, broken.failure = StopReason.FAILED, Failure("env", "crash", "broken")
    return groups


def plain_model(policy: Policy) -> Any:
    """The policy's model, from now on under transformers' own attention."""
    policy.model.config._attn_implementation = "eager"
    return policy.model
