"""ALFWorldAgent: a language model keeps house, by commands, by their numbers, or by thoughts and commands."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Literal

from rollenv.agents.alfworld_view import CLOSED, LISTED, ROOM, VIEWS, World, kind_of
from rollenv.agents.base import Step
from rollenv.agents.history import History, check_history, conversation, window_start
from rollenv.agents.llm import last_action
from rollenv.errors import RollenvError
from rollenv.messages import Message

ActionFormat = Literal["text", "numbered", "react"]

_WORLD = (
    "You do household tasks in a text world. You walk with 'go to', which is possible from anywhere; closed "
    "receptacles are opened before you see what is in them; you carry one thing at a time. Things are cleaned at a "
    "sinkbasin, heated with a microwave, cooled with a fridge, and lamps are switched on with 'use'. "
)
SYSTEM = {
    "text": _WORLD + "Answer with one command alone on the last line.",
    "numbered": _WORLD
    + "Each command has a number, which it keeps; walks are listed once. Answer with the number of one command, in "
    "brackets, alone on the last line.",
    "react": _WORLD + "Answer in two lines: 'Thought: ' and what you think, then 'Action: ' and one command.",
}

_TASK = "Your task is to: "
_ALWAYS = ("help", "inventory", "look")
_NUMBER = re.compile(r"\[?(\d{1,4})\]?")
_PREFIX = re.compile(r"(?:>|action\s*:)\s*", re.IGNORECASE)
_HEAD = re.compile(r"(\w+(?: to)? [a-z]+ \d+) .+")
_ARRIVED = re.compile(r"You (?:arrive at|open the) [a-z]+ \d+\. ")
_DONE = re.compile(r"You (?:pick up|move|put|clean|heat|cool) the [^.]*\.")


class ALFWorldAgent:
    """Prompts for ALFWorld, in either dialect.

    The commands that are possible are listed with each observation, but for those that nearly always are (`go to`,
    `look`, ...): these come once, at the beginning of what the model sees.

    Args:
        action_format: `text` (`take mug 1 from desk 2`), `numbered` (`[17]`: a command keeps its number through the
            episode), or `react` (Yao et al. 2023: a line `Thought: ...`, then a line `Action: ...`). A command may
            be cut off after a word as long as only one that is possible begins so: `take mug 1`.
        system: the system prompt; None takes the one of the format, `""` means none.
        history: `"full"` or the number of turns the model sees. A window begins with the task and with what was seen
            before it.
        brief: observations in few words, `see mug 2 1 pen 3` or `closed`, and commands cut off where they can be: for
            models made from nothing, whose contexts are short.
        list_actions: whether to list commands at all; `numbered` always does.
        list_unseen: whether to list the receptacles that were not looked into yet, each time when they have become
            fewer: for models that do not keep account of their search by themselves.
    """

    def __init__(
        self,
        action_format: ActionFormat = "text",
        system: str | None = None,
        history: History = "full",
        brief: bool = False,
        list_actions: bool = True,
        list_unseen: bool = False,
    ) -> None:
        if action_format not in SYSTEM:
            raise RollenvError(f"action_format must be 'text', 'numbered' or 'react', not {action_format!r}")
        self.action_format = action_format
        self.system = SYSTEM[action_format] if system is None else system
        self.history = check_history(history)
        self.brief = brief
        self.list_actions = list_actions or action_format == "numbered"
        self.list_unseen = list_unseen

    # -- what the model reads ------------------------------------------------------------------------------

    def messages(self, history: Sequence[Step]) -> list[Message]:
        start = window_start(len(history), self.history)
        texts = [self._read(history, turn, turn == start) if turn >= start else "" for turn in range(len(history))]
        return conversation(self.system, texts, history, start)

    def _read(self, history: Sequence[Step], turn: int, first: bool) -> str:
        """The user message of a turn, the first of a window or a later one. Rendered once each: it depends only on
        turns up to that one."""
        step, key = history[turn], "first" if first else "text"
        if key not in step.data:
            parts = [brief(step.observation) if self.brief else step.observation]
            if first and turn:
                parts.insert(0, self._memory(history[: turn + 1]))
            if self.list_unseen:
                parts.append(self._left(history, turn, first))
            if self.list_actions:
                parts.append(self._offer(history, turn, first))
            step.data[key] = "\n".join(part for part in parts if part)
        return str(step.data[key])

    def _numbered(self, history: Sequence[Step], turn: int) -> dict[str, int]:
        """Command -> number, of all that were possible up to a turn."""
        if "commands" not in history[turn].data:
            known = dict(self._numbered(history, turn - 1)) if turn else {}
            for command in self._listed(history[turn]):
                known.setdefault(command, len(known) + 1)
            history[turn].data["commands"] = known
        commands: dict[str, int] = history[turn].data["commands"]
        return commands

    def _listed(self, step: Step) -> list[str]:
        """The commands that are possible, walks first, and last what always is: the numbers' order."""
        listed = step.info.get("admissible_actions")
        if listed is None and self.action_format == "numbered":
            raise RollenvError(
                "ALFWorldAgent: action_format 'numbered' needs info['admissible_actions']: make the environment with "
                "admissible_actions=True, or take the format 'text'"
            )
        return sorted(listed or (), key=lambda command: (not _is_walk(command), command in _ALWAYS))

    def _offer(self, history: Sequence[Step], turn: int, first: bool) -> str:
        """The line that lists commands."""
        numbers = self._numbered(history, turn)
        before = {} if first else self._numbered(history, turn - 1)
        listed = [c for c in self._listed(history[turn]) if c not in before or not _is_usual(c)]
        if self.action_format == "numbered":
            listed = [f"[{numbers[command]}] {command}" for command in listed]
        return "Commands: " + ", ".join(listed) if listed else ""

    def _unseen(self, history: Sequence[Step], turn: int) -> list[str]:
        """The receptacles that were not looked into up to a turn."""
        data, text = history[turn].data, history[turn].observation
        if "unseen" not in data:
            before = self._unseen(history, turn - 1) if turn else World.of(text).places
            looked = {found[1] for view in VIEWS for found in view.finditer(text)}
            data["unseen"] = [place for place in before if place not in looked]
        unseen: list[str] = data["unseen"]
        return unseen

    def _left(self, history: Sequence[Step], turn: int, first: bool) -> str:
        """The line that lists what was not looked into, where it differs from what the model was told last."""
        unseen = self._unseen(history, turn)
        told = World.of(history[0].observation).places if turn == 0 else self._unseen(history, turn - 1)
        if unseen == told and not (first and turn):
            return ""
        if self.brief:
            return f"left {compact(unseen)}" if unseen else "all seen"
        return f"Not looked into yet: {compact(unseen) or 'nothing'}."

    def _memory(self, history: Sequence[Step]) -> str:
        """What the model knows when a window begins: the task, the receptacles, and what it saw before the last of
        `history`."""
        world = World.of(history[0].observation)
        for step in history[:-1]:
            world.notice(step.observation)
        seen = [f"{place}: {compact(things) or 'nothing'}" for place, things in world.contents.items()]
        parts = [
            _TASK + _sentence(history[0].observation),
            "Receptacles: " + compact(world.places) + ".",
            "Seen so far: " + "; ".join(seen) + "." if seen else "",
            "Closed: " + compact(sorted(world.closed)) + "." if world.closed else "",
            f"You hold {world.held}." if world.held else "",
            "".join(f"You did {' and '.join(sorted(done))} {thing}. " for thing, done in world.treated.items()),
        ]
        return "\n".join(part.strip() for part in parts if part)

    # -- what the model writes -----------------------------------------------------------------------------

    def action(self, text: str, step: Step) -> str:
        written = _PREFIX.sub("", last_action(text), count=1)
        number = _NUMBER.fullmatch(written) if self.action_format == "numbered" else None
        if number is not None:
            by_number = {n: command for command, n in step.data["commands"].items()}
            return str(by_number.get(int(number[1]), written))
        return complete(written, step.info.get("admissible_actions") or ())

    def text(self, action: str, step: Step) -> str:
        if self.action_format == "numbered":
            number = step.data["commands"].get(action)
            return action if number is None else f"[{number}]"
        command = shorten(action, step.info.get("admissible_actions") or ()) if self.brief else action
        if self.action_format == "text":
            return command
        thought = str(step.data.get("thought", ""))
        return f"Thought: {thought}\nAction: {command}" if thought else f"Action: {command}"


