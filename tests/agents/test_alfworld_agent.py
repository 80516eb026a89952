"""ALFWorldAgent: what it shows of a house in each format, and that all that is possible can be said."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rollenv
from rollenv.agents.alfworld import ALFWorldAgent, brief, compact, complete, shorten
from rollenv.agents.alfworld_oracle import ALFWorldOracle
from rollenv.agents.alfworld_view import World
from rollenv.agents.base import ChatAgent, Step
from rollenv.errors import RollenvError

FORMATS = ("text", "numbered", "react")
START = (
    "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly around you, you see a "
    "desk 2, a desk 1, a drawer 1, and a safe 1.\n\nYour task is to: put two pen in safe."
)
WALKS = ["go to desk 1", "go to desk 2", "go to drawer 1", "go to safe 1"]
ALWAYS = ["help", "inventory", "look"]


def turn(observation: str, action: str, here: list[str], at: str = "") -> Step:
    """A step as the environment tells it (the list is sorted), answered by `action`."""
    listed = sorted([*here, *ALWAYS, *(walk for walk in WALKS if walk != f"go to {at}")])
    return Step(observation, {"admissible_actions": listed}, completion=action, action=action)


def house() -> list[Step]:
    """The beginning of an episode: a pen is found and taken."""
    desk = ["examine desk 2", "take pen 1 from desk 2", "take pen 2 from desk 2"]
    held = ["examine desk 2", "examine pen 1", "move pen 1 to desk 2"]
    return [
        turn(START, "go to desk 2", []),
        turn(
            "You arrive at desk 2. On the desk 2, you see a pen 2, and a pen 1.",
            "take pen 1 from desk 2",
            desk,
            "desk 2",
        ),
        turn("You pick up the pen 1 from the desk 2.", "go to safe 1", held, "desk 2"),
        turn("You arrive at safe 1. The safe 1 is closed.", "", ["examine safe 1", "open safe 1"], "safe 1"),
    ]


def read(agent: ALFWorldAgent, history: list[Step]) -> list[str]:
    return [message.content for message in agent.messages(history) if message.role == "user"]


# -- what it shows -------------------------------------------------------------------------------------------------


def test_text_shows_the_feedback_and_lists_what_is_not_always_possible() -> None:
    assert read(ALFWorldAgent(), house()) == [
        START + "\nCommands: go to desk 1, go to desk 2, go to drawer 1, go to safe 1, help, inventory, look",
        "You arrive at desk 2. On the desk 2, you see a pen 2, and a pen 1.\n"
        "Commands: examine desk 2, take pen 1 from desk 2, take pen 2 from desk 2",
        "You pick up the pen 1 from the desk 2.\nCommands: examine desk 2, examine pen 1, move pen 1 to desk 2",
        "You arrive at safe 1. The safe 1 is closed.\nCommands: examine safe 1, open safe 1",
    ]


def test_a_command_keeps_its_number_through_the_episode() -> None:
    shown = read(ALFWorldAgent("numbered"), house())
    assert shown[0].endswith(
        "Commands: [1] go to desk 1, [2] go to desk 2, [3] go to drawer 1, [4] go to safe 1, [5] help, [6] inventory, "
        "[7] look"
    )
    assert shown[1].endswith("[8] examine desk 2, [9] take pen 1 from desk 2, [10] take pen 2 from desk 2")
    assert shown[2].endswith("[8] examine desk 2, [11] examine pen 1, [12] move pen 1 to desk 2")


def test_brief_observations() -> None:
    agent = ALFWorldAgent(brief=True, list_actions=False)
    assert read(agent, house()) == ["put two pen in safe.\ndesk 2 1 drawer 1 safe 1", "see pen 2 1", "done", "closed"]


def test_what_was_not_looked_into_is_listed_when_it_has_become_less() -> None:
    history = house()
    open_safe = "You open the safe 1. The safe 1 is open. In it, you see nothing."
    history += [turn(open_safe, "", ["close safe 1"], "safe 1"), turn(open_safe, "", ["close safe 1"], "safe 1")]
    assert read(ALFWorldAgent(brief=True, list_actions=False, list_unseen=True), history) == [
        "put two pen in safe.\ndesk 2 1 drawer 1 safe 1",  # all of them: nothing to add
        "see pen 2 1\nleft desk 1 drawer 1 safe 1",
        "done",
        "closed",  # it was walked to, not looked into
        "nothing\nleft desk 1 drawer 1",
        "nothing",
    ]
    (last,) = read(ALFWorldAgent(history=1, list_actions=False, list_unseen=True), house())
    assert last.endswith("The safe 1 is closed.\nNot looked into yet: desk 1 drawer 1 safe 1.")


def test_what_was_looked_into_and_what_was_not_are_all_there_is() -> None:
    """The oracle's own account of the house, game by game."""
    env, agent = rollenv.make("alfworld"), ALFWorldAgent(brief=True, list_actions=False, list_unseen=True)
    for task in env.tasks.ids("valid_unseen")[::29]:
        oracle = ALFWorldOracle()
        oracle.reset(0)
        observation, info = env.reset(options={"task": task})
        history, world, over = [Step(observation, info)], World.of(observation), False
        while not over:
            world.notice(observation)
            left = [place for place in world.places if place not in world.contents]
            told = [
                line for text in read(agent, history) for line in text.split("\n") if line.startswith(("left", "all"))
            ]
            assert (told[-1:] or [f"left {compact(world.places)}"]) == [f"left {compact(left)}" if left else "all seen"]
            history[-1].action = history[-1].completion = oracle.act(observation, info)
            observation, _, over, _, info = env.step(history[-1].action)
            history.append(Step(observation, info))


