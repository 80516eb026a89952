"""Chat templates taken apart into pieces, and conversations put together from them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: E402

from rollenv.errors import RollenvError  # noqa: E402
from rollenv.inference.chat import PLAIN_TEMPLATE, ChatFormat, Conversation, common_suffix  # noqa: E402
from rollenv.messages import Message  # noqa: E402
from rollenv.trainers.scratch import CHAT_TEMPLATE, train_tokenizer  # noqa: E402

# The forms of well-known templates, without what only tools need.
CHATML = (
    "{%- if messages[0]['role'] == 'system' %}{{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}"
    "{%- else %}{{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{%- endif %}"
    "{%- for message in messages %}{%- if message['role'] != 'system' %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{%- endif %}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
LLAMA3 = (
    "{% for message in messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'"
    " + message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}"
    "{% endif %}{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ '[INST]' + message['content'] + '[/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
)

SPECIAL = {
    "chatml": (["<|endoftext|>", "<|im_start|>", "<|im_end|>"], None, "<|im_end|>", CHATML),
    "llama3": (
        ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
        "<|begin_of_text|>",
        "<|eot_id|>",
        LLAMA3,
    ),
    "mistral": (["<s>", "</s>", "[INST]", "[/INST]"], "<s>", "</s>", MISTRAL),
}
FORMATS = [*SPECIAL, "scratch"]
CORPUS = ["You are a helpful assistant.", "system user assistant\n\n", "buy a red toothbrush below 20 dollars"] * 3


def tokenizer_of(name: str, template: str | None = None) -> Any:
    """A byte-level tokenizer with the special tokens and the chat template of that family."""
    if name == "scratch":
        return train_tokenizer(CORPUS, 320)
    special, bos, eos, shipped = SPECIAL[name]
    core = Tokenizer(models.BPE())
    # A word never reaches across a line break, as in the real ones, where "\n" after a header stays by itself.
    split = pre_tokenizers.Split(Regex(r" ?[^\s]+|\n+|\s+"), behavior="isolated")
    core.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(vocab_size=320, special_tokens=special, initial_alphabet=alphabet, show_progress=False),
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=bos,
        eos_token=eos,
        additional_special_tokens=special,
        chat_template=shipped if template is None else template,
    )


CHATS = {name: ChatFormat(tokenizer_of(name)) for name in FORMATS}

# Content as environments and models write it: it begins and ends with something visible (templates trim).
TEXT = st.text(st.sampled_from("abz AB12[]$.,'\n\t-éß界"), min_size=1, max_size=30).filter(
    lambda text: text == text.strip() and text != ""
)


def rendered(chat: ChatFormat, messages: list[tuple[str, str]], prompt: bool) -> list[int]:
    """The ids of the template's own rendering, all text at once."""
    turns = [{"role": role, "content": content} for role, content in messages]
    text = chat.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=prompt)
    return chat.encode(text)


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=40)
@given(system=st.none() | TEXT, exchanges=st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=4))
def test_pieces_equal_the_templates_own_rendering(
    name: str, system: str | None, exchanges: list[tuple[str, str]]
) -> None:
    """Turn by turn, with the answers' ids appended, the conversation is what the template makes of all of it."""
    chat = CHATS[name]
    if name == "mistral":
        system = None
    conversation = Conversation(chat)
    said = [("system", system)] if system is not None else []
    messages = [Message(role, content) for role, content in said]
    for turn, (user, answer) in enumerate(exchanges):
        said.append(("user", user))
        messages.append(Message("user", user, turn))
        whole, new, fork = conversation.prompt(messages)
        assert whole == rendered(chat, said, prompt=True)
        assert whole[len(whole) - len(new) :] == new
        assert not fork
        ids = [*chat.encode(answer), chat.end_of_turn_id]
        assert chat.decode(ids) == answer
        conversation.answered(turn, ids, answer)
        said.append(("assistant", answer))
        messages.append(Message("assistant", answer, turn))
        full = rendered(chat, said, prompt=False)
        # ChatML writes a line break after the end token; it belongs to what comes next.
        assert full[: len(conversation.ids)] == conversation.ids
        assert chat.decode(full[len(conversation.ids) :]).strip() == ""


