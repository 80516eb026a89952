"""ChatCompletions: lets any model act that an OpenAI-compatible server offers, by that API's own tool calls."""

from __future__ import annotations

import asyncio
import json
import os
import urllib.error
import urllib.request
from typing import Any

from rollenv.errors import RollenvError

SYSTEM = "You solve tasks by calling tools. Call one tool at a time; its answer comes next."


class ChatCompletions:
    """Asks `POST {base_url}/chat/completions` for each turn, with `info["tools"]` as tools.

    A tool call becomes the action `{"name": ..., "arguments": ...}`; an answer without one is the action as it is. The
    whole episode is sent each time.

    Args:
        base_url: such as `http://localhost:8000/v1`.
        model: name of the model there.
        api_key_env: environment variable that has the key; none is sent where it is not set.
        system: the system prompt; `""` for none.
        temperature: of sampling.
        max_tokens: of an answer.
        timeout: seconds for an answer.
    """

    def __init__(
        self,
        base_url: str = "http://localhost:8000/v1",
        model: str = "default",
        api_key_env: str = "OPENAI_API_KEY",
        system: str = SYSTEM,
        temperature: float = 0.0,
        max_tokens: int = 2048,
        timeout: float = 120.0,
    ) -> None:
        if not base_url.startswith(("http://", "https://")):
            raise RollenvError(f"base_url must begin with http:// or https://, not '{base_url}'")
        self._url = base_url.rstrip("/") + "/chat/completions"
        self._key = os.environ.get(api_key_env, "")
        self._system, self._timeout = system, timeout
        self._asked = {"model": model, "temperature": temperature, "max_tokens": max_tokens}
        self._messages: list[dict[str, Any]] = []
        self._open_call: str | None = None
        self._seed = 0

    def reset(self, seed: int) -> None:
        """Forgets the last episode."""
        self._messages = [{"role": "system", "content": self._system}] if self._system else []
        self._open_call, self._seed = None, seed % 2**31

    async def act(self, observation: str, info: dict[str, Any]) -> str:
        """The model's next action.

        Raises:
            RollenvError: the server cannot be reached, refuses, or answers with something else.
        """
        if self._open_call is not None:
            self._messages.append({"role": "tool", "tool_call_id": self._open_call, "content": observation})
        else:
            self._messages.append({"role": "user", "content": observation})
        body = self._asked | {"messages": self._messages, "seed": self._seed}
        if info.get("tools"):
            body |= {"tools": info["tools"], "parallel_tool_calls": False}
        return self._taken(await asyncio.to_thread(self._post, body))

    def _taken(self, message: dict[str, Any]) -> str:
        """Remembers an answer, and returns the action in it. Of several calls, the first is made."""
        calls = (message.get("tool_calls") or [])[:1]
        said: dict[str, Any] = {"role": "assistant", "content": message.get("content") or ""}
        if not calls:
            self._messages.append(said)
            self._open_call = None
            return str(said["content"])
        self._messages.append(said | {"tool_calls": calls})
        self._open_call = str(calls[0].get("id") or "call")
        function = calls[0].get("function", {})
        try:
            arguments = json.loads(function.get("arguments") or "{}")
        except ValueError:
            arguments = function.get("arguments")
        return json.dumps({"name": function.get("name", ""), "arguments": arguments}, ensure_ascii=False)

    def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self._key}"} if self._key else {})
        request = urllib.request.Request(self._url, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as answer:
                message = json.load(answer)["choices"][0]["message"]
                return dict(message)
        except urllib.error.HTTPError as error:
            said = error.read(300).decode(errors="replace").strip()
            raise RollenvError(f"'{self._url}' answers {error.code}: {said or error.reason}") from error
        except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
            raise RollenvError(f"'{self._url}' gives no answer that can be used: {error}") from error
