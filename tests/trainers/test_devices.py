"""What holds on a GPU as on a CPU: engine, trainer, sleep, offload, whole runs. All of it runs on both, so that the
tests themselves are tested where there is no GPU."""

from __future__ import annotations

import asyncio
import copy
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import toys  # noqa: E402
from batches import algo, make_groups, optim  # noqa: E402
from inference.engines import build, greedy, reference_generate, reference_logprobs, tokens  # noqa: E402
from runs import config, figures, train, weights  # noqa: E402

from rollenv.config.algo import CriticConfig  # noqa: E402
from rollenv.inference import SamplingParams, TorchEngine  # noqa: E402
from rollenv.trainers import checkpoint  # noqa: E402
from rollenv.trainers.learner import Snapshot  # noqa: E402
from rollenv.trainers.policy import Policy  # noqa: E402
from rollenv.trainers.step import PolicyTrainer  # noqa: E402

NEEDS_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
DEVICES = ["cpu", pytest.param("cuda", marks=NEEDS_GPU)]


@pytest.fixture(autouse=True)
def _exact_products() -> None:
    """fp32 is fp32: nothing may have allowed TF32."""
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_an_engine_says_what_transformers_says(device: str, family: str) -> None:
    model, other = build(family), build(family, seed=1)

    async def main() -> None:
        engine = TorchEngine(model, device=device)
        for version, wanted in enumerate((model, other)):
            await engine.update_weights(version, {n: t.to(device) for n, t in wanted.state_dict().items()})
            prompts = [tokens(n, seed=n) for n in (3, 40, 40, 200)]
            asked = [engine.generate(p, greedy(12), session=f"{version} {i}") for i, p in enumerate(prompts)]
            for prompt, made in zip(prompts, await asyncio.gather(*asked), strict=True):
                assert made.ids == reference_generate(wanted, prompt, 12)
                expected = reference_logprobs(wanted, prompt, made.ids)
                assert made.logprobs == pytest.approx(expected, abs=1e-3)
        await engine.close()

    asyncio.run(main())


@pytest.mark.parametrize("device", DEVICES)
def test_seeds_decide_what_is_drawn_and_sleep_changes_nothing(device: str) -> None:
    async def main() -> list[list[int]]:
        engine, prompt = TorchEngine(build(), device=device), tokens(30, 0)
        drawn = []
        for sleeps in (False, True):
            sampling = [SamplingParams(max_tokens=24, seed=seed, temperature=0.9) for seed in (1, 1, 2)]
            asked = [
                asyncio.ensure_future(engine.generate(prompt, one, session=f"{sleeps} {i}"))
                for i, one in enumerate(sampling)
            ]
            if sleeps:
                while engine.stats().running < 3:
                    await asyncio.sleep(0)
                held = torch.cuda.memory_reserved() if device == "cuda" else 1
                await engine.sleep()
                assert engine.stats().kv_bytes == 0
                assert (torch.cuda.memory_reserved() if device == "cuda" else 0) < held, "others can have it"
                await engine.wake()
            drawn.append([(await one).ids for one in asked])
        await engine.close()
        assert drawn[0] == drawn[1]
        return drawn[0]

    first, again, other = asyncio.run(main())
    assert first == again != other


def stepped(origin: Policy, device: str, precision: Any = "fp32", lends: bool = False) -> tuple[Any, list[Any]]:
    """A trainer after three steps, and their figures."""
    policy = Policy.of(copy.deepcopy(origin.model), origin.tokenizer, device, precision)
    critic = CriticConfig.model_validate({"kind": "model"})
    trainer = PolicyTrainer(policy, algo(advantage="gae"), optim(precision=precision), 3, critic=critic)
    said = []
    for step in range(3):
        said.append(trainer.step(make_groups(step)))
        if lends:
            trainer.offload("host")
    return trainer, said


@pytest.mark.parametrize("device", DEVICES)
def test_a_step_is_that_of_a_cpu(device: str) -> None:
    origin = toys.policy(seed=6)
    here, told_here = stepped(origin, "cpu")
    there, told_there = stepped(origin, device, lends=True)
    for ours, theirs in zip(told_here, told_there, strict=True):
        for name in ("loss", "grad_norm", "entropy"):
            assert theirs[name] == pytest.approx(ours[name], rel=1e-3, abs=1e-5), name
    one, other = Snapshot.of(here), Snapshot.of(there)
    assert all(tensor.device.type == "cpu" for tensor in other.tensors.values())
    for name, tensor in one.weights.items():
        torch.testing.assert_close(other.weights[name], tensor, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
def test_half_precision_is_near_full(device: str) -> None:
    origin = toys.policy(seed=6)
    (_, full), (trainer, half) = stepped(origin, device), stepped(origin, device, "bf16")
    assert all(parameter.dtype == torch.float32 for parameter in trainer.policy.model.parameters())
    for exact, near in zip(full, half, strict=True):
        assert near["entropy"] == pytest.approx(exact["entropy"], rel=0.05)
        assert near["grad_norm"] == pytest.approx(exact["grad_norm"], rel=0.3)


@pytest.mark.usefixtures("colours")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_whole_run_goes_on_from_its_checkpoint(model: Path, tmp_path: Path, device: str, precision: str) -> None:
    where: dict[str, Any] = {"device": device, "optim": {"precision": precision}, "rollout": {"precision": precision}}
    train(config(tmp_path, steps=2, **where), model)
    train(config(tmp_path, steps=4, **where), model, checkpoint.newest(tmp_path))
    lines = figures(tmp_path)
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4]
    # Sampler and trainer are the same weights: what they say of a token differs by the arithmetic alone.
    assert all(abs(line["mismatch_kl"]) < (1e-4 if precision == "fp32" else 0.05) for line in lines[1:])
    assert all(bool(tensor.isfinite().all()) for tensor in weights(tmp_path).values())
