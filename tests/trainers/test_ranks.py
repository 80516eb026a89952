"""Two ranks train what one trains: the same up to the order of sums, and the same as each other to the bit."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(1800)

import toys  # noqa: E402
from batches import algo, make_groups, optim  # noqa: E402
from spawned import apart_from_packing, in_ranks, strategy  # noqa: E402

from rollenv.config.algo import CriticConfig  # noqa: E402
from rollenv.rollout.groups import Group  # noqa: E402
from rollenv.trainers.policy import Policy, whole  # noqa: E402
from rollenv.trainers.step import PolicyTrainer  # noqa: E402
from rollenv.trainers.strategies.replicated import SINGLE  # noqa: E402

STEPS = 3
ALGORITHMS: dict[str, dict[str, Any]] = {
    "grpo": {},
    "kl": {"kl_coef": 0.1, "entropy_coef": 0.01},
    "ppo": {"advantage": "gae"},
    "own-critic": {"advantage": "gae"},
    "critic-first": {"advantage": "gae"},
    "two-epochs": {"loss": "cispo"},
    "by-sequence": {"loss": "gspo", "correction": "tis_sequence"},
    "mixture": {},
}
VALUED = "valued"
"""Of a mixture, the environment whose algorithm has a critic."""


def settings(name: str) -> tuple[Any, Any, Any]:
    more = {"epochs": 2, "minibatches": 2} if name == "two-epochs" else {}
    own = {"kind": "model" if name == "own-critic" else "head", "critic_warmup": 2 * (name == "critic-first")}
    return algo(**ALGORITHMS[name]), optim(microbatch_tokens=64, **more), CriticConfig.model_validate(own)


PAIRS = [
    *(("ddp", name) for name in ("grpo", "kl", "two-epochs")),
    ("ddp-recompute", "own-critic"),
    *(("fsdp2", name) for name in ("grpo", "ppo", "own-critic", "by-sequence", "mixture")),
    ("fsdp2-together", "kl"),
    ("fsdp2-together", "critic-first"),
    ("fsdp2-offload", "two-epochs"),
]
"""Each strategy, and each kind of pass through the model under either of them."""

Trained = tuple[list[dict[str, float]], dict[str, Any], list[Any]]


def train(model: Path, name: str, spread: Any = SINGLE, steps: int = STEPS) -> Trained:
    """The figures of each step, the weights after the last one, and what the tokens of each step trained with."""
    algorithm, optimizer, critic = settings(name)
    policy = Policy.load(model)
    by_env = {VALUED: algo(advantage="gae")} if name == "mixture" else None
    trainer = PolicyTrainer(policy, algorithm, optimizer, STEPS, critic=critic, by_env=by_env, strategy=spread)
    figures, advantages = [], []
    for seed in range(steps):
        figures.append(trainer.step(mixed(make_groups(seed)) if by_env else make_groups(seed)))
        advantages.append(trainer.advantages())
    trainer.close()
    return figures, {key: value.clone() for key, value in policy.state().items()}, advantages


def mixed(groups: list[Group]) -> list[Group]:
    """Every fourth is of the environment with a critic, so that ranks seldom come to it at the same time."""
    for group in groups[1::4]:
        group.request = dataclasses.replace(group.request, env=VALUED)
    return groups


def train_all(model: Path) -> dict[tuple[str, str], Trained]:
    """In a rank: all pairs."""
    return {(spread, name): train(model, name, strategy(spread)) for spread, name in PAIRS}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks") / "model"
    toys.warm_policy().save(folder)
    return folder


@pytest.fixture(scope="module")
def both(model: Path) -> list[dict[tuple[str, str], Trained]]:
    """What each of two ranks has at the end."""
    return in_ranks(2, partial(train_all, model))


def assert_equal(single: Trained, ranked: Trained) -> None:
    for expected, found in zip(single[0], ranked[0], strict=True):
        assert apart_from_packing(expected) == pytest.approx(apart_from_packing(found), rel=1e-4, abs=1e-6)
        for key in ("loss", "grad_norm"):
            assert found[key] == pytest.approx(expected[key], rel=1e-5, abs=1e-5)
    for key, value in single[1].items():
        torch.testing.assert_close(ranked[1][key], value, rtol=1e-5, atol=1e-5)
    for before, after in zip(single[2], ranked[2], strict=True):
        assert flat(after).keys() == flat(before).keys() != set()
        assert flat(after) == pytest.approx(flat(before), rel=1e-3, abs=1e-5)


def flat(advantages: Any) -> dict[Any, float]:
    """By episode, turn and token."""
    tokens = ((episode, turn, given) for episode, turns in advantages.items() for turn, given in turns.items())
    return {(episode, turn, i): value for episode, turn, given in tokens for i, value in enumerate(given)}


@pytest.mark.parametrize(("spread", "name"), PAIRS)
def test_two_ranks_equal_one(spread: str, name: str, model: Path, both: list[dict[tuple[str, str], Trained]]) -> None:
    ours, theirs = both[0][spread, name], both[1][spread, name]
    assert ours[0] == theirs[0], "both ranks report the same, to the bit"
    assert all(torch.equal(ours[1][key], theirs[1][key]) for key in ours[1])
    assert_equal(train(model, name), ours)
    before = Policy.load(model).state()
    assert any(not torch.equal(before[key], ours[1][key]) for key in before), "it was trained"


def test_recomputed_activations_change_no_bit(model: Path) -> None:
    from rollenv.trainers.strategies.replicated import Replicated

    plain, again = train(model, "ppo"), train(model, "ppo", Replicated(recompute=True))
    assert plain[0] == again[0]
    assert all(torch.equal(plain[1][key], again[1][key]) for key in plain[1])


def held(model: Path, spread: str) -> tuple[int, int, int]:
    """In a rank: bytes of parameters, gradients and optimizer state between two steps, and of the whole weights."""
    policy = Policy.load(model)
    trainer = PolicyTrainer(policy, algo(), optim(microbatch_tokens=64), STEPS, strategy=strategy(spread))
    trainer.step(make_groups(0))
    parameters = list(policy.model.parameters())
    states = [value for state in trainer.optimizer.state.values() for value in state.values() if value.ndim]
    tensors = [*parameters, *(p.grad for p in parameters), *states]
    local = [t.to_local() if hasattr(t, "to_local") else t for t in tensors]
    return sum(t.nbytes for t in local), len(states), sum(whole(p).nbytes for p in parameters)


def test_a_shard_is_half_of_weights_gradients_and_optimizer_state(model: Path) -> None:
    (bytes_whole, n, weights), (bytes_shard, m, _) = (in_ranks(2, partial(held, model, s))[0] for s in ("ddp", "fsdp2"))
    assert n == m > 0
    assert bytes_whole >= 4 * weights
    assert bytes_shard == pytest.approx(bytes_whole / 2, rel=0.02)


def few(model: Path) -> Trained:
    """In a rank: a batch with fewer episodes than there are ranks."""
    policy = Policy.load(model)
    trainer = PolicyTrainer(policy, algo(kl_coef=0.1), optim(), 1, strategy=strategy("fsdp2"))
    figures = [trainer.step(make_groups(0)[3:4])]
    return figures, {key: value.clone() for key, value in policy.state().items()}, [trainer.advantages()]


def test_a_rank_without_work_stays_in_step(model: Path) -> None:
    policy = Policy.load(model)
    trainer = PolicyTrainer(policy, algo(kl_coef=0.1), optim(), 1)
    figures = [trainer.step(make_groups(0)[3:4])]
    expected = figures, dict(policy.state()), [trainer.advantages()]
    found: list[Trained] = in_ranks(2, partial(few, model))
    assert_equal(expected, found[0])
    assert all(torch.equal(found[0][1][key], found[1][1][key]) for key in expected[1])


def bf16(model: Path) -> tuple[list[dict[str, float]], list[Any]]:
    policy = Policy.load(model, precision="bf16")
    trainer = PolicyTrainer(policy, algo(advantage="gae"), optim(lr=1e-3), STEPS, strategy=strategy("fsdp2"))
    dtypes: list[Any] = []
    layer: Any = policy.layers()[0]
    layer.mlp.register_forward_hook(lambda module, args, out: dtypes.append(module.up_proj.weight.dtype))
    figures = [trainer.step(make_groups(seed)) for seed in range(2)]
    return figures, [*dtypes, *(p.dtype for p in policy.parameters())]


def test_mixed_precision_computes_in_bf16_and_keeps_fp32(model: Path) -> None:
    figures, dtypes = in_ranks(2, partial(bf16, model))[0]
    n = len(list(Policy.load(model).parameters())) + 2  # and the value head
    assert set(dtypes[:-n]) == {torch.bfloat16}
    assert set(dtypes[-n:]) == {torch.float32}
    policy = Policy.load(model, precision="bf16")
    trainer = PolicyTrainer(policy, algo(advantage="gae"), optim(lr=1e-3), STEPS)
    for seed, found in enumerate(figures):
        expected = trainer.step(make_groups(seed))
        assert found["grad_norm"] == pytest.approx(expected["grad_norm"], rel=0.05)
        assert found["entropy"] == pytest.approx(expected["entropy"], rel=0.02)
