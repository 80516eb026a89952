"""What `rollenv train` can be told. Every field says what it means where it is declared."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from rollenv.config.algo import AlgoConfig, CriticConfig, HealthConfig, OptimConfig
from rollenv.config.cluster import DevicesConfig, LoraConfig, RayConfig, StrategyConfig
from rollenv.config.rollout import AgentConfig, InjectConfig, RolloutConfig, SamplingConfig, VLLMConfig
from rollenv.config.section import Section


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
    env_url: str | None = None
    """The environment on a server (`http://HOST:PORT/NAME`, see 'rollenv serve'), played there; none plays it here."""
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
