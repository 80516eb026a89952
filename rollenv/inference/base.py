"""The Engine protocol: token ids in, token ids out, with the probability and the version of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    import torch

FinishReason = Literal["stop", "length", "aborted"]


class EngineError(Exception):
    """The engine failed; the episode that asked is labelled, not rewarded. Another engine may do better."""


class InvalidRequest(EngineError):
    """The request itself is at fault: no engine with this model would serve it, and nothing has changed."""


class EngineDead(EngineError):
    """The engine was closed or has died: it serves nothing any more."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample one completion.

    Attributes:
        max_tokens: at most so many new tokens.
        temperature: 0 takes the most probable token; its log-probability is then that of temperature 1.
        top_k: keep the k most probable tokens (0: all).
        top_p: keep the smallest set of tokens with this mass (1: all).
        stop_token_ids: sampling one of these ends the completion and is kept as its last token.
        stop: strings that end the completion when its text contains one of them; the token that completed it is kept.
        seed: decides every draw of this completion, whatever shares the batch.
    """

    max_tokens: int = 64
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    seed: int = 0


@dataclass(slots=True)
class Completion:
    """T sampled tokens. `logprobs[i]` is under the distribution of token i's draw; `policy_versions[i]` made it.
    `wait_seconds` passed before the engine began to work on it (0: the engine does not tell)."""

    ids: list[int]
    logprobs: list[float]
    policy_versions: list[int]
    finish_reason: FinishReason
    wait_seconds: float = field(default=0.0, compare=False)


class Engine(Protocol):
    """What turns prompts into completions. All methods may be called from one event loop at the same time."""

    @property
    def version(self) -> int:
        """The version of the weights that would make the next token."""
        ...

    @property
    def max_length(self) -> int | None:
        """The most tokens, prompt and completion together, that a session can have; None: no bound."""
        ...

    @property
    def token_budget(self) -> int | None:
        """Tokens of running completions, prompts included, that its KV memory holds; None: no bound."""
        ...

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams, *, session: str) -> Completion:
        """Continues `prompt_ids` (the whole prompt; what the session's cache already holds is not computed again).

        A caller that is cancelled ends what its session is generating.

        Raises:
            InvalidRequest: it cannot be served, here or elsewhere: the prompt is too long, or no token ids, ...
            EngineDead: the engine was closed or has died.
            EngineError: it failed otherwise.
        """
        ...

    async def abort(self, session: str) -> None:
        """Ends what the session is generating (its `generate` returns with `aborted`) and frees its cache."""
        ...

    async def release(self, session: str) -> None:
        """The session will not come back: frees its cache. Unknown sessions are ignored."""
        ...

    async def update_weights(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Replaces the weights between two decode steps; running completions continue with the new ones.

        Raises:
            InvalidRequest: these are not the model's weights; nothing has changed.
            EngineDead: the engine was closed or has died.
            EngineError: it failed otherwise; which weights it has is unknown.
        """
        ...

    async def close(self) -> None:
        """Ends all work and frees everything."""
        ...