@pytest.mark.parametrize(
    ("feedback", "said"),
    [
        ("You open the safe 1. The safe 1 is open. In it, you see nothing.", "nothing"),
        ("You open the safe 1. The safe 1 is open. In it, you see a watch 1.", "see watch 1"),
        ("The safe 1 is open. In it, you see a watch 1.", "see watch 1"),
        ("You close the safe 1.", "closed"),
        ("You move the pen 1 to the safe 1.", "done"),
        ("You put the pen 1 in/on the safe 1.", "done"),
        ("You heat the egg 1 using the microwave 1.", "done"),
        ("Nothing happens.", "Nothing happens."),
        ("You turn on the desklamp 1.", "You turn on the desklamp 1."),
        ("You are carrying: a pen 1.", "You are carrying: a pen 1."),
        ("What you can say:\n  look\n  inventory\n", "What you can say:"),
    ],
)
def test_brief_feedback(feedback: str, said: str) -> None:
    assert brief(feedback) == said


def test_a_window_begins_with_the_task_and_what_was_seen_before() -> None:
    history = house()
    (last,) = read(ALFWorldAgent(history=1), history)
    assert last == (
        "Your task is to: put two pen in safe.\n"
        "Receptacles: desk 2 1 drawer 1 safe 1.\n"
        "Seen so far: desk 2: pen 2.\n"
        "You hold pen 1.\n"
        "You arrive at safe 1. The safe 1 is closed.\n"
        "Commands: go to desk 1, go to desk 2, go to drawer 1, examine safe 1, open safe 1, help, inventory, look"
    )
    assert read(ALFWorldAgent(history=4), history) == read(ALFWorldAgent(), history)


def test_the_memory_of_a_window_forgets_what_was_refused() -> None:
    history = house()
    history[1].action, history[1].valid_action = "go to safe 1", False
    history[2] = turn("Nothing happens.", "look", ["examine desk 2"], "desk 2")
    assert "You hold" not in read(ALFWorldAgent(history=1), history)[0]


def test_past_messages_do_not_change_whatever_happens_later() -> None:
    for action_format in FORMATS:
        agent, history = ALFWorldAgent(action_format), house()
        before = [read(agent, history[:n]) for n in range(1, 5)]
        for step in history:
            step.info["admissible_actions"].clear()
        assert [read(agent, history[:n]) for n in range(1, 5)] == before
        assert before == [before[-1][:n] for n in range(1, 5)]


def test_each_format_has_its_system_prompt() -> None:
    prompts = {ALFWorldAgent(each).messages(house())[0].content for each in FORMATS}
    assert len(prompts) == 3
    assert isinstance(ALFWorldAgent(), ChatAgent)
    assert [m.role for m in ALFWorldAgent(system="").messages(house()[:1])] == ["user"]


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(RollenvError, match="action_format must be 'text', 'numbered' or 'react', not 'numbers'"):
        ALFWorldAgent("numbers")  # type: ignore[arg-type]
    with pytest.raises(RollenvError, match="history must be"):
        ALFWorldAgent(history=0)


def test_numbers_need_the_list() -> None:
    with pytest.raises(RollenvError, match="admissible_actions=True"):
        read(ALFWorldAgent("numbered"), [Step(START, {})])
    assert read(ALFWorldAgent(), [Step(START, {})]) == [START]


