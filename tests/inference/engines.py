"""A tiny model of each architecture, an engine around it, and what a test does with them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from rollenv.inference import Completion, SamplingParams, TorchEngine  # noqa: E402

VOCAB = 211
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
ARCHITECTURES = {
    "llama": ("Llama", {}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-biased": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama3-rope": (
        "Llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 256,
            }
        },
    ),
    "qwen2": ("Qwen2", {"num_attention_heads": 8, "num_key_value_heads": 1}),
    "qwen3": ("Qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    "mistral": ("Mistral", {"num_key_value_heads": 4}),
    "granite": ("Granite", {"logits_scaling": 3.0, "embedding_multiplier": 2.0, "residual_multiplier": 0.7}),
}


def build(name: str = "llama", seed: int = 0) -> Any:
    """A tiny random model whose scores are spread enough that greedy choices are no near-ties."""
    family, extra = ARCHITECTURES[name]
    config = getattr(transformers, f"{family}Config")(**(SIZES | extra))
    torch.manual_seed(seed)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4.0)
            elif not torch.equal(parameter, torch.ones_like(parameter)):
                parameter.normal_(0, 0.1)
    return model


@asynccontextmanager
async def engine_of(model: Any, **options: Any) -> AsyncIterator[TorchEngine]:
    engine = TorchEngine(model, **options)
    try:
        yield engine
    finally:
        await engine.close()


def in_engine(test: Callable[[TorchEngine], Awaitable[Any]], model: Any = None, **options: Any) -> Any:
    """Runs `test(engine)` in an event loop of its own."""

    async def run() -> Any:
        async with engine_of(model if model is not None else build(), **options) as engine:
            return await test(engine)

    return asyncio.run(run())


def tokens(n: int, seed: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(1, VOCAB) for _ in range(n)]


def greedy(max_tokens: int = 8) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0.0)


def reference_generate(model: Any, prompt: list[int], n: int) -> list[int]:
    ids = torch.tensor([prompt])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=n, do_sample=False)
    return out[0, len(prompt) :].tolist()


def reference_logprobs(model: Any, prompt: list[int], completion: list[int], temperature: float = 1.0) -> list[float]:
    with torch.no_grad():
        logits = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1].float() / temperature
    return logits.log_softmax(-1).gather(1, torch.tensor(completion)[:, None])[:, 0].tolist()


async def play(
    engine: TorchEngine,
    seed: int,
    turns: int = 4,
    sampling: Callable[[int], SamplingParams] | None = None,
    release: bool = False,
) -> tuple[list[int], list[Completion]]:
    """A multi-turn episode that grows by appending: its last history and its completions."""
    history: list[int] = []
    completions = []
    draw = random.Random(seed)
    for turn in range(turns):
        history += tokens(draw.choice([1, 5, 17, 60, 130]), seed * 100 + turn)
        params = (
            sampling(turn) if sampling else SamplingParams(max_tokens=draw.choice([1, 3, 9]), seed=seed * 10 + turn)
        )
        completion = await engine.generate(history, params, session=f"s{seed}")
        completions.append(completion)
        history = history + completion.ids
        if release:
            await engine.release(f"s{seed}")
    return history, completions


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


def start(coroutine: Coroutine[Any, Any, Completion]) -> asyncio.Task[Completion]:
    return asyncio.get_running_loop().create_task(coroutine)
