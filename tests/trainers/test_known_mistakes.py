"""Mistakes that are known from elsewhere, each with the test that would catch it here."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import toys  # noqa: E402
from batches import algo, fresh, make_groups, optim  # noqa: E402

from rollenv.agents.base import Step  # noqa: E402
from rollenv.agents.llm import LLMAgent  # noqa: E402
from rollenv.rollout.groups import Group, GroupRequest  # noqa: E402
from rollenv.trainers.credit import credit  # noqa: E402
from rollenv.trainers.data import samples_of, train_tokens, turn_advantages  # noqa: E402
from rollenv.trainers.packing import pack  # noqa: E402
from rollenv.trainers.policy import Policy  # noqa: E402
from rollenv.trainers.step import PolicyTrainer  # noqa: E402
from rollenv.trajectory import StopReason, Trajectory, Turn  # noqa: E402

torch.set_num_threads(1)


def gradients(groups: list[Group], **settings: Any) -> dict[str, Any]:
    policy = fresh(toys.policy(seed=3))
    trainer = PolicyTrainer(policy, algo(**settings), optim(), total_steps=1)
    kept: dict[str, Any] = {}
    trainer.optimizer.step = lambda: kept.update(  # type: ignore[method-assign]
        {name: p.grad.clone() for name, p in policy.model.named_parameters() if p.grad is not None}
    )
    trainer.step(groups)
    return kept


def one(turns: list[Turn], reward: float = 0.0, sample: int = 0) -> Trajectory:
    turns[-1].reward += reward
    return Trajectory("e", "t", 0, 0, sample, turns=turns, stop=StopReason.TERMINATED)


def group_of(*episodes: Trajectory, index: int = 0) -> Group:
    return Group(GroupRequest(index, "t", len(episodes), 0), list(episodes))


def turn(n: int = 2, observation: str = "o", reward: float = 0.0, token: int = 40) -> Turn:
    return Turn(observation, [5, 6, 7], [token] * n, [-1.0] * n, [0] * n, reward=reward)


# -- masks ---------------------------------------------------------------------------------------------------------


def seen_by_the_sampler(groups: list[Group], spoilt: tuple[int, ...]) -> list[Group]:
    """One-turn episodes with the trainer's own log-probabilities; the sampler saw the `spoilt` ones very otherwise."""
    policy = fresh(toys.policy(seed=3))
    for number, trajectory in enumerate(t for group in groups for t in group.trainable):
        (only,) = trajectory.turns
        places = torch.arange(len(only.prompt_ids) - 1, len(only.prompt_ids) + len(only.completion_ids) - 1)
        row = pack([only.prompt_ids + only.completion_ids])
        with torch.no_grad():
            logp, _ = policy.logprobs(row, places, torch.tensor(only.completion_ids))
        only.logprobs = [float(x) - 3.0 * (number in spoilt) for x in logp]
    return groups


def good_and_bad() -> list[Group]:
    """Three tokens that earned 1, five others that earned 0."""
    return [group_of(one([turn(3, token=40)], 1.0), one([turn(5, token=50)], 0.0, 1))]


def test_rejected_tokens_do_not_train_and_keep_their_place_in_the_token_mean() -> None:
    """A token mean that ignores the mask would train them; one over what is left would make the others weigh more."""
    spoilt = seen_by_the_sampler(good_and_bad(), spoilt=(1,))
    rejected = gradients(spoilt, rejection="geometric", reject_low=0.9, reject_high=1.1)
    policy = fresh(toys.policy(seed=3))
    (first, _) = samples_of(spoilt, algo())
    row = pack([first.ids])
    tokens = train_tokens([first], paths=row.paths)
    logp, _ = policy.logprobs(row, tokens.rows_N, tokens.targets_N)
    (-(tokens.advantages_N * logp).sum() / 8).backward()
    everything = gradients(spoilt)
    expected = {name: p.grad for name, p in policy.model.named_parameters() if p.grad is not None}
    assert rejected.keys() == expected.keys()
    for name, grad in rejected.items():
        torch.testing.assert_close(grad, expected[name], rtol=1e-4, atol=1e-6, msg=name)
    assert any(not torch.allclose(everything[name], grad, rtol=1e-2, atol=1e-4) for name, grad in rejected.items())


