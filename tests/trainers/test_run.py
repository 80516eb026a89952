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
from rollout import trace  # noqa: E402
from runs import StopAt, assert_equal_runs, config, figures, interrupted, train, weights  # noqa: E402

from rollenv.conformance.resources import Holdings, left_since  # noqa: E402
from rollenv.errors import RollenvError  # noqa: E402
from rollenv.evaluation.export import kept_steps, read  # noqa: E402
from rollenv.inference.base import EngineDead  # noqa: E402
from rollenv.rollout.timeline import Timeline  # noqa: E402
from rollenv.trainers import checkpoint  # noqa: E402
from rollenv.trainers.metrics import MetricsWriter, read_groups, read_metrics  # noqa: E402
from rollenv.trainers.run import Interrupted, TrainRun  # noqa: E402
from rollenv.trainers.state import save_tensors  # noqa: E402
from rollenv.trainers.step import PolicyTrainer  # noqa: E402
from rollenv.trajectory import StopReason  # noqa: E402


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


# -- chaos and the timeline ------------------------------------------------------------------------------------


CHAOS: dict[str, Any] = {
    "steps": 6,
    "rollout": {"reset_seconds": 1.0, "step_seconds": 1.0, "generate_seconds": 5.0},
    "inject": {"env_crash": 0.05, "env_hang": 0.01, "slow_env": 0.02, "slow_seconds": 0.01, "engine_error": 0.03},
    "eval": {"every": 3},
}
INJECTED = {f"injected/{name}" for name in CHAOS["inject"]}


class TrainedOn:
    """Remembers every group that reaches the trainer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.groups: list[Any] = []
        original = PolicyTrainer.step

        def step(trainer: Any, groups: Any) -> Any:
            self.groups.extend(groups)
            return original(trainer, groups)

        monkeypatch.setattr(PolicyTrainer, "step", step)


@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_a_run_amid_chaos_completes_and_trains_nothing_that_failed(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eta: float
) -> None:
    settings = CHAOS | {"rollout": CHAOS["rollout"] | {"eta": eta, "filter": "keep"}}
    train(config(tmp_path / "first", steps=1), model)  # what torch and its libraries keep for good is there now
    before = Holdings()
    seen = TrainedOn(monkeypatch)
    run = train(config(tmp_path / "run", **settings), model)
    assert not left_since(before)
    ledger = run.scheduler.ledger
    assert ledger.balanced
    assert ledger.in_flight == 0
    assert ledger.failed > 5
    assert set(ledger.failures) <= INJECTED
    assert len(seen.groups) == 6 * 4
    for group in seen.groups:
        assert all(t.failure is None and t.stop is not StopReason.FAILED for t in group.trainable)
        assert all(segment.mask for sample in group.trainable for segment in sample.segments())
    lines = figures(tmp_path / "run")[1:]
    for label, count in ledger.failures.items():  # those of rollouts beyond the last step are in no step
        assert sum(line.get(f"failed/{label}", 0) for line in lines) <= count
    assert sum(line["failed"] for line in lines) > 5
    assert sum(line["retried"] for line in lines) <= ledger.retried
    assert all(sum(line[name] for name in line if name.startswith("failed/")) == line["failed"] for line in lines)
    ages = {int(name.rpartition("/")[2]) for line in lines for name in line if name.startswith("stale_tokens/")}
    assert ages <= set(range(int(eta) + 1))


def test_an_interrupted_run_amid_chaos_equals_an_uninterrupted_one(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faults are drawn by place and attempt, so that a resumed run meets the same ones."""
    train(config(tmp_path / "whole", **CHAOS), model)
    c = config(tmp_path / "broken", **CHAOS)
    assert interrupted(c, model, monkeypatch, 120) is not None
    train(c, model, checkpoint.newest(tmp_path / "broken"))
    assert_equal_runs(tmp_path / "whole", tmp_path / "broken")


