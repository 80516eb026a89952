"""Training on multi-turn episodes, nothing else: the policy trainer against TRL's GRPOTrainer on the same batch.

The batch: 16 groups of 8 WebShop episodes that the seed policy has just played, with pages between the model's tokens.
Both get the very same token ids, masks, log-probabilities and rewards, ready made, and make one AdamW update with
the clipped loss, token mean, no KL, in fp32, on all cores. TRL takes them from a `rollout_func` (the pages through its
`env_mask`) and is tried with several micro-batch sizes, of which the fastest counts. The two take turns, step by step,
in one process; a token is one that an episode reads or samples, counted once.

    python benchmarks/trainer_throughput.py            # needs the extra: pip install -e '.[bench]'
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "0")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import argparse
import asyncio
import copy
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import rollenv
from rollenv.agents import make_agent
from rollenv.cli.models import seed_policy
from rollenv.config import TrainConfig, load_config
from rollenv.config.algo import AlgoConfig, OptimConfig
from rollenv.inference import TorchEngine
from rollenv.inference.chat import ChatFormat
from rollenv.rollout.env_pool import EnvPool
from rollenv.rollout.groups import Group, GroupRequest
from rollenv.rollout.play import ModelPlay
from rollenv.rollout.setup import episode_limits, sampling_params
from rollenv.trainers.policy import Policy, load_model
from rollenv.trainers.step import PolicyTrainer
from rollenv.trajectory import Trajectory

GROUPS, GROUP_SIZE = 16, 8
LEARNING_RATE = 1e-6
"""Small: every step trains the same episodes, which should stay those of a fresh policy."""


def record(model: Any, tokenizer: Any) -> list[Group]:
    """The batch: GROUPS training tasks, GROUP_SIZE episodes each."""
    spec = rollenv.spec("webshop")
    config = load_config(TrainConfig, "webshop")
    chat, engine = ChatFormat(tokenizer), TorchEngine(model, tokenizer=tokenizer)
    play = ModelPlay(
        EnvPool(lambda: rollenv.make(spec)),
        spec.id,
        make_agent(spec, config.agent.name, config.agent.arguments),
        engine,
        chat,
        sampling_params(config.sampling, chat, 1.0),
        episode_limits(config.rollout, spec, engine.max_length),
    )

    async def group(index: int, task: str) -> Group:
        request = GroupRequest(index, task, GROUP_SIZE, index)
        return Group(request, list(await asyncio.gather(*(play(episode) for episode in request.episodes()))))

    async def groups() -> list[Group]:
        tasks = rollenv.make(spec).tasks.ids("train")[:GROUPS]
        played = await asyncio.gather(*(group(index, task) for index, task in enumerate(tasks)))
        await engine.close()
        return list(played)

    return asyncio.run(groups())


def as_rollout(episodes: Sequence[Trajectory]) -> dict[str, list[Any]]:
    """What TRL's `rollout_func` returns for them: everything after the first prompt is completion, and `env_mask` says
    which of its tokens are the model's."""
    rollout: dict[str, list[Any]] = {
        name: [] for name in ("prompt_ids", "completion_ids", "logprobs", "env_mask", "worth")
    }
    for episode in episodes:
        first, *others = episode.turns
        ids, logprobs = list(first.completion_ids), list(first.logprobs)
        mask = [1] * len(ids)
        for turn in others:
            ids += [*turn.prompt_ids, *turn.completion_ids]
            logprobs += [*[0.0] * len(turn.prompt_ids), *turn.logprobs]
            mask += [*[0] * len(turn.prompt_ids), *[1] * len(turn.completion_ids)]
        rollout["prompt_ids"].append(list(first.prompt_ids))
        rollout["completion_ids"].append(ids)
        rollout["logprobs"].append(logprobs)
        rollout["env_mask"].append(mask)
        rollout["worth"].append(sum(turn.reward for turn in episode.turns))
    return rollout


