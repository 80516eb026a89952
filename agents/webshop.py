"""WebShopAgent: a language model shops, by `search[...]`/`click[...]` or by the numbers of what it can click."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal

from rollenv.agents.base import Step
from rollenv.agents.history import History, check_history, conversation, window_start
from rollenv.agents.llm import last_action
from rollenv.errors import RollenvError
from rollenv.messages import Message

ActionFormat = Literal["text", "numbered"]

SYSTEM = {
    "text": (
        "You shop in a web store. Buy the product that fulfils the instruction: right kind, all attributes, all "
        "options chosen, price below the bound. Answer with one action alone on the last line: "
        "search[words] where there is a search bar, or click[label] with a label from the list."
    ),
    "numbered": (
        "You shop in a web store. Buy the product that fulfils the instruction: right kind, all attributes, all "
        "options chosen, price below the bound. What can be clicked has its number after it in brackets. Answer "
        "with one action alone on the last line: 'search words' where there is a search bar, or 'click [number]', "
        "or 'click label'."
    ),
}

_SEPARATOR = " [SEP] "
_ACTION = re.compile(r"(search|click)\[(.*)\]", re.IGNORECASE | re.DOTALL)
_WORDS = re.compile(r"(search|click)\s+(.*)", re.IGNORECASE | re.DOTALL)
_NUMBER = re.compile(r"\[?(\d{1,4})\]?")
_SAME_PAGE = "Same page."
_IMPOSSIBLE = "That is not possible."


class WebShopAgent:
    """Prompts for WebShop in observation mode `text`.

    Args:
        action_format: `text` (`click[b09xyz]`) or `numbered` (each clickable has a number after its label; products
            are shown as `title $price [3]`, and chosen by number, `click [3]`; what else there is by number or by
            label, `click buy now`, `click color: navy blue`; `search[...]` and `click[...]` are understood too).
        system: the system prompt; None takes the one of the format, `""` means none.
        history: `"full"` or the number of turns the model sees. With the full history a page that the model has seen
            is named, not shown again.
        title_words: cut product titles after so many words (None: whole).
    """

    def __init__(
        self,
        action_format: ActionFormat = "numbered",
        system: str | None = None,
        history: History = "full",
        title_words: int | None = None,
    ) -> None:
        if action_format not in SYSTEM:
            raise RollenvError(f"action_format must be 'text' or 'numbered', not {action_format!r}")
        self.action_format = action_format
        self.system = SYSTEM[action_format] if system is None else system
        self.history = check_history(history)
        self.title_words = title_words

    # -- what the model reads ------------------------------------------------------------------------------

    def messages(self, history: Sequence[Step]) -> list[Message]:
        start = window_start(len(history), self.history)
        texts = [self._read(history, turn) if turn >= start else "" for turn in range(len(history))]
        return conversation(self.system, texts, history, start)

    def _read(self, history: Sequence[Step], turn: int) -> str:
        """The user message of a turn. Rendered once: it depends only on turns up to that one."""
        step = history[turn]
        if "text" not in step.data:
            refused = turn > 0 and not history[turn - 1].valid_action
            step.data["text"] = (_IMPOSSIBLE + "\n" if refused else "") + self._render(history, turn)
        return str(step.data["text"])

    def _render(self, history: Sequence[Step], turn: int) -> str:
        step = history[turn]
        if self.history == "full":
            seen = next((t for t in range(turn) if history[t].observation == step.observation), None)
            if seen is not None:
                step.data.update(clickables=history[seen].data["clickables"], name=history[seen].data["name"])
                return (
                    _SAME_PAGE if history[turn - 1].observation == step.observation else f"Again: {step.data['name']}"
                )
        instruction, page = split_instruction(step.observation)
        shown = instruction + "\n" if instruction and (turn == 0 or self.history != "full") else ""
        lines = list(self._numbered(page, step) if self.action_format == "numbered" else self._plain(page, step))
        step.data["name"] = page_name(page)
        return shown + "\n".join(lines)

    def _plain(self, page: list[str], step: Step) -> Iterator[str]:
        available = step.info["available_actions"]
        step.data["clickables"] = [(label, label) for label in available["clickables"]]
        for asin, title, price in results(page, set(available["clickables"])):
            yield f"{asin} {self._cut(title)} {price}".strip() if price else asin
        actions = [f"click[{label}]" for label in available["clickables"]]
        yield "Actions: " + " ".join((["search[words]"] if available["has_search_bar"] else []) + actions)

    def _numbered(self, page: list[str], step: Step) -> Iterator[str]:
        clickables = set(step.info["available_actions"]["clickables"])
        nodes = list(results(page, clickables))
        options = option_names([node for node, _, _ in nodes], clickables)
        numbers: list[tuple[str, str]] = []  # (what to click, its label), by number - 1
        line: list[str] = []
        group = ""
        for index, (node, title, price) in enumerate(nodes):
            if node.lower() not in clickables:
                if line:
                    yield " ".join(line)
                group = node if index in options else ""
                # `color?`, not `color:`, which the instruction has: a small model copies what follows the same token.
                line = [f"- {node}?" if group else node]
                continue
            numbers.append((node.lower(), title if price else f"{group}: {node}" if group else node))
            if price and line:
                yield " ".join(line)
                line = []
            line.append(f"{self._cut(title)} {price} [{len(numbers)}]" if price else f"{node} [{len(numbers)}]")
        step.data["clickables"] = numbers
        if line:
            yield " ".join(line)

    def _cut(self, title: str) -> str:
        return title if self.title_words is None else " ".join(title.split()[: self.title_words])

    # -- what the model writes -----------------------------------------------------------------------------

    def action(self, text: str, step: Step) -> str:
        written = last_action(text)
        if self.action_format == "text":
            return written
        match = _ACTION.fullmatch(written) or _WORDS.fullmatch(written)
        if match is None:
            return written
        target = match[2].strip()
        if match[1].lower() == "search":
            return f"search[{target}]"
        return f"click[{self._clicked(target.lower(), step)}]"

    @staticmethod
    def _clicked(target: str, step: Step) -> str:
        """What a label or a number means; a label that is itself a number wins, and no meaning is the word itself."""
        clickables = step.data["clickables"]
        labelled = {click for click, label in clickables if target in (click, label.lower())}
        if len(labelled) == 1:
            return str(labelled.pop())
        number = _NUMBER.fullmatch(target)
        if number is not None and 1 <= int(number[1]) <= len(clickables):
            return str(clickables[int(number[1]) - 1][0])
        return target

    def text(self, action: str, step: Step) -> str:
        match = _ACTION.fullmatch(action)
        if match is None or self.action_format == "text":
            return action
        # Words that follow a space are the same tokens as in the page and the instruction: a small model copies them.
        if match[1].lower() == "search":
            return f"search {match[2]}"
        for number, (click, label) in enumerate(step.data["clickables"], start=1):
            if click == match[2].lower():
                is_product = not label.lower().endswith(click)
                return f"click [{number}]" if is_product else f"click {label.lower()}"
        return f"click {match[2]}"


def split_instruction(observation: str) -> tuple[str, list[str]]:
    """The instruction (`""` when the page shows none) and the other nodes of a page in observation mode `text`."""
    nodes = observation.split(_SEPARATOR)
    if "Instruction:" not in nodes[:2]:
        return "", nodes
    at = nodes.index("Instruction:")
    return nodes[at + 1] if len(nodes) > at + 1 else "", nodes[:at] + nodes[at + 2 :]


def page_name(page: Sequence[str]) -> str:
    """What a page is called when it comes again: its number among the hits, or the product's title."""
    for index, node in enumerate(page):
        if node.startswith("Page "):
            return node.split(" (")[0]
        if node.startswith("Price: ") and index:
            return page[index - 1]
    return page[-1] if page else ""


def option_names(nodes: Sequence[str], clickables: set[str]) -> set[int]:
    """Which nodes of a product's page name a group of options: those before its price that a value follows."""
    if "buy now" not in clickables:
        return set()
    end = next((i for i, node in enumerate(nodes) if node.startswith("Price: ")), 0)
    return {i for i in range(end - 1) if nodes[i].lower() not in clickables and nodes[i + 1].lower() in clickables}


def results(page: Sequence[str], clickables: set[str]) -> Iterator[tuple[str, str, str]]:
    """The nodes of a page: a hit of a result page as one (asin, title, price), anything else as (node, "", "")."""
    is_results = any(node.startswith("Page ") for node in page[:2])
    index = 0
    while index < len(page):
        node = page[index]
        if is_results and index + 2 < len(page) and node.lower() in clickables and page[index + 2].startswith("$"):
            yield node, page[index + 1], page[index + 2]
            index += 3
        else:
            yield node, "", ""
            index += 1