# -- what it understands -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action_format", "said", "meant"),
    [
        ("text", "take pen 1 from desk 2", "take pen 1 from desk 2"),
        ("text", "I take it.\n> take pen 1 from desk 2", "take pen 1 from desk 2"),
        ("text", "<action>take pen 2 from desk 2</action>", "take pen 2 from desk 2"),
        ("text", "Take pen 1", "take pen 1 from desk 2"),
        ("text", "go to safe 1", "go to safe 1"),
        ("text", "look", "look"),
        # What begins several commands, or none, comes back as it is: the environment calls it invalid.
        ("text", "take", "take"),
        ("text", "take pen", "take pen"),
        ("text", "go to desk", "go to desk 1"),  # one is at the other
        ("text", "go to", "go to"),
        ("text", "take mug 1", "take mug 1"),
        ("text", "9", "9"),
        ("text", "", ""),
        ("numbered", "[9]", "take pen 1 from desk 2"),
        ("numbered", "I take it.\n9", "take pen 1 from desk 2"),
        ("numbered", "[2]", "go to desk 2"),
        ("numbered", "take pen 2", "take pen 2 from desk 2"),
        ("numbered", "[99]", "[99]"),
        ("numbered", "[0]", "[0]"),
        ("react", "Thought: There it is.\nAction: take pen 1 from desk 2", "take pen 1 from desk 2"),
        ("react", "Action: take pen 2", "take pen 2 from desk 2"),
        ("react", "Thought: I wonder.", "Thought: I wonder."),
    ],
)
def test_answers(action_format: Any, said: str, meant: str) -> None:
    agent, history = ALFWorldAgent(action_format), house()[:2]
    agent.messages(history)
    assert agent.action(said, history[-1]) == meant


def test_a_thought_is_written_when_there_is_one() -> None:
    agent, (step, *_) = ALFWorldAgent("react"), house()
    assert agent.text("go to desk 2", step) == "Action: go to desk 2"
    step.data["thought"] = "Pens lie on desks."
    said = agent.text("go to desk 2", step)
    assert said == "Thought: Pens lie on desks.\nAction: go to desk 2"
    assert agent.action(said, step) == "go to desk 2"


COMMANDS = st.lists(
    st.builds(
        " ".join,
        st.lists(st.sampled_from(["go to", "take", "pen 1", "pen 11", "desk 1", "from", "to"]), min_size=1, max_size=4),
    ),
    unique=True,
)


@given(COMMANDS)
def test_what_was_shortened_is_completed(listed: list[str]) -> None:
    for command in listed:
        assert complete(shorten(command, listed), listed) == command


@given(st.lists(st.builds("{} {}".format, st.sampled_from(["desk", "pen", "safe"]), st.integers(1, 12))))
def test_compact_leaves_no_name_out(names: list[str]) -> None:
    found, kind = [], ""
    for word in compact(names).split():
        if word.isdigit():
            found.append(f"{kind} {word}")
        else:
            kind = word
    assert found == names


# -- in whole episodes ---------------------------------------------------------------------------------------------


def recorded(shared_data: Callable[[str], Path]) -> Iterator[list[Step]]:
    """The original engine's recorded episodes, of both dialects."""
    with gzip.open(shared_data("alfworld/visible_engine_transcripts.jsonl.gz"), "rt") as lines:
        for line in lines:
            episode = json.loads(line)
            states = [episode["reset"], *episode["steps"]]
            steps = [Step(s["feedback"], {"admissible_actions": s["admissible_commands"]}) for s in states]
            for step, after in zip(steps, episode["steps"], strict=False):
                step.action = step.completion = after["action"]
            yield steps


@pytest.mark.parametrize("action_format", FORMATS)
@pytest.mark.parametrize("brief", [False, True])
def test_every_command_of_the_recordings_can_be_said_and_is_understood(
    shared_data: Callable[[str], Path], action_format: Any, brief: bool
) -> None:
    agent, said = ALFWorldAgent(action_format, brief=brief), 0
    for history in recorded(shared_data):
        agent.messages(history)
        for step in history:
            for command in step.info["admissible_actions"]:
                assert agent.action(agent.text(command, step), step) == command
                said += 1
    assert said > 10_000


def test_an_episode_in_few_words_is_an_eighth_as_long(shared_data: Callable[[str], Path]) -> None:
    def length(agent: ALFWorldAgent) -> int:
        return sum(len(text) for history in recorded(shared_data) for text in read(agent, history))

    assert length(ALFWorldAgent(brief=True, list_actions=False)) < length(ALFWorldAgent()) / 8


def test_the_oracle_wins_through_every_format() -> None:
    env = rollenv.make("alfworld")
    for task in env.tasks.ids("valid_seen")[:6]:
        for action_format in FORMATS:
            assert won(env, task, ALFWorldAgent(action_format, brief=True, history=3))


def won(env: rollenv.TextEnv, task: str, agent: ALFWorldAgent) -> bool:
    """Whether the expert solves a task with its commands said and understood by `agent`."""
    oracle, history = ALFWorldOracle(), [Step(*env.reset(options={"task": task}))]
    for _ in range(50):
        step = history[-1]
        command = oracle.act(step.observation, step.info)
        agent.messages(history)
        step.data["thought"] = oracle.thought
        step.completion = agent.text(command, step)
        step.action = agent.action(step.completion, step)
        observation, _, over, _, info = env.step(step.action)
        if over:
            return bool(info["success"])
        history.append(Step(observation, info))
    return False
