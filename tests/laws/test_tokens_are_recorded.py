"""Law 1: tokens are recorded, never re-made. What the engine sampled is what is trained on."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

pytest.importorskip("torch")

import toys

import rollenv
from rollenv.agents.llm import LLMAgent
from rollenv.config.algo import AlgoConfig
from rollenv.inference import Completion, SamplingParams, ScriptedEngine
from rollenv.inference.chat import ChatFormat
from rollenv.rollout.env_pool import EnvPool
from rollenv.rollout.episode import EpisodeLimits, EpisodeRequest
from rollenv.rollout.groups import Group, GroupRequest
from rollenv.rollout.play import DemonstrationPlay, ModelPlay
from rollenv.trainers.data import samples_of, train_tokens
from rollenv.trajectory import StopReason, Trajectory

TURNS = 9


class Talk(rollenv.TextEnv):
    """Says something new at every turn, and refuses every third action."""

    executor = "inline"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._turn = 0
        return "page 0\n\nsay red [1]", {"task": "t", "admissible_actions": ["red", "blue"]}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._turn += 1
        info = {"task": "t", "valid_action": self._turn % 3 != 0, "admissible_actions": ["red", "blue"]}
        return f"page {self._turn}\n\nsay {self._turn * 'x'}", 0.0, self._turn == TURNS, False, info


class Counting:
    """A tokenizer that counts how often each text is encoded."""

    def __init__(self, inner: Any) -> None:
        self._inner, self.encoded = inner, Counter[str]()

    def encode(self, text: str, **options: Any) -> list[int]:
        self.encoded[text] += 1
        return list(self._inner.encode(text, **options))

    def __call__(self, *args: Any, **options: Any) -> Any:
        raise AssertionError("text is encoded by encode() alone, where it is counted")

    def apply_chat_template(self, messages: Any, *, tokenize: bool, **options: Any) -> Any:
        assert tokenize is False
        return self._inner.apply_chat_template(messages, tokenize=False, **options)

    def __len__(self) -> int:
        return len(self._inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Babbler(ScriptedEngine):
    """Says random ids (no text would ever encode to them), some cut before their end token; keeps its prompts."""

    def __init__(self, vocabulary: int, end: int) -> None:
        super().__init__(self._babble)
        self._vocabulary, self._end = vocabulary, end
        self.prompts: list[list[int]] = []
        self.said: list[list[int]] = []

    def _babble(self, prompt: Any, sampling: SamplingParams) -> list[int]:
        draw = random.Random(sampling.seed)
        ids = [draw.randrange(4, self._vocabulary) for _ in range(draw.randint(1, 5))]
        return ids if draw.random() < 0.3 else [*ids, self._end]

    async def generate(self, prompt_ids: Any, sampling: SamplingParams, *, session: str) -> Completion:
        self.prompts.append(list(prompt_ids))
        completion = await super().generate(prompt_ids, sampling, session=session)
        self.said.append(list(completion.ids))
        return completion


def episode(history: Any, system: str, seed: int = 1) -> tuple[Trajectory, Counting, Babbler, ChatFormat]:
    counting = Counting(toys.tokenizer())
    chat = ChatFormat(counting)
    engine = Babbler(len(counting), chat.end_of_turn_id)
    agent = LLMAgent(system=system, history=history)
    sampling = SamplingParams(max_tokens=6, stop_token_ids=(chat.end_of_turn_id,))
    play = ModelPlay(EnvPool(Talk), "talk", agent, engine, chat, sampling, EpisodeLimits())
    trajectory = asyncio.run(play(EpisodeRequest("t", seed)))
    assert trajectory.stop is StopReason.TERMINATED
    return trajectory, counting, engine, chat


HISTORIES = [("full", 1), (1, TURNS), (2, TURNS - 1), (3, TURNS - 2), (5, 3)]


@pytest.mark.parametrize("system", ["", "You act."])
@pytest.mark.parametrize(("history", "segments"), HISTORIES)
def test_no_text_is_ever_tokenized_twice(history: Any, segments: int, system: str) -> None:
    trajectory, counting, _, _ = episode(history, system)
    assert len(trajectory.turns) == TURNS
    assert set(counting.encoded.values()) == {1}
    # Each page once, however many prompts showed it; no text that the model wrote was encoded at all.
    pages = [text for text in counting.encoded if "page" in text]
    assert len(pages) == TURNS
    assert not [turn.completion for turn in trajectory.turns if turn.completion in counting.encoded]


@pytest.mark.parametrize(("history", "segments"), HISTORIES)
def test_sampled_ids_appear_verbatim_in_later_prompts_and_in_the_segments(history: Any, segments: int) -> None:
    trajectory, _, engine, _ = episode(history, "You act.")
    assert [turn.completion_ids for turn in trajectory.turns] == engine.said
    streams = trajectory.segments()
    assert len(streams) == segments
    assert segments - 1 == sum(turn.fork for turn in trajectory.turns)
    for turn in range(1, TURNS):
        if trajectory.turns[turn].fork:
            # A new segment, openly: all of its prompt is new.
            assert trajectory.turns[turn].prompt_ids == engine.prompts[turn]
        else:
            before = engine.prompts[turn - 1] + engine.said[turn - 1]
            assert engine.prompts[turn] == before + trajectory.turns[turn].prompt_ids
        assert history == 1 or contains(engine.prompts[turn], engine.said[turn - 1])
    # What the model saw last in a segment, with its answer, is the segment.
    last_turns = [max(stream.turns) for stream in streams]
    for stream, last in zip(streams, last_turns, strict=True):
        assert stream.ids == engine.prompts[last] + engine.said[last]


@pytest.mark.parametrize(("history", "segments"), HISTORIES)
def test_exactly_the_sampled_tokens_train_each_once(history: Any, segments: int) -> None:
    trajectory, _, engine, _ = episode(history, "")
    trained: list[int] = []
    for stream in trajectory.segments():
        trained += [token for token, sampled in zip(stream.ids, stream.mask, strict=True) if sampled]
        assert all(v == -1 for v, m in zip(stream.policy_versions, stream.mask, strict=True) if not m)
    assert trained == [token for said in engine.said for token in said]
    samples = samples_of([Group(GroupRequest(0, "t", 1, 0), [trajectory])], AlgoConfig())
    assert train_tokens(samples).targets_N.tolist() == trained


def test_a_demonstration_is_written_down_without_encoding_anything_twice() -> None:
    counting = Counting(toys.tokenizer())
    chat = ChatFormat(counting)

    class Counter9:
        def reset(self, seed: int) -> None:
            self.turn = 0

        def act(self, observation: str, info: Any) -> str:
            self.turn += 1
            return f"answer {self.turn}"

    agent = LLMAgent(system="You act.", history=3)
    play = DemonstrationPlay(EnvPool(Talk), "talk", Counter9, agent, chat, EpisodeLimits())
    trajectory = asyncio.run(play(EpisodeRequest("t", 1)))
    assert set(counting.encoded.values()) == {1}
    assert trajectory.trainable
    assert all(turn.completion_ids[-1] == chat.end_of_turn_id for turn in trajectory.turns)


def contains(ids: list[int], part: list[int]) -> bool:
    return any(ids[i : i + len(part)] == part for i in range(len(ids) - len(part) + 1))
