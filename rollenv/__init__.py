"""rollenv: a gym for LLM agents.

>>> import rollenv
>>> env = rollenv.make("webshop")
>>> observation, info = env.reset(options={"task": env.tasks.ids("test")[0]})
"""

from rollenv.core import Info, TextEnv, TextSpace
from rollenv.errors import InvalidAction, RollenvError, SnapshotError
from rollenv.messages import Message, ToolCall
from rollenv.registration import EnvSpec, make, make_vec, register, registry, spec
from rollenv.tasks import Panel, Task, TaskSet
from rollenv.trajectory import Failure, Segment, StopReason, Trajectory, Turn

__version__ = "0.1.0"

__all__ = [
    "EnvSpec",
    "Failure",
    "Info",
    "InvalidAction",
    "Message",
    "Panel",
    "RollenvError",
    "Segment",
    "SnapshotError",
    "StopReason",
    "Task",
    "TaskSet",
    "TextEnv",
    "TextSpace",
    "ToolCall",
    "Trajectory",
    "Turn",
    "check_env",
    "connect",
    "make",
    "make_vec",
    "register",
    "registry",
    "spec",
]


def __getattr__(name: str) -> object:
    # These are loaded when they are first asked for: importing rollenv stays light.
    if name == "check_env":
        from rollenv.conformance import check_env

        return check_env
    if name == "connect":
        from rollenv.server.client import connect

        return connect
    raise AttributeError(f"module 'rollenv' has no attribute '{name}'")
