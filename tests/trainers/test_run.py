"""A whole run on the toy: it learns, and an interrupted run equals an uninterrupted one."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("colours")

import toys  # noqa: E402
from runs import StopAt, assert_equal_runs, config, figures, interrupted, train  # noqa: E402

from rollenv.conformance.resources import Holdings, left_since  # noqa: E402
from rollenv.errors import RollenvError  # noqa: E402
from rollenv.evaluation.export import kept_steps, read  # noqa: E402
from rollenv.inference.base import EngineDead  # noqa: E402
from rollenv.trainers import checkpoint  # noqa: E402
from rollenv.trainers.metrics import read_groups  # noqa: E402
from rollenv.trainers.run import Interrupted, TrainRun  # noqa: E402


def test_a_policy_improves_on_the_toy(model: Path, tmp_path: Path) -> None:
    """By reward alone, from right in two episodes of three to nearly always, in thirty steps.

    At twice this rate a colour's policy may settle on the neighbour, worth a half: which one does, rounding decides.
    """
    c = config(
        tmp_path,
        steps=30,
        rollout={"groups": 8, "group_size": 8, "concurrency": 64},
        optim={"lr": 1e-3},
        eval={"every": 0, "episodes": 32},
        checkpoint={"every": 0},
    )
    train(c, model)
    lines = figures(tmp_path)
    assert [line["step"] for line in lines] == list(range(31))
    success = [line["success"] for line in lines[1:]]
    assert sum(success[-5:]) / 5 > sum(success[:3]) / 3 + 0.15
    assert lines[-1]["eval_success"] > lines[0]["eval_success"] + 0.1


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "refill": {"rollout": {"filter": "refill", "max_refills": 3, "group_size": 2}},
    "curriculum": {"rollout": {"curriculum": "success"}},
    "branches": {"algo": {"advantage": "vine", "branches": 2, "gamma": 1.0}, "rollout": {"filter": "keep"}},
    "trees": {"rollout": {"trees": 2}},
    "kl, minibatches, schedule": {
        "algo": {"kl_coef": 0.05},
        "optim": {"minibatches": 2, "epochs": 2, "schedule": "cosine", "warmup": 1},
    },
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_interrupted_and_resumed_equals_uninterrupted(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variant: str
) -> None:
    """Stopped in the first evaluation, in rollouts, near a boundary: figures and weights come out the same."""
    c = config(tmp_path / "whole", **VARIANTS[variant])
    train(c, model)
    total = 0
    with monkeypatch.context() as patch:
        counter = StopAt(patch, -1)
        train(config(tmp_path / "count", **VARIANTS[variant]), model)
        total = counter.steps
    assert_equal_runs(tmp_path / "whole", tmp_path / "count")  # a seed decides
    for share in (0.03, 0.4, 0.75) if variant == "plain" else (0.5,):
        out = tmp_path / f"broken-{share}"
        c = config(out, **VARIANTS[variant])
        interruption = interrupted(c, model, monkeypatch, int(share * total))
        assert interruption is not None
        last = checkpoint.newest(out)
        assert last is not None
        assert (last.folder, last.step) == (interruption.folder, interruption.step)
        train(c, model, last)
        assert_equal_runs(tmp_path / "whole", out)


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_run_does_not_depend_on_where_its_environments_are(model: Path, tmp_path: Path, executor: str) -> None:
    train(config(tmp_path / "inline", steps=2), model)
    placed = config(tmp_path / executor, steps=2, rollout={"env_executor": executor, "env_workers": 2})
    train(placed, model)
    assert_equal_runs(tmp_path / "inline", tmp_path / executor)


def test_a_task_that_fails_for_good_is_in_quarantine_and_in_the_checkpoint(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    original = toys.Colours.reset

    def reset(self: Any, **options: Any) -> Any:
        if options["options"]["task"] == "colour-3":
            raise ConnectionError("no container")
        return original(self, **options)

    monkeypatch.setattr(toys.Colours, "reset", reset)
    settings = {"env_args": {"n_tasks": 6}, "rollout": {"quarantine_after": 4, "groups": 6}, "eval": {"every": 0}}
    train(config(tmp_path, **settings), model)
    lines = figures(tmp_path)
    assert [line["tasks_in_quarantine"] for line in lines if "tasks_in_quarantine" in line] == [1, 1, 1, 1]
    assert lines[-1]["episodes_failed"] == 4 * 3  # four samples, three attempts, in the first epoch only
    state = checkpoint.newest(tmp_path).rollouts()  # type: ignore[union-attr]
    assert state["buffer"]["source"]["quarantine"] == {"failures": {"colour-3": 4}}
    assert "task 'colour-3' is in quarantine" in caplog.text


@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_a_step_whose_weights_no_engine_takes_is_made_again_from_the_last_boundary(
    model: Path, tmp_path: Path, eta: float
) -> None:
    """From a batch that was taken to the figures of its step there is no state to go on from, so none is written."""
    train(config(tmp_path / "whole", rollout={"eta": eta}), model)
    c = config(tmp_path / "broken", rollout={"eta": eta}, checkpoint={"every": 2, "keep": 5})

    async def main() -> None:
        run = TrainRun(c, model)
        original = run.engine.update_weights

        async def update_weights(version: int, tensors: Any) -> None:
            if version == 3:
                raise EngineDead("its process has ended")
            await original(version, tensors)

        run.engine.update_weights = update_weights  # type: ignore[method-assign]
        with pytest.raises(
            RollenvError, match="no engine takes the weights of step 3: its process has ended; continue"
        ):
            await run.train()

    asyncio.run(main())
    assert [kept.step for kept in checkpoint.found(tmp_path / "broken")] == [2]
    train(c, model, checkpoint.newest(tmp_path / "broken"))
    assert [line["step"] for line in figures(tmp_path / "broken")] == [0, 1, 2, 3, 4]
    if eta == 0:
        assert_equal_runs(tmp_path / "whole", tmp_path / "broken")


def test_a_run_that_is_resumed_twice_from_one_checkpoint_tells_each_step_once(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted in an evaluation, resumed, killed before the next checkpoint, and resumed from the same one."""
    c = config(tmp_path, steps=3, eval={"every": 1}, checkpoint={"every": 0, "keep": 5})
    with monkeypatch.context() as patch:
        stop = StopAt(patch, -1)

        def on(kind: str, said: Any) -> None:
            if kind == "step" and said["step"] == 2:
                stop.when = stop.steps + 1  # the evaluation's first step

        async def main() -> None:
            stop.run = TrainRun(c, model, None, on)
            with pytest.raises(Interrupted):
                await stop.run.train()

        asyncio.run(main())
    last = checkpoint.newest(tmp_path)
    assert last is not None
    assert (last.step, last.state()["figures"] is None) == (2, False)
    assert [line["step"] for line in figures(tmp_path)] == [0, 1]
    for _ in range(2):
        train(c, model, last)
        assert [line["step"] for line in figures(tmp_path)] == [0, 1, 2, 3]


