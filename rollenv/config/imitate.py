"""What `rollenv imitate` can be told."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from rollenv.config.rollout import AgentConfig
from rollenv.config.section import Section
from rollenv.config.train import EvalConfig


class ExpertConfig(AgentConfig):
    """Who is imitated; further keys are its arguments (`noise`, ...)."""

    name: str = "oracle"
    """A scripted agent."""


class ShapeConfig(Section):
    """The size of a model made from nothing (a Llama with tied embeddings)."""

    hidden: int = Field(128, ge=16)
    """Width."""
    layers: int = Field(4, ge=1)
    """Layers."""
    heads: int = Field(4, ge=1)
    """Attention heads."""
    kv_heads: int = Field(2, ge=1)
    """Key/value heads; divides `heads`."""
    mlp: int = Field(384, ge=16)
    """Width of the feed-forward layers."""
    vocabulary: int = Field(2048, ge=300)
    """Tokens of the byte-level BPE that is trained on the episodes' text."""
    numbers: Literal["digits", "whole"] = "digits"
    """A token per digit, or one per number of up to three digits: for numbers that are names."""
    context: int = Field(4096, ge=64)
    """Positions."""


class ImitateConfig(Section):
    """Supervised learning from an agent's episodes."""

    env: str
    """Id or short name of the environment."""
    env_args: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the environment."""
    model: str = "scratch"
    """A model folder or hub name to start from; `scratch` makes a small one and its tokenizer."""
    seed: int = Field(0, ge=0)
    """Decides everything random."""
    episodes: int = Field(6000, ge=1)
    """Episodes to imitate."""
    split: str = "train"
    """Split whose tasks they play."""
    tokenizer_episodes: int = Field(1000, ge=1)
    """Episodes whose text the tokenizer is trained on (`model=scratch`)."""
    epochs: int = Field(2, ge=1)
    """Passes over the episodes."""
    batch: int = Field(16, ge=1)
    """Episodes per update."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """AdamW, or Muon for the matrices inside the layers."""
    lr: float = Field(2e-3, gt=0)
    """Learning rate."""
    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    """Its schedule."""
    warmup: int = Field(50, ge=0)
    """Updates of linear warm-up."""
    weight_decay: float = Field(0.01, ge=0)
    """Decoupled weight decay of matrices."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradients are scaled down to this norm."""
    observation_weight: float = Field(1.0, ge=0)
    """Weight of the loss on what the agent read, beside 1 on what it wrote."""
    microbatch_tokens: int = Field(8192, ge=64)
    """Tokens per forward pass."""
    precision: Literal["fp32", "bf16"] = "bf16"
    """Arithmetic of training."""
    out: str | None = None
    """Folder of the result."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`, or `auto`."""
    threads: int = Field(0, ge=0)
    """CPU threads of torch; 0 takes all cores."""
    max_tokens: int = Field(64, ge=1)
    """New tokens per turn at most, in the evaluation at the end."""
    max_turns: int | None = Field(None, ge=1)
    """Turns per episode; none takes the environment's own."""
    expert: ExpertConfig = ExpertConfig()
    agent: AgentConfig = AgentConfig()
    shape: ShapeConfig = ShapeConfig()  # type: ignore[call-arg]
    eval: EvalConfig = EvalConfig()  # type: ignore[call-arg]
