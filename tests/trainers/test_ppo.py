"""PPO with a critic against a slow reference, its two kinds, warm-up, threads, and what a checkpoint holds."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("colours")

import toys  # noqa: E402
from batches import algo, fresh, make_groups, optim, plain_model  # noqa: E402
from runs import assert_equal_runs, config, figures, interrupted, train  # noqa: E402

from rollenv.config.algo import CriticConfig  # noqa: E402
from rollenv.trainers import checkpoint, parallel  # noqa: E402
from rollenv.trainers.algorithms.gae import bilevel_gae, gae, turn_gae  # noqa: E402
from rollenv.trainers.critic import explained_variance  # noqa: E402
from rollenv.trainers.optim import adamw  # noqa: E402
from rollenv.trainers.policy import Policy  # noqa: E402
from rollenv.trainers.step import PolicyTrainer  # noqa: E402

torch.set_num_threads(1)


def critic(**settings: Any) -> CriticConfig:
    return CriticConfig.model_validate({"value_lr": 1e-2, "value_clip": 0.05} | settings)


@pytest.fixture(scope="module")
def origin() -> Policy:
    return toys.policy(seed=3)


def started(policy: Policy, advantage: str = "gae", kind: str = "head", **settings: Any) -> PolicyTrainer:
    """A trainer whose critic has opinions already (a head of zeros says nothing)."""
    a = algo(advantage=advantage, whiten=True, lam=0.9, gamma=0.8, gamma_token=0.95)
    o = optim(**{"microbatch_tokens": 64, "epochs": 2, "minibatches": 2} | settings)
    trainer = PolicyTrainer(policy, a, o, total_steps=4, critic=critic(kind=kind))
    assert trainer.critic is not None
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        trainer.critic.head.weight.copy_(torch.randn(1, 32, generator=generator) * 0.1)
        trainer.critic.head.bias.fill_(0.3)
    return trainer


# -- the reference -------------------------------------------------------------------------------------------------


class Slow:
    """PPO segment by segment, token by token, with plain attention."""

    def __init__(self, policy: Policy, advantage: str, kind: str, head: Any) -> None:
        self.policy, self.kind = fresh(policy), kind
        plain_model(self.policy)
        self.head = copy.deepcopy(head)
        self.own = self.policy if kind == "head" else fresh(policy)
        plain_model(self.own)
        self.advantage = advantage
        self.optimizer = adamw(self.policy.model.named_parameters(), 1e-2, (0.9, 0.99), 1e-4, 0.0)
        named = list(self.head.named_parameters())
        named += [] if kind == "head" else list(self.own.model.get_decoder().named_parameters())
        self.value_optimizer = adamw(named, 1e-2, (0.9, 0.99), 1e-4, 0.0)

    def look(self, episode: Any) -> tuple[Any, Any]:
        """Log-probabilities and values at the model tokens of an episode, in order."""
        logps, values = [], []
        for segment in episode.segments():
            ids = torch.tensor([segment.ids])
            logp = self.policy.model(ids).logits[0].log_softmax(-1)
            hidden = self.own.model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state[0]
            for i in range(1, len(segment.ids)):
                if segment.mask[i]:
                    logps.append(logp[i - 1, segment.ids[i]])
                    values.append(self.head(hidden[i - 1])[0])
        return torch.stack(logps), torch.stack(values)

    def credit(self, episode: Any, values: Any) -> tuple[Any, Any]:
        turns = torch.tensor([t for s in episode.segments() for t, m in zip(s.turns, s.mask, strict=True) if m])
        rewards = torch.zeros(len(turns))
        for number, turn in enumerate(episode.turns):
            rewards[int((turns == number).nonzero().max())] = turn.reward
        if self.advantage == "gae_turn":
            return turn_gae(rewards, values, turns, 0.8, 0.9)
        if self.advantage == "gae":
            advantages = gae(rewards, values, 0.95, 0.9)
        else:
            advantages = bilevel_gae(rewards, values, turns, 0.8, 0.95, 0.9)
        return advantages, advantages + values

    def step(self, groups: Any, epochs: int, minibatches: int) -> None:
        parts = [[t for g in groups[i::minibatches] for t in g.trainable] for i in range(minibatches)]
        old = {}
        with torch.no_grad():
            for part in parts:
                for episode in part:
                    logp, values = self.look(episode)
                    old[id(episode)] = (logp, values, *self.credit(episode, values))
        everything = torch.cat([advantages for _, _, advantages, _ in old.values()])
        mean, std = everything.mean(), everything.std() + 1e-8
        for _ in range(epochs):
            for part in parts:
                self.optimizer.zero_grad()
                self.value_optimizer.zero_grad()
                losses, value_losses = [], []
                for episode in part:
                    was, old_values, advantages, returns = old[id(episode)]
                    logp, values = self.look(episode)
                    r, white = torch.exp(logp - was), (advantages - mean) / std
                    losses.append(-torch.min(r * white, r.clamp(0.8, 1.2) * white))
                    near = old_values + (values - old_values).clamp(-0.05, 0.05)
                    value_losses.append(torch.max((values - returns) ** 2, (near - returns) ** 2) / 2)
                weight = 0.5 if self.kind == "head" else 1.0
                (torch.cat(losses).mean() + weight * torch.cat(value_losses).mean()).backward()
                self.optimizer.step()
                self.value_optimizer.step()


@pytest.mark.parametrize("kind", ["head", "model"])
@pytest.mark.parametrize("advantage", ["gae", "gae_turn", "gae_bilevel"])
def test_a_ppo_step_equals_the_reference(origin: Policy, advantage: str, kind: str) -> None:
    """Policy and critic after two epochs of two minibatches, micro-batches of 64 tokens, forks in the episodes."""
    groups = make_groups(seed=4)
    policy = fresh(origin)
    trainer = started(policy, advantage, kind)
    assert trainer.critic is not None
    slow = Slow(policy, advantage, kind, trainer.critic.head)
    metrics = trainer.step(groups)
    slow.step(groups, epochs=2, minibatches=2)
    assert metrics["updates"] == 4
    for name, tensor in policy.state().items():
        torch.testing.assert_close(tensor, slow.policy.state()[name], rtol=0, atol=1e-4, msg=name)
        assert kind == "model" or not torch.equal(tensor, origin.state()[name])
    torch.testing.assert_close(trainer.critic.head.weight, slow.head.weight, rtol=0, atol=1e-4)
    if kind == "model":
        for name, tensor in trainer.critic.policy.model.get_decoder().state_dict().items():
            torch.testing.assert_close(tensor, slow.own.model.get_decoder().state_dict()[name], rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", ["head", "model"])
def test_micro_batches_and_threads_change_nothing(origin: Policy, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    states = []
    for tokens, threads in ((64, 1), (100_000, 1), (64, 2)):
        monkeypatch.setattr(parallel, "worth_sharing", lambda *_, n=threads: n)
        policy = fresh(origin)
        trainer = started(policy, "gae", kind, microbatch_tokens=tokens)
        for seed in range(2):
            metrics = trainer.step(make_groups(seed))
        states.append((policy.state(), metrics))
        trainer.close()
    for other, metrics in states[1:]:
        assert metrics["value_loss"] == pytest.approx(states[0][1]["value_loss"], rel=1e-3)
        for name, tensor in states[0][0].items():
            torch.testing.assert_close(tensor, other[name], rtol=0, atol=2e-5, msg=name)


def test_the_critic_learns_what_episodes_are_worth(origin: Policy) -> None:
    policy = fresh(origin)
    trainer = PolicyTrainer(
        policy, algo(advantage="gae"), optim(lr=1e-6), total_steps=30, critic=critic(kind="model", value_clip=None)
    )
    lines = [trainer.step(make_groups(seed=5)) for _ in range(30)]
    assert lines[0]["value_mean"] == 0
    assert lines[-1]["value_loss"] < 0.1 * lines[0]["value_loss"]
    assert lines[-1]["value_explained"] > 0.8 > 0.1 > abs(lines[0]["value_explained"])


@pytest.mark.parametrize("kind", ["head", "model"])
def test_in_its_warm_up_only_the_critic_learns(origin: Policy, kind: str) -> None:
    policy = fresh(origin)
    trainer = PolicyTrainer(
        policy, algo(advantage="gae"), optim(), total_steps=3, critic=critic(kind=kind, critic_warmup=2)
    )
    assert trainer.critic is not None
    for step in range(3):
        head = trainer.critic.head.weight.clone()
        metrics = trainer.step(make_groups(step))
        assert not torch.equal(head, trainer.critic.head.weight)
        same = [torch.equal(tensor, origin.state()[name]) for name, tensor in policy.state().items()]
        assert all(same) if step < 2 else not all(same)
        assert metrics["updates"] == (0 if step < 2 else 1)
        assert metrics["value_loss"] > 0


@pytest.mark.parametrize("kind", ["head", "model"])
def test_the_critics_state_round_trip_continues_identically(origin: Policy, kind: str) -> None:
    policy = fresh(origin)
    trainer = started(policy, "gae_bilevel", kind, schedule="linear")
    trainer.step(make_groups(0))
    twin = fresh(policy)
    other = started(twin, "gae_bilevel", kind, schedule="linear")
    other.load_state_dict(copy.deepcopy(trainer.state_dict()))
    assert trainer.step(make_groups(1)) == other.step(make_groups(1))
    assert all(torch.equal(tensor, twin.state()[name]) for name, tensor in policy.state().items())
    assert trainer.critic is not None
    assert other.critic is not None
    assert torch.equal(trainer.critic.head.weight, other.critic.head.weight)


@pytest.mark.parametrize("kind", ["head", "model"])
def test_an_interrupted_ppo_run_equals_a_whole_one(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    settings: dict[str, Any] = {
        "algo": {"advantage": "gae", "whiten": True, "kl_coef": 0.05, "kl_target": 0.01},
        "critic": {"kind": kind, "value_lr": 1e-3, "critic_warmup": 1},
        "rollout": {"filter": "keep"},
        "optim": {"minibatches": 2, "schedule": "cosine"},
    }
    train(config(tmp_path / "whole", **settings), model)
    c = config(tmp_path / "broken", **settings)
    assert interrupted(c, model, monkeypatch, 100) is not None
    train(c, model, checkpoint.newest(tmp_path / "broken"))
    assert_equal_runs(tmp_path / "whole", tmp_path / "broken")
    last = figures(tmp_path / "broken")[-1]
    assert last["kl_coef"] != 0.05
    assert {"value_loss", "value_explained", "advantage_std", "masked_share", "turn_tokens_mean"} <= last.keys()


def test_the_model_folder_knows_no_critic(model: Path, tmp_path: Path) -> None:
    """What is saved and sampled from is a language model and nothing else."""
    settings = {"algo": {"advantage": "gae"}, "steps": 1, "rollout": {"filter": "keep"}}
    run = train(config(tmp_path, **settings), model)
    assert run.learner.trainer.policy.value_head is not None
    assert not [name for name in run.learner.trainer.policy.state() if "value" in name]
    last = checkpoint.newest(tmp_path)
    assert last is not None
    assert Policy.load(last.model).state().keys() == run.learner.trainer.policy.state().keys()


def test_explained_variance_by_hand() -> None:
    returns = torch.tensor([0.0, 1.0, 2.0])
    assert explained_variance(returns, returns) == 1
    assert explained_variance(torch.zeros(3), returns) == 0
    assert explained_variance(torch.zeros(3), torch.ones(3)) == 0
