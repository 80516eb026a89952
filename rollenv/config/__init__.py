"""Configuration: typed, frozen, read from TOML and `key=value`, refused early. Importing it loads no torch."""

from rollenv.config.algo import AlgoConfig, CriticConfig, HealthConfig, OptimConfig
from rollenv.config.imitate import ExpertConfig, ImitateConfig, ShapeConfig
from rollenv.config.load import load_config, parse_override
from rollenv.config.rollout import AgentConfig, InjectConfig, RolloutConfig, SamplingConfig, VLLMConfig
from rollenv.config.simulate import ScenarioConfig
from rollenv.config.train import CheckpointConfig, EvalConfig, TrainConfig

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