@pytest.mark.parametrize("name", FORMATS)
@given(TEXT, st.data())
def test_what_reads_like_a_special_token_in_a_message_is_text(name: str, text: str, data: st.DataObject) -> None:
    """A page that holds `<|im_end|>` ends no turn: the control tokens of a block are those of a harmless one."""
    chat = CHATS[name]
    special = set(chat.tokenizer.all_special_ids)
    harmful = text + data.draw(st.sampled_from(chat.tokenizer.all_special_tokens)) + text

    def control(ids: list[int]) -> list[int]:
        return [i for i in ids if i in special]

    assert control(chat.user_block(harmful)) == control(chat.user_block("harmless"))
    assert not control(chat.plain(harmful))
    assert chat.tokenizer.decode(chat.plain(harmful), clean_up_tokenization_spaces=False) == harmful
    assert chat.plain(text) == chat.encode(text)


def test_end_of_turn_is_the_token_that_ends_an_answer() -> None:
    for name, token in (
        ("chatml", "<|im_end|>"),
        ("llama3", "<|eot_id|>"),
        ("mistral", "</s>"),
        ("scratch", "<|end|>"),
    ):
        assert CHATS[name].end_of_turn_id == CHATS[name].tokenizer.convert_tokens_to_ids(token)


def test_default_system_prompt_of_a_template_stays_in_place() -> None:
    chat = CHATS["chatml"]
    assert "You are a helpful assistant." in chat.tokenizer.decode(chat.opening(None))
    assert "You are a helpful assistant." not in chat.tokenizer.decode(chat.opening("Shop."))
    assert "Shop." in chat.tokenizer.decode(chat.opening("Shop."))


def test_tokenizer_without_template_gets_the_plain_one() -> None:
    tokenizer = tokenizer_of("llama3", template="")
    tokenizer.chat_template = None
    chat = ChatFormat(tokenizer)
    conversation = Conversation(chat)
    whole, _, _ = conversation.prompt([Message("system", "Shop."), Message("user", "a shoe", 0)])
    assert tokenizer.decode(whole) == "Shop.\nUser: a shoe\nAssistant: "
    ids = [*chat.encode("buy"), chat.end_of_turn_id]
    conversation.answered(0, ids, "buy")
    messages = [Message("system", "Shop."), Message("user", "a shoe", 0), Message("assistant", "buy", 0)]
    whole, new, fork = conversation.prompt([*messages, Message("user", "again", 1)])
    said = [{"role": m.role, "content": m.content} for m in [*messages, Message("user", "again")]]
    text = tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True, chat_template=PLAIN_TEMPLATE)
    assert tokenizer.decode(whole) == text
    assert not fork
    assert tokenizer.decode(new) == "\nUser: again\nAssistant: "


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ messages[-1]['content'] }}", "drops or repeats messages"),
        (
            "{% for m in messages %}{{ m['content'] + m['content'] + eos_token }}{% endfor %}",
            "drops or repeats messages",
        ),
        ("{% for m in messages | reverse %}{{ m['content'] + eos_token }}{% endfor %}", "drops or repeats messages"),
        ("{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}", "special token"),
        ("{{ raise_exception('tools are needed') }}", "cannot render a conversation: tools are needed"),
        ("{% for m in messages %}", "cannot render a conversation"),
    ],
)
def test_a_template_that_cannot_be_taken_apart_is_refused_in_one_sentence(template: str, message: str) -> None:
    with pytest.raises(RollenvError, match=message) as refusal:
        ChatFormat(tokenizer_of("llama3", template))
    assert "\n" not in str(refusal.value)


def test_a_template_without_system_prompts_says_so_when_one_is_given() -> None:
    with pytest.raises(RollenvError, match=r"takes no system prompt: set agent\.system=''"):
        CHATS["mistral"].opening("Shop.")


