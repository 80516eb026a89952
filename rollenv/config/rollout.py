"""How episodes are played: by which agent, sampled how, on which engines."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from rollenv.config.section import Section


class AgentConfig(Section):
    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    name: str = "llm"
    """Which agent; further keys of this section are its arguments (`action_format`, `history`, `system`, ...)."""

    @property
    def arguments(self) -> dict[str, Any]:
        """The agent's own arguments."""
        return dict(self.model_extra or {})


class SamplingConfig(Section):
    """How completions are sampled while training."""

    temperature: float = Field(1.0, gt=0)
    """Temperature of the policy that is trained."""
    top_k: int = Field(0, ge=0)
    """Keep the k most probable tokens; 0 keeps all. Cut distributions make importance ratios inexact."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Keep the smallest set of tokens with this mass."""
    max_tokens: int = Field(64, ge=1)
    """New tokens per turn at most."""


class RolloutConfig(Section):
    """How episodes are played."""

    concurrency: int = Field(128, ge=1)
    """Episodes in flight."""
    groups: int = Field(16, ge=1)
    """Groups (tasks) per training step."""
    group_size: int = Field(8, ge=1)
    """Episodes per group."""
    eta: float = Field(0.0, ge=0)
    """Asynchronous ratio: how many versions old a group may be when it trains; 0 is synchronous."""
    filter: Literal["keep", "drop", "refill"] = "drop"
    """Groups whose episodes all have the same return: train them, leave them out, or play others instead."""
    max_refills: int = Field(32, ge=0)
    """With `refill`, groups replaced per step at most."""
    extra_groups: int = Field(0, ge=0)
    """Groups begun beyond `groups` for a step: the surplus is cancelled when the batch is full, and played later."""
    extra_samples: int = Field(0, ge=0)
    """Episodes begun beyond `group_size` for a group: the surplus is cancelled when the group is complete."""
    selection: Literal["first", "unbiased"] = "first"
    """Which of redundant rollouts count: the first to finish, or those planned, with a spare only in the place of one
    that failed or straggles."""
    straggler_seconds: float | None = Field(None, gt=0)
    """With `unbiased`, an episode that takes longer may be replaced by a spare; none replaces only failures."""
    curriculum: Literal["none", "success"] = "none"
    """Which tasks: all in turn, or, with `success`, fewer of those that nearly always or hardly ever succeed."""
    curriculum_floor: float = Field(0.2, gt=0, le=1)
    """With `success`, the least probability that a task is played when its turn comes."""
    on_update: Literal["continue", "finish"] = "continue"
    """New weights while episodes run: they go on with the new ones in mid-turn, or finish on the old ones first."""
    trees: int = Field(0, ge=0)
    """Groups as trees: so many episodes of a group begin with a reset, the others branch off them and have their first
    turns in common, which are sampled and trained once; 0: all begin with a reset. Environments need snapshots."""
    tree_turn: Literal["random", "entropy"] | Annotated[int, Field(ge=0)] = "random"
    """Where they branch off: at a random turn, at the turns whose tokens were the least certain, or at this turn."""
    max_attempts: int = Field(3, ge=1)
    """Tries of an episode that fails, each on a fresh environment."""
    max_turns: int | None = Field(None, ge=1)
    """Turns per episode; none takes the environment's own."""
    max_tokens: int | None = Field(None, ge=8)
    """Tokens of context per episode, prompt and answers together; none takes the model's own."""
    reset_seconds: float = Field(60.0, gt=0)
    """Deadline of a reset."""
    step_seconds: float = Field(60.0, gt=0)
    """Deadline of a step."""
    generate_seconds: float = Field(300.0, gt=0)
    """Deadline of a completion."""
    episode_seconds: float = Field(3600.0, gt=0)
    """Deadline of an episode."""
    env_executor: Literal["auto", "inline", "thread", "process"] = "auto"
    """Where environments run: on the event loop, each on a thread, or in worker processes. `auto` does as the
    environment says, and measures one that says nothing. Results do not depend on it."""
    env_workers: int = Field(0, ge=0)
    """Worker processes, where environments run in processes; 0 starts one per core."""
    quarantine_after: int | None = Field(8, ge=1)
    """A task of which so many episodes have failed for good is played no more; none never gives up on a task."""
    engine: Literal["torch", "vllm"] = "torch"
    """What generates: the embedded engine, or vLLM, which has settings of its own (`vllm.*`)."""
    replicas: int = Field(1, ge=1)
    """Engines that share the episodes; on CUDA one GPU after another."""
    kv_mib: int = Field(1024, ge=16)
    """Memory for the key-value cache of each engine, MiB."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Arithmetic of the engine."""

    @model_validator(mode="after")
    def _stragglers_need_a_plan(self) -> RolloutConfig:
        if self.straggler_seconds is not None and self.selection == "first":
            raise ValueError("rollout.straggler_seconds needs rollout.selection 'unbiased': else no one is waited for")
        return self

    @model_validator(mode="after")
    def _trees_have_branches(self) -> RolloutConfig:
        if self.trees and self.trees >= self.group_size:
            raise ValueError(
                f"rollout.trees must be below rollout.group_size ({self.group_size}): else none branches off"
            )
        if self.trees and self.extra_samples:
            raise ValueError("rollout.trees and rollout.extra_samples do not go together: leave one of them at 0")
        return self


