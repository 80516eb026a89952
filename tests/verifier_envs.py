"""Environments as people write them for verifiers, for the tests of its adapter."""

from __future__ import annotations

from typing import Any

import verifiers as vf
from datasets import Dataset

SUMS = [(a, b) for a in range(4) for b in range(5)]


def rows(first: int = 0) -> Any:
    return Dataset.from_list([{"question": f"{a + first} + {b}?", "answer": str(a + first + b)} for a, b in SUMS])


def last(completion: Any) -> str:
    return str([message for message in completion if message["role"] == "assistant"][-1]["content"])


def right(completion: Any, answer: str) -> float:
    return float(last(completion).strip() == answer)


def short(completion: Any) -> float:
    return 1.0 / max(1, len(last(completion)))


def sums(system: str = "Only the number.") -> Any:
    """One turn; half of the reward is for brevity."""
    rubric = vf.Rubric(funcs=[right, short], weights=[1.0, 0.5])
    return vf.SingleTurnEnv(dataset=rows(), eval_dataset=rows(10), system_prompt=system, rubric=rubric)


class Halving(vf.MultiTurnEnv):
    """Says whether the number is higher or lower, and goodbye in the end."""

    async def setup_state(self, state: Any) -> None:
        state["tries"] = 0

    async def env_response(self, messages: Any, state: Any, **more: Any) -> Any:
        state["tries"] += 1
        said, wanted = messages[-1]["content"], int(state["answer"])
        if said == "crash":
            raise ZeroDivisionError("inside")
        if said == str(wanted):
            state["final_env_response"] = [{"role": "user", "content": f"right, after {state['tries']}"}]
            return state["final_env_response"]
        answer = "a number, please" if not said.isdecimal() else "higher" if int(said) < wanted else "lower"
        return [{"role": "user", "content": answer}]


def found(state: Any) -> float:
    return 1.0 if state.get("final_env_response") else 0.0


def halving() -> Any:
    numbers = Dataset.from_list([{"question": "Which number?", "answer": str(n)} for n in range(10)])
    return Halving(dataset=numbers, rubric=vf.Rubric(funcs=[found]), max_turns=6)


def add(a: int, b: int) -> int:
    """Adds.

    Args:
        a: one number
        b: another one
    """
    return a + b


def tools() -> Any:
    return vf.ToolEnv(tools=[add], dataset=rows(), rubric=vf.Rubric(funcs=[right]), max_turns=5)


def relative(prompts: Any, completions: Any) -> list[float]:
    return [0.0] * len(completions)


def grouped() -> Any:
    return vf.SingleTurnEnv(dataset=rows(), rubric=vf.Rubric(funcs=[relative]))