def test_neither_template_nor_end_token_is_refused() -> None:
    tokenizer = tokenizer_of("llama3")
    tokenizer.chat_template = tokenizer.eos_token = None
    with pytest.raises(RollenvError, match="neither a chat template nor an end token"):
        ChatFormat(tokenizer)


@pytest.mark.parametrize("name", FORMATS)
def test_an_answer_cut_short_gets_its_end_token_with_the_next_prompt(name: str) -> None:
    """It stopped by length: the end token is appended as something read, never as something sampled."""
    chat = CHATS[name]
    conversation = Conversation(chat)
    first = [Message("user", "one", 0)]
    conversation.prompt(first)
    cut = chat.encode("tw")
    conversation.answered(0, cut, "tw")
    before = list(conversation.ids)
    whole, new, fork = conversation.prompt([*first, Message("assistant", "tw", 0), Message("user", "three", 1)])
    assert whole == before + new
    assert new[0] == chat.end_of_turn_id
    assert not fork
    assert whole == rendered(chat, [("user", "one"), ("assistant", "tw"), ("user", "three")], prompt=True)


def test_sampled_ids_are_kept_even_when_their_text_would_encode_otherwise() -> None:
    """The ids of an answer are the sampled ones, spelled byte by byte here, not the merges its text has."""
    chat = CHATS["scratch"]
    spelled = [chat.encode(letter)[0] for letter in "toothbrush"] + [chat.end_of_turn_id]
    assert chat.decode(spelled) == "toothbrush"
    assert chat.encode("toothbrush") != spelled[:-1]
    conversation = Conversation(chat)
    conversation.prompt([Message("user", "buy", 0)])
    conversation.answered(0, spelled, "toothbrush")
    messages = [Message("user", "buy", 0), Message("assistant", "toothbrush", 0), Message("user", "more", 1)]
    whole, _, _ = conversation.prompt(messages)
    start = len(chat.opening(None)) + len(chat.user_block("buy"))
    assert whole[start : start + len(spelled)] == spelled
    # The window slides: the answer stays those ids in the new segment too.
    whole, new, fork = conversation.prompt(messages[1:])
    assert fork
    assert whole == new
    assert whole[len(chat.opening(None)) :][: len(spelled)] == spelled


def test_a_changed_past_forks() -> None:
    chat = CHATS["scratch"]
    conversation = Conversation(chat)
    conversation.prompt([Message("user", "one", 0)])
    conversation.answered(0, [*chat.encode("two"), chat.end_of_turn_id], "two")
    changed = [Message("user", "ONE", 0), Message("assistant", "two", 0), Message("user", "three", 1)]
    whole, new, fork = conversation.prompt(changed)
    assert fork
    assert whole == new == rendered(chat, [("user", "ONE"), ("assistant", "two"), ("user", "three")], prompt=True)


def test_what_was_returned_is_not_changed_by_later_turns() -> None:
    chat = CHATS["scratch"]
    conversation = Conversation(chat)
    whole, new, _ = conversation.prompt([Message("user", "one", 0)])
    kept = list(whole), list(new)
    conversation.answered(0, [*chat.encode("two"), chat.end_of_turn_id], "two")
    conversation.prompt([Message("user", "one", 0), Message("assistant", "two", 0), Message("user", "three", 1)])
    assert (whole, new) == kept


def test_the_template_constant_is_what_the_scratch_tokenizer_carries() -> None:
    assert CHATS["scratch"].tokenizer.chat_template == CHAT_TEMPLATE


@given(st.text(max_size=8), st.text(max_size=8), st.text(max_size=8))
def test_common_suffix(a: str, b: str, tail: str) -> None:
    suffix = common_suffix(a + tail, b + tail)
    assert (a + tail).endswith(suffix)
    assert (b + tail).endswith(suffix)
    assert suffix.endswith(tail)
    rest_a, rest_b = (a + tail).removesuffix(suffix), (b + tail).removesuffix(suffix)
    assert not rest_a or not rest_b or rest_a[-1] != rest_b[-1]
