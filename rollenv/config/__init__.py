"""Configuration: typed, frozen, read from TOML and `key=value`, refused early. Importing it loads no torch."""

from rollenv.config.imitate import ExpertConfig, ImitateConfig, ShapeConfig
from rollenv.config.load import load_config, parse_override
from rollenv.config.simulate import ScenarioConfig
from rollenv.config.train import (
    AgentConfig,
    AlgoConfig,
    CheckpointConfig,
    CriticConfig,
    EvalConfig,
    HealthConfig,
    InjectConfig,
    OptimConfig,
    RolloutConfig,
    SamplingConfig,
    TrainConfig,
    VLLMConfig,
)

__all__ = [
    "AgentConfig",
    "AlgoConfig",
    "CheckpointConfig",
    "CriticConfig",
    "EvalConfig",
    "ExpertConfig",
    "HealthConfig",
    "ImitateConfig",
    "InjectConfig",
    "OptimConfig",
    "RolloutConfig",
    "SamplingConfig",
    "ScenarioConfig",
    "ShapeConfig",
    "TrainConfig",
    "VLLMConfig",
    "load_config",
    "parse_override",
]
