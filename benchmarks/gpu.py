"""Tokens per second on a GPU: generation, training, weight sync and the whole step, for Qwen2.5-shaped models.

The weights are random: speed does not depend on them. A step: 8 groups of 8 episodes of three turns, which read 256
tokens and then 64 a turn, and write 128 a turn. Printed for every model and engine:

- generation: sampled tokens per second, all episodes at once, caches kept between turns;
- training: tokens per second of one update in bf16, those of the packed rows, which have what the episodes of a group
  share once; beside them, as if every episode had its own. MFU: the floating-point operations that the rows need
  (6 per token and parameter below the output matrix, 6 per number of that for each sampled token; 12 per layer, width,
  token and token that it attends to; half of the context on average), over what the device can do;
- sync: seconds and GB/s until the engine has confirmed the new weights;
- the step end to end: generation, training, sync, one after another (`eta = 0`).

    python benchmarks/gpu.py [--models 0.5b 1.5b] [--engines torch vllm]

Without --engines vLLM takes part where it is installed. `--device cpu --models tiny` shows that it runs.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import random
import statistics
import time
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

import rollenv
from rollenv.cli.models import seed_policy
from rollenv.config.algo import AlgoConfig, OptimConfig
from rollenv.inference import Engine, SamplingParams, TorchEngine
from rollenv.inference.vllm_engine import VLLMEngine
from rollenv.rollout.groups import Group, GroupRequest
from rollenv.trainers.device import choose_device
from rollenv.trainers.packing import pack
from rollenv.trainers.plan import Planner
from rollenv.trainers.policy import Policy, load_model
from rollenv.trainers.step import PolicyTrainer
from rollenv.trajectory import StopReason, Trajectory, Turn

GROUPS, GROUP_SIZE, TURNS = 8, 8, 3
FIRST, OBSERVATION, COMPLETION = 256, 64, 128
SHAPES: dict[str, dict[str, int]] = {
    "0.5b": {"hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14, "intermediate_size": 4864},
    "1.5b": {"hidden_size": 1536, "num_hidden_layers": 28, "num_attention_heads": 12, "intermediate_size": 8960},
    "tiny": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128},
}
VOCABULARY = {"tiny": 512}
QWEN_VOCABULARY = 151_936
VLLM_MEMORY = 0.4
"""Of the GPU, for vLLM's weights and cache: the policy trains on it, too."""
PEAK_TFLOPS = {"H200": 989, "H100": 989, "A100": 312, "L40S": 362, "4090": 165, "B200": 2250}
"""Dense bf16, by a part of the device's name, as its maker says."""


class Seconds(NamedTuple):
    """Of one step."""

    generation: float
    training: float
    sync: float


def new_qwen(name: str) -> Any:
    """A model of that shape with random weights."""
    vocabulary = VOCABULARY.get(name, QWEN_VOCABULARY)
    config = Qwen2Config(
        vocab_size=vocabulary,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        max_position_embeddings=4096,
        **SHAPES[name],
    )
    torch.manual_seed(0)
    return Qwen2ForCausalLM(config)


def new_engine(kind: str, model: Any, device: str) -> Engine:
    """An engine with a copy of `model`, in bf16 on a GPU."""
    dtype = torch.bfloat16 if device != "cpu" else None
    if kind == "torch":
        return TorchEngine(model, device=device, dtype=dtype)
    share = VLLM_MEMORY if device != "cpu" else None
    return VLLMEngine(model, device=device, dtype=dtype, gpu_memory_utilization=share)


async def episode(engine: Engine, step: int, group: int, sample: int, seed: int) -> Trajectory:
    """Three turns over random pages."""
    draw, history, turns = random.Random(f"{step} {group}"), list[int](), list[Turn]()
    session = f"{step}/{group}/{sample}"
    for turn in range(TURNS):
        page = [draw.randrange(256) for _ in range(OBSERVATION if turn else FIRST)]
        params = SamplingParams(max_tokens=COMPLETION, seed=seed + turn)
        done = await engine.generate(history + page, params, session=session)
        history += page + done.ids
        turns.append(Turn("", page, done.ids, done.logprobs, done.policy_versions, reward=sum(done.ids) % 7 / 7))
    await engine.release(session)
    return Trajectory("bench", str(group), seed, group, sample, turns=turns, stop=StopReason.TERMINATED)


async def generate(engine: Engine, step: int) -> list[Group]:
    """The episodes of a step, all at once."""

    async def group(index: int) -> Group:
        request = GroupRequest(index, str(index), GROUP_SIZE, step)
        samples = (episode(engine, step, index, e.sample, e.seed) for e in request.episodes())
        return Group(request, list(await asyncio.gather(*samples)))

    return list(await asyncio.gather(*(group(index) for index in range(GROUPS))))


