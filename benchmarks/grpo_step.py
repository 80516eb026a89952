"""One GRPO step, sampling included, against TRL's GRPOTrainer: same model, same prompts, same number of tokens.

Both sample 16 x 8 completions of exactly 64 tokens for prompts of 192 tokens with temperature 1, score them with the
same function (the share of even token ids), and make one AdamW update with the clipped loss, token mean, no KL, in
fp32. The two take turns, step by step, in one process; the ratio is that of the median seconds per step.

    python benchmarks/grpo_step.py            # needs the extra: pip install -e '.[bench]'
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "0")

import argparse
import asyncio
import copy
import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from rollenv.config.algo import AlgoConfig, OptimConfig
from rollenv.inference.base import SamplingParams
from rollenv.inference.torch_engine import TorchEngine
from rollenv.rollout.groups import Group, GroupRequest
from rollenv.trainers.policy import Policy
from rollenv.trainers.scratch import ScratchShape, new_model, train_tokenizer
from rollenv.trainers.step import PolicyTrainer
from rollenv.trajectory import StopReason, Trajectory, Turn

GROUPS, GROUP_SIZE, PROMPT, COMPLETION = 16, 8, 192, 64
LEARNING_RATE = 1e-5


def reward_of(ids: list[int]) -> float:
    """The share of even ids: cheap, and different for every completion."""
    return sum(token % 2 == 0 for token in ids) / len(ids)


def make_prompts(tokenizer: Any, words: list[str], steps: int) -> list[list[list[int]]]:
    """Per step, GROUPS prompts of PROMPT ids, which are the encoding of their own text (TRL is given the text)."""
    rng = random.Random(0)

    def prompt() -> list[int]:
        while True:
            ids = list(tokenizer.encode(" ".join(rng.choices(words, k=PROMPT))))[:PROMPT]
            if list(tokenizer.encode(tokenizer.decode(ids))) == ids:
                return ids

    return [[prompt() for _ in range(GROUPS)] for _ in range(steps)]


class Ours:
    """rollenv: the embedded engine samples, PolicyTrainer updates, the weights go back to the engine."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.policy = Policy.of(copy.deepcopy(model), tokenizer)
        self.trainer = PolicyTrainer(self.policy, AlgoConfig(), OptimConfig(lr=LEARNING_RATE), total_steps=1000)
        self.engine = TorchEngine(model, tokenizer=tokenizer)
        self.step_index = 0

    async def step(self, prompts: list[list[int]]) -> int:
        """One step; returns the tokens read and sampled."""
        groups = await asyncio.gather(*(self._group(index, ids) for index, ids in enumerate(prompts)))
        self.trainer.step(groups)
        self.step_index += 1
        await self.engine.update_weights(self.step_index, self.policy.state())
        return sum(t.n_prompt_tokens + t.n_completion_tokens for group in groups for t in group.trajectories)

    async def _group(self, index: int, ids: list[int]) -> Group:
        request = GroupRequest(index, str(index), GROUP_SIZE, self.step_index)
        return Group(
            request, await asyncio.gather(*(self._episode(e.seed, index, e.sample, ids) for e in request.episodes()))
        )

    async def _episode(self, seed: int, group: int, sample: int, ids: list[int]) -> Trajectory:
        session = f"{self.step_index}/{group}/{sample}"
        done = await self.engine.generate(ids, SamplingParams(max_tokens=COMPLETION, seed=seed), session=session)
        await self.engine.release(session)
        turn = Turn("", ids, done.ids, done.logprobs, done.policy_versions, reward=reward_of(done.ids))
        return Trajectory("bench", str(group), seed, group, sample, turns=[turn], stop=StopReason.TERMINATED)


def trl_trainer(model: Any, tokenizer: Any, prompts: list[list[list[int]]], folder: str) -> Any:
    """TRL's trainer over the same prompts, one training step for each GROUPS of them."""
    from datasets import Dataset
    from trl import GRPOConfig
    from trl import GRPOTrainer as TrlTrainer

    texts = [tokenizer.decode(ids) for step in prompts for ids in step]
    config = GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=GROUPS * GROUP_SIZE,
        num_generations=GROUP_SIZE,
        max_completion_length=COMPLETION,
        generation_kwargs={"min_new_tokens": COMPLETION},
        learning_rate=LEARNING_RATE,
        max_steps=len(prompts),
        beta=0.0,
        temperature=1.0,
        loss_type="dapo",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        shuffle_dataset=False,
    )

    def reward(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
        return [reward_of(ids) for ids in completion_ids]

    return TrlTrainer(
        model=copy.deepcopy(model),
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": texts}),
        processing_class=tokenizer,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=5, help="counted steps of each, after one to warm up")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    rng = random.Random(1)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=5)) for _ in range(3000)]
    tokenizer = train_tokenizer([" ".join(rng.choices(words, k=50)) for _ in range(400)], 1500)
    tokenizer.chat_template = None
    model = new_model(ScratchShape(vocabulary=1500, context=1024), tokenizer, seed=0)
    prompts = make_prompts(tokenizer, words, args.steps + 1)
    ours, theirs, tokens = measure(model, tokenizer, prompts)
    figures = {
        "rollenv_seconds_per_step": statistics.median(ours[1:]),
        "trl_seconds_per_step": statistics.median(theirs[1:]),
        "rollenv_tokens_per_second": tokens / statistics.median(ours[1:]),
        "trl_tokens_per_second": tokens / statistics.median(theirs[1:]),
    }
    figures["ratio"] = figures["rollenv_tokens_per_second"] / figures["trl_tokens_per_second"]
    for name, value in figures.items():
        print(f"{name:28} {value:10.2f}")
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1))


def measure(model: Any, tokenizer: Any, prompts: list[list[list[int]]]) -> tuple[list[float], list[float], int]:
    """Seconds of each step of both, in turns, and the tokens (read and sampled) of a step, the same for both."""
    from transformers import TrainerCallback

    ours = Ours(model, tokenizer)
    loop = asyncio.new_event_loop()
    our_seconds: list[float] = []
    their_seconds: list[float] = []
    tokens = 0

    class Turns(TrainerCallback):  # type: ignore[misc]
        """Lets ours make a step after each of TRL's, outside of its time."""

        began = 0.0

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            nonlocal tokens
            their_seconds.append(time.perf_counter() - self.began)
            start = time.perf_counter()
            tokens = loop.run_until_complete(ours.step(prompts[len(our_seconds)]))
            our_seconds.append(time.perf_counter() - start)
            self.began = time.perf_counter()

    turns = Turns()
    with tempfile.TemporaryDirectory() as folder:
        trainer = trl_trainer(model, tokenizer, prompts, folder)
        trainer.add_callback(turns)
        turns.began = time.perf_counter()
        trainer.train()
    loop.run_until_complete(ours.engine.close())
    return our_seconds, their_seconds, tokens


if __name__ == "__main__":
    main()
