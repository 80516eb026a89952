"""The Engine protocol: token ids in, token ids out, with the probability and the version of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    import torch

FinishReason = Literal["stop", "length", "aborted"]


class EngineError(Exception):
    """The engine failed; the episode that asked is labelled, not rewarded."""


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
    """T sampled tokens. `logprobs[i]` is under the distribution of token i's draw; `policy_versions[i]` made it."""

    ids: list[int]
    logprobs: list[float]
    policy_versions: list[int]
    finish_reason: FinishReason


class Engine(Protocol):
    """What turns prompts into completions. All methods may be called from one event loop at the same time."""

    @property
    def version(self) -> int:
        """The version of the weights that would make the next token."""
        ...

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams, *, session: str) -> Completion:
        """Continues `prompt_ids` (the whole prompt; what the session's cache already holds is not computed again).

        Raises:
            EngineError: the engine failed or cannot hold the prompt.
        """
        ...

    async def abort(self, session: str) -> None:
        """Ends what the session is generating (its `generate` returns with `aborted`) and frees its cache."""
        ...

    async def release(self, session: str) -> None:
        """The session will not come back: frees its cache. Unknown sessions are ignored."""
        ...

    async def update_weights(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Replaces the weights between two decode steps; running completions continue with the new ones."""
        ...

    async def close(self) -> None:
        """Ends all work and frees everything."""
        ...
