"""Two ranks train what one trains: the same up to the order of sums, and the same as each other to the bit."""

from __future__ import annotations

import multiprocessing
import socket
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import toys  # noqa: E402
from batches import algo, make_groups, optim  # noqa: E402

from rollenv.config.train import CriticConfig  # noqa: E402
from rollenv.trainers.policy import Policy  # noqa: E402
from rollenv.trainers.step import PolicyTrainer  # noqa: E402

STEPS = 3
ALGORITHMS: dict[str, dict[str, Any]] = {
    "grpo": {},
    "kl": {"kl_coef": 0.1, "entropy_coef": 0.01},
    "ppo": {"advantage": "gae"},
    "own-critic": {"advantage": "gae"},
    "two-epochs": {"loss": "cispo"},
}


def settings(name: str) -> tuple[Any, Any, Any]:
    more = {"epochs": 2, "minibatches": 2} if name == "two-epochs" else {}
    critic = CriticConfig.model_validate({"kind": "model" if name == "own-critic" else "head"})
    return algo(**ALGORITHMS[name]), optim(microbatch_tokens=64, **more), critic


def train(model: Path, name: str, ranks: Any = None) -> tuple[list[dict[str, float]], dict[str, Any]]:
    algorithm, optimizer, critic = settings(name)
    policy = Policy.load(model)
    more = {} if ranks is None else {"ranks": ranks}
    trainer = PolicyTrainer(policy, algorithm, optimizer, STEPS, critic=critic, **more)
    figures = [trainer.step(make_groups(seed)) for seed in range(STEPS)]
    trainer.close()
    return figures, {key: value.clone() for key, value in policy.state().items()}


def one_rank(rank: int, size: int, port: int, model: Path, out: Path) -> None:
    import torch.distributed as dist

    from rollenv.trainers.ranks import TorchRanks

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    torch.save({name: train(model, name, TorchRanks()) for name in ALGORITHMS}, out / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks") / "model"
    toys.warm_policy().save(folder)
    return folder


@pytest.fixture(scope="module")
def both(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two ranks has at the end, for each algorithm."""
    out = tmp_path_factory.mktemp("out")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=one_rank, args=(rank, 2, port, model, out)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(200)
    assert [process.exitcode for process in processes] == [0, 0]
    return [torch.load(out / f"{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_two_ranks_equal_one(name: str, model: Path, both: list[dict[str, Any]]) -> None:
    figures, weights = train(model, name)
    (ours, our_weights), (theirs, their_weights) = both[0][name], both[1][name]
    assert ours == theirs, "both ranks report the same, to the bit"
    assert all(torch.equal(our_weights[key], their_weights[key]) for key in weights)
    for expected, found in zip(figures, ours, strict=True):
        assert expected == pytest.approx(found, rel=1e-4, abs=1e-6)
    assert all(torch.allclose(weights[key], our_weights[key], rtol=1e-5, atol=1e-5) for key in weights)
