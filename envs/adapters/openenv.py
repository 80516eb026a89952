"""A server that speaks OpenEnv's protocol (meta-pytorch/OpenEnv), wherever it runs, played as an environment.

Invariant: an environment is one WebSocket, and so one session of the server; a connection that is lost ends the episode
with an error, and the next reset makes a new one. (rollenv's own servers can do more: `rollenv.connect` plays them.)
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from rollenv.envs.adapters.foreign import ForeignEnv, Seen, checked_range, plain, seed_of_task
from rollenv.errors import RollenvError, did_you_mean

ANSWER_SECONDS = 600.0
LONGEST_MESSAGE = 100 << 20
TEXT_FIELDS = ("text", "message", "observation", "prompt", "content", "output", "result", "stdout")
"""Names under which observations keep what is to be read; the first that there is."""
LISTS = ("admissible_actions", "available_actions", "legal_actions")
"""Names under which they keep what can be done."""


class OpenEnvEnv(ForeignEnv):
    """One session of a server.

    Args:
        url: `http://HOST:PORT`, under which the server has `/ws` and `/schema`.
        action_field: the field of an action that its text goes into. Default: the only one that an action has to
            have, or the only one there is; where there are several, an action is a JSON object of its fields.
        text_field: the field of an observation that is read. Default: the first of `TEXT_FIELDS`, else the only text
            in it, else the whole observation as JSON.
        reset_args: what every reset says beside the seed.
        success: the return from which on an episode is solved. Default: what the last observation says under
            `success`, else a return above 0.
        reward_range: lowest and highest reward of a step, where they are known.

    Tasks are seeds. `info["inner"]` holds the observation's fields. An episode is truncated when its last observation
    says so under `truncated`.

    Raises:
        RollenvError: nobody answers there, or not as an OpenEnv server does, or its actions have no such field.
    """

    library = "openenv"

    def __init__(
        self,
        url: str | None = None,
        action_field: str | None = None,
        text_field: str | None = None,
        reset_args: Mapping[str, Any] | None = None,
        success: float | None = None,
        reward_range: Sequence[float] | None = None,
    ) -> None:
        parts = urlsplit(url or "")
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise RollenvError(f"openenv: '{url or ''}' is not the address of a server: give url=http://HOST:PORT")
        self._url = urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))
        self._reset_args, self._solved, self._text_field = dict(reset_args or {}), success, text_field
        self.reward_range = checked_range(self.library, reward_range)  # type: ignore[misc]
        self._fields = _action_fields(self._url)
        self._field = _field_of(self._fields, action_field)
        kind = self._fields.get(self._field or "", {}).get("type")
        self.free_text = self._field is not None and kind in ("string", None)  # type: ignore[misc]
        self._return = 0.0
        self._open()
        told = {"url": self._url, "field": self._field, "text": text_field, "reset": plain(self._reset_args)}
        super().__init__(told | {"success": success})

    def _open(self) -> None:
        self._inner: tuple[contextlib.ExitStack, Any] | None = None  # the connection; made by the first reset

    # -- episodes ------------------------------------------------------------------------------------------

    def _begin(self, task: str, chance: int) -> Seen:
        self._return = 0.0
        return self._saw(self._ask("reset", {**self._reset_args, **seed_of_task(task)}))

    def _act(self, action: str) -> Seen:
        assert self._seen is not None
        read = self._read(action)
        answer = None if read is None else self._ask("step", read)
        if answer is None:  # it is no action of theirs
            return Seen(self._seen.observation, valid=False)
        self._return += float(answer.get("reward") or 0.0)
        return self._saw(answer)

    def _read(self, text: str) -> dict[str, Any] | None:
        """The fields of the action that `text` says; None when it says none."""
        if self._field is None:
            with contextlib.suppress(ValueError, RecursionError):
                fields = json.loads(text)
                return fields if isinstance(fields, dict) else None
            return None
        kind = self._fields[self._field].get("type")
        if kind in ("string", None):
            return {self._field: text}
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(text)
            fits = {"integer": int, "number": (int, float), "boolean": bool, "object": dict, "array": list}.get(kind)
            if fits is None or (isinstance(value, fits) and (kind == "boolean") == isinstance(value, bool)):
                return {self._field: value}
        return None

    def _saw(self, answer: Mapping[str, Any] | None) -> Seen:
        if answer is None or not isinstance(answer.get("observation"), dict):
            raise RollenvError(f"openenv: {self._url} answered with no observation; is it an OpenEnv server?")
        seen, done = answer["observation"], bool(answer.get("done"))
        truncated = done and seen.get("truncated") is True
        said = seen.get("success")
        solved = self._return > 0 if self._solved is None else self._return >= self._solved
        listed = next((seen[name] for name in LISTS if isinstance(seen.get(name), list)), None)
        return Seen(
            self._text(seen),
            float(answer.get("reward") or 0.0),
            done and not truncated,
            truncated,
            success=said if isinstance(said, bool) and self._solved is None else solved,
            actions=None if listed is None else [str(action) for action in listed],
            info={"inner": {key: value for key, value in seen.items() if key != self._text_field}},
        )

    def _text(self, seen: Mapping[str, Any]) -> str:
        if self._text_field is not None:
            if self._text_field not in seen:
                near = did_you_mean(self._text_field, seen)
                raise RollenvError(f"openenv: observations of {self._url} have no '{self._text_field}'{near}")
            return str(seen[self._text_field])
        texts = [key for key, value in seen.items() if isinstance(value, str)]
        known = [key for key in TEXT_FIELDS if key in texts] or (texts if len(texts) == 1 else [])
        return str(seen[known[0]]) if known else json.dumps(seen, ensure_ascii=False, sort_keys=True)

    # -- the connection ------------------------------------------------------------------------------------

    def _ask(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any] | None:
        """The data of the answer; None when the server says that an action is none."""
        try:
            socket = self._connected()
            socket.send(json.dumps({"type": kind, "data": dict(data)}))
            reply = json.loads(socket.recv(timeout=ANSWER_SECONDS))
            answer: dict[str, Any] = reply["data"]
            failed = reply["type"] == "error"
        except (WebSocketException, OSError, TimeoutError, ValueError, KeyError, TypeError) as error:
            self._hang_up()
            raise RollenvError(
                f"openenv: {self._url} did not answer a {kind} ({type(error).__name__}: {error}); is it still there?"
            ) from error
        if failed and kind == "step" and answer.get("code") == "VALIDATION_ERROR":
            return None
        if failed:
            raise RollenvError(f"openenv: {self._url} refused a {kind}: {answer.get('message')} ({answer.get('code')})")
        return answer

    def _connected(self) -> Any:
        if self._inner is None:
            stack = contextlib.ExitStack()
            url = f"ws{self._url.removeprefix('http')}/ws"
            socket = stack.enter_context(connect(url, max_size=LONGEST_MESSAGE, open_timeout=10.0, proxy=None))
            self._inner = stack, socket
        return self._inner[1]

    def _hang_up(self) -> None:
        held, self._inner = self._inner, None
        if held is not None:
            with contextlib.suppress(Exception):
                held[1].send('{"type": "close"}')
            with contextlib.suppress(Exception):
                held[0].close()

    def close(self) -> None:
        """Ends the session."""
        self._hang_up()
        self._seen = None
        super().close()


def _action_fields(url: str) -> dict[str, dict[str, Any]]:
    """The fields of an action by their names, and their schemas; those that have to be there say `required`."""
    try:
        answer = httpx.get(f"{url}/schema", timeout=30.0)
        answer.raise_for_status()
        schema = answer.json()["action"]
        required = schema.get("required", ())
        fields: dict[str, dict[str, Any]] = schema["properties"]
    except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError) as error:
        said = str(error) or type(error).__name__
        raise RollenvError(
            f"openenv: no OpenEnv server answers at {url} ({said}): give url=http://HOST:PORT"
        ) from error
    return {name: {**of, "required": name in required} for name, of in fields.items() if name != "metadata"}


def _field_of(fields: Mapping[str, Mapping[str, Any]], given: str | None) -> str | None:
    """The field that an action's text goes into; None when there is more to an action."""
    if given is not None:
        if given not in fields:
            raise RollenvError(
                f"openenv: actions have no field '{given}'{did_you_mean(given, fields)} (they have {', '.join(fields)})"
            )
        return given
    required = [name for name, of in fields.items() if of["required"]]
    chosen = required if len(required) == 1 else list(fields)
    return chosen[0] if len(chosen) == 1 else None
