"""The registry of environments: ids, short names, `make`, and a mirror of every spec in gymnasium.

An id is `Name-vN`; its short name is the lower-cased `Name`, which stands for the newest version registered.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import gymnasium

from rollenv.core import TextEnv
from rollenv.errors import RollenvError, did_you_mean

Placement = Literal["inline", "thread", "process"]
"""Where the environments of a rollout run: on the event loop (those of microseconds), each on a thread of its own
(those that wait for something), or in worker processes (those that compute)."""
PLACEMENTS: tuple[Placement, ...] = ("inline", "thread", "process")

_ID = re.compile(r"(?P<name>[A-Za-z][A-Za-z0-9_.]*)-v(?P<version>\d+)")


@dataclass(frozen=True)
class EnvSpec:
    """What the registry knows of an environment.

    Attributes:
        id: `Name-vN`.
        entry_point: `"module:attribute"` or a callable that returns a `TextEnv`.
        kwargs: defaults for the entry point.
        max_turns: episodes are cut after so many steps by the rollout engine (None: by the environment alone).
        description: one line for `rollenv envs`.
        train_config: `"package.module:file.toml"`, a file beside that module with the settings that
            `rollenv train --env` starts from; None for the general defaults.
        imitate_config: the same for `rollenv imitate --env`.
        agents: agent name -> `"module:attribute"` of agents made for this environment (its prompts, its oracle).
        placement: where rollouts run it; None: as its class says, and measured when that says nothing.
        max_concurrency: so many of it play at the same time in a run; further episodes wait. None: no bound.
        eval_split: the split that `rollenv eval` plays unless it is told another.
    """

    id: str
    entry_point: str | Callable[..., TextEnv]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    max_turns: int | None = None
    description: str = ""
    train_config: str | None = None
    imitate_config: str | None = None
    agents: Mapping[str, str] = field(default_factory=dict)
    placement: Placement | None = None
    max_concurrency: int | None = None
    eval_split: str = "test"

    @property
    def name(self) -> str:
        """The short name."""
        return self.id.rsplit("-v", 1)[0].lower()

    @property
    def version(self) -> int:
        return int(self.id.rsplit("-v", 1)[1])

    def load(self) -> Callable[..., TextEnv]:
        """The entry point itself.

        Raises:
            RollenvError: its module or attribute does not exist.
        """
        if callable(self.entry_point):
            return self.entry_point
        loaded: Callable[..., TextEnv] = load_attribute(self.entry_point, f"environment '{self.id}'")
        return loaded


registry: dict[str, EnvSpec] = {}
"""Every registered spec by id."""

_plugins_loaded = False
_loaded: set[str] = set()  # the entry points that have registered


def register(
    id: str,
    entry_point: str | Callable[..., TextEnv],
    *,
    kwargs: Mapping[str, Any] | None = None,
    max_turns: int | None = None,
    description: str = "",
    train_config: str | None = None,
    imitate_config: str | None = None,
    agents: Mapping[str, str] | None = None,
    placement: Placement | None = None,
    max_concurrency: int | None = None,
    eval_split: str = "test",
) -> EnvSpec:
    """Adds an environment, replacing one of the same id, and mirrors it as `rollenv/<id>` in gymnasium.

    >>> import rollenv
    >>> spec = rollenv.register("Echo-v0", "my_package.echo:EchoEnv", max_turns=4)
    >>> spec.name
    'echo'

    Raises:
        RollenvError: the id is not of the form `Name-vN`, or placement or max_concurrency are none.
    """
    if not _ID.fullmatch(id):
        raise RollenvError(
            f"environment id '{id}' must look like 'Name-v0': letters, digits, '_', '.', then '-v' and a number"
        )
    _check_running(id, placement, max_concurrency)
    spec = EnvSpec(
        id,
        entry_point,
        dict(kwargs or {}),
        max_turns,
        description,
        train_config,
        imitate_config,
        dict(agents or {}),
        placement,
        max_concurrency,
        eval_split,
    )
    registry[id] = spec
    mirror = f"rollenv/{id}"
    gymnasium.registry.pop(mirror, None)
    gymnasium.register(
        id=mirror,
        entry_point=_GymnasiumEntry(id),
        disable_env_checker=True,
        order_enforce=False,
        max_episode_steps=max_turns,
    )
    return spec


def _check_running(id: str, placement: object, max_concurrency: int | None) -> None:
    if placement is not None and placement not in PLACEMENTS:
        raise RollenvError(
            f"environment '{id}': placement must be one of {', '.join(PLACEMENTS)}, not {placement!r}"
            f"{did_you_mean(str(placement), PLACEMENTS)}"
        )
    if max_concurrency is not None and max_concurrency < 1:
        raise RollenvError(f"environment '{id}': max_concurrency must be at least 1, not {max_concurrency}")


class _GymnasiumEntry:
    """Makes the environment of one id for `gymnasium.make` (picklable, unlike a closure)."""

    def __init__(self, env_id: str) -> None:
        self.env_id = env_id
        self.metadata = TextEnv.metadata

    def __call__(self, **kwargs: Any) -> TextEnv:
        return make(self.env_id, **kwargs)


def spec(id: str) -> EnvSpec:
    """The spec of an id or short name.

    Raises:
        RollenvError: no such environment; the message names the closest one.
    """
    load_plugins()
    if id in registry:
        return registry[id]
    named = [s for s in registry.values() if s.name == id.lower()]
    if named:
        return max(named, key=lambda s: s.version)
    known = sorted({s.name for s in registry.values()} | set(registry))
    raise RollenvError(
        f"no environment '{id}'{did_you_mean(id, known)} "
        f"(known: {', '.join(sorted(s.name for s in registry.values()))}; 'rollenv envs' lists them)"
    )


def make(id: str | EnvSpec, **kwargs: Any) -> TextEnv:
    """Creates an environment.

    Args:
        id: an id (`WebShop-v1`), a short name (`webshop`) or a spec.
        kwargs: passed to the environment over the spec's own.

    Raises:
        RollenvError: unknown id, or keyword arguments that the environment does not take.
    """
    env_spec = id if isinstance(id, EnvSpec) else spec(id)
    entry_point = env_spec.load()
    unknown = [key for key in kwargs if not takes_keyword(entry_point, key)]
    if unknown:
        raise RollenvError(
            f"environment '{env_spec.name}' takes no argument '{unknown[0]}'"
            f"{did_you_mean(unknown[0], keyword_names(entry_point))} "
            f"(it takes: {', '.join(keyword_names(entry_point)) or 'none'})"
        )
    env = entry_point(**{**env_spec.kwargs, **kwargs})
    if not isinstance(env, TextEnv):
        raise RollenvError(
            f"environment '{env_spec.id}': its entry point returned {type(env).__name__}, not a rollenv.TextEnv"
        )
    return env


def make_vec(
    id: str, num_envs: int = 1, vectorization: Literal["sync", "async"] = "sync", **kwargs: Any
) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    """A gymnasium vector environment of `num_envs` copies, in this process (`sync`) or in processes (`async`).

    Observations come as tuples of `str`, and `step` takes a sequence of `str`.
    """
    if num_envs < 1:
        raise RollenvError(f"num_envs must be at least 1, not {num_envs}")
    makers = [_Maker(spec(id), kwargs) for _ in range(num_envs)]
    if vectorization == "sync":
        return gymnasium.vector.SyncVectorEnv(makers)
    if vectorization == "async":
        return gymnasium.vector.AsyncVectorEnv(makers, shared_memory=False)
    raise RollenvError(f"vectorization must be 'sync' or 'async', not '{vectorization}'")


class _Maker:
    """A picklable `lambda: make(spec, **kwargs)`: it holds the spec, for processes with a registry of their own."""

    def __init__(self, env_spec: EnvSpec, kwargs: Mapping[str, Any]) -> None:
        self.env_spec, self.kwargs = env_spec, dict(kwargs)

    def __call__(self) -> TextEnv:
        return make(self.env_spec, **self.kwargs)


def load_plugins() -> None:
    """Runs the `rollenv.envs` entry points of every installed package, once. Each is a function that registers.

    Raises:
        RollenvError: one of them does not load; the message names it.
    """
    global _plugins_loaded
    if _plugins_loaded:
        return
    _plugins_loaded = True  # already now: what registers may ask the registry
    for entry in importlib.metadata.entry_points(group="rollenv.envs"):
        try:
            _load_plugin(entry)
        except (ImportError, AttributeError, TypeError) as error:
            _plugins_loaded = False
            raise RollenvError(
                f"the entry point '{entry.name}' of group 'rollenv.envs' ({entry.value}) does not load: {error}; "
                "mend or uninstall the package that declares it"
            ) from error


def _load_plugin(entry: importlib.metadata.EntryPoint) -> None:
    if entry.value not in _loaded:
        entry.load()()
        _loaded.add(entry.value)


def _load_own_plugins() -> None:
    """Registers rollenv's own environments, so that gymnasium knows them as soon as rollenv is imported.

    Other packages' wait until they are asked for: one of them may be what is importing rollenv just now.
    """
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # not installed: a folder on sys.path
        for entry in importlib.metadata.distribution("rollenv").entry_points.select(group="rollenv.envs"):
            with contextlib.suppress(ImportError, AttributeError, TypeError):  # load_plugins will name it
                _load_plugin(entry)


def load_attribute(path: str, what: str) -> Any:
    """The object at `"module:attribute"`.

    Raises:
        RollenvError: no such module or attribute; `what` says on whose behalf it was asked for.
    """
    module_name, _, attribute = path.partition(":")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except ModuleNotFoundError as error:
        raise RollenvError(f"{what}: cannot import '{path}' ({error}); install the package that holds it") from error
    except AttributeError as error:
        raise RollenvError(f"{what}: module '{module_name}' has no '{attribute}'") from error


def keyword_names(function: Callable[..., Any]) -> list[str]:
    """Names of the keyword arguments that a callable takes, in order."""
    import inspect

    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in inspect.signature(function).parameters.values() if p.kind in kinds]


def takes_keyword(function: Callable[..., Any], name: str) -> bool:
    """Whether `function(name=...)` is accepted by its signature."""
    import inspect

    parameters = inspect.signature(function).parameters.values()
    return any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters) or name in keyword_names(function)


_load_own_plugins()
