"""Adapters: what is trained, what travels, what is kept, and that merging changes nothing."""

from __future__ import annotations

import asyncio
import copy
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
pytestmark = [pytest.mark.usefixtures("colours"), pytest.mark.timeout(1800)]

import toys  # noqa: E402
from batches import algo, make_groups, optim  # noqa: E402
from runs import assert_equal_runs, config, figures, interrupted, train  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from spawned import in_ranks, strategy  # noqa: E402

from rollenv.cluster.weights import layout  # noqa: E402
from rollenv.config.cluster import LoraConfig  # noqa: E402
from rollenv.errors import RollenvError  # noqa: E402
from rollenv.inference.base import InvalidRequest, SamplingParams  # noqa: E402
from rollenv.inference.torch_engine import TorchEngine  # noqa: E402
from rollenv.rollout.adapted import AdaptedEngine  # noqa: E402
from rollenv.trainers import checkpoint  # noqa: E402
from rollenv.trainers.lora import (  # noqa: E402
    add_adapter,
    base_weights,
    check_lora,
    load_adapter,
    save_adapter,
    targeted_weights,
)
from rollenv.trainers.packing import pack  # noqa: E402
from rollenv.trainers.policy import Policy, load_model  # noqa: E402
from rollenv.trainers.step import PolicyTrainer  # noqa: E402
from rollenv.trainers.strategies.replicated import SINGLE  # noqa: E402

IDS = [5, 9, 70, 33, 8, 120]


def lora(**settings: Any) -> LoraConfig:
    return LoraConfig.model_validate({"rank": 4} | settings)


def adapted(origin: Policy, **settings: Any) -> Policy:
    """A copy of a policy with a fresh adapter."""
    model = copy.deepcopy(origin.model)
    adapter = add_adapter(model, lora(**settings), seed=3)
    policy = Policy.of(model, origin.tokenizer)
    policy.adapter = adapter
    return policy


def trained(origin: Policy, steps: int = 2, strategy: Any = SINGLE, **settings: Any) -> Policy:
    policy = adapted(origin, **settings)
    trainer = PolicyTrainer(policy, algo(kl_coef=0.1), optim(), steps, strategy=strategy)
    for step in range(steps):
        trainer.step(make_groups(step))
    trainer.close()
    return policy


def logits(policy: Policy) -> Any:
    with torch.no_grad():
        return policy.logits(policy.hidden(pack([IDS])))


@pytest.fixture(scope="module")
def origin() -> Policy:
    policy: Policy = toys.policy(seed=5)
    return policy


@pytest.mark.parametrize("targets", ["all", "q_proj,v_proj"])
def test_merged_weights_compute_what_the_adapter_does(origin: Policy, targets: str) -> None:
    policy = trained(origin, targets=targets)
    plain = Policy.of(copy.deepcopy(origin.model), origin.tokenizer)
    assert plain.state().keys() == policy.state().keys()
    assert not torch.allclose(logits(policy), logits(plain), atol=1e-3), "it has learned something"
    plain.model.load_state_dict(policy.state())
    torch.testing.assert_close(logits(policy), logits(plain), rtol=1e-5, atol=1e-5)


def test_only_adapters_are_trained_and_the_base_is_untouched(origin: Policy) -> None:
    policy = adapted(origin)
    before = {name: tensor.clone() for name, tensor in policy.model.state_dict().items()}
    trainer = PolicyTrainer(policy, algo(advantage="gae"), optim(), 2)
    for step in range(2):
        assert trainer.step(make_groups(step))["grad_norm"] > 0
    trainer.close()
    for name, tensor in policy.model.state_dict().items():
        assert torch.equal(tensor, before[name]) is (".lora_" not in name), name
    kept = {name for name in trainer.tensors() if not name.startswith("critic")}
    assert kept
    assert all(".lora_" in name for name in kept)


def test_the_reference_of_the_kl_term_is_the_policy_without_its_adapter(origin: Policy) -> None:
    policy = adapted(origin)
    trainer = PolicyTrainer(policy, algo(kl_coef=0.1), optim(), 3)
    full = PolicyTrainer(Policy.of(copy.deepcopy(policy.model), origin.tokenizer), algo(kl_coef=0.1), optim(), 3)
    for step in range(3):
        ours, theirs = trainer.step(make_groups(step)), full.step(make_groups(step))
        assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-7)
    assert ours["kl"] > 1e-4


def test_targets_that_the_model_has_not_are_refused(origin: Policy) -> None:
    with pytest.raises(RollenvError, match=r"lora.targets=q_prj: the model has no linear maps 'q_prj'.*q_proj"):
        adapted(origin, targets="q_prj")


def test_without_peft_adapters_are_refused_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RollenvError, match=r"lora.rank=4 needs peft: pip install 'rollenv\[lora\]'"):
        check_lora(lora())
    check_lora(LoraConfig.model_validate({}))


# -- on the disk --------------------------------------------------------------------------------------------------


def test_the_adapters_folder_is_pefts_own(origin: Policy, tmp_path: Path) -> None:
    policy = trained(origin)
    assert policy.adapter is not None
    save_adapter(policy.adapter, policy.adapter_state(), tmp_path)
    model = copy.deepcopy(origin.model)
    theirs = Policy.of(peft.PeftModel.from_pretrained(model, str(tmp_path)).get_base_model(), origin.tokenizer)
    torch.testing.assert_close(logits(theirs), logits(policy), rtol=1e-6, atol=1e-6)
    again = adapted(origin)
    load_adapter(again.model, tmp_path)
    assert torch.equal(logits(again), logits(policy))
    with pytest.raises(RollenvError, match="does not fit the model"):
        load_adapter(adapted(origin, rank=2).model, tmp_path)


