"""Environments on a server in the registry: whatever makes an environment by its id then plays it there."""

from __future__ import annotations

import dataclasses

from rollenv.errors import RollenvError
from rollenv.registration import EnvSpec, load_plugins, register, registry
from rollenv.server.client import connect


def play_remotely(url: str, env: str | None = None) -> EnvSpec:
    """Lets a server's environment stand in for the one of its id in this process, and returns its spec: with the
    settings, prompts, agents and the seed policy of the installed environment of that id, where there is one.

    Args:
        url: `http://HOST:PORT/NAME`; a token comes from the environment variable ROLLENV_TOKEN.
        env: the id or short name that it has to have; None: whichever it has.

    Raises:
        RollenvError: nobody answers there, or it is another environment than `env`.
    """
    metadata = connect(url).metadata_of_server
    base = _installed(metadata["id"]) or EnvSpec(
        metadata["id"],
        connect,
        max_turns=metadata["max_turns"],
        description=metadata["description"],
        eval_split=metadata["eval_split"],
    )
    if env is not None and env.lower() not in (base.id.lower(), base.name):
        raise RollenvError(f"{url} serves '{base.name}', not '{env}': leave out --env, or give another --env-url")
    kept = {field.name: getattr(base, field.name) for field in dataclasses.fields(base)}
    there = {"entry_point": connect, "kwargs": {"url": url}, "placement": "inline", "max_concurrency": None}
    return register(**{**kept, **there})


def _installed(env_id: str) -> EnvSpec | None:
    load_plugins()
    return registry.get(env_id)
