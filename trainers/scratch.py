"""A policy from nothing: a small Llama and a byte-level BPE tokenizer trained on an environment's own text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

Numbers = Literal["digits", "whole"]

END, SYSTEM, USER, ASSISTANT = "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"

CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] }}"
    "{% if m['role'] == 'assistant' %}{{ '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


@dataclass(frozen=True, slots=True)
class ScratchShape:
    """The size of a model made from nothing."""

    hidden: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    mlp: int = 384
    vocabulary: int = 2048
    numbers: Numbers = "digits"
    context: int = 4096


def train_tokenizer(texts: Iterable[str], vocabulary: int, numbers: Numbers = "digits") -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer: any text survives a round trip.

    Words carry the space before them. Digits are tokens of their own, so that amounts can be compared place by place;
    what needs no such care is kept short: cents (`.99`), and a number in brackets (` [12]`), which is a name. Where all
    numbers are names (`drawer 12`), `numbers="whole"` keeps up to three digits together, with the space before them.
    """
    tokenizer = Tokenizer(models.BPE())
    number = r"\p{N}" if numbers == "digits" else r" ?\p{N}{1,3}"
    pattern = Regex(rf" ?\[\p{{N}}{{1,3}}\]|\.\p{{N}}{{2}}| ?\p{{L}}+|{number}| ?[^\s\p{{L}}\p{{N}}]+?|\s+(?!\S)|\s+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pattern, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END, SYSTEM, USER, ASSISTANT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=END,
        additional_special_tokens=[SYSTEM, USER, ASSISTANT],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def new_model(shape: ScratchShape, tokenizer: Any, seed: int) -> LlamaForCausalLM:
    """A Llama with random weights, decided by `seed` alone (the global generator is put back)."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        intermediate_size=shape.mlp,
        max_position_embeddings=shape.context,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)