class VLLMConfig(Section):
    """The engine, where `rollout.engine` is `vllm`; `rollout.kv_mib` and `rollout.precision` hold for it, too."""

    max_model_len: int | None = Field(None, ge=16)
    """Tokens of a session at most, prompt and answers together; none takes the model's own bound."""
    gpu_memory_utilization: float | None = Field(None, gt=0, le=1)
    """Share of a GPU's memory for its weights and cache together; none gives the cache `rollout.kv_mib`."""
    enforce_eager: bool = False
    """Without CUDA graphs and compilation: ready sooner, slower on a GPU. On a CPU it is always so."""
    tensor_parallel: int = Field(1, ge=1)
    """Devices that share a model, with `runtime=local`; on a cluster `devices.per_engine` says it."""
    stale_kv: Literal["keep", "drop", "recompute"] = "drop"
    """Keys and values made by old weights: they stay; they stay for completions under way only; or even these read
    their tokens again."""


class InjectConfig(Section):
    """Chaos: faults injected on purpose. Probabilities are per call of an environment (reset, step) or engine."""

    env_crash: float = Field(0.0, ge=0, le=1)
    """The environment raises."""
    worker_crash: float = Field(0.0, ge=0, le=1)
    """The environment's worker process is killed, with every other environment in it; where there is none, it raises.
    The process cannot tell which of its episodes is to blame, so that others may be counted as `env/crash`."""
    env_hang: float = Field(0.0, ge=0, le=1)
    """The environment never answers: the deadline ends it (`rollout.step_seconds`, `rollout.reset_seconds`)."""
    slow_env: float = Field(0.0, ge=0, le=1)
    """The environment takes `slow_factor` times as long, and `slow_seconds` longer at least."""
    engine_error: float = Field(0.0, ge=0, le=1)
    """The engine fails."""
    engine_hang: float = Field(0.0, ge=0, le=1)
    """The engine never answers: the deadline ends it (`rollout.generate_seconds`)."""
    slow_factor: float = Field(10.0, ge=1)
    """How many times as long a slow call takes."""
    slow_seconds: float = Field(1.0, ge=0)
    """How much longer a slow call takes at least."""

    @property
    def active(self) -> bool:
        """Whether anything is injected at all."""
        env = (self.env_crash, self.worker_crash, self.env_hang, self.slow_env)
        return max(*env, self.engine_error, self.engine_hang) > 0
