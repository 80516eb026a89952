"""What `rollenv simulate` can be told: how long everything takes, on how many devices, and what is compared."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from rollenv.config.rollout import RolloutConfig
from rollenv.config.section import Section

Loop = Literal["controller", "lock_step", "batch"]
"""`controller`: the real scheduler and controller. `lock_step`: all episodes of a batch take each turn together.
`batch`: a prompt's episodes run together on one device until the longest is over; devices get prompts beforehand."""


class LatencyConfig(Section):
    """A distribution of durations, or of amounts such as tokens: never below 0."""

    kind: Literal["constant", "normal", "lognormal", "pareto", "recorded"] = "constant"
    """`normal` is clipped at 0; `recorded` draws from `seconds`."""
    mean: float = Field(0.0, ge=0)
    """Mean, before clipping (`constant`, `normal`, `lognormal`, `pareto`)."""
    sigma: float = Field(0.0, ge=0)
    """`normal`: standard deviation; `lognormal`: standard deviation of the logarithm."""
    alpha: float = Field(2.0, gt=1)
    """`pareto`: exponent of the tail, P(X > x) ~ x^-alpha. Up to 2 the variance is infinite."""
    cap: float | None = Field(None, gt=0)
    """Draws above are cut to this (a deadline, a limit of tokens)."""
    seconds: tuple[float, ...] = ()
    """`recorded`: what was measured."""

    @model_validator(mode="after")
    def _complete(self) -> LatencyConfig:
        if self.kind == "recorded" and not self.seconds:
            raise ValueError("'recorded' needs 'seconds', or the whole scenario a 'replay' file")
        if any(x < 0 for x in self.seconds):
            raise ValueError("durations are not negative")
        return self


class SimulatedEnvConfig(Section):
    """The environment's model."""

    tasks: int = Field(1000, ge=1)
    """Tasks; each has a difficulty of its own."""
    turns: LatencyConfig = LatencyConfig(mean=1)  # type: ignore[call-arg]
    """Turns of an episode (rounded, at least 1)."""
    reset: LatencyConfig = LatencyConfig()  # type: ignore[call-arg]
    """Seconds of a reset."""
    step: LatencyConfig = LatencyConfig()  # type: ignore[call-arg]
    """Seconds of a step."""
    slow_probability: float = Field(0.0, ge=0, le=1)
    """Share of episodes that are slow from beginning to end (a bad machine, a lost connection)."""
    slow_factor: float = Field(10.0, ge=1)
    """How many times longer their resets and steps take."""
    mean_success: float = Field(0.5, ge=0, le=1)
    """Mean success rate over tasks."""
    difficulty_spread: float = Field(0.0, ge=0, lt=1)
    """0: all tasks have the mean success rate. Towards 1: tasks are always or never solved. A task's rate is drawn from
    Beta(m k, (1 - m) k) with k = 1 / spread - 1."""


class SimulatedEngineConfig(Section):
    """The engine's model: devices that share their tokens per second among what they generate."""

    slots: int = Field(64, ge=1)
    """Completions that one device works on at a time; more wait in a queue."""
    tokens: LatencyConfig = LatencyConfig(mean=1)  # type: ignore[call-arg]
    """Tokens of a turn's completion (rounded, at least 1)."""
    tokens_per_second: float | None = Field(None, gt=0)
    """Of one completion on a device with little to do; none: generation takes no time."""
    device_tokens_per_second: float | None = Field(None, gt=0)
    """Of a whole device, however many completions it works on; none: no bound beside the slots."""
    update_seconds: float = Field(0.0, ge=0)
    """How long generation pauses for new weights; running completions then go on with them."""


class SimulatedTrainerConfig(Section):
    """The trainer's model."""

    seconds_per_sample: float = Field(0.0, ge=0)
    """Device seconds that one episode costs in one epoch."""
    epochs: int = Field(1, ge=1)
    """Passes over a batch."""
    overhead_seconds: float = Field(0.0, ge=0)
    """Seconds of a step that more devices do not shorten."""


class DevicesConfig(Section):
    """Who has which devices."""

    total: int = Field(1, ge=1)
    """Devices."""
    train: int = Field(0, ge=0)
    """Of them, those that only train; 0: all generate and train by turns."""

    @model_validator(mode="after")
    def _some_generate(self) -> DevicesConfig:
        if self.train >= self.total:
            raise ValueError(f"of {self.total} devices, {self.train} train, and none is left to generate")
        return self

    @property
    def generate(self) -> int:
        """Devices that generate."""
        return self.total - self.train


class VariantConfig(Section):
    """One of the ways that a scenario compares."""

    loop: Loop = "controller"
    """Who plays."""
    against: str | None = None
    """The variant that its time is compared with."""
    published: float | None = Field(None, gt=0)
    """The ratio that a publication reports."""
    published_seconds: float | None = Field(None, gt=0)
    """The seconds per step that a publication reports."""
    at_least: float | None = Field(None, gt=0)
    """The ratio that must be reached."""
    within_bound: float | None = Field(None, gt=0)
    """The most that its time may be above the longest episode alone, as a share."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Settings that differ, by dotted key."""


class ScenarioConfig(Section):
    """A scenario: models of all that takes time, and the variants to compare."""

    name: str = ""
    """Its name."""
    about: str = ""
    """What it shows and where its figures are from."""
    seed: int = Field(0, ge=0)
    """Decides every draw."""
    steps: int = Field(10, ge=1)
    """Training steps to simulate."""
    replay: str | None = None
    """A `trajectories.jsonl` whose turns' `seconds` are used instead of `env.step`, `env.turns` and `engine.tokens`."""
    replay_exactly: bool = False
    """Episode by episode, in the order of the file, instead of drawing episodes from it."""
    replayed: Literal["redrawn", "same"] = "redrawn"
    """What an episode is like that was cancelled as surplus and is played again: drawn anew (other weights write other
    tokens, other machines are slow), or as it was (whatever was slow is slow again: the worst case)."""
    loop: Loop = "controller"
    """Who plays, where there are no variants."""
    rollout: RolloutConfig = RolloutConfig()  # type: ignore[call-arg]
    env: SimulatedEnvConfig = SimulatedEnvConfig()  # type: ignore[call-arg]
    engine: SimulatedEngineConfig = SimulatedEngineConfig()  # type: ignore[call-arg]
    trainer: SimulatedTrainerConfig = SimulatedTrainerConfig()  # type: ignore[call-arg]
    devices: DevicesConfig = DevicesConfig()  # type: ignore[call-arg]
    variants: dict[str, VariantConfig] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _variants_fit(self) -> ScenarioConfig:
        for name, variant in self.variants.items():
            if variant.against is not None and variant.against not in self.variants:
                raise ValueError(f"variant '{name}' is compared with '{variant.against}', which is none of them")
        return self