def trl_trainer(model: Any, tokenizer: Any, rollout: dict[str, list[Any]], micro: int, steps: int, out: str) -> Any:
    """TRL's trainer, whose every step trains on `rollout`."""
    from datasets import Dataset
    from trl import GRPOConfig
    from trl import GRPOTrainer as TrlTrainer

    config = GRPOConfig(
        output_dir=out,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=GROUPS * GROUP_SIZE // micro,
        num_generations=GROUP_SIZE,
        max_completion_length=max(map(len, rollout["completion_ids"])),
        learning_rate=LEARNING_RATE,
        max_steps=steps,
        beta=0.0,
        loss_type="dapo",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )

    def reward(worth: list[float], **kwargs: Any) -> list[float]:
        return worth

    return TrlTrainer(
        model=copy.deepcopy(model),
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": ["a"] * (GROUPS * steps)}),
        processing_class=tokenizer,
        rollout_func=lambda prompts, trainer: rollout,
    )


def their_seconds(trainer: Any) -> list[float]:
    """Seconds of each of its steps."""
    from transformers import TrainerCallback

    seconds: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        began = 0.0

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            seconds.append(time.perf_counter() - self.began)
            self.began = time.perf_counter()

    clock = Clock()
    trainer.add_callback(clock)
    clock.began = time.perf_counter()
    trainer.train()
    return seconds


def our_seconds(trainer: PolicyTrainer, groups: list[Group], steps: int) -> tuple[list[float], float]:
    """Seconds of each step, and the share of attention's queries that was padding."""
    seconds, padding = [], 0.0
    for _ in range(steps):
        began = time.perf_counter()
        padding = trainer.step(groups)["padding_share"]
        seconds.append(time.perf_counter() - began)
    return seconds, padding


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how often all take their turn")
    parser.add_argument("--steps", type=int, default=2, help="counted steps of a turn, after one to warm up")
    parser.add_argument("--micro", type=int, nargs="+", default=[8, 16, 32], help="micro-batches that TRL tries")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    model, tokenizer = load_model(str(seed_policy(rollenv.spec("webshop"))))
    groups = record(model, tokenizer)
    episodes = [episode for group in groups for episode in group.trajectories]
    rollout = as_rollout(episodes)
    lengths = [len(p) + len(c) for p, c in zip(rollout["prompt_ids"], rollout["completion_ids"], strict=True)]
    trainer = PolicyTrainer(
        Policy.of(copy.deepcopy(model), tokenizer), AlgoConfig(), OptimConfig(lr=LEARNING_RATE), total_steps=10**6
    )
    ours: list[float] = []
    theirs: dict[int, list[float]] = {micro: [] for micro in options.micro}
    for _ in range(options.rounds):
        seconds, padding = our_seconds(trainer, groups, options.steps + 1)
        ours += seconds[1:]
        for micro in options.micro:
            with tempfile.TemporaryDirectory() as folder:
                trl = trl_trainer(model, tokenizer, rollout, micro, options.steps + 1, folder)
                theirs[micro] += their_seconds(trl)[1:]
    trainer.close()
    show(lengths, padding, ours, theirs, options.json)


def show(
    lengths: list[int], padding: float, ours: list[float], theirs: dict[int, list[float]], file: Path | None
) -> None:
    """Prints the table."""
    tokens = sum(lengths)
    print(f"{len(lengths)} episodes, {tokens} tokens, {min(lengths)} to {max(lengths)} each")
    print(f"side by side they would be {100 * (1 - tokens / (len(lengths) * max(lengths))):.0f}% padding")
    print(f"packed, {100 * padding:.1f}% of attention's queries are, and nothing in other layers")
    rates = {f"TRL, micro-batches of {micro}": tokens / statistics.median(s) for micro, s in theirs.items()}
    best = max(rates.values())
    rates["rollenv"] = tokens / statistics.median(ours)
    for name, rate in rates.items():
        print(f"{name:26} {rate:10.0f} tokens/s")
    print(f"ratio to the best of TRL   {rates['rollenv'] / best:10.2f}")
    if file is not None:
        file.write_text(json.dumps(rates | {"ratio": rates["rollenv"] / best}, indent=1))


if __name__ == "__main__":
    main()
