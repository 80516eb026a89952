"""What `rollenv train` can be told. Every field says what it means where it is declared."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator


class Section(BaseModel):
    """A frozen section that refuses keys it does not know.

    TOML has no null: the text "none" stands for it wherever the field may be none, and in free arguments.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _read_none(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {key: cls._without_none(key, value) for key, value in data.items()}

    @classmethod
    def _without_none(cls, key: str, value: Any) -> Any:
        field = cls.model_fields.get(key)
        if field is not None and get_origin(field.annotation) is dict and isinstance(value, dict):
            return {name: None if item == "none" else item for name, item in value.items()}
        may_be_none = field is None or type(None) in get_args(field.annotation)
        return None if value == "none" and may_be_none else value


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


Loss = Literal["ppo_clip", "decoupled_ppo", "gspo", "cispo", "topr", "kimi", "plain"]
Advantage = Literal[
    "grpo",
    "dr_grpo",
    "rloo",
    "liteppo",
    "raft",
    "return",
    "gigpo",
    "turn_return",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "gae",
    "gae_turn",
    "gae_bilevel",
    "vine",
]

LOSS_BOUNDS: dict[str, tuple[float, float]] = {"gspo": (3e-4, 4e-4), "cispo": (1.0, 4.0)}
"""clip_low and clip_high of the losses whose papers have other ones than PPO's 0.2 and 0.2."""


class AlgoConfig(Section):
    """The algorithm: an advantage, a loss, an aggregation, a proximal policy, a correction, a rejection and a KL term,
    each chosen by name (docs/algorithms.md). `algo=NAME` on the command line sets them all to those of a paper."""

    reward: Literal["return", "success"] = "return"
    """What an episode is worth: the sum of its rewards, or 1 for a success and 0 for anything else."""
    invalid_penalty: float = Field(0.0, ge=0)
    """Subtracted from that for each action that the environment refused."""
    overlong_length: int | None = Field(None, ge=1)
    """L_max of the soft overlong penalty, in sampled tokens of an episode; none takes no penalty."""
    overlong_cache: int = Field(4096, ge=1)
    """The penalty rises from 0 to 1 over the last so many tokens before `overlong_length`."""
    advantage: Advantage = "grpo"
    """What a token's advantage is: relative to its group (`grpo`, `dr_grpo`, `rloo`, `liteppo`, `raft`, `return`), also
    to turns in the same state (`gigpo`) or at the same place (`turn_return`), by the batch alone (`reinforce_pp`,
    `reinforce_pp_baseline`), by a critic (`gae`, `gae_turn`, `gae_bilevel`), by branches from each turn (`vine`)."""
    gamma: float = Field(0.95, gt=0, le=1)
    """Discount over turns (`gigpo`, `turn_return`, `gae_turn`, `gae_bilevel`, `vine`)."""
    gamma_token: float = Field(1.0, gt=0, le=1)
    """Discount over tokens (`gae`, `gae_bilevel`, `reinforce_pp`)."""
    lam: float = Field(1.0, ge=0, le=1)
    """Lambda of generalised advantage estimation."""
    branches: int = Field(9, ge=1)
    """K, episodes played from a state to value it (`vine`)."""
    branch_every: int = Field(1, ge=1)
    """Of an episode, the states before every so many turns are valued (`vine`)."""
    branch_budget: int | None = Field(None, ge=1)
    """At most so many branches for an episode, at fewer of these states, evenly spread; none sets no bound (`vine`)."""
    step_weight: float = Field(1.0, ge=0)
    """Weight of the turns' own advantage beside the episode's (`gigpo`)."""
    scale: bool = True
    """Divide by the standard deviation (`gigpo`, `turn_return`)."""
    baseline: float = 0.0
    """Subtracted from the return (`return`)."""
    whiten: bool = False
    """Give the advantages of the batch's model tokens mean 0 and standard deviation 1."""
    train_share: float = Field(1.0, gt=0, le=1)
    """Share of a batch's groups that trains: those whose returns are spread most."""
    loss: Loss = "ppo_clip"
    """Loss per token."""
    clip_low: float = Field(0.2, ge=0, le=1)
    """Ratios below 1 - clip_low are clipped. Where it is not set, the loss's own: 0.2, `gspo` 3e-4, `cispo` 1."""
    clip_high: float = Field(0.2, ge=0)
    """Ratios above 1 + clip_high are clipped. Where it is not set, the loss's own: 0.2, `gspo` 4e-4, `cispo` 4."""
    dual_clip: float | None = Field(None, gt=1)
    """Bound on the loss of tokens with negative advantage, as a multiple of it."""
    tau: float = Field(0.1, ge=0)
    """Weight of the squared log ratio (`kimi`)."""
    unit: Literal["episode", "turn"] = "episode"
    """What one sequence is to the losses and corrections that look at whole sequences."""
    aggregation: Literal["token_mean", "seq_mean_token_sum", "seq_mean_token_mean", "constant"] = "token_mean"
    """How token losses become one number."""
    constant_length: int | None = Field(None, ge=1)
    """L_max of the aggregation `constant`."""
    proximal: Literal["recompute", "interpolate", "sampler"] = "recompute"
    """The policy pi_old that ratios are taken against: the one before the step's first update, a log-linear mean of
    sampler and current policy by the age of the token, or the sampler itself."""
    kl_coef: float = Field(0.0, ge=0)
    """Weight of the KL divergence to the policy the run started from; 0 keeps no reference in memory."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of that divergence."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Whether it is part of the loss, with its gradient, or is subtracted from the tokens' rewards."""
    kl_target: float | None = Field(None, gt=0)
    """Steers `kl_coef` so that the divergence comes near this; none leaves it fixed."""
    kl_horizon: int = Field(10000, ge=1)
    """With `kl_target`, episodes over which the coefficient may double or so: the higher, the slower."""
    entropy_coef: float = 0.0
    """Weight of an entropy bonus."""
    correction: Literal["none", "tis", "tis_sequence", "icepop"] = "none"
    """Weight for the gap between sampler and trainer."""
    tis_cap: float = Field(2.0, gt=0)
    """Cap C of truncated importance sampling."""
    icepop_low: float = Field(0.5, ge=0)
    """Lower bound of the ratios that `icepop` lets train."""
    icepop_high: float = Field(5.0, gt=0)
    """Upper bound of the ratios that `icepop` lets train."""
    rejection: Literal["none", "geometric", "opsm"] = "none"
    """Which sequences do not train: those whose geometric mean ratio to the sampler leaves a band, or those of
    negative advantage that the policy has moved away from."""
    reject_low: float = Field(0.999, ge=0)
    """Lower end of the band (`geometric`)."""
    reject_high: float = Field(1.001, gt=0)
    """Upper end of the band (`geometric`)."""
    opsm_threshold: float = Field(1e-4, ge=0)
    """Mean log ratio beyond which `opsm` drops a sequence."""

    @model_validator(mode="before")
    @classmethod
    def _own_bounds(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        bounds = dict(zip(("clip_low", "clip_high"), LOSS_BOUNDS.get(str(data.get("loss")), (0.2, 0.2)), strict=True))
        given = {key: value for key, value in data.items() if key not in bounds or value not in (None, "none")}
        return bounds | given

    @model_validator(mode="after")
    def _goes_together(self) -> AlgoConfig:
        if self.aggregation == "constant" and self.constant_length is None:
            raise ValueError("aggregation 'constant' needs algo.constant_length")
        if self.loss == "decoupled_ppo" and self.correction != "none":
            raise ValueError("loss 'decoupled_ppo' is weighted by pi_old / mu already: leave algo.correction at 'none'")
        if self.loss == "decoupled_ppo" and self.proximal == "sampler":
            raise ValueError("loss 'decoupled_ppo' needs algo.proximal 'recompute' or 'interpolate'")
        if self.advantage == "vine" and self.kl_in == "reward" and self.kl_coef > 0:
            raise ValueError("advantage 'vine' needs algo.kl_in 'loss': branches pay no KL penalty")
        if self.branch_budget is not None and self.branch_budget < self.branches:
            raise ValueError(f"algo.branch_budget must allow the {self.branches} algo.branches of one state at least")
        if self.kl_target is not None and self.kl_coef == 0:
            raise ValueError("algo.kl_target needs algo.kl_coef above 0 to begin with")
        return self

    @property
    def needs_critic(self) -> bool:
        """Whether its advantages come from values that are learned."""
        return self.advantage.startswith("gae")

    @property
    def by_sequence(self) -> bool:
        """Whether what a token trains with depends on the other tokens of its sequence."""
        return (
            self.loss in ("gspo", "topr")
            or self.correction == "tis_sequence"
            or self.rejection in ("geometric", "opsm")
        )


class CriticConfig(Section):
    """The critic, where `algo.advantage` asks for one (`gae`, `gae_turn`, `gae_bilevel`)."""

    kind: Literal["head", "model"] = "head"
    """A linear value head on the policy's own last hidden state, or a model of its own (a copy of the policy to begin
    with) with such a head."""
    value_lr: float = Field(1e-5, gt=0)
    """Learning rate of the critic's own weights; it follows `optim.schedule`."""
    value_coef: float = Field(0.5, ge=0)
    """Weight of the value loss beside the policy's, where they share the model (`head`)."""
    value_clip: float | None = Field(0.2, gt=0)
    """Values may move so far from what they were before the step; beyond it their loss has no gradient. None: any way
    they like."""
    critic_warmup: int = Field(0, ge=0)
    """Training steps at the beginning in which only the critic learns (its head alone, where they share the model)."""


class HealthConfig(Section):
    """The collapse detector: signs that a policy is being destroyed, and what is done about them."""

    action: Literal["warn", "stop", "slow"] = "warn"
    """On collapse: say so, stop the run (a checkpoint is written), or multiply the learning rate by `slow_factor`."""
    slow_factor: float = Field(0.5, gt=0, lt=1)
    """What `slow` multiplies the learning rate by, each time."""
    patience: int = Field(3, ge=1)
    """Training steps in a row that show the same sign before it counts."""
    window: int = Field(10, ge=1)
    """Steps over which what is usual is taken: the first ones of the run, or the last ones."""
    entropy_share: float | None = Field(0.02, gt=0)
    """Sign: entropy below this share of the first steps' mean. None: not looked at; so below."""
    grad_spike: float | None = Field(20.0, gt=1)
    """Sign: gradient norm above so many times the median of the last steps."""
    reward_share: float | None = Field(0.5, gt=0, lt=1)
    """Sign: mean reward of the last steps below this share of the best such mean of the run."""
    length_factor: float | None = Field(4.0, gt=1)
    """Sign: tokens per turn above so many times, or below one such part of, the first steps' mean."""
    mismatch_limit: float | None = Field(0.5, gt=0)
    """Sign: KL(mu || pi_old) between sampler and trainer above this."""
    clip_limit: float | None = Field(0.5, gt=0, le=1)
    """Sign: share of clipped tokens above this."""


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


class OptimConfig(Section):
    """How weights are updated."""

    lr: float = Field(1e-6, gt=0)
    """Learning rate of AdamW."""
    betas: tuple[float, float] = (0.9, 0.99)
    """Decay of AdamW's two averages."""
    eps: float = Field(1e-8, gt=0)
    """AdamW's epsilon."""
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled weight decay of matrices."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning-rate schedule over the run's training steps."""
    warmup: int = Field(0, ge=0)
    """Training steps of linear warm-up."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradients are scaled down to this norm."""
    epochs: int = Field(1, ge=1)
    """Passes over each batch."""
    minibatches: int = Field(1, ge=1)
    """Updates per pass; each takes its part of the groups."""
    microbatch_tokens: int = Field(16384, ge=64)
    """Tokens per forward pass: gradients are accumulated over as many as a minibatch needs."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Arithmetic of training (weights stay in fp32)."""


class EvalConfig(Section):
    """Evaluation on a fixed panel while training."""

    every: int = Field(20, ge=0)
    """Training steps between evaluations; 0 evaluates at the end only."""
    episodes: int = Field(200, ge=1)
    """Tasks on the panel: the first of the split."""
    split: str = "test"
    """Split of the panel."""
    temperature: float = Field(0.0, ge=0)
    """Temperature of evaluation; 0 takes the most probable token."""


class CheckpointConfig(Section):
    """What is kept on disk."""

    every: int = Field(20, ge=0)
    """Training steps between checkpoints; 0 writes one at the end only. Ctrl-C always writes one."""
    keep: int = Field(2, ge=1)
    """Checkpoints kept, the newest."""
    upload: str | None = None
    """Called with the folder of each checkpoint once it is whole, while training goes on: `module:function`, or a shell
    command, to which the folder is appended. Its failure is a warning."""


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


class DevicesConfig(Section):
    """Which devices train and which generate. They are numbered through the cluster, node after node: `0-3,6`."""

    policy: str = ""
    """Devices that train, one rank each; empty, with `rollout` empty too: no mapping, `device` decides."""
    rollout: str = ""
    """Devices that generate."""
    ranks: int = Field(1, ge=1)
    """Training ranks where no devices are named: processes on the CPU (`rollout.replicas` are the engines)."""
    per_engine: int = Field(1, ge=1)
    """Devices of one engine (tensor parallel)."""
    share: bool = False
    """Devices named in both train and generate by turns: engines sleep while they train."""
    offload: Literal["none", "host", "disk"] = "host"
    """With `share`: where the optimizer's state is while its device generates: where it was, in the host's memory, or
    in a file that has no name ($TMPDIR says on which disk)."""

    @model_validator(mode="before")
    @classmethod
    def _single_devices_are_text(cls, data: Any) -> Any:
        # `devices.policy=3` reads as a number.
        if not isinstance(data, dict):
            return data
        return {k: str(v) if k in ("policy", "rollout") and type(v) is int else v for k, v in data.items()}

    @model_validator(mode="after")
    def _offload_needs_turns(self) -> DevicesConfig:
        if self.offload == "disk" and not self.share:
            raise ValueError(
                "devices.offload=disk is for devices that train and generate by turns: say devices.share=true"
            )
        return self


class StrategyConfig(Section):
    """How the training of the policy is spread over ranks: `strategy=NAME`, and what differs from it."""

    kind: Literal["auto", "single", "ddp", "fsdp2"] = "auto"
    """One process; replicas whose gradients are summed; weights, gradients and optimizer state in shards (FSDP2);
    `auto` is `single` with one rank and `ddp` with several."""
    recompute: bool = False
    """Activation checkpointing: a layer's activations are computed again in the backward pass rather than kept."""
    reshard: bool = True
    """With `fsdp2`: a layer's weights are taken apart after its forward pass, too; `false` costs memory and saves
    traffic."""
    reduce: Literal["fp32", "bf16"] = "fp32"
    """With `fsdp2` and `optim.precision=bf16`: type that gradients are summed in."""
    cpu_offload: bool = False
    """With `fsdp2` on GPUs: shards, gradients and optimizer state stay in the host's memory."""

    @model_validator(mode="before")
    @classmethod
    def _may_be_named(cls, data: Any) -> Any:
        return {"kind": data} if isinstance(data, str) else data

    @model_validator(mode="after")
    def _options_are_the_kinds_own(self) -> StrategyConfig:
        usual = StrategyConfig.model_fields
        for name in ("reshard", "reduce", "cpu_offload"):
            if self.kind != "fsdp2" and getattr(self, name) != usual[name].default:
                raise ValueError(f"strategy.{name} is an option of strategy=fsdp2, not of strategy={self.kind}")
        return self


class LoraConfig(Section):
    """Low-rank adapters: all other weights stay as they are, and only adapters are kept and travel."""

    rank: int = Field(0, ge=0)
    """Rank of the adapters; 0 trains all weights."""
    alpha: float | None = Field(None, gt=0)
    """What an adapter adds is scaled by alpha / rank; none: alpha is twice the rank."""
    targets: str = "all"
    """Linear maps that get adapters, by their last names (`q_proj,v_proj`); `all`: every one but the output head."""
    sync: Literal["adapter", "merged"] = "adapter"
    """What engines get: the adapter, which they merge themselves, or whole weights."""

    @model_validator(mode="before")
    @classmethod
    def _targets_may_be_a_list(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("targets"), list):
            return {**data, "targets": ",".join(map(str, data["targets"]))}
        return data


class RayConfig(Section):
    """The Ray cluster, where `runtime` is `ray`."""

    address: str | None = None
    """A cluster that is there (`auto`, `HOST:PORT`, `ray://HOST:10001`); none starts one on this machine, which ends
    with the run."""
    fake_gpus: int = Field(0, ge=0)
    """Devices that a cluster started here pretends to have; to try a mapping without them."""
    logs: bool = False
    """Whether what workers print appears here."""


class MixtureConfig(Section):
    """A further environment of a run."""

    env: str
    """Id or short name of the environment."""
    env_args: dict[str, Any] = Field(default_factory=dict)
    """Its arguments."""
    agent: AgentConfig = AgentConfig()
    """Its agent."""
    split: str = "train"
    """Split of its tasks to train on."""
    weight: float = Field(1.0, gt=0)
    """Its share of the groups, relative to the others'."""
    algo: AlgoConfig | None = None
    """Its algorithm: a preset's name, or a table of what differs from the run's own; none takes the run's own."""


class TrainConfig(Section):
    """A training run."""

    env: str
    """Id or short name of the environment."""
    env_args: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the environment (`data`, `goals`, ...)."""
    model: str = "seed"
    """A model folder or hub name; `seed`, the environment's shipped seed policy; `scratch`, makes one anew first."""
    seed: int = Field(0, ge=0)
    """Decides everything random in the run."""
    steps: int = Field(100, ge=1)
    """Training steps."""
    split: str = "train"
    """Split of the tasks to train on."""
    weight: float = Field(1.0, gt=0)
    """Share of the groups, relative to those of `mixture`."""
    mixture: list[MixtureConfig] = Field(default_factory=list)
    """Further environments that the same policy trains on (`[[mixture]]` in a file), each with a weight."""
    out: str | None = None
    """Folder of the run; none makes `runs/<env>-<time>`."""
    trajectories: int = Field(0, ge=0)
    """Training steps between those whose episodes are kept in `trajectories/`, for `rollenv export`; 0 keeps none."""
    track: list[str] = Field(default_factory=lambda: ["tensorboard"])
    """Where figures are shown beside the run's own files: `tensorboard`, `wandb`, `mlflow`, `trackio`, or what another
    package brings as an entry point of the group `rollenv.trackers`."""
    track_project: str = "rollenv"
    """Project, or experiment, that the run is listed under there."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`, or `auto`."""
    threads: int = Field(0, ge=0)
    """CPU threads of torch; 0 takes all cores."""
    runtime: Literal["local", "ray"] = "local"
    """Where policy and engines live: in this process, or in workers of a Ray cluster."""
    agent: AgentConfig = AgentConfig()
    sampling: SamplingConfig = SamplingConfig()  # type: ignore[call-arg]
    rollout: RolloutConfig = RolloutConfig()  # type: ignore[call-arg]
    algo: AlgoConfig = AlgoConfig()  # type: ignore[call-arg]
    critic: CriticConfig = CriticConfig()  # type: ignore[call-arg]
    optim: OptimConfig = OptimConfig()  # type: ignore[call-arg]
    eval: EvalConfig = EvalConfig()  # type: ignore[call-arg]
    checkpoint: CheckpointConfig = CheckpointConfig()  # type: ignore[call-arg]
    vllm: VLLMConfig = VLLMConfig()  # type: ignore[call-arg]
    health: HealthConfig = HealthConfig()  # type: ignore[call-arg]
    inject: InjectConfig = InjectConfig()  # type: ignore[call-arg]
    lora: LoraConfig = LoraConfig()  # type: ignore[call-arg]
    strategy: StrategyConfig = StrategyConfig()
    devices: DevicesConfig = DevicesConfig()  # type: ignore[call-arg]
    ray: RayConfig = RayConfig()  # type: ignore[call-arg]

    @field_validator("track", mode="before")
    @classmethod
    def _trackers_by_comma(cls, value: Any) -> Any:
        if value is None or value == "none":
            return []
        return [name.strip() for name in value.split(",")] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _devices_need_workers(self) -> TrainConfig:
        if self.runtime == "local" and self.devices != DevicesConfig.model_validate({}):
            raise ValueError("devices.* say where workers are, and runtime 'local' has none: say runtime=ray")
        return self

    @model_validator(mode="after")
    def _devices_of_an_engine(self) -> TrainConfig:
        if self.runtime == "ray" and self.vllm.tensor_parallel not in (1, self.devices.per_engine):
            raise ValueError("vllm.tensor_parallel is for runtime 'local': on a cluster say devices.per_engine")
        if self.devices.per_engine > 1 and self.rollout.engine == "torch":
            raise ValueError("devices.per_engine above 1 needs an engine that shares a model: say rollout.engine=vllm")
        return self

    @model_validator(mode="after")
    def _vllm_takes_whole_weights(self) -> TrainConfig:
        if self.lora.rank and self.lora.sync == "adapter" and self.rollout.engine == "vllm":
            raise ValueError("rollout.engine=vllm takes whole weights only: say lora.sync=merged")
        return self

    @model_validator(mode="after")
    def _strategy_fits(self) -> TrainConfig:
        strategy = self.strategy
        if self.runtime == "local" and strategy.kind in ("ddp", "fsdp2"):
            raise ValueError(
                f"strategy={strategy.kind} spreads training over ranks, and runtime 'local' has one process: "
                "say runtime=ray"
            )
        if strategy.reduce == "bf16" and self.optim.precision != "bf16":
            raise ValueError("strategy.reduce=bf16 sums gradients in bf16, which needs optim.precision=bf16")
        if strategy.cpu_offload and self.device == "cpu":
            raise ValueError("strategy.cpu_offload=true needs a GPU to offload from, and device is cpu")
        return self

    @model_validator(mode="after")
    def _values_or_trees(self) -> TrainConfig:
        algos = [self.algo, *(part.algo for part in self.mixture if part.algo is not None)]
        if self.rollout.trees and any(algo.advantage == "vine" for algo in algos):
            raise ValueError("rollout.trees and algo.advantage 'vine' do not go together: set rollout.trees=0")
        return self
