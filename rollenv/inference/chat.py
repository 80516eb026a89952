"""ChatFormat: a tokenizer's chat template, taken apart into pieces that are encoded once each.

Invariant: a conversation's tokens are a concatenation of pieces. A user message's piece is encoded once, whatever
prompts it later occurs in; an answer's piece is the ids that were sampled. Nothing is encoded a second time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rollenv.errors import RollenvError
from rollenv.messages import Message

PLAIN_TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}{{ 'Assistant: ' + m['content'] + eos_token + '\n' }}"
    "{% elif m['role'] == 'system' %}{{ m['content'] + '\n' }}{% else %}{{ 'User: ' + m['content'] + '\n' }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ 'Assistant: ' }}{% endif %}"
)
"""For base models, whose tokenizer has no chat template."""

_SYSTEM, _FIRST, _ANSWER, _NEXT = "\u2460SYS\u2460", "\u2461ONE\u2461", "\u2462ANS\u2462", "\u2463TWO\u2463"


class ChatFormat:
    """The pieces of a chat template.

    A conversation reads: opening, user block, answer, separator, user block, answer, ... where
    opening is what stands before the first user block (with or without a system prompt), a user block is
    header + content + end + the header of the answer, and the answer ends with `end_of_turn`.

    Args:
        tokenizer: a `transformers` tokenizer. Without a chat template, `PLAIN_TEMPLATE` is used.

    Raises:
        RollenvError: the template does not keep the conversation in order, so it cannot be taken apart.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._template = None if getattr(tokenizer, "chat_template", None) else PLAIN_TEMPLATE
        if tokenizer.eos_token is None and self._template:
            raise RollenvError(f"tokenizer '{tokenizer.name_or_path}' has neither a chat template nor an end token")
        self._encoded: dict[str, list[int]] = {}
        self._special = tuple(token for token in tokenizer.all_special_tokens if token)
        self._take_apart()

    def _render(self, messages: list[dict[str, str]], prompt: bool) -> str:
        kwargs: dict[str, Any] = {"chat_template": self._template} if self._template else {}
        return str(self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt, **kwargs))

    def _take_apart(self) -> None:
        def say(role: str, content: str) -> dict[str, str]:
            return {"role": role, "content": content}

        try:
            long = self._render([say("user", _FIRST), say("assistant", _ANSWER), say("user", _NEXT)], prompt=True)
        except Exception as error:  # whatever jinja or the template itself raises
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise RollenvError(
                f"the chat template of '{self.tokenizer.name_or_path}' cannot render a conversation: {reason:.200}"
            ) from error
        try:
            before_first, rest = long.split(_FIRST)
            _, rest = rest.split(_ANSWER)
            answer_to_next, self._after_user = rest.split(_NEXT)
            try:
                with_system = self._render([say("system", _SYSTEM), say("user", _FIRST)], prompt=True)
                before_system, system_to_first = with_system.split(_FIRST)[0].split(_SYSTEM)
            except Exception:  # a template may refuse system prompts, each in its own way
                before_system, system_to_first = None, before_first
        except ValueError:
            raise RollenvError(
                f"the chat template of '{self.tokenizer.name_or_path}' drops or repeats messages: "
                "give the tokenizer a template that renders every message once, in order"
            ) from None
        self._end_of_turn, separator = self._split_end(answer_to_next)
        self._header = common_suffix(common_suffix(separator, before_first), system_to_first)
        self._separator = separator.removesuffix(self._header)
        self._opening = before_first.removesuffix(self._header)
        self._before_system = before_system
        self._after_system = system_to_first.removesuffix(self._header)

    def _split_end(self, text: str) -> tuple[str, str]:
        """The end-of-turn token at the beginning of `text`, and the rest."""
        tokens = {self.tokenizer.eos_token, *self.tokenizer.all_special_tokens, *self.tokenizer.get_added_vocab()}
        ends = [token for token in tokens if token and text.startswith(token)]
        if not ends:
            raise RollenvError(
                f"the chat template of '{self.tokenizer.name_or_path}' does not end an answer with a special token"
            )
        end = max(ends, key=len)
        return end, text[len(end) :]

    @property
    def end_of_turn_id(self) -> int:
        """The token that ends an answer: sampled by the model, and its stop token."""
        return int(self.tokenizer.convert_tokens_to_ids(self._end_of_turn))

    def opening(self, system: str | None) -> list[int]:
        """What stands before the first user block."""
        if system is None:
            return self._static(self._opening)
        if self._before_system is None:
            raise RollenvError(
                f"the chat template of '{self.tokenizer.name_or_path}' takes no system prompt: set agent.system=''"
            )
        return self._static(self._before_system + system + self._after_system)

    def user_block(self, content: str) -> list[int]:
        """A user message and the header of the answer that follows it. Encoded at each call: keep the result."""
        if self._looks_special(content):
            return [*self.encode(self._header), *self.plain(content), *self.encode(self._after_user)]
        return self.encode(self._header + content + self._after_user)

    def separator(self) -> list[int]:
        """What stands between an answer's end token and the next user block."""
        return self._static(self._separator)

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, special tokens recognised, none added."""
        return list(self.tokenizer.encode(text, add_special_tokens=False)) if text else []

    def plain(self, text: str) -> list[int]:
        """The ids of text from outside: what reads like a special token in it is text, and ends or begins no turn."""
        if not self._looks_special(text):
            return self.encode(text)
        return list(self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))

    def _looks_special(self, text: str) -> bool:
        return any(token in text for token in self._special)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of an answer, without special tokens."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def _static(self, text: str) -> list[int]:
        """Pieces that are the same in every episode are encoded once per format."""
        if text not in self._encoded:
            self._encoded[text] = self.encode(text)
        return self._encoded[text]


class Conversation:
    """The tokens of one episode's conversation, appended to as it goes.

    Usage per turn: `prompt(messages)` gives what to send to the engine; `answered(ids, text)` records what came.
    """

    def __init__(self, chat: ChatFormat) -> None:
        self._chat = chat
        self._users: dict[tuple[int | None, str], list[int]] = {}
        self._answers: dict[int, tuple[str, list[int]]] = {}
        self._keys: list[tuple[str, int | None, str]] = []
        self._ids: list[int] = []

    @property
    def ids(self) -> list[int]:
        """The whole context as the model has seen it so far."""
        return self._ids

    def copy(self) -> Conversation:
        """One that goes on from here by itself; the pieces so far are not encoded again."""
        other = Conversation(self._chat)
        other._users, other._answers = dict(self._users), dict(self._answers)
        other._keys, other._ids = self._keys, self._ids  # never changed in place
        return other

    def prompt(self, messages: Sequence[Message]) -> tuple[list[int], list[int], bool]:
        """(whole prompt, what is new in it, whether it forked) for a conversation that a user message ends.

        It forks when `messages` are not an extension of those of the turn before: then everything is new.
        """
        keys: list[tuple[str, int | None, str]] = [(m.role, m.turn, m.content) for m in messages]
        extends = keys[: len(self._keys)] == self._keys and bool(self._keys)
        new = self._pieces(messages, len(self._keys) if extends else 0)
        fork = not extends and bool(self._keys)
        self._ids = self._ids + new if extends else new
        self._keys = keys
        return self._ids, new, fork

    def answered(self, turn: int, ids: list[int], text: str) -> None:
        """Appends an answer: the ids that were sampled for the last prompt."""
        self._answers[turn] = (text, ids)
        self._ids = self._ids + ids
        self._keys = [*self._keys, ("assistant", turn, text)]

    def _pieces(self, messages: Sequence[Message], start: int) -> list[int]:
        ids: list[int] = []
        for index in range(start, len(messages)):
            message = messages[index]
            if index == 0 and message.role != "system":
                ids += self._chat.opening(None)
            if message.role == "system":
                ids += self._chat.opening(message.content)
            elif message.role == "assistant":
                ids += self._answer(message)
            else:
                if index and messages[index - 1].role == "assistant":
                    ids += self._close(messages[index - 1])
                ids += self._user(message)
        return ids

    def _user(self, message: Message) -> list[int]:
        key = (message.turn, message.content)
        if key not in self._users:
            self._users[key] = self._chat.user_block(message.content)
        return self._users[key]

    def _answer(self, message: Message) -> list[int]:
        recorded = self._answers.get(message.turn) if message.turn is not None else None
        if recorded is not None and recorded[0] == message.content:
            return recorded[1]
        key = (-1, message.content)
        if key not in self._users:
            self._users[key] = [*self._chat.plain(message.content), self._chat.end_of_turn_id]
        return self._users[key]

    def _close(self, answer: Message) -> list[int]:
        """What follows an answer: its end token, when it stopped without one, and the separator."""
        ended = self._answer(answer)[-1:] == [self._chat.end_of_turn_id]
        return ([] if ended else [self._chat.end_of_turn_id]) + self._chat.separator()


def common_suffix(a: str, b: str) -> str:
    """The longest text that both end with."""
    size = 0
    while size < min(len(a), len(b)) and a[-1 - size] == b[-1 - size]:
        size += 1
    return a[len(a) - size :]