def test_chaos_and_a_timeline_change_nothing_of_what_is_learned(model: Path, tmp_path: Path) -> None:
    """Every attempt that fails is tried again with the same randomness: weights come out as without faults. What is
    drawn is what the figures say."""
    faults = {"inject": {"env_crash": 0.03, "engine_error": 0.02}, "rollout": {"max_attempts": 12}}
    train(config(tmp_path / "plain"), model)

    async def main() -> TrainRun:
        timeline = Timeline(tmp_path / "drawn" / "timeline.json")
        run = TrainRun(config(tmp_path / "drawn", **faults), model, timeline=timeline)
        await run.train()
        timeline.close()
        return run

    run = asyncio.run(main())
    assert run.scheduler.ledger.failed > 0
    plain, drawn = weights(tmp_path / "plain"), weights(tmp_path / "drawn")
    assert all(torch.equal(plain[name], drawn[name]) for name in plain)
    picture = trace.read(tmp_path / "drawn" / "timeline.json")
    steps = [one for one in picture.of("trainer") if one.name.startswith("step")]
    assert [one.tree() for one in steps] == [
        (f"step {i}", ["rollout wait", "train", "weight sync"]) for i in range(1, 5)
    ]
    assert [one.name for one in picture.of("trainer") if one not in steps] == [
        *("evaluation", "evaluation", "checkpoint", "evaluation", "checkpoint")
    ]
    assert [one.args["version"] for one in picture.of("engines")] == list(range(5))
    episodes = [one for one in picture.of("episodes") if one.args["stop"] == "failed"]
    ledger = run.scheduler.ledger
    assert sum("injected" in one.args["failure"] for one in episodes) == len(episodes) >= ledger.failed
    assert [values for _, values in picture.counters["trainer", "staleness"]] == [{"mean": 0, "max": 0}] * 4
    assert picture.counters["episodes", "queue depth"][-1][1] == {"episodes": 0}


def test_every_replica_has_a_track(model: Path, tmp_path: Path) -> None:
    async def main() -> None:
        settings = config(tmp_path, steps=2, rollout={"replicas": 2})
        timeline = Timeline(tmp_path / "timeline.json")
        await TrainRun(settings, model, timeline=timeline).train()
        timeline.close()

    asyncio.run(main())
    picture = trace.read(tmp_path / "timeline.json")
    for i in range(2):
        assert [one.args["version"] for one in picture.tracks["engines", f"replica-{i}"]] == [0, 1, 2]
        assert picture.counters["engines", f"replica-{i}: completions in flight"][-1][1] == {"completions": 0}


def test_a_run_that_is_stopped_has_drawn_its_end(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = StopAt(monkeypatch, 100)

    async def main() -> None:
        timeline = Timeline(tmp_path / "timeline.json")
        stop.run = TrainRun(config(tmp_path), model, timeline=timeline)
        with pytest.raises(Interrupted):
            await stop.run.train()
        timeline.close()

    asyncio.run(main())
    picture = trace.read(tmp_path / "timeline.json")
    assert picture.counters["episodes", "episodes in flight"][-1][1] == {"episodes": 0}
    last = picture.of("trainer")[-1]
    assert "checkpoint" in str(last.tree()), "it was written while something else was waited for"


# -- checkpoints -----------------------------------------------------------------------------------------------


def written(tmp_path: Path, step: int, keep: int = 2) -> checkpoint.Checkpoint:
    save = saves(toys.policy(), {"x": torch.ones(2)})
    return asyncio.run(checkpoint.write(tmp_path, step, save, files({"step": step}, {"again": []}), keep))


def files(state: dict[str, Any], rollouts: dict[str, Any]) -> dict[str, str]:
    return checkpoint.files_of(state, rollouts)


def saves(policy: Any, tensors: dict[str, Any]) -> Any:
    async def save(folder: Path) -> None:
        policy.save(folder / "model")
        save_tensors({"y": torch.arange(5.0)}, folder / "trainer", None)
        torch.save(tensors, folder / "trainer.pt")

    return save


def contents(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 10):
        written(tmp_path, step)
    assert contents(tmp_path / "checkpoints") == ["step-000002", "step-000010"]
    last = checkpoint.newest(tmp_path)
    assert last is not None
    assert last.state() == {"format": checkpoint.FORMAT, "step": 10}
    assert last.rollouts() == {"again": []}
    assert last.tensors()["x"].tolist() == [1, 1]


class FullDisk:
    """Fails one of the ways in which a checkpoint reaches the disk."""

    def __init__(self, patch: pytest.MonkeyPatch, what: str) -> None:
        def full(*args: Any, **kwargs: Any) -> Any:
            raise OSError(28, "No space left on device")

        def torn(model: Any, folder: Path, *args: Any, **kwargs: Any) -> Any:
            Path(folder).mkdir(parents=True, exist_ok=True)
            (Path(folder) / "model.safetensors").write_bytes(b"half")
            raise RuntimeError("SafetensorError: I/O error: No space left on device (os error 28)")

        match what:
            case "model":
                patch.setattr("transformers.PreTrainedModel.save_pretrained", torn)
            case "tensors":
                patch.setattr(torch, "save", full)
            case "state":
                patch.setattr(Path, "write_text", full)
            case "sync":
                patch.setattr("os.fsync", full)
            case "move":
                patch.setattr("os.replace", full)


@pytest.mark.parametrize("step", [2, 1], ids=["a new one", "the same again"])
@pytest.mark.parametrize("what", ["model", "tensors", "state", "sync", "move"])
def test_a_full_disk_is_one_sentence_and_older_checkpoints_stay_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, step: int
) -> None:
    written(tmp_path, 1)
    policy = toys.policy()
    with monkeypatch.context() as patch:
        FullDisk(patch, what)
        new = files({"step": step, "new": True}, {})
        with pytest.raises(RollenvError) as refusal:
            asyncio.run(checkpoint.write(tmp_path, step, saves(policy, {}), new, keep=1))
    text = str(refusal.value)
    assert "No space left on device" in text
    assert "step-000001'" in text
    assert "--resume" in text
    assert "\n" not in text
    assert contents(tmp_path / "checkpoints") == ["step-000001"]
    last = checkpoint.newest(tmp_path)
    assert last is not None
    assert last.state()["step"] == 1
    assert last.tensors()["x"].tolist() == [1, 1]
    assert (last.model / "model.safetensors").stat().st_size > 1000


