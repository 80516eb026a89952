"""Environments of other libraries, played as rollenv's own: docs/adapters.md."""

from __future__ import annotations


def register() -> None:
    """Registers the adapters with rollenv (and so with gymnasium)."""
    from rollenv.registration import register as add

    add(
        "Gymnasium-v1",
        "rollenv.envs.adapters.gymnasium_env:GymnasiumEnv",
        max_turns=500,
        description="Any gymnasium environment with text or discrete actions (env_id=NAME).",
    )
    add(
        "GEM-v1",
        "rollenv.envs.adapters.gem_env:GemEnv",
        max_turns=100,
        description="Any environment of gem-llm (env_id=game:GuessTheNumber-v0-hard); needs the extra [gem].",
    )
    add(
        "OpenEnv-v1",
        "rollenv.envs.adapters.openenv:OpenEnvEnv",
        max_turns=100,
        description="Any server that speaks OpenEnv's protocol (url=http://HOST:PORT).",
    )
    add(
        "Verifiers-v1",
        "rollenv.envs.adapters.verifiers_env:VerifiersEnv",
        max_turns=100,
        description="Any environment of verifiers 0.1 (env_id=NAME or module:function); needs the extra [verifiers].",
    )
