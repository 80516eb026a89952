"""ChatCompletions: lets any model act that an OpenAI-compatible server offers, by that API's own tool calls."""

from __future__ import annotations

import functools
import json
from typing import Any

from rollenv.inference.endpoint import Endpoint

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
        retries: how often a request is sent again that finds the server busy or away.
        requests_per_minute: of all episodes together; 0: no bound.

    Attributes:
        usage: tokens that the server counted in this episode: `prompt_tokens`, `completion_tokens`.

    Raises:
        RollenvError: `base_url` is no address.
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
        retries: int = 6,
        requests_per_minute: float = 0.0,
    ) -> None:
        self._endpoint = _shared(base_url, model, api_key_env, timeout, retries, requests_per_minute)
        self._system = system
        self._asked = {"temperature": temperature, "max_tokens": max_tokens}
        self._messages: list[dict[str, Any]] = []
        self._open_call: str | None = None
        self._seed = 0
        self.usage = {"prompt_tokens": 0, "completion_tokens": 0}

    def reset(self, seed: int) -> None:
        """Forgets the last episode."""
        self._messages = [{"role": "system", "content": self._system}] if self._system else []
        self._open_call, self._seed = None, seed % 2**31
        self.usage = {"prompt_tokens": 0, "completion_tokens": 0}

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
        reply = await self._endpoint.ask(body)
        self.usage["prompt_tokens"] += reply.prompt_tokens
        self.usage["completion_tokens"] += reply.completion_tokens
        return self._taken(reply.message)

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


_shared = functools.cache(Endpoint)
"""One for all episodes: an agent is made for each, and they share connections and rates."""
