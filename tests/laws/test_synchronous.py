"""Law 4: with staleness 0 the asynchronous machinery is the synchronous loop, bit for bit."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import toys  # noqa: E402

from rollenv.agents.llm import LLMAgent  # noqa: E402
from rollenv.config.algo import AlgoConfig, OptimConfig  # noqa: E402
from rollenv.inference import SamplingParams, TorchEngine  # noqa: E402
from rollenv.rollout.buffer import BatchPlan, SampleBuffer  # noqa: E402
from rollenv.rollout.controller import RolloutController  # noqa: E402
from rollenv.rollout.env_pool import EnvPool  # noqa: E402
from rollenv.rollout.episode import EpisodeLimits  # noqa: E402
from rollenv.rollout.groups import Group, GroupRequest  # noqa: E402
from rollenv.rollout.play import ModelPlay  # noqa: E402
from rollenv.rollout.scheduler import Scheduler  # noqa: E402
from rollenv.rollout.sources import InOrder  # noqa: E402
from rollenv.seeding import TaskOrder, derive_seed  # noqa: E402
from rollenv.trainers.step import PolicyTrainer  # noqa: E402

STEPS, GROUPS, SIZE, SEED = 5, 6, 5, 21


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Threaded(toys.Colours):
    """Lives on a thread of its own: its answers come in any order."""

    executor = "thread"


class Run:
    """A policy, its trainer and its engine. `record` keeps everything that must be equal."""

    def __init__(self, env: type[toys.Colours], **engine: Any) -> None:
        self.policy = toys.warm_policy()
        self.trainer = PolicyTrainer(
            self.policy,
            AlgoConfig.model_validate({"clip_high": 0.28}),
            OptimConfig.model_validate({"lr": 1e-3, "epochs": 2, "minibatches": 2, "microbatch_tokens": 128}),
            STEPS,
        )
        self.engine = TorchEngine(self.policy.model, **engine)
        self.tasks = toys.Colours().tasks.ids("train")
        self.order = TaskOrder(self.tasks, derive_seed(SEED, "tasks"))
        sampling = SamplingParams(max_tokens=5, stop_token_ids=(self.policy.chat.end_of_turn_id,))
        agent = LLMAgent(system="", list_actions=False)
        limits = EpisodeLimits(max_turns=4)
        self.play = ModelPlay(EnvPool(env), "toy", agent, self.engine, self.policy.chat, sampling, limits)
        self.record: list[Any] = []

    async def train_on(self, groups: list[Group], step: int) -> None:
        figures = self.trainer.step(groups)
        self.record.append(
            {
                "tokens": [[t.completion_ids for t in e.turns] for g in groups for e in g.trajectories],
                "prompts": [[t.prompt_ids for t in e.turns] for g in groups for e in g.trajectories],
                "logprobs": [[t.logprobs for t in e.turns] for g in groups for e in g.trajectories],
                "versions": [[t.policy_versions for t in e.turns] for g in groups for e in g.trajectories],
                "rewards": [e.reward for g in groups for e in g.trajectories],
                "tasks": [g.request.task for g in groups],
                "figures": figures,
            }
        )
        await self.engine.update_weights(step + 1, self.policy.state())


async def synchronous() -> Run:
    """The plain loop: one episode after another, then train, then update. No scheduler, no controller."""
    run = Run(toys.Colours)
    try:
        for step in range(STEPS):
            groups = []
            for index in range(step * GROUPS, (step + 1) * GROUPS):
                request = GroupRequest(index, run.order[index], SIZE, SEED, step)
                groups.append(Group(request, [await run.play(episode) for episode in request.episodes()]))
            await run.train_on(groups, step)
    finally:
        await run.engine.close()
    return run


async def asynchronous(env: type[toys.Colours], concurrency: int, **engine: Any) -> Run:
    run = Run(env, **engine)
    scheduler = Scheduler(run.play, concurrency)
    plan = BatchPlan(GROUPS, SIZE, eta=0.0, filter_mode="keep")
    controller = RolloutController(scheduler, SampleBuffer(plan, InOrder(run.order), SEED))
    try:
        for step in range(STEPS):
            batch = await controller.next_batch()
            assert batch.staleness == [0] * GROUPS
            await run.train_on(batch.groups, step)
            controller.weights_updated(step + 1)
    finally:
        await scheduler.close()
        await run.engine.close()
        run.play.pool.close()
    return run


@pytest.fixture(scope="module")
def reference() -> Run:
    toys.warm_policy()  # made (and kept) outside of any event loop
    return asyncio.run(synchronous())


def test_the_reference_learns_something(reference: Run) -> None:
    """Without signal, sampling and updates the comparison below would be empty."""
    assert len(reference.record) == STEPS
    assert all(figures["updates"] > 0 for figures in (entry["figures"] for entry in reference.record))
    assert all(0 < sum(entry["rewards"]) < GROUPS * SIZE for entry in reference.record)
    assert {v for e in reference.record[3]["versions"] for turn in e for v in turn} == {3}


@pytest.mark.parametrize(
    ("env", "concurrency", "engine"),
    [
        (toys.Colours, 16, {}),
        (toys.Colours, 5, {}),
        (Threaded, 16, {}),
        (Threaded, 16, {"max_batch": 3, "max_step_tokens": 16}),  # other batches, prompts in pieces
        (toys.Colours, 16, {"max_sessions": 4}),  # caches evicted and computed again
        (toys.Colours, 16, {"workers": 2}),
    ],
    ids=["all at once", "five at a time", "threads", "small batches", "evictions", "two workers"],
)
def test_asynchronous_without_staleness_equals_synchronous_bit_for_bit(
    reference: Run, env: type[toys.Colours], concurrency: int, engine: dict[str, Any]
) -> None:
    run = asyncio.run(asynchronous(env, concurrency, **engine))
    if not run.engine.exact:
        pytest.skip("this machine's matrix products are not exact in any layout (TorchEngine.exact)")
    for step, (ours, theirs) in enumerate(zip(run.record, reference.record, strict=True)):
        for what in theirs:
            assert ours[what] == theirs[what], f"step {step}: {what} differ"
    weights = reference.policy.state()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in run.policy.state().items())
