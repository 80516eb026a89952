"""LLMAgent: lets a language model act in any text environment, by plain text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rollenv.agents.base import Step
from rollenv.agents.history import History, check_history, conversation, window_start
from rollenv.messages import Message

SYSTEM = (
    "You act in a text environment. Read the observation and answer with one action. "
    "You may think first; write the action itself alone on the last line."
)

_TAGGED = re.compile(r"<action>(.*?)</action>", re.DOTALL)


def last_action(text: str) -> str:
    """The action in a model's answer: inside the last `<action>` tags, else the last line that is not empty."""
    tagged = _TAGGED.findall(text)
    if tagged:
        return str(tagged[-1]).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


class LLMAgent:
    """Shows the observation (and what is admissible, when the environment tells), takes the last line as action.

    Args:
        system: the system prompt; `""` for none.
        history: `"full"`, or the number of turns the model sees.
        list_actions: whether to list `info["admissible_actions"]`.
        max_listed: at most so many of them.
    """

    def __init__(
        self, system: str = SYSTEM, history: History = "full", list_actions: bool = True, max_listed: int = 50
    ) -> None:
        self.system = system
        self.history = check_history(history)
        self.list_actions = list_actions
        self.max_listed = max_listed

    def messages(self, history: Sequence[Step]) -> list[Message]:
        start = window_start(len(history), self.history)
        texts = [self._text_of(history, turn) if turn >= start else "" for turn in range(len(history))]
        return conversation(self.system, texts, history, start)

    def action(self, text: str, step: Step) -> str:
        return last_action(text)

    def text(self, action: str, step: Step) -> str:
        return action

    def _text_of(self, history: Sequence[Step], turn: int) -> str:
        step = history[turn]
        if "text" not in step.data:  # rendered once, so that what an environment does to its info changes no past
            step.data["text"] = self._render(step, history[turn - 1] if turn else None)
        return str(step.data["text"])

    def _render(self, step: Step, before: Step | None) -> str:
        parts = [step.observation]
        if before is not None and not before.valid_action:
            parts.insert(0, "That action is not possible.")
        actions = step.info.get("admissible_actions")
        if self.list_actions and actions:
            parts.append("Actions: " + " | ".join(actions[: self.max_listed]))
        return "\n".join(parts)
