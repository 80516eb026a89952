"""Gradients by several threads are those of one, the same bits every time, and follow the optimizer's steps."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import toys  # noqa: E402

from rollenv.trainers.packing import pack  # noqa: E402
from rollenv.trainers.parallel import GradientWorkers, deal  # noqa: E402
from rollenv.trainers.policy import Policy  # noqa: E402


def jobs(n: int) -> list[list[int]]:
    draw = torch.Generator().manual_seed(n)
    return [torch.randint(1, 60, (5 + 7 * (i % 4),), generator=draw).tolist() for i in range(n)]


def loss(policy: Policy, ids: list[int]) -> tuple[Any, int]:
    row = pack([ids], policy.device)
    n = len(ids) - 1
    return -policy.logprobs(row, torch.arange(n), torch.tensor(ids[1:]))[0].sum(), len(ids)


def gradients(policy: Policy) -> list[Any]:
    return [p.grad.clone() for p in policy.model.parameters() if p.grad is not None]


def in_threads(policy: Policy, work: list[list[int]], n: int) -> tuple[list[Any], list[int]]:
    policy.model.zero_grad(set_to_none=True)
    workers = GradientWorkers(policy, n)
    try:
        lengths = workers.backward(work, [len(ids) for ids in work], loss)
    finally:
        workers.close()
    return gradients(policy), lengths


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("n_jobs", [1, 2, 7])
def test_gradients_and_results_are_those_of_one_thread(n: int, n_jobs: int) -> None:
    policy, work = toys.policy(), jobs(n_jobs)
    alone, lengths = in_threads(policy, work, 1)
    shared, same_lengths = in_threads(policy, work, n)
    again, _ = in_threads(policy, work, n)
    assert lengths == same_lengths == [len(ids) for ids in work]
    for a, b, c in zip(alone, shared, again, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
        assert torch.equal(b, c)


def test_replicas_see_the_optimizers_steps() -> None:
    """What is computed after a step is computed with the stepped weights, by every worker."""
    policy, work = toys.policy(), jobs(4)
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=1e-2)
    workers = GradientWorkers(policy, 2)

    def values() -> list[float]:
        return workers.map(work, [1] * 4, lambda replica, ids: float(loss(replica, ids)[0].detach()))

    before = values()
    workers.backward(work, [1] * 4, loss)
    optimizer.step()
    after = values()
    assert all(a < b for a, b in zip(after, before, strict=True))
    expected = [float(loss(policy, ids)[0].detach()) for ids in work]
    assert after == pytest.approx(expected, rel=1e-5)
    workers.close()


def test_an_error_of_one_worker_is_raised_when_all_have_ended() -> None:
    policy, done = toys.policy(), []

    def work(replica: Policy, job: int) -> None:
        if job == 0:
            raise ValueError("job 0")
        done.append(job)

    workers = GradientWorkers(policy, 2)
    with pytest.raises(ValueError, match="job 0"):
        workers.map([0, 1, 2, 3], [9, 1, 1, 1], work)
    assert done == [1, 2, 3]
    workers.close()


@given(st.lists(st.integers(1, 500), max_size=30), st.integers(1, 8))
def test_every_job_isdealt_once_and_evenly(costs: list[int], n: int) -> None:
    shares = deal(costs, n)
    assert sorted(i for share in shares for i in share) == list(range(len(costs)))
    loads = [sum(costs[i] for i in share) for share in shares]
    assert max(loads) - min(loads) <= max(costs, default=0)