def test_only_the_share_of_groups_that_trains_is_called_trained(model: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"rollout": {"filter": "keep"}, "algo": {"train_share": 0.25}, "trajectories": 1}
    train(config(tmp_path, steps=2, eval={"every": 0}, **settings), model)
    assert [line["groups"] for line in figures(tmp_path)[1:]] == [1, 1]
    assert [line["trained"] for line in read_groups(tmp_path)].count(True) == 2
    assert len(read_groups(tmp_path)) == 8
    for step, file in kept_steps(tmp_path):
        episodes = list(read(file))
        assert [one.advantages is not None for one in episodes] == [one.trained for one in episodes], step
        assert sum(bool(one.trained) for one in episodes) == 4


def test_a_run_that_cannot_begin_leaves_no_process(tmp_path: Path) -> None:
    before = Holdings()
    with pytest.raises(RollenvError):
        TrainRun(config(tmp_path / "out", rollout={"env_executor": "process", "env_workers": 2}), tmp_path / "no model")
    assert not [what for what in left_since(before) if what.startswith("child process")]


def test_a_stop_in_the_last_breath_of_a_rollout_loses_no_group(model: Path, tmp_path: Path) -> None:
    """The batch is ready and a stop is asked for in the same turn of the loop: it is trained, or played again."""
    whole, out = tmp_path / "whole", tmp_path / "broken"
    train(config(whole), model)

    async def main() -> None:
        run = TrainRun(config(out), model)
        original = run.controller.next_batch

        async def next_batch() -> Any:
            batch = await original()
            if batch.version == 1:
                run.request_stop()
            return batch

        run.controller.next_batch = next_batch  # type: ignore[method-assign]
        with pytest.raises(Interrupted):
            await run.train()

    asyncio.run(main())
    train(config(out), model, checkpoint.newest(out))
    assert_equal_runs(whole, out)