# -- on its way to engines ----------------------------------------------------------------------------------------


def test_an_engine_merges_what_it_gets_exactly_and_confirms_the_version(origin: Policy) -> None:
    first, second = trained(origin, 1), trained(origin, 2)
    prompt, sampling = IDS, SamplingParams(max_tokens=6, temperature=0.0)

    async def served(tensors: list[Any], base: Any) -> Any:
        engine = AdaptedEngine(TorchEngine(origin.model, kv_budget_bytes=1 << 24), base, 2.0)
        for version, each in enumerate(tensors, 1):
            await engine.update_weights(version, each)
            assert engine.version == version
        try:
            return await engine.generate(prompt, sampling, session="a")
        finally:
            await engine.close()

    base = targeted_weights(origin.model, lora())
    assert {n: t.tolist() for n, t in base.items()} == {n: t.tolist() for n, t in base_weights(first.model).items()}
    adapters = [first.adapter_state(), second.adapter_state()]
    merged = asyncio.run(served(adapters, base))
    whole = asyncio.run(served([first.state(), second.state()], base))
    assert merged == whole, "the same bits, whatever came before"
    assert merged.logprobs != asyncio.run(served([adapters[0], adapters[0]], base)).logprobs


def test_only_the_adapters_bytes_travel(origin: Policy) -> None:
    policy = trained(origin, 1)
    sent = sum(layout(policy.adapter_state())[1])
    parameters = sum(p.numel() for p in policy.model.parameters() if p.requires_grad)
    assert 4 * parameters <= sent <= 4 * parameters + 64 * len(policy.adapter_state())
    assert sent < sum(layout(policy.state())[1]) / 2


def test_half_an_adapter_or_a_strange_one_is_refused_and_changes_nothing(origin: Policy) -> None:
    state = trained(origin, 1).adapter_state()
    name = next(iter(state)).partition(".lora_")[0]
    down, up = f"{name}.lora_A.weight", f"{name}.lora_B.weight"

    async def refuse() -> None:
        base = targeted_weights(origin.model, lora())
        engine = AdaptedEngine(TorchEngine(origin.model, kv_budget_bytes=1 << 24), base, 2.0)
        for tensors, match in (
            ({down: state[down]}, "without its lora_B"),
            ({up: state[up]}, "without its lora_A"),
            ({"x.lora_A.weight": state[down], "x.lora_B.weight": state[up]}, "changes 'x'"),
            ({down: state[down][:, :3], up: state[up]}, "the model's is"),
        ):
            with pytest.raises(InvalidRequest, match=match):
                await engine.update_weights(7, tensors)
        assert engine.version == 0
        await engine.close()

    asyncio.run(refuse())


# -- whole runs ---------------------------------------------------------------------------------------------------


def test_a_run_with_adapters_learns_and_keeps_them_beside_the_merged_model(model: Path, tmp_path: Path) -> None:
    c = config(
        tmp_path,
        steps=14,
        rollout={"groups": 8, "group_size": 8, "concurrency": 64},
        optim={"lr": 1e-2, "minibatches": 2},
        eval={"every": 0, "episodes": 32},
        checkpoint={"every": 0},
        lora={"rank": 8},
    )
    run = train(c, model)
    success = [line["success"] for line in figures(tmp_path)[1:]]
    assert sum(success[-4:]) / 4 > sum(success[:3]) / 3 + 0.1
    last = checkpoint.newest(tmp_path)
    assert last is not None
    before, after = load_model(model)[0].state_dict(), load_model(last.model)[0].state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    policy = run.learner.trainer.policy  # type: ignore[attr-defined]
    assert changed == {name.partition(".lora_")[0] + ".weight" for name in policy.adapter_state()}
    merged = policy.state()
    assert all(torch.equal(after[name], merged[name]) for name in after)
    files = load_file(last.folder / "adapter" / "adapter_model.safetensors")
    assert sum(t.nbytes for t in files.values()) < sum(t.nbytes for t in after.values())


def test_an_interrupted_run_with_adapters_equals_a_whole_one(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"lora": {"rank": 4}, "algo": {"kl_coef": 0.05}, "steps": 3}
    train(config(tmp_path / "whole", **settings), model)
    c = config(tmp_path / "broken", **settings)
    assert interrupted(c, model, monkeypatch, 90) is not None
    last = checkpoint.newest(tmp_path / "broken")
    assert last is not None
    assert 0 < last.step < 3
    train(c, model, last)
    assert_equal_runs(tmp_path / "whole", tmp_path / "broken")


def in_shards() -> tuple[dict[str, Any], dict[str, Any]]:
    """In a rank."""
    policy = trained(toys.policy(seed=5), strategy=strategy("fsdp2"))
    return policy.adapter_state(), policy.state()


def test_adapters_in_shards_equal_whole_ones(origin: Policy) -> None:
    single = trained(origin)
    adapter, whole = in_ranks(2, in_shards)[0]
    for ours, theirs in ((single.adapter_state(), adapter), (single.state(), whole)):
        assert ours.keys() == theirs.keys()
        for name, tensor in ours.items():
            torch.testing.assert_close(theirs[name], tensor, rtol=1e-5, atol=1e-5)