def complete(written: str, listed: Iterable[str]) -> str:
    """The one of `listed` that is `written` or goes on after it; `written` itself when there is none, or several."""
    words = written.lower()
    matching = [command for command in listed if command == words or command.startswith(words + " ")]
    if words in matching:
        return words
    return matching[0] if words and len(matching) == 1 else written


def shorten(command: str, listed: Iterable[str]) -> str:
    """`command` without what follows the first name in it, if `complete` puts that back."""
    head = _HEAD.fullmatch(command)
    return head[1] if head is not None and complete(head[1], listed) == command else command


def brief(observation: str) -> str:
    """An observation in few words; what is not known is left as it is.

    >>> brief("You arrive at desk 1. On the desk 1, you see a mug 2, a mug 1, and a pen 3.")
    'see mug 2 1 pen 3'
    >>> brief("You arrive at safe 1. The safe 1 is closed.")
    'closed'
    """
    if _TASK in observation:
        room = ROOM.search(observation)
        places = compact(LISTED.findall(room[1])) if room else observation.partition(_TASK)[0].strip()
        return f"{_sentence(observation)}\n{places}"
    if _DONE.fullmatch(observation):
        return "done"
    rest = _ARRIVED.sub("", observation, count=1)
    if CLOSED.fullmatch(rest):
        return "closed"
    for view in VIEWS:
        if seen := view.fullmatch(rest):
            things = compact(LISTED.findall(seen[2]))
            return f"see {things}" if things else "nothing"
    return rest.partition("\n")[0]


def compact(names: Iterable[str]) -> str:
    """Names with those of one kind put together.

    >>> compact(["cabinet 2", "cabinet 1", "shelf 1"])
    'cabinet 2 1 shelf 1'
    """
    numbers = ((kind, " ".join(name.partition(" ")[2] for name in group)) for kind, group in groupby(names, kind_of))
    return " ".join(f"{kind} {of_kind}" for kind, of_kind in numbers)


def _is_walk(command: str) -> bool:
    return command.startswith("go to ")


def _is_usual(command: str) -> bool:
    """Whether a command is possible nearly always."""
    return _is_walk(command) or command in _ALWAYS


def _sentence(observation: str) -> str:
    return observation.rpartition(_TASK)[2].strip()