def test_what_a_killed_process_left_half_written_is_swept_at_the_next_start(model: Path, tmp_path: Path) -> None:
    train(config(tmp_path, steps=2), model)
    folder = tmp_path / "checkpoints"
    half = folder / ".step-000003.abcdefgh"
    (half / "model").mkdir(parents=True)
    (half / "model" / "half").write_bytes(b"half")
    train(config(tmp_path, steps=2), model, checkpoint.newest(tmp_path))
    assert contents(folder) == ["step-000002"]


def test_an_error_without_a_word_is_still_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*args: Any, **kwargs: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(torch, "save", nothing)
    with pytest.raises(RollenvError, match="MemoryError; there is none yet"):
        written(tmp_path, 1)


SHARD = "__0_0.distcp"


@pytest.mark.parametrize("name", ["state.json", "rollouts.json", "trainer.pt", f"trainer/{SHARD}", "trainer/.metadata"])
@pytest.mark.parametrize("damage", ["torn", "missing"])
def test_a_damaged_checkpoint_is_refused_in_one_sentence(tmp_path: Path, name: str, damage: str) -> None:
    made = written(tmp_path, 1)
    file = made.folder / name
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    reads = {"state.json": made.state, "rollouts.json": made.rollouts}
    with pytest.raises(RollenvError, match=f"no whole ({name}|trainer state|{SHARD})") as refusal:
        reads.get(name, made.tensors)()
    assert "\n" not in str(refusal.value)


def test_a_checkpoint_of_another_format_is_refused_in_one_sentence(tmp_path: Path) -> None:
    made = written(tmp_path, 1)
    (made.folder / "state.json").write_text('{"step": 1}')
    with pytest.raises(RollenvError, match=r"of format 1, this version of rollenv reads format \d: start the run anew"):
        made.state()


# -- metrics ---------------------------------------------------------------------------------------------------


def test_metrics_after_the_checkpoint_are_dropped_on_resume(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path, None)
    for step in range(4):
        writer.write({"step": step, "reward": step / 10})
    writer.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "rew')  # the process was killed in mid-write
    assert [line["step"] for line in read_metrics(tmp_path)] == [0, 1, 2, 3]
    MetricsWriter(tmp_path, 2).close()
    assert [line["step"] for line in read_metrics(tmp_path)] == [0, 1, 2]
    MetricsWriter(tmp_path, 2, due=True).close()  # its figures are to come again
    assert [line["step"] for line in read_metrics(tmp_path)] == [0, 1]


def test_no_metrics_yet(tmp_path: Path) -> None:
    assert read_metrics(tmp_path) == []
