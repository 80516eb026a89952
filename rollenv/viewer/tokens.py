"""The texts of a run's tokens, where its tokenizer is at hand. Needs `tokenizers`, neither torch nor transformers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rollenv.viewer.runs import Run

FILE = "tokenizer.json"
FindModel = Callable[[dict[str, Any]], Path | None]
"""The model folder that a training run's configuration means."""


def tokenizer_file(run: Run, find_model: FindModel = lambda config: None) -> Path | None:
    """The tokenizer of the model that a run trains, or that an evaluation was of; None: it is not at hand."""
    checkpoints = sorted((run.folder / "checkpoints").glob(f"step-*/model/{FILE}"))
    folders = [run.folder / "model", run.folder / "scratch" / "model"]
    if run.kind == "evaluation" and (model := run.summary().get("model")):
        folders.append(Path(str(model)).expanduser())
    elif not checkpoints and (found := find_model(run.config())) is not None:
        folders.append(found)
    return next((file for file in [*checkpoints[-1:], *(folder / FILE for folder in folders)] if file.is_file()), None)


class TokenTexts:
    """Token ids as texts. What a tokenizer does not know, and what is missing altogether, is None."""

    def __init__(self, file: Path | None) -> None:
        self._tokenizer = None if file is None else _load(str(file))

    def pieces(self, ids: Sequence[int]) -> list[str] | None:
        """The text of each token, special ones included; joined they are the whole text. A character that several
        tokens make up is the last one's, and the others' texts are empty."""
        if self._tokenizer is None:
            return None
        from tokenizers.decoders import DecodeStream

        stream = DecodeStream(skip_special_tokens=False)
        try:
            return [stream.step(self._tokenizer, token) or "" for token in ids]
        except Exception:  # ids of another tokenizer: the library raises what it likes
            return None


@functools.lru_cache(maxsize=8)
def _load(file: str) -> Any:
    try:
        from tokenizers import Tokenizer

        return Tokenizer.from_file(file)
    except Exception:  # not installed, or a file that it cannot read: the viewer does without
        return None
