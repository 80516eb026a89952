"""One GRPO step against a slow reference: segment by segment, token by token, plain attention, plain formulas."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import toys  # noqa: E402
from batches import algo, fresh, make_groups, optim, plain_model  # noqa: E402

from rollenv.config.algo import AlgoConfig, OptimConfig  # noqa: E402
from rollenv.rollout.groups import Group, GroupRequest  # noqa: E402
from rollenv.rollout.selection import has_signal  # noqa: E402
from rollenv.trainers.data import samples_of, train_tokens, trained_return, turn_advantages  # noqa: E402
from rollenv.trainers.optim import adamw, lr_factor  # noqa: E402
from rollenv.trainers.policy import Policy  # noqa: E402
from rollenv.trainers.step import PolicyTrainer  # noqa: E402
from rollenv.trajectory import StopReason, Trajectory, Turn  # noqa: E402

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def origin() -> Policy:
    return toys.policy(seed=3)


def test_it_tells_what_the_tokens_of_its_last_step_trained_with(origin: Policy) -> None:
    groups = make_groups(seed=1)
    trainer = PolicyTrainer(fresh(origin), algo(), optim(minibatches=2), 2)
    for played in (make_groups(seed=0), groups):
        trainer.step(played)
    found = trainer.advantages()
    assert found.keys() == {(g.request.index, t.sample) for g in groups for t in g.trainable}
    for group in groups:
        for trajectory, expected in zip(group.trainable, turn_advantages(group.trainable, algo()), strict=True):
            turns = found[group.request.index, trajectory.sample]
            assert {turn: len(given) for turn, given in turns.items()} == {
                turn: len(played.completion_ids) for turn, played in enumerate(trajectory.turns)
            }
            for turn, given in turns.items():
                assert given == pytest.approx([expected[turn]] * len(given))


# -- the reference -----------------------------------------------------------------------------------------------


def token_logits(model: Any, ids: list[int], temperature: float) -> Any:
    return model(torch.tensor([ids])).logits[0].float() / temperature


def reference_loss(
    policy: Policy, groups: list[Group], a: AlgoConfig, temperature: float, old: Any = None, ref: Any = None
) -> Any:
    """The loss of a minibatch by its definition; `old` and `ref` are models (None: the current one, no KL)."""
    per_sequence: list[list[Any]] = []
    for group in groups:
        members = [t for t in group.trajectories if t.stop is not StopReason.FAILED]
        returns = [t.reward - a.invalid_penalty * sum(not u.valid_action for u in t.turns) for t in members]
        mean = sum(returns) / len(returns)
        spread = math.sqrt(sum((r - mean) ** 2 for r in returns) / max(1, len(returns) - 1))
        for trajectory, value in zip(members, returns, strict=True):
            advantage = {
                "grpo": (value - mean) / (spread + 1e-6) if len(members) > 1 else 0.0,
                "dr_grpo": value - mean,
                "rloo": (value - mean) * len(members) / max(1, len(members) - 1),
            }[a.advantage]
            losses: list[Any] = []
            for segment in trajectory.segments():
                logits = token_logits(policy.model, segment.ids, temperature)
                logp = logits.log_softmax(-1)
                old_logp = logp.detach() if old is None else token_logits(old, segment.ids, temperature).log_softmax(-1)
                ref_logp = None if ref is None else token_logits(ref, segment.ids, temperature).log_softmax(-1)
                for i in range(1, len(segment.ids)):
                    if not segment.mask[i]:
                        continue
                    token = segment.ids[i]
                    new, was = logp[i - 1, token], old_logp[i - 1, token].detach()
                    r = torch.exp(new - was)
                    if a.loss == "ppo_clip":
                        low, high = 1 - a.clip_low, 1 + a.clip_high
                        loss = -torch.min(r * advantage, r.clamp(low, high) * advantage)
                        if a.dual_clip is not None and advantage < 0:
                            loss = torch.min(loss, torch.tensor(-a.dual_clip * advantage))
                    else:
                        loss = -advantage * new
                    if a.correction == "tis":
                        loss = loss * min(float(torch.exp(was - segment.logprobs[i])), a.tis_cap)
                    if ref_logp is not None:
                        gap = new - ref_logp[i - 1, token].detach()
                        estimate = {"k1": gap, "k2": gap**2 / 2, "k3": torch.exp(-gap) - 1 + gap}[a.kl_estimator]
                        loss = loss + a.kl_coef * estimate
                    if a.entropy_coef:
                        loss = loss + a.entropy_coef * (logp[i - 1].exp() * logp[i - 1]).sum()
                    losses.append(loss)
            per_sequence.append(losses)
    everything = [loss for losses in per_sequence for loss in losses]
    n = len(per_sequence)
    if a.aggregation == "token_mean":
        return sum(everything) / len(everything)
    if a.aggregation == "seq_mean_token_sum":
        return sum(everything) / n
    if a.aggregation == "seq_mean_token_mean":
        return sum(sum(losses) / len(losses) for losses in per_sequence) / n
    assert a.constant_length is not None
    return sum(everything) / (n * a.constant_length)


def step_gradients(origin: Policy, groups: list[Group], a: AlgoConfig, o: OptimConfig, temperature: float) -> Any:
    """(gradients of the step's only update, metrics)."""
    policy = fresh(origin)
    trainer = PolicyTrainer(policy, a, o, total_steps=1, temperature=temperature)
    if a.kl_coef:
        trainer.set_reference(toys.policy(seed=8))
    kept: dict[str, Any] = {}
    trainer.optimizer.step = lambda: kept.update(  # type: ignore[method-assign]
        {name: p.grad.clone() for name, p in policy.model.named_parameters() if p.grad is not None}
    )
    metrics = trainer.step(groups)
    return kept, metrics


def assert_same(a: dict[str, Any], b: dict[str, Any], tolerance: float = 1e-5) -> None:
    assert a.keys() == b.keys() != set()
    scale = max(float(x.abs().max()) for x in b.values())
    assert scale > 1e-4  # there is something to compare
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-3, atol=tolerance * max(scale, 1e-3), msg=name)


