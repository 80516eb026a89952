"""From settings to what plays episodes: the engine, the environments, the sampling and the bounds of an episode."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rollenv.config.rollout import RolloutConfig, SamplingConfig, VLLMConfig
from rollenv.core import TextEnv
from rollenv.errors import RollenvError
from rollenv.inference.base import Engine, SamplingParams
from rollenv.inference.chat import ChatFormat
from rollenv.inference.proxy import LLMProxy
from rollenv.registration import EnvSpec, make
from rollenv.rollout.buffer import BatchPlan, Choice
from rollenv.rollout.env_pool import Environments, EnvPool, close_aside
from rollenv.rollout.env_workers import WorkerPool
from rollenv.rollout.episode import EpisodeLimits
from rollenv.rollout.placement import declared, measured
from rollenv.rollout.selection import Worth
from rollenv.rollout.sources import Curriculum, InOrder, TaskSource
from rollenv.rollout.timeline import Timeline
from rollenv.seeding import TaskOrder, derive_seed

if TYPE_CHECKING:
    from rollenv.inference.torch_engine import TorchEngine
    from rollenv.inference.vllm_engine import VLLMEngine


def model_engine(
    model: Any,
    tokenizer: Any,
    device: str,
    config: RolloutConfig,
    timeline: Timeline | None = None,
    vllm: VLLMConfig | None = None,
    wrap: Callable[[Engine], Engine] = lambda engine: engine,
) -> Engine:
    """An engine with a copy of `model`, or as many behind a proxy as `config.replicas` says, one GPU after another;
    each in `wrap`, and drawn on `timeline`. `vllm` are the settings of vLLM, where `config.engine` is that.

    Raises:
        RollenvError: the engine cannot be had here.
    """
    draw = timeline.engine if timeline is not None else (lambda engine, name: engine)
    if config.replicas == 1:
        return draw(wrap(single_engine(model, tokenizer, device, config, vllm)), "engine")
    import torch  # here and below: a simulation needs only the rest of this file

    here = torch.cuda.device_count() if device == "cuda" else 0
    devices = [f"cuda:{i % here}" if here else device for i in range(config.replicas)]
    engines = [wrap(single_engine(model, tokenizer, on, config, vllm)) for on in devices]
    drawn = [draw(engine, f"replica-{i}") for i, engine in enumerate(engines)]
    # An episode's own deadline passes first: a slow completion is that episode's misfortune, not its replica's death.
    return LLMProxy(drawn, stall_seconds=2 * config.generate_seconds)


def single_engine(
    model: Any, tokenizer: Any, device: str, config: RolloutConfig, vllm: VLLMConfig | None = None
) -> Engine:
    """The engine that `config.engine` names, with a copy of `model`."""
    if config.engine == "vllm":
        return vllm_engine(model, tokenizer, device, config, vllm or VLLMConfig.model_validate({}))
    return torch_engine(model, tokenizer, device, config)


def torch_engine(model: Any, tokenizer: Any, device: str, config: RolloutConfig) -> TorchEngine:
    """An embedded engine with a copy of `model`."""
    import torch

    from rollenv.inference.torch_engine import TorchEngine

    return TorchEngine(
        model,
        tokenizer=tokenizer,
        device=device,
        dtype=torch.bfloat16 if config.precision == "bf16" else None,
        kv_budget_bytes=config.kv_mib * 2**20,
        max_sessions=2 * config.concurrency,  # of episodes in flight, and of those that others branch off
    )


def vllm_engine(
    model: Any, tokenizer: Any, device: str, config: RolloutConfig, vllm: VLLMConfig, can_sleep: bool = False
) -> VLLMEngine:
    """vLLM with a copy of `model`.

    Raises:
        RollenvError: vLLM is not installed, or does not start.
    """
    import torch

    from rollenv.inference.vllm_engine import VLLMEngine

    return VLLMEngine(
        model,
        tokenizer=tokenizer,
        device=device,
        dtype=torch.bfloat16 if config.precision == "bf16" else None,
        kv_budget_bytes=config.kv_mib * 2**20,
        max_batch=config.concurrency,
        can_sleep=can_sleep,
        **vllm.model_dump(),
    )


def env_pool(
    spec: EnvSpec, arguments: Mapping[str, Any], config: RolloutConfig, snapshots: bool = False
) -> Environments:
    """Environments of `spec` where `config` or the environment says (see `rollenv.rollout.placement`); to be closed.

    Args:
        snapshots: whether they need to have them.

    Raises:
        RollenvError: one cannot be made, or not in another process although it shall be, or has no snapshots.
    """
    first = make(spec, **arguments)
    if snapshots and type(first).snapshot is TextEnv.snapshot:
        first.close()
        raise RollenvError(
            f"environment '{spec.id}' has no snapshots, from which algo.advantage=vine and rollout.trees play on: "
            "give it snapshot() and restore(), or take another advantage, such as gigpo, and rollout.trees=0"
        )
    placement = declared(config.env_executor, spec, type(first))
    unused = placement is not None
    if placement is None:
        placement = measured(spec, first, arguments)
    if placement != "process":
        spare = first if unused else None
        pool = EnvPool(lambda: make(spec, **arguments), placement, spec.max_concurrency, spare)
        if not unused:
            close_aside([first])
        return pool
    seconds = (config.reset_seconds, config.step_seconds)
    return WorkerPool(spec, arguments, first.tasks, config.env_workers or None, *seconds, owner=first)


def sampling_params(config: SamplingConfig, chat: ChatFormat, temperature: float | None = None) -> SamplingParams:
    """How to sample one answer; `temperature` replaces the one of the settings. Each turn puts its own seed in."""
    return SamplingParams(
        max_tokens=config.max_tokens,
        temperature=config.temperature if temperature is None else temperature,
        top_k=config.top_k,
        top_p=config.top_p,
        stop_token_ids=(chat.end_of_turn_id,),
    )


def batch_plan(config: RolloutConfig, worth: Worth, choice: Choice = list) -> BatchPlan:
    """What makes up a batch; `worth` is what an episode is worth to the trainer, `choice` picks the groups it wants."""
    return BatchPlan(
        groups=config.groups,
        size=config.group_size,
        eta=config.eta,
        filter_mode=config.filter,
        max_refills=config.max_refills,
        extra_groups=config.extra_groups,
        extra_samples=config.extra_samples,
        selection=config.selection,
        worth=worth,
        choice=choice,
    )


def task_source(config: RolloutConfig, order: TaskOrder, seed: int) -> TaskSource:
    """Where the tasks of a run come from."""
    if config.curriculum == "success":
        return Curriculum(order, derive_seed(seed, "curriculum"), config.curriculum_floor)
    return InOrder(order)


def episode_limits(config: RolloutConfig, spec: EnvSpec, context: int | None = None) -> EpisodeLimits:
    """The bounds of an episode of `spec`; `context` are the most tokens that model and engine can hold."""
    bounds = [bound for bound in (config.max_tokens, context) if bound is not None]
    return EpisodeLimits(
        max_turns=config.max_turns or spec.max_turns,
        max_tokens=min(bounds, default=None),
        reset_seconds=config.reset_seconds,
        step_seconds=config.step_seconds,
        generate_seconds=config.generate_seconds,
        episode_seconds=config.episode_seconds,
    )
