"""The oracle's thoughts: one for each decision, true to what it saw, and none for a mistake."""

from __future__ import annotations

import re

import pytest

import rollenv
from rollenv.agents.alfworld_oracle import ALFWorldOracle
from rollenv.agents.alfworld_thoughts import thought_of
from rollenv.agents.alfworld_view import Task, World

EGG = Task("heat", "egg", "fridge")
PENS = Task("two", "pen", "safe")
BOOK = Task("light", "book", "desklamp")


def world(held: str = "", **contents: list[str]) -> World:
    """A room with two desks, a fridge, a microwave and a safe, of which `contents` were looked into."""
    places = ["desk 2", "desk 1", "fridge 1", "microwave 1", "safe 1"]
    return World(places, contents={name.replace("_", " "): things for name, things in contents.items()}, held=held)


@pytest.mark.parametrize(
    ("task", "seen", "command", "thought"),
    [
        (EGG, world(), "go to desk 2", "I look for an egg. It may be at the desk 2."),
        (
            PENS,
            world(desk_2=[]),
            "go to desk 1",
            "I look for a pen. There is none at the desk 2. It may be at the desk 1.",
        ),
        (EGG, world(desk_2=["egg 1"]), "go to desk 2", "I saw the egg 1 at the desk 2. I go there."),
        (EGG, world(), "open fridge 1", "The fridge 1 is closed. I look for an egg in it."),
        (EGG, world("egg 1"), "open fridge 1", "The fridge 1 is closed. I want to put the egg 1 there."),
        (EGG, world(), "take egg 1 from desk 1", "I see the egg 1 that I need. I take it."),
        (
            EGG,
            world("egg 1"),
            "go to microwave 1",
            "I hold the egg 1. It must be hot first: I go to the microwave 1.",
        ),
        (EGG, world("egg 1"), "heat egg 1 with microwave 1", "The egg 1 must be hot, and here is the microwave 1."),
        (EGG, world("egg 1"), "move egg 1 to fridge 1", "The egg 1 belongs here and is hot."),
        (EGG, world("mug 1"), "go to desk 1", "I do not need the mug 1. I bring it back to the desk 1."),
        (EGG, world("mug 1"), "put mug 1 in/on desk 1", "I do not need the mug 1. I put it away."),
        (PENS, world("pen 1"), "move pen 1 to safe 1", "The pen 1 belongs here. Then I look for the second one."),
        (
            PENS,
            world("pen 2", safe_1=["pen 1"]),
            "put pen 2 in/on safe 1",
            "The pen 2 belongs here. It is the second one.",
        ),
        (BOOK, world("book 1"), "go to desk 1", "I look for a desklamp. It may be at the desk 1."),
        (
            BOOK,
            world("book 1", desk_1=["desklamp 1"]),
            "go to desk 1",
            "I hold the book 1. The desklamp is at the desk 1.",
        ),
        (BOOK, world("book 1"), "use desklamp 1", "I hold the book 1 and stand at the lamp. I switch it on."),
        (BOOK, world(), "look", ""),
    ],
)
def test_thoughts(task: Task, seen: World, command: str, thought: str) -> None:
    assert thought_of(task, seen, command) == thought


def test_every_decision_has_a_thought_that_names_only_what_was_seen() -> None:
    env = rollenv.make("alfworld")
    for task in env.tasks.ids("valid_unseen")[:24]:
        oracle = ALFWorldOracle()
        observation, info = env.reset(options={"task": task})
        seen = observation
        for _ in range(50):
            command = oracle.act(observation, info)
            assert oracle.thought
            assert all(name in seen for name in re.findall(r"[a-z]+ \d+", oracle.thought))
            observation, _, over, _, info = env.step(command)
            seen += observation
            if over:
                break
        else:
            pytest.fail(f"not solved: {task}")


def test_a_mistake_has_no_thought() -> None:
    env = rollenv.make("alfworld")
    oracle = ALFWorldOracle(noise=1.0)
    oracle.act(*env.reset(seed=0))
    assert oracle.thought == ""
