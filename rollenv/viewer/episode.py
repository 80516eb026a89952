"""One episode as the page shows it: its turns, with the texts of their tokens where these are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rollenv.files import as_text
from rollenv.viewer.tokens import TokenTexts

LONGEST = 200_000
"""Characters of a text that are shown."""


def shown(episode: Mapping[str, Any], texts: TokenTexts) -> dict[str, Any]:
    """An episode as the page gets it.

    A turn has `observation`, `completion`, `action`, `reward`, `valid_action`, `fork`, `seconds`, `prompt_tokens`, and
    of its sampled tokens `logprobs`, `versions`, `advantages` (empty where it did not train) and, where the tokenizer
    is known, `pieces`, their texts; `prompt` is then what the model newly read, as text.
    """
    turns = episode["turns"]
    advantages = episode.get("advantages") or [[]] * len(turns)
    return {
        "env": episode["env"],
        "task": episode["task"],
        "seed": str(episode["seed"]),  # JavaScript would round it
        "group": episode["group"],
        "sample": episode["sample"],
        "attempt": episode["attempt"],
        "step": episode.get("step"),
        "trained": episode.get("trained"),
        "stop": episode["stop"],
        "success": episode["success"],
        "reward": episode["reward"],
        "failure": episode["failure"],
        "info": episode["info"],
        "shared": episode["shared"],
        "turns": [_turn(turn, of, texts) for turn, of in zip(turns, advantages, strict=False)],
    }


def _turn(turn: Mapping[str, Any], advantages: Sequence[float], texts: TokenTexts) -> dict[str, Any]:
    pieces = texts.pieces(turn["completion_ids"])
    prompt = texts.pieces(turn["prompt_ids"])
    return {
        "observation": _bounded(turn["observation"]),
        "completion": _bounded(turn["completion"]),
        "action": _bounded(turn["action"]),
        "reward": turn["reward"],
        "valid_action": turn["valid_action"],
        "fork": turn["fork"],
        "seconds": turn.get("seconds", {}),
        "prompt_tokens": len(turn["prompt_ids"]),
        "prompt": None if not prompt else _bounded("".join(prompt)),
        "completion_tokens": len(turn["completion_ids"]),
        "pieces": pieces or None,
        "logprobs": turn["logprobs"],
        "versions": turn["policy_versions"],
        "advantages": advantages,
        "branch_returns": turn.get("branch_returns", []),
    }


def _bounded(text: str) -> str:
    text = as_text(text)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}\n[{len(text) - LONGEST} further characters]"
