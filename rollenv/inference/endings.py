"""What ends a completion: a stop token, a stop string, its length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rollenv.inference.base import FinishReason
from rollenv.inference.sessions import Request


class TextDecoder(Protocol):
    """What stop strings need: a tokenizer of `tokenizers` or `transformers` will do."""

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The text of `ids`."""
        ...


def ending(request: Request, tokenizer: TextDecoder | None) -> FinishReason | None:
    """Why a completion that has just got a token is complete, or None while it is not.

    `tokenizer` is asked for only where there are stop strings.
    """
    sampling = request.sampling
    if request.ids[-1] in sampling.stop_token_ids:
        return "stop"
    if sampling.stop and tokenizer is not None and _has_text(request.ids, sampling.stop, tokenizer):
        return "stop"
    return "length" if len(request.ids) >= request.limit else None


def _has_text(ids: Sequence[int], stops: Sequence[str], tokenizer: TextDecoder) -> bool:
    """Whether the end of the completion's text contains a stop string."""
    look_back = max(64, 8 * max(len(text) for text in stops))
    text = tokenizer.decode(ids[-look_back:], skip_special_tokens=False)
    return any(stop in text for stop in stops)
