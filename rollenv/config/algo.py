"""What a run learns by: the algorithm, its critic, the optimiser, and when it has gone wrong."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from rollenv.config.section import Section

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
        if self.proximal == "sampler" and (self.correction != "none" or self.rejection == "geometric"):
            name = "correction" if self.correction != "none" else "rejection"
            raise ValueError(
                f"algo.{name} '{getattr(self, name)}' goes by pi_old / mu, which algo.proximal 'sampler' makes 1: "
                f"leave algo.{name} at 'none', or algo.proximal at 'recompute'"
            )
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
    def compares(self) -> bool:
        """Whether an episode is compared with the others of its group, so that one alone has nothing to learn from."""
        whole = ("grpo", "dr_grpo", "rloo", "liteppo", "raft", "reinforce_pp_baseline")
        return self.advantage in (*whole, "gigpo", "turn_return")

    @property
    def heeds_age(self) -> bool:
        """Whether tokens of an older policy train otherwise than those of the present one."""
        return (
            self.loss in ("decoupled_ppo", "topr")
            or self.proximal != "recompute"
            or self.correction != "none"
            or self.rejection != "none"
        )

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
