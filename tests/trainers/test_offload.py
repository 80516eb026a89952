"""A trainer that lends its memory between steps trains what one that keeps it does."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

import toys  # noqa: E402
from batches import algo, make_groups, optim  # noqa: E402

from rollenv.config.algo import CriticConfig  # noqa: E402
from rollenv.config.cluster import DevicesConfig  # noqa: E402
from rollenv.trainers.learner import Snapshot  # noqa: E402
from rollenv.trainers.policy import Policy  # noqa: E402
from rollenv.trainers.step import PolicyTrainer  # noqa: E402


def trainer_of(origin: Policy) -> PolicyTrainer:
    policy = Policy.of(copy.deepcopy(origin.model), origin.tokenizer)
    critic = CriticConfig.model_validate({"kind": "model"})
    return PolicyTrainer(policy, algo(advantage="gae"), optim(), 3, critic=critic)


def test_optimizer_state_and_gradients_are_free_between_steps_and_nothing_changes() -> None:
    origin = toys.policy(seed=6)
    plain, lent = trainer_of(origin), trainer_of(origin)
    for step in range(3):
        assert plain.step(make_groups(step)) == lent.step(make_groups(step))
        parameters = sum(p.nbytes for p in dict.fromkeys(lent.policy.parameters()))
        freed = lent.offload("disk")
        assert freed > 2 * 3 * 0.9 * parameters, "two averages and a gradient, of the policy and of its critic's model"
        kept = [v for s in lent.optimizer.state.values() for v in s.values() if v.ndim]
        assert kept
        assert not any(tensor.untyped_storage().nbytes() for tensor in kept)
        assert lent.offloaded
    ours, theirs = Snapshot.of(plain), Snapshot.of(lent)
    assert ours.tensors.keys() == theirs.tensors.keys()
    assert all(torch.equal(tensor, theirs.tensors[name]) for name, tensor in ours.tensors.items())
    assert all(torch.equal(tensor, theirs.weights[name]) for name, tensor in ours.weights.items())


def test_a_disk_for_devices_that_nobody_shares_is_refused() -> None:
    with pytest.raises(ValueError, match=r"devices\.offload=disk is for devices that train"):
        DevicesConfig.model_validate({"policy": "0", "rollout": "1", "offload": "disk"})
