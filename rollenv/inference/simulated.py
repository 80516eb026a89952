"""An engine without a model: a function decides what it says. For tests of rollouts, and for simulations of them.

Invariant: the same prompt and sampling parameters give the same completion, whatever else is in flight.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from rollenv.inference.base import Completion, EngineDead, EngineError, InvalidRequest, SamplingParams, note_made

if TYPE_CHECKING:
    import torch

Script = Callable[[Sequence[int], SamplingParams], Sequence[int]]
"""From the whole prompt and the sampling parameters to the ids to say."""


class ScriptedEngine:
    """Says what `script` returns, cut at `max_tokens` and after the first stop token.

    Every token has log-probability `logprob` and the version at the time it is said. Stop strings need a tokenizer and
    are refused, as by any engine without one. The weights given to `update_weights` are kept in `weights`.

    Args:
        script: an exception it raises reaches the caller as an EngineError.
        seconds_per_token: each token is said after so long (asyncio time, so a test's clock may drive it).
        logprob: of every token.
        version: of the weights at first.
        max_length: what it reports; longer sessions are served all the same.
        token_budget: likewise.

    >>> import asyncio
    >>> engine = ScriptedEngine(lambda prompt, sampling: [prompt[-1] + 1, 2])
    >>> asyncio.run(engine.generate([5], SamplingParams(stop_token_ids=(2,)), session="a")).ids
    [6, 2]
    """

    def __init__(
        self,
        script: Script,
        *,
        seconds_per_token: float = 0.0,
        logprob: float = -math.log(2),
        version: int = 0,
        max_length: int | None = None,
        token_budget: int | None = None,
    ) -> None:
        self._script = script
        self._seconds_per_token = seconds_per_token
        self._logprob = logprob
        self._version = version
        self._max_length, self._token_budget = max_length, token_budget
        self._aborts: dict[str, asyncio.Event] = {}
        self._closed = False
        self.weights: dict[str, torch.Tensor] = {}

    @property
    def version(self) -> int:
        """The version of the weights that would make the next token."""
        return self._version

    @property
    def max_length(self) -> int | None:
        """The bound that was given."""
        return self._max_length

    @property
    def token_budget(self) -> int | None:
        """The bound that was given."""
        return self._token_budget

    @property
    def running(self) -> int:
        """Completions under way."""
        return len(self._aborts)

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams, *, session: str) -> Completion:
        """Says the script's ids, one after another.

        Raises:
            InvalidRequest: the session is busy, or stop strings were given.
            EngineDead: the engine is closed.
            EngineError: the script failed.
        """
        if self._closed:
            raise EngineDead("the engine is closed")
        if session in self._aborts:
            raise InvalidRequest(f"session '{session}' is already generating; one completion at a time per session")
        if sampling.stop:
            raise InvalidRequest("ScriptedEngine has no tokenizer for stop strings; use stop_token_ids")
        try:
            script = list(self._script(prompt_ids, sampling))[: sampling.max_tokens]
        except Exception as error:
            raise EngineError(f"the script failed: {type(error).__name__}: {error}") from error
        aborted = self._aborts[session] = asyncio.Event()
        said = Completion([], [], [], "length" if len(script) == sampling.max_tokens else "stop")
        try:
            await self._say(script, sampling, aborted, said)
            return said
        except asyncio.CancelledError as error:
            note_made(error, said)
            raise
        finally:
            if self._aborts.get(session) is aborted:
                del self._aborts[session]

    async def _say(
        self, script: Sequence[int], sampling: SamplingParams, aborted: asyncio.Event, said: Completion
    ) -> None:
        for token in script:
            await self._wait(aborted)
            if aborted.is_set():
                said.finish_reason = "aborted"
                break
            said.ids.append(token)
            said.logprobs.append(self._logprob)
            said.policy_versions.append(self._version)
            if token in sampling.stop_token_ids:
                said.finish_reason = "stop"
                break

    async def _wait(self, aborted: asyncio.Event) -> None:
        """Waits one token's time, or until aborted."""
        if self._seconds_per_token <= 0:
            await asyncio.sleep(0)
            return
        try:
            await asyncio.wait_for(aborted.wait(), self._seconds_per_token)
        except TimeoutError:
            return

    async def abort(self, session: str) -> None:
        """Ends what the session is saying; its `generate` returns with `aborted` and what it has said."""
        if (aborted := self._aborts.pop(session, None)) is not None:
            aborted.set()

    async def release(self, session: str) -> None:
        """The session will not come back. Unknown sessions are ignored."""
        await self.abort(session)

    async def update_weights(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Sets the version of the next token, and remembers the tensors."""
        if self._closed:
            raise EngineDead("the engine is closed")
        self._version = version
        self.weights.update(tensors)

    async def close(self) -> None:
        """Ends all work."""
        self._closed = True
        for session in list(self._aborts):
            await self.abort(session)