async def steps(engine: Engine, trainer: PolicyTrainer, n: int) -> tuple[list[Seconds], list[Group]]:
    """Seconds of `n` steps, after one to warm up, and the groups of the last."""
    found, groups = [], list[Group]()
    for step in range(n + 1):
        clock = [time.perf_counter()]
        groups = await generate(engine, step)
        clock.append(time.perf_counter())
        trainer.step(groups)
        _wait()
        clock.append(time.perf_counter())
        await engine.update_weights(step + 1, trainer.policy.state())
        clock.append(time.perf_counter())
        found.append(Seconds(*(after - before for before, after in pairwise(clock))))
    await engine.close()
    return found[1:], groups


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class Work(NamedTuple):
    """What an update computes: tokens of packed rows, and those whose next token it scores."""

    packed: int
    scored: int


def work_of(groups: list[Group], optim: OptimConfig) -> Work:
    """Of a batch."""
    plan = Planner(AlgoConfig(), optim).plan(groups)
    contents = [micro.content for parts in plan for part in parts for micro in part.micros if micro.content is not None]
    packed = sum(pack(content.ids).ids_T.numel() for content in contents)
    return Work(packed, sum(len(places) for content in contents for places in content.trained))


def training_flops(model: Any, work: Work, length: int) -> float:
    """Floating-point operations of forward and backward (Chowdhery et al. 2022, arXiv 2204.02311, appendix B)."""
    config = model.config
    head = config.vocab_size * config.hidden_size
    body = sum(p.numel() for p in model.parameters()) - head  # tied: reading the embedding costs nothing
    attention = 12 * config.num_hidden_layers * config.hidden_size * length / 2
    return float(work.packed) * (6 * body + attention) + float(work.scored) * 6 * head


def figures(name: str, kind: str, device: str, n: int) -> dict[str, float]:
    """Of one model with one engine."""
    model = new_qwen(name)
    tokenizer = load_model(str(seed_policy(rollenv.spec("webshop"))))[1]
    engine = new_engine(kind, model, device)
    precision = "bf16" if device != "cpu" else "fp32"
    policy = Policy.of(model, tokenizer, device, precision)
    optim = OptimConfig(lr=1e-6, precision=precision)
    trainer = PolicyTrainer(policy, AlgoConfig(), optim, total_steps=10**6)
    timed, groups = asyncio.run(steps(engine, trainer, n))
    median = Seconds(*(statistics.median(one) for one in zip(*timed, strict=True)))
    trainer.close()
    length = FIRST + (TURNS - 1) * OBSERVATION + TURNS * COMPLETION
    tokens, work = GROUPS * GROUP_SIZE * length, work_of(groups, optim)
    sampled = GROUPS * GROUP_SIZE * TURNS * COMPLETION
    gigabytes = sum(p.numel() * p.element_size() for p in model.parameters()) / 1e9
    flops = training_flops(model, work, length) / median.training
    peak = next((peak for part, peak in PEAK_TFLOPS.items() if device != "cpu" and part in _device_name()), None)
    return {
        "generated_tokens_per_second": sampled / median.generation,
        "trained_tokens_per_second": work.packed / median.training,
        "trained_tokens_per_second_unshared": tokens / median.training,
        "training_tflops": flops / 1e12,
        **({"mfu": flops / 1e12 / peak} if peak else {}),
        "sync_seconds": median.sync,
        "sync_gb_per_second": gigabytes / median.sync,
        "step_seconds": sum(median),
    }


def _device_name() -> str:
    return str(torch.cuda.get_device_name()) if torch.cuda.is_available() else "CPU"


def main() -> None:
    engines = ["torch", *(["vllm"] if importlib.util.find_spec("vllm") else [])]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=SHAPES, default=["0.5b", "1.5b"])
    parser.add_argument("--engines", nargs="+", choices=["torch", "vllm"], default=engines)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--steps", type=int, default=5, help="counted steps, after one to warm up")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    device = choose_device(options.device)
    if device == "cpu" and options.models != ["tiny"]:
        parser.exit(2, "there is no GPU here; --device cpu --models tiny shows that it runs\n")
    print(f"{_device_name()}: {GROUPS * GROUP_SIZE} episodes of {TURNS} turns a step")
    both = [(name, kind) for name in options.models for kind in options.engines]
    found = {f"{name} {kind}": figures(name, kind, device, options.steps) for name, kind in both}
    for name, line in found.items():
        print(name)
        for key, value in line.items():
            print(f"  {key:36} {value:12.3f}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
