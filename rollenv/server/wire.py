"""What servers and clients say to each other: JSON messages, in the form that OpenEnv's clients and servers use.

Up go `{"type": "reset" | "step" | "state" | "close" | "snapshot" | "restore" | "reseed", "data": {...}}`, down come
`{"type": "observation" | "state" | "snapshot" | "error", "data": {...}}`. An observation has everything inside it that
OpenEnv's form has no place for: `{"observation": {"text", "info", "terminated", "truncated"}, "reward", "done"}`. Any
request may carry a number, `step_id`, in its data: sent again after a lost connection it is answered again, and not
carried out again.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from rollenv.core import EpisodeOver
from rollenv.errors import InvalidAction, RollenvError, SnapshotError
from rollenv.server.sessions import SessionError

TYPES = ("reset", "step", "state", "snapshot", "restore", "reseed", "close")

ERRORS: dict[str, type[RollenvError]] = {
    "EPISODE_OVER": EpisodeOver,
    "INVALID_ACTION": InvalidAction,
    "SNAPSHOT_ERROR": SnapshotError,
}
"""Errors of an environment that a client raises as what they were."""

Reply = dict[str, Any]
_DECODER = json.JSONDecoder()


class Message(NamedTuple):
    """A request, read and checked. `data` is without `step_id`."""

    type: str
    data: dict[str, Any]
    step_id: int | None


def read_message(text: str) -> Message:
    """Reads a request.

    Raises:
        SessionError: it is no JSON, no request, or of an unknown type.
    """
    try:
        content = _content(text)
    except (ValueError, RecursionError) as error:
        raise SessionError("INVALID_JSON", f"the message is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise SessionError("VALIDATION_ERROR", "a message is a JSON object with a 'type'")
    kind, data = content.get("type", ""), content.get("data", {})
    if kind not in TYPES:
        raise SessionError("UNKNOWN_TYPE", f"unknown message type {kind!r:.80}: say one of {', '.join(TYPES)}")
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise SessionError("VALIDATION_ERROR", f"'data' of a {kind} is a JSON object")
    step_id = data.pop("step_id", None)
    if step_id is not None and (not isinstance(step_id, int) or isinstance(step_id, bool) or step_id < 1):
        raise SessionError("VALIDATION_ERROR", "'step_id' is a whole number that counts from 1")
    return Message(kind, data, step_id)


def _content(text: str) -> Any:
    """`json.loads(text)`, which looks for white space around a message that seldom has any."""
    if text.startswith("{"):
        content, end = _DECODER.raw_decode(text)
        if end == len(text):
            return content
    return json.loads(text)


def action_of(data: Mapping[str, Any]) -> str:
    """The action of a step: `{"action": TEXT}`; OpenEnv's HTTP form `{"action": {"action": TEXT}}` is understood too.

    Raises:
        SessionError: there is none.
    """
    action = data.get("action")
    if isinstance(action, dict):
        action = action.get("action", action.get("text"))
    if not isinstance(action, str):
        raise SessionError("VALIDATION_ERROR", 'a step needs {"action": TEXT}')
    return action


def reset_arguments(data: Mapping[str, Any]) -> tuple[int | None, dict[str, Any] | None]:
    """Seed and options of a reset: `{"seed": N, "options": {...}}`, where `"task": ID` is short for that option.

    Raises:
        SessionError: they are of another kind.
    """
    options = data.get("options")
    if options is not None and not isinstance(options, dict):
        raise SessionError("VALIDATION_ERROR", "'options' is a JSON object, such as {\"task\": ID}")
    if "task" in data:
        options = {**(options or {}), "task": data["task"]}
    return seed_of(data), options


def seed_of(data: Mapping[str, Any]) -> int | None:
    """The seed in a request, if there is one. Raises SessionError when it is none."""
    seed = data.get("seed")
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**63):
        raise SessionError("VALIDATION_ERROR", "'seed' is a whole number from 0, below 2 to the 63rd")
    return seed


def observation(text: str, info: Mapping[str, Any], reward: float | None, terminated: bool, truncated: bool) -> Reply:
    """The reply to a reset (without a reward), a step or a restore."""
    inside = {"text": text, "info": dict(info), "terminated": terminated, "truncated": truncated}
    return {"type": "observation", "data": {"observation": inside, "reward": reward, "done": terminated or truncated}}


def failure(error: BaseException) -> Reply:
    """The reply that says what went wrong; an unexpected error tells its kind, not the server's insides."""
    if isinstance(error, SessionError):
        return refusal(error.code, str(error))
    for code, kind in ERRORS.items():
        if isinstance(error, kind):
            return refusal(code, str(error))
    if isinstance(error, RollenvError):
        return refusal("EXECUTION_ERROR", str(error))
    return refusal("EXECUTION_ERROR", f"the environment failed with {type(error).__name__}")


def refusal(code: str, sentence: str) -> Reply:
    """An error reply."""
    return {"type": "error", "data": {"message": sentence, "code": code}}


def error_of(reply: Mapping[str, Any]) -> RollenvError:
    """What a client raises for an error reply."""
    code, sentence = reply["data"].get("code", ""), str(reply["data"].get("message", "the server refused"))
    if code in ERRORS:
        return ERRORS[code](sentence)
    return SessionError(code, sentence)


def encode_bytes(content: bytes) -> str:
    """Bytes as text."""
    return base64.b64encode(content).decode()


def decode_bytes(text: Any) -> bytes:
    """The inverse of `encode_bytes`. Raises SnapshotError for anything else."""
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise SnapshotError("a snapshot travels as base64 text: this is none") from error


def dump(reply: Mapping[str, Any]) -> bytes:
    """A reply as JSON (UTF-8). NumPy's numbers, which environments like to leave in `info`, become plain ones.

    Raises:
        TypeError: there is something in it that has no form in JSON.
    """
    try:
        fast = orjson.dumps(reply, default=_plain)
    except TypeError:  # also for what only the other one can write: large integers, halves of surrogate pairs
        fast = b"null"
    # NaN and infinities are written as null by this one, and as what Python reads again by the other.
    return json.dumps(reply, separators=(",", ":"), default=_plain).encode() if b"null" in fast else fast


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):  # NumPy's scalars and arrays
        return value.tolist()
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
