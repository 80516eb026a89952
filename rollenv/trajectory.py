"""What an episode leaves behind: turns, a stop reason, and the token segments a trainer learns from.

Invariant: `prompt_ids` and `completion_ids` are the tokens the engine saw and sampled. Nothing here encodes text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal


class StopReason(StrEnum):
    """Why an episode ended. Every episode ends with exactly one."""

    TERMINATED = "terminated"
    """The environment said so."""
    TRUNCATED = "truncated"
    """The environment's own limit."""
    MAX_TURNS = "max_turns"
    """The rollout's limit of turns."""
    MAX_TOKENS = "max_tokens"
    """The rollout's limit of tokens."""
    ABORTED = "aborted"
    """Cancelled from outside; counted as waste."""
    FAILED = "failed"
    """A fault of the environment, the engine, a sandbox or a reward: see `Trajectory.failure`. Never trained on."""


FaultPlace = Literal["env", "agent", "engine", "sandbox", "reward"]
FaultKind = Literal["timeout", "crash", "bad_output"]


@dataclass(frozen=True, slots=True)
class Failure:
    """A fault, which is not a reward.

    `collateral`: another episode's environment broke the worker process that both lived in; this one did nothing wrong,
    and is tried again without counting it as a try.
    """

    where: FaultPlace
    kind: FaultKind
    message: str
    turn: int | None = None
    collateral: bool = False
    injected: str = ""
    """Name of the fault that was injected on purpose and caused this one; empty for a real fault."""

    @property
    def label(self) -> str:
        """What it is counted as: `env/timeout`, `env/collateral` when another is to blame, `injected/env_hang`."""
        if self.injected:
            return f"injected/{self.injected}"
        return f"{self.where}/{'collateral' if self.collateral else self.kind}"


@dataclass(slots=True)
class Turn:
    """One exchange: what the policy newly read, what it wrote, and what the environment made of it.

    Tokens (all lists may be empty for agents that are not language models):
        prompt_ids: T_p ids that are new since the previous turn; after a `fork` the whole prompt.
        completion_ids: T_c sampled ids, end-of-turn token included when it was sampled.
        logprobs: T_c natural-log probabilities under the distribution they were sampled from.
        policy_versions: T_c versions of the weights that made each token.
    `seconds` has wall-clock parts: `generate`, `env`, and others a later reader may add.
    `branch_returns`: what other episodes earned from here on, that were played from a snapshot of the state in which
    this turn began (discounted to this turn); empty where none were.
    """

    observation: str
    prompt_ids: list[int] = field(default_factory=list)
    completion_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    policy_versions: list[int] = field(default_factory=list)
    fork: bool = False
    completion: str = ""
    action: str = ""
    reward: float = 0.0
    valid_action: bool = True
    seconds: dict[str, float] = field(default_factory=dict)
    branch_returns: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Segment:
    """A token stream that was contiguous for the model: one per trajectory, and one more per fork.

    All lists have length T. `mask[i]` is 1 where token i was sampled by the policy (trainable), else 0;
    `logprobs` and `policy_versions` are meaningful there only (0.0 and -1 elsewhere); `turns[i]` is the turn
    that token i belongs to.
    """

    ids: list[int]
    mask: list[int]
    logprobs: list[float]
    policy_versions: list[int]
    turns: list[int]


def plain(value: Any) -> Any:
    """`value` in terms that JSON has: numpy's numbers and arrays as Python's, what else it cannot say as its text.

    >>> plain({"r_type": 0.5, ("a",): {1}})
    {'r_type': 0.5, "('a',)": '{1}'}
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return str(value)


def fields_of(record: Any) -> dict[str, Any]:
    """The fields of a dataclass and their values; lists and dicts are copies, what is in them is shared. (`asdict` goes
    through every token.)"""
    values = ((name, getattr(record, name)) for name in type(record).__dataclass_fields__)
    return {name: value.copy() if isinstance(value, (list, dict)) else value for name, value in values}


@dataclass(slots=True)
class Trajectory:
    """One episode, whole. `group` and `sample` place it among the samples of its task; `attempt` counts retries."""

    env: str
    task: str
    seed: int
    group: int = 0
    sample: int = 0
    attempt: int = 0
    turns: list[Turn] = field(default_factory=list)
    stop: StopReason = StopReason.ABORTED
    failure: Failure | None = None
    success: bool | None = None
    info: dict[str, Any] = field(default_factory=dict)
    shared: list[int] = field(default_factory=list)
    """Of an episode that branched off another one: for each turn that it has from there, the sample that played it.
    These turns come first; they were played, paid for and are trained once, as that sample's. Empty for an episode that
    began with a reset."""
    branch_cost: dict[str, float] = field(default_factory=dict)
    """What the branches cost that were played to value its turns: `episodes`, `tokens` sampled, `env_seconds`."""

    @property
    def own_turns(self) -> list[Turn]:
        """The turns that this episode played itself."""
        return self.turns[len(self.shared) :]

    @property
    def reward(self) -> float:
        """The episode's return: the undiscounted sum of its rewards."""
        return float(sum(turn.reward for turn in self.turns))

    @property
    def trainable(self) -> bool:
        """Whether a trainer may learn from it: it ended by itself or by a limit, and something was sampled."""
        return self.stop not in (StopReason.FAILED, StopReason.ABORTED) and any(t.completion_ids for t in self.turns)

    @property
    def n_prompt_tokens(self) -> int:
        """Tokens read (each once, unless a fork made the model read them again)."""
        return sum(len(turn.prompt_ids) for turn in self.turns)

    @property
    def n_completion_tokens(self) -> int:
        """Tokens sampled."""
        return sum(len(turn.completion_ids) for turn in self.turns)

    @property
    def n_spent_tokens(self) -> int:
        """Tokens sampled in its own turns."""
        return sum(len(turn.completion_ids) for turn in self.own_turns)

    def segments(self) -> list[Segment]:
        """The token streams, in order; a turn with `fork` begins a new one. Turns without tokens add nothing."""
        return list(self._segments())

    def _segments(self) -> Iterator[Segment]:
        segment: Segment | None = None
        for index, turn in enumerate(self.turns):
            if not turn.completion_ids and not turn.prompt_ids:
                continue
            if segment is None or turn.fork:
                if segment is not None:
                    yield segment
                segment = Segment([], [], [], [], [])
            read, wrote = len(turn.prompt_ids), len(turn.completion_ids)
            segment.ids.extend(turn.prompt_ids + turn.completion_ids)
            segment.mask.extend([0] * read + [1] * wrote)
            segment.logprobs.extend([0.0] * read + turn.logprobs)
            segment.policy_versions.extend([-1] * read + turn.policy_versions)
            segment.turns.extend([index] * (read + wrote))
        if segment is not None:
            yield segment

    def to_dict(self) -> dict[str, Any]:
        """A JSON-serialisable form; `from_dict` reads it back to an equal trajectory."""
        return fields_of(self) | {
            "turns": [fields_of(turn) for turn in self.turns],
            "stop": self.stop.value,
            "failure": None if self.failure is None else fields_of(self.failure),
            "reward": self.reward,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Trajectory:
        """The inverse of `to_dict`."""
        data = {key: value for key, value in data.items() if key != "reward"}
        data["turns"] = [Turn(**turn) for turn in data["turns"]]
        data["stop"] = StopReason(data["stop"])
        data["failure"] = Failure(**data["failure"]) if data.get("failure") else None
        return cls(**data)