def test_a_stop_is_heard_when_batches_are_always_ready(model: Path, tmp_path: Path) -> None:
    """With rollouts faster than training nobody ever waits for a batch."""

    async def main() -> None:
        def on(kind: str, figures: dict[str, Any]) -> None:
            if kind == "step" and figures["step"] == 3:
                run.request_stop()

        rollout = {"eta": 2.0, "concurrency": 64}
        run = TrainRun(config(tmp_path, steps=30, rollout=rollout, eval={"every": 0}), model, on_figures=on)
        with pytest.raises(Interrupted) as stopped:
            await run.train()
        assert stopped.value.step <= 4

    asyncio.run(main())


def test_a_run_ahead_of_its_training_stays_within_its_bound_and_resumes(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = config(tmp_path, rollout={"eta": 1.0}, steps=5)
    assert interrupted(c, model, monkeypatch, 150) is not None
    train(c, model, checkpoint.newest(tmp_path))
    lines = figures(tmp_path)
    assert [line["step"] for line in lines] == list(range(6))
    assert all(line["staleness_max"] <= 1 for line in lines[1:])
    assert_balanced(tmp_path)
    trained = Counter(line["index"] for line in read_groups(tmp_path))
    assert len(trained) == 5 * 4
    assert set(trained.values()) == {1}


def assert_balanced(folder: Path) -> None:
    ledger = checkpoint.newest(folder).state()["ledger"]  # type: ignore[union-attr]
    assert ledger["dispatched"] == (ledger["finished"] + ledger["failed"] + ledger["cancelled"] + ledger["in_flight"])


@pytest.mark.parametrize("selection", ["first", "unbiased"])
@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_a_run_with_redundant_rollouts_trains_full_batches(
    model: Path, tmp_path: Path, eta: float, selection: str
) -> None:
    rollout = {"eta": eta, "extra_groups": 2, "extra_samples": 1, "selection": selection, "filter": "keep"}
    run = train(config(tmp_path, rollout=rollout, steps=3), model)
    for line in figures(tmp_path)[1:]:
        assert line["groups"] == 4
        assert line["episodes"] == 16
        assert line["staleness_max"] <= eta
    ledger = run.scheduler.ledger
    assert ledger.cancelled + ledger.discarded > 0
    assert ledger.balanced
    assert_balanced(tmp_path)
    rows = run.controller.bias.rows()
    assert sum(row["trained"] for row in rows if row["by"] == "turns") == 3 * 16
    assert all(row["trained"] <= row["dispatched"] for row in rows)


@pytest.mark.parametrize("on_update", ["continue", "finish"])
def test_new_weights_meet_running_episodes_as_chosen(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_update: str
) -> None:
    """An episode in flight when the weights change goes on with the new ones, or is played to its end by the old."""
    slow_steps(monkeypatch)
    rollout = {"eta": 1.0, "on_update": on_update, "concurrency": 4, "filter": "keep"}
    groups: list[Any] = []

    async def main() -> None:
        run = TrainRun(config(tmp_path, rollout=rollout, steps=4), model)
        trainer = run.learner.trainer
        original = trainer.step
        trainer.step = lambda batch: groups.extend(batch) or original(batch)
        await run.train()

    asyncio.run(main())
    episodes = [{v for turn in t.turns for v in turn.policy_versions} for g in groups for t in g.trainable]
    assert any(len(versions) > 1 for versions in episodes) is (on_update == "continue")


def test_replicas_make_the_episodes_that_one_engine_makes(model: Path, tmp_path: Path) -> None:
    train(config(tmp_path / "one"), model)
    train(config(tmp_path / "three", rollout={"replicas": 3}), model)
    assert_equal_runs(tmp_path / "one", tmp_path / "three")


def slow_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps give way to the loop, so that episodes are spread over training steps."""
    original = toys.Colours.astep

    async def astep(env: Any, action: str) -> Any:
        await asyncio.sleep(0.02)
        return await original(env, action)

    monkeypatch.setattr(toys.Colours, "astep", astep)


def test_other_tasks_than_the_checkpoints_are_refused(model: Path, tmp_path: Path) -> None:
    train(config(tmp_path, steps=1), model)
    c = config(tmp_path, steps=2, env_args={"n_tasks": 9})
    with pytest.raises(RollenvError, match="are not those of the checkpoint"):
        train(c, model, checkpoint.newest(tmp_path))


def test_limits_leave_room_for_the_engine(model: Path, tmp_path: Path) -> None:
    """The context is what model and engine both can hold: an episode that is too long ends, it does not fail."""

    async def main() -> tuple[Any, int]:
        run = TrainRun(config(tmp_path), model)
        run.engine._max_length = 40
        limits = run._play(run.worlds.all[0], "train", 1.0).limits
        await run.engine.close()
        return limits, run.learner.trainer.policy.model.config.max_position_embeddings

    limits, context = asyncio.run(main())
    assert limits.max_tokens == 40 < context
    assert limits.max_turns == 4  # the environment's own


def test_a_bf16_engine_keeps_rotary_frequencies_exact(model: Path, tmp_path: Path) -> None:
    async def main() -> Any:
        run = TrainRun(config(tmp_path, rollout={"precision": "bf16"}), model)
        await run.engine.close()
        return run.engine._model, run.learner.trainer.policy.model

    served, trained = asyncio.run(main())
    assert {p.dtype for p in served.parameters()} == {torch.bfloat16}
    buffers = dict(trained.named_buffers())
    for name, buffer in served.named_buffers():
        assert torch.equal(buffer, buffers[name])


def test_weights_for_a_bf16_engine_are_sent_in_bf16(model: Path, tmp_path: Path) -> None:
    async def main() -> Any:
        run = TrainRun(config(tmp_path, rollout={"precision": "bf16"}), model)
        policy = run.learner.trainer.policy
        with torch.no_grad():
            for parameter in policy.model.parameters():
                parameter += torch.randn_like(parameter) / 10
        weights = await run.learner.weights()
        await run.engine.update_weights(1, weights)
        loaded = run.engine._model.state_dict()
        await run.engine.close()
        return policy, weights, loaded

    policy, weights, loaded = asyncio.run(main())
    assert weights.keys() == loaded.keys()
    buffers = dict(policy.model.named_buffers())
    for name, exact in policy.state().items():
        assert weights[name].dtype == (exact.dtype if name in buffers else torch.bfloat16)
        assert torch.equal(loaded[name], exact.to(loaded[name].dtype))


@pytest.mark.parametrize(
    ("eta", "algo", "warned"),
    [
        (4, {}, True),
        (4, {"proximal": "sampler"}, False),
        (4, {"loss": "decoupled_ppo"}, False),
        (4, {"correction": "tis"}, False),
        (2, {}, False),
    ],
)
def test_old_tokens_that_train_as_if_they_were_new_are_warned_of(
    eta: float, algo: dict[str, Any], warned: bool, model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        run = TrainRun(config(tmp_path, rollout={"eta": eta}, algo=algo), model)
        await run.engine.close()

    asyncio.run(main())
    assert (f"rollout.eta={eta}: tokens of versions so far back train as if they were new" in caplog.text) == warned
