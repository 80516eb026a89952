"""my_env: an environment for rollenv."""


def register() -> None:
    """Makes the environment known; rollenv calls it by the entry point in pyproject.toml."""
    import rollenv

    rollenv.register(
        "my_env-v0",
        "my_env.env:MyEnv",
        max_turns=12,
        description="Fetch a parcel and bring it to its goal.",
        agents={"oracle": "my_env.oracle:Oracle"},
        train_config="my_env:train.toml",
        imitate_config="my_env:imitate.toml",
    )