SETTINGS = {
    "default": {},
    "invalid penalty": {"invalid_penalty": 0.4},
    "rloo, plain": {"advantage": "rloo", "loss": "plain"},
    "Dr.GRPO": {"advantage": "dr_grpo", "aggregation": "constant", "constant_length": 12},
    "per sequence": {"aggregation": "seq_mean_token_mean"},
    "sums": {"aggregation": "seq_mean_token_sum"},
    "tis": {"correction": "tis", "tis_cap": 1.5},
    "k1": {"kl_coef": 0.3, "kl_estimator": "k1"},
    "k2": {"kl_coef": 0.3, "kl_estimator": "k2"},
    "k3": {"kl_coef": 0.3, "kl_estimator": "k3"},
    "entropy": {"entropy_coef": 0.1},
    "all": {"kl_coef": 0.1, "entropy_coef": -0.05, "correction": "tis", "aggregation": "seq_mean_token_mean"},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_steps_gradient_equals_the_reference(origin: Policy, name: str) -> None:
    """Skipping tokens of advantage zero, packing and micro-batches (64 tokens here) included."""
    a, groups = algo(**SETTINGS[name]), make_groups()
    ours, metrics = step_gradients(origin, groups, a, optim(microbatch_tokens=64), temperature=0.8)
    policy = fresh(origin)
    plain_model(policy)
    reference = plain_model(toys.policy(seed=8)) if a.kl_coef else None
    loss = reference_loss(policy, groups, a, 0.8, ref=reference)
    loss.backward()
    assert_same(ours, {n: p.grad for n, p in policy.model.named_parameters() if p.grad is not None})
    assert metrics["loss"] == pytest.approx(float(loss.detach()), abs=1e-5)


@pytest.mark.parametrize("name", ["default", "all"])
def test_micro_batch_size_does_not_change_the_gradient(origin: Policy, name: str) -> None:
    a, groups = algo(**SETTINGS[name]), make_groups(seed=2)
    whole, _ = step_gradients(origin, groups, a, optim(microbatch_tokens=100_000), 1.0)
    for tokens in (64, 90, 150):
        cut, _ = step_gradients(origin, groups, a, optim(microbatch_tokens=tokens), 1.0)
        assert_same(cut, whole, tolerance=1e-6)


def test_micro_batch_size_does_not_change_the_weights(origin: Policy) -> None:
    weights = []
    for tokens in (64, 100_000):
        policy = fresh(origin)
        trainer = PolicyTrainer(policy, algo(), optim(microbatch_tokens=tokens), total_steps=3)
        for seed in range(3):
            trainer.step(make_groups(seed))
        weights.append(policy.state())
    for name, tensor in weights[0].items():
        torch.testing.assert_close(tensor, weights[1][name], rtol=0, atol=1e-6, msg=name)


@pytest.mark.parametrize(("epochs", "minibatches"), [(1, 2), (2, 1), (3, 2)])
def test_epochs_and_minibatches_equal_a_reference_loop(origin: Policy, epochs: int, minibatches: int) -> None:
    """The proximal policy is frozen before the first update; each minibatch takes every k-th group."""
    a, groups = algo(dual_clip=3.0, clip_high=0.28), make_groups(seed=4)
    policy = fresh(origin)
    trainer = PolicyTrainer(policy, a, optim(epochs=epochs, minibatches=minibatches), total_steps=1)
    metrics = trainer.step(groups)
    slow = fresh(origin)
    plain_model(slow)
    old = plain_model(fresh(origin))
    optimizer = adamw(slow.model.named_parameters(), 1e-2, (0.9, 0.99), 1e-4, 0.0)
    for _ in range(epochs):
        for part in (groups[i::minibatches] for i in range(minibatches)):
            optimizer.zero_grad()
            reference_loss(slow, part, a, 1.0, old=old).backward()
            optimizer.step()
    assert metrics["updates"] == epochs * minibatches
    for name, tensor in policy.state().items():
        torch.testing.assert_close(tensor, slow.state()[name], rtol=0, atol=3e-5, msg=name)
    assert (metrics["clipped_share"] > 0) == (epochs > 1)


def test_failed_episodes_and_singletons_never_train(origin: Policy) -> None:
    """Their tokens change nothing at all: neither the gradient nor a denominator (singletons keep theirs)."""
    groups = make_groups()
    without = make_groups()
    without[4].trajectories = [t for t in without[4].trajectories if t.stop is not StopReason.FAILED]
    a, b = (step_gradients(origin, g, algo(), optim(), 1.0)[0] for g in (groups, without))
    assert all(torch.equal(a[name], b[name]) for name in a)
    samples = samples_of(groups, AlgoConfig())
    singleton = samples_of([groups[3]], AlgoConfig())
    assert {a for s in singleton for a in s.advantages} == {0.0}
    # Masked by advantage zero, they still count among the tokens over which the mean is taken.
    longer, _ = step_gradients(origin, groups[:2], algo(), optim(), 1.0)
    with_single, _ = step_gradients(origin, [*groups[:2], groups[3]], algo(), optim(), 1.0)
    n = len(train_tokens(samples_of(groups[:2], AlgoConfig())).targets_N)
    more = n + len(train_tokens(singleton).targets_N)
    for name in longer:
        torch.testing.assert_close(with_single[name] * more / n, longer[name], rtol=1e-4, atol=1e-7, msg=name)
    assert len(samples) > len(singleton)


def test_observation_tokens_never_train(origin: Policy) -> None:
    """Only where the mask is 1 does a target enter the loss."""
    groups = make_groups()
    samples = samples_of(groups, AlgoConfig())
    tokens = train_tokens(samples)
    flat = [(i, m) for s in samples for i, m in zip(s.ids, s.mask, strict=True)]
    assert tokens.targets_N.tolist() == [i for i, m in flat if m]
    rows = tokens.rows_N.tolist()
    assert [flat[r + 1] for r in rows] == [(i, m) for i, m in flat if m]


def test_without_signal_nothing_changes_and_the_schedule_moves_on(origin: Policy) -> None:
    policy = fresh(origin)
    before = {name: tensor.clone() for name, tensor in policy.state().items()}
    trainer = PolicyTrainer(policy, algo(), optim(schedule="linear", weight_decay=0.1), total_steps=10)
    for groups in ([], make_groups()[2:4]):
        metrics = trainer.step(groups)
        assert (metrics["updates"], metrics["trained_tokens"], metrics["loss"]) == (0, 0, 0)
    assert trainer.steps_done == 2
    assert all(torch.equal(tensor, before[name]) for name, tensor in policy.state().items())


def test_the_schedule_counts_training_steps_not_updates_or_turns(origin: Policy) -> None:
    trainer = PolicyTrainer(
        fresh(origin), algo(), optim(schedule="cosine", warmup=2, epochs=2, minibatches=2), total_steps=6
    )
    lrs = [trainer.step(make_groups(seed))["lr"] for seed in range(6)]
    assert lrs == pytest.approx([1e-2 * lr_factor(step, 6, "cosine", 2) for step in range(6)])


def test_schedules_by_hand() -> None:
    assert [lr_factor(s, 10, "constant", 4) for s in (0, 1, 3, 4, 9)] == [0.25, 0.5, 1, 1, 1]
    assert lr_factor(0, 10, "linear", 0) == 1
    assert lr_factor(5, 10, "linear", 0) == pytest.approx(0.55)
    assert lr_factor(10, 10, "linear", 0) == pytest.approx(0.1)
    assert lr_factor(6, 10, "cosine", 2) == pytest.approx(0.55)
    assert lr_factor(99, 10, "cosine", 2) == pytest.approx(0.1)  # it never runs out to zero


def test_a_gradient_that_is_not_finite_is_skipped_and_counted(origin: Policy) -> None:
    policy = fresh(origin)
    trainer = PolicyTrainer(policy, algo(), optim(), total_steps=2)
    before = {name: tensor.clone() for name, tensor in policy.state().items()}
    parameter = next(policy.model.parameters())
    hook = parameter.register_hook(lambda grad: grad * math.nan)
    assert trainer.step(make_groups())["skipped_updates"] == 1
    assert all(torch.equal(tensor, before[name]) for name, tensor in policy.state().items())
    hook.remove()
    metrics = trainer.step(make_groups())
    assert metrics["skipped_updates"] == 0
    assert not all(torch.equal(tensor, before[name]) for name, tensor in policy.state().items())


def test_gradients_are_scaled_down_to_the_norm(origin: Policy) -> None:
    free, metrics = step_gradients(origin, make_groups(), algo(), optim(), 1.0)
    norm = metrics["grad_norm"]
    assert norm == pytest.approx(math.sqrt(sum(float(g.square().sum()) for g in free.values())), rel=1e-4)
    bound, _ = step_gradients(origin, make_groups(), algo(), optim(max_grad_norm=norm / 3), 1.0)
    for name in free:
        torch.testing.assert_close(bound[name] * 3, free[name], rtol=1e-3, atol=1e-7, msg=name)


def test_metrics_by_hand(origin: Policy) -> None:
    """Entropy, mismatch between sampler and trainer, KL: sums over the trained tokens."""
    groups = [make_groups(forks=False)[1]]
    _, metrics = step_gradients(origin, groups, algo(kl_coef=0.1), optim(), 1.0)
    policy = fresh(origin)
    plain_model(policy)
    reference = plain_model(toys.policy(seed=8))
    entropies, gaps, kls = [], [], []
    for trajectory in groups[0].trajectories:
        (segment,) = trajectory.segments()
        with torch.no_grad():
            logp = token_logits(policy.model, segment.ids, 1.0).log_softmax(-1)
            ref = token_logits(reference, segment.ids, 1.0).log_softmax(-1)
        for i in range(1, len(segment.ids)):
            if segment.mask[i]:
                entropies.append(float(-(logp[i - 1].exp() * logp[i - 1]).sum()))
                gaps.append(abs(float(logp[i - 1, segment.ids[i]]) - segment.logprobs[i]))
                k1 = float(logp[i - 1, segment.ids[i]] - ref[i - 1, segment.ids[i]])
                kls.append(math.exp(-k1) - 1 + k1)
    assert metrics["trained_tokens"] == len(entropies)
    assert metrics["entropy"] == pytest.approx(sum(entropies) / len(entropies), rel=1e-4)
    assert metrics["mismatch_mean"] == pytest.approx(sum(gaps) / len(gaps), rel=1e-4)
    assert metrics["kl"] == pytest.approx(sum(kls) / len(kls), rel=1e-3)


def test_the_reference_of_the_kl_term_is_the_policy_at_the_start_and_stays(origin: Policy) -> None:
    policy = fresh(origin)
    trainer = PolicyTrainer(policy, algo(kl_coef=0.1), optim(), total_steps=3)
    assert trainer.step(make_groups())["kl"] == pytest.approx(0, abs=1e-6)
    assert trainer.step(make_groups())["kl"] > 1e-4


def test_trainer_state_round_trip_continues_identically(origin: Policy) -> None:
    policy = fresh(origin)
    trainer = PolicyTrainer(policy, algo(), optim(schedule="linear"), total_steps=4)
    trainer.step(make_groups(0))
    twin = fresh(policy)
    other = PolicyTrainer(twin, algo(), optim(schedule="linear"), total_steps=4)
    other.load_state_dict(copy.deepcopy(trainer.state_dict()))
    a, b = trainer.step(make_groups(1)), other.step(make_groups(1))
    assert a == b
    assert all(torch.equal(tensor, twin.state()[name]) for name, tensor in policy.state().items())


# -- data ------------------------------------------------------------------------------------------------------


def test_invalid_actions_cost_their_penalty_each() -> None:
    turns = [Turn("", valid_action=ok, reward=r) for ok, r in ((True, 0.5), (False, 0.0), (False, 0.25))]
    trajectory = Trajectory("e", "t", 0, turns=turns)
    assert trained_return(trajectory, AlgoConfig()) == 0.75
    assert trained_return(trajectory, AlgoConfig(invalid_penalty=0.1)) == pytest.approx(0.55)


@pytest.mark.parametrize("advantage", ["grpo", "gigpo"])
def test_success_as_the_reward_makes_almost_right_as_wrong_as_anything(advantage: str) -> None:
    """Three episodes with returns 1.0, 0.9 and 0.0: with `success` only the first is better than the others."""

    def episode(reward: float, success: bool | None) -> Trajectory:
        turns = [Turn("start", completion_ids=[1]), Turn("end", completion_ids=[2], reward=reward)]
        return Trajectory("e", "t", 0, turns=turns, stop=StopReason.TERMINATED, success=success)

    episodes = [episode(1.0, True), episode(0.9, False), episode(0.0, None)]
    group = Group(GroupRequest(0, "t", 3, 0), episodes)
    by_return = turn_advantages(episodes, algo(advantage=advantage))
    by_success = turn_advantages(episodes, algo(advantage=advantage, reward="success"))
    assert by_return[0][0] > by_return[1][0] > 0 > by_return[2][0]
    assert by_success[0][0] > 0 > by_success[1][0] == by_success[2][0]
    lost = Group(group.request, episodes[1:])
    assert has_signal(lost)
    assert not has_signal(lost, lambda t: trained_return(t, algo(reward="success")))


def test_segments_of_one_episode_are_one_sequence_with_one_advantage() -> None:
    """A fork duplicates no sample before the group is normalised."""
    groups = make_groups(seed=1)
    samples = samples_of(groups, AlgoConfig(advantage="rloo"))
    episodes = [t for g in groups for t in g.trainable]
    assert [s.sequence for s in samples] == [i for i, t in enumerate(episodes) for _ in t.segments()]
    assert any(len(t.segments()) > 1 for t in episodes)
    for sequence in range(len(episodes)):
        of_one = [s for s in samples if s.sequence == sequence]
        assert len({a for s in of_one for a, m in zip(s.advantages, s.mask, strict=True) if m}) == 1


def test_a_sampled_token_with_nothing_before_it_cannot_train() -> None:
    trajectory = Trajectory("e", "t", 0, turns=[Turn("", [], [5, 6], [-1.0, -1.0], [0, 0])], stop=StopReason.TERMINATED)
    tokens = train_tokens(samples_of([Group(GroupRequest(0, "t", 1, 0), [trajectory])], AlgoConfig()))
    assert tokens.targets_N.tolist() == [6]
    assert tokens.rows_N.tolist() == [0]
