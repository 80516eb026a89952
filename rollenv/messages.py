"""Chat messages between an environment and a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool, as a model wrote it."""

    name: str
    arguments: dict[str, Any]
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message.

    `turn` says which turn of the episode it belongs to: an assistant message of turn t whose content is that
    turn's completion stands for the very tokens that were sampled, never for its text encoded again.
    """

    role: Role
    content: str
    turn: int | None = None
    tool_calls: tuple[ToolCall, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The `{"role": ..., "content": ...}` form that chat templates and chat APIs read."""
        message: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.tool_calls:
            message["tool_calls"] = [
                {"type": "function", "function": {"name": c.name, "arguments": dict(c.arguments)}}
                | ({"id": c.id} if c.id else {})
                for c in self.tool_calls
            ]
        return message