def test_rejected_tokens_do_not_train_by_their_kl_or_entropy_term_either() -> None:
    spoilt = seen_by_the_sampler(good_and_bad(), spoilt=(0, 1))
    settings = {"kl_coef": 0.5, "kl_estimator": "k1", "entropy_coef": 0.1, "rejection": "geometric"}
    assert all(not bool(grad.any()) for grad in gradients(spoilt, **settings).values())


def test_an_appended_end_of_turn_token_is_masked_and_nothing_becomes_nan() -> None:
    """What the template adds after an answer was not sampled: it has no log-probability, and does not train."""
    cut = Turn("o", [5, 6], [40, 41], [-1.0, -1.2], [0, 0])
    after = Turn("o", [toys.tokenizer().eos_token_id, 7], [42], [-0.5], [0])  # the end of turn opens the next prompt
    groups = [group_of(one([cut, after], 1.0), one([turn()], 0.0, 1))]
    tokens = train_tokens(samples_of(groups, algo()))
    assert tokens.targets_N.tolist() == [40, 41, 42, 40, 40]
    for settings in ({}, {"correction": "icepop"}, {"loss": "gspo"}, {"loss": "decoupled_ppo"}, {"advantage": "gae"}):
        assert all(bool(torch.isfinite(grad).all()) for grad in gradients(groups, **settings).values())


# -- groups ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "advantage",
    ["grpo", "dr_grpo", "rloo", "liteppo", "raft", "gigpo", "turn_return", "reinforce_pp_baseline"],
)
def test_a_singleton_group_does_not_train_on_its_raw_reward(advantage: str) -> None:
    a = algo(advantage=advantage)
    groups = [group_of(one([turn(reward=0.5), turn(observation="p"), turn(observation="q")], 7.0))]
    tokens = train_tokens(samples_of(groups, a))
    assert credit(groups, tokens, a).advantages_N.tolist() == [0.0] * 6


@pytest.mark.parametrize("advantage", ["grpo", "rloo", "gigpo", "turn_return", "reinforce_pp_baseline"])
def test_a_singleton_group_does_not_train_on_the_mean_of_others_either(advantage: str) -> None:
    """Whitening takes the batch's mean off, which is not 0 over tokens: of a failure alone it would make a success."""
    groups = [group_of(one([turn(2)], 1.0), one([turn(10)], 0.0, 1)), group_of(one([turn(2)], 0.0), index=1)]
    trainer = PolicyTrainer(fresh(toys.policy(seed=3)), algo(advantage=advantage, whiten=True), optim(), total_steps=1)
    trainer.step(groups)
    found = trainer.advantages()
    assert found[1, 0] == {0: [0.0, 0.0]}
    others = torch.tensor(found[0, 0][0] + found[0, 1][0])
    assert others.mean().abs() < 1e-6
    assert others.std() == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("advantage", ["gigpo", "turn_return"])
def test_states_are_compared_within_a_task_and_never_across(advantage: str) -> None:
    a = algo(advantage=advantage)
    first = [one([turn(observation="same")], float(r), s) for s, r in enumerate((0, 1))]
    second = [one([turn(observation="same")], 5.0, s) for s in range(2)]
    together = samples_of([group_of(*first), group_of(*second, index=1)], a)
    alone = samples_of([group_of(*first)], a) + samples_of([group_of(*second, index=1)], a)
    assert [s.advantages for s in together] == [s.advantages for s in alone]
    assert {x for s in together[2:] for x in s.advantages} == {0.0}


def test_a_fork_duplicates_no_episode_before_its_group_is_normalised() -> None:
    """An episode in two segments counts once in the mean and the deviation of its group."""
    whole = [one([turn(), turn()], float(r), s) for s, r in enumerate((1, 0, 0))]
    forked = copy.deepcopy(whole)
    forked[0].turns[1].fork = True
    for advantage in ("grpo", "rloo", "gigpo", "liteppo"):
        a = algo(advantage=advantage)
        assert turn_advantages(forked, a) == turn_advantages(whole, a)
        assert len(samples_of([group_of(*forked)], a)) == len(samples_of([group_of(*whole)], a)) + 1


# -- turns -----------------------------------------------------------------------------------------------------------


def tokens_of(episode: Trajectory, **settings: Any) -> tuple[Any, list[Group], Any]:
    a, groups = algo(**settings), [group_of(episode)]
    return train_tokens(samples_of(groups, a)), groups, a


def test_gae_does_not_bootstrap_through_observation_tokens() -> None:
    """The value that follows a turn's last token is that of the next turn's first one, whatever was read in between:
    longer observations, another segment, the same advantages."""
    rows = []
    for read, fork in (([5], False), ([5] * 20, False), ([5] * 20, True)):
        episode = one([turn(2), Turn("o", read, [41, 42], [-1.0] * 2, [0] * 2, fork=fork)], 1.0)
        tokens, groups, a = tokens_of(episode, advantage="gae", gamma_token=0.5, lam=0.5)
        values = torch.tensor([1.0, 2.0, 3.0, 4.0])
        rows.append(credit(groups, tokens, a, values_N=values).advantages_N.tolist())
    # deltas: .5*2-1=0, .5*3-2=-.5, .5*4-3=-1, 1-4=-3, each A = delta + .25 A'.
    assert rows[0] == pytest.approx([-0.234375, -0.9375, -1.75, -3.0])
    assert rows[0] == rows[1] == rows[2]


def test_turn_rewards_stay_on_their_turns() -> None:
    """The sum of an episode on its last token would tell the second turn that it earned what the first one did."""
    episode = one([turn(2, reward=1.0), turn(3, reward=-0.5)], 0.25)
    tokens, groups, a = tokens_of(episode, advantage="reinforce_pp")
    assert tokens.rewards_N.tolist() == [0, 1, 0, 0, -0.25]
    assert credit(groups, tokens, a).advantages_N.tolist() == [0.75, 0.75, -0.25, -0.25, -0.25]


def test_a_reward_without_tokens_is_that_of_the_last_token_before_it() -> None:
    silent = Turn("o", [8], [], [], [], reward=2.0)
    episode = one([Turn("o", [4], [], [], [], reward=9.0), turn(2, reward=1.0), silent, turn(1)], 0.5)
    tokens, _, _ = tokens_of(episode)
    assert tokens.rewards_N.tolist() == [0, 3, 0.5]  # what came before the first token is nobody's doing


def test_turns_end_where_they_end_and_not_where_a_reward_is() -> None:
    """With bi-level GAE a turn that earned nothing is a turn all the same: three of them discount twice."""
    episode = one([turn(1), turn(1), turn(1)], 1.0)
    tokens, groups, a = tokens_of(episode, advantage="gae_bilevel", gamma=0.5)
    assert credit(groups, tokens, a, values_N=torch.zeros(3)).advantages_N.tolist() == [0.25, 0.5, 1.0]


def test_the_schedule_does_not_run_out_because_turns_or_updates_were_counted() -> None:
    policy = Policy.of(copy.deepcopy(toys.policy(seed=3).model), toys.tokenizer())
    trainer = PolicyTrainer(policy, algo(), optim(schedule="linear", epochs=2, minibatches=2), total_steps=4)
    lrs = [trainer.step(make_groups(seed))["lr"] for seed in range(4)]
    assert lrs == pytest.approx([1e-2 * (1 - 0.9 * step / 4) for step in range(4)])


# -- prompts ---------------------------------------------------------------------------------------------------------


def test_a_history_keeps_valid_and_invalid_turns_alike() -> None:
    """One that kept the refused actions only would show the model nothing but its mistakes."""
    steps = [Step(f"page {i}", {}, f"act {i}", valid_action=i % 2 == 0) for i in range(4)] + [Step("page 4", {})]
    for history, first in (("full", 0), (2, 3)):
        agent = LLMAgent(system="", list_actions=False, history=history)  # type: ignore[arg-type]
        shown = "\n".join(message.content for message in agent.messages(steps))
        assert [i for i in range(4) if f"act {i}" in shown] == list(range(first, 4))
        assert [i for i in range(5) if f"page {i}" in shown] == list(range(first, 5))


def test_tokens_are_trained_on_as_they_were_sampled_also_where_text_would_give_others() -> None:
    """A merge across the boundary, a newline in two pieces: encoding the text again would give other ids."""
    words = toys.tokenizer()
    pieces = [words.encode(piece, add_special_tokens=False) for piece in ("re", "d", "\n", "\n")]
    sampled = [i for piece in pieces for i in piece]
    assert words.encode(words.decode(sampled), add_special_tokens=False) != sampled
    n = len(sampled)
    episode = one([Turn("o", [5], sampled, [-1.0] * n, [0] * n, completion=words.decode(sampled))], 1.0)
    tokens, _, _ = tokens_of(episode)
    assert tokens.targets_N.tolist() == sampled
