"""Trackers: what they are told, that none stops a run, and the real ones offline."""

from __future__ import annotations

import importlib.metadata
import json
import logging
import sqlite3
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import runs  # noqa: E402

from rollenv.errors import RollenvError  # noqa: E402
from rollenv.trainers import trackers  # noqa: E402
from rollenv.trainers.metrics import MetricsWriter, read_metrics  # noqa: E402
from rollenv.trainers.run import TrainRun  # noqa: E402
from rollenv.trainers.trackers import TrackedRun, found_trackers  # noqa: E402


class Recording:
    """Remembers what it was told; `fails` names the call that goes wrong."""

    last: Recording

    def __init__(self, run: TrackedRun, fails: str = "") -> None:
        Recording.last = self
        self.run, self._fails = run, fails
        self.figures: list[tuple[int, dict[str, float]]] = []
        self.calls = 0
        self.closed = False
        if fails == "begin":
            raise RuntimeError("no such server\nwith details")

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self.calls += 1
        if self._fails == "log":
            raise SystemExit("quota")
        self.figures.append((step, dict(figures)))

    def close(self) -> None:
        self.closed = True


def test_a_tracker_is_told_the_numbers_of_each_step_and_the_settings(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path, None, {"mine": Recording}, "shop", {"optim": {"lr": 0.1}})
    writer.write(
        {"step": 0, "success": 0.5, "eval_ci95": [0.1, 0.9], "entropy": float("nan"), "done": True, "name": "x"}
    )
    writer.write({"step": 1, "success": 1})
    writer.close()
    mine = Recording.last
    assert mine.figures == [(0, {"success": 0.5, "done": 1.0}), (1, {"success": 1.0})]
    assert mine.closed
    assert (mine.run.project, mine.run.folder, dict(mine.run.config)) == ("shop", tmp_path, {"optim": {"lr": 0.1}})


def test_a_resumed_run_is_the_same_run_and_a_new_one_is_another(tmp_path: Path) -> None:
    ids = []
    for step in (None, 0, 3, None):
        MetricsWriter(tmp_path, step, {"mine": Recording}).close()
        ids.append(Recording.last.run.id)
    assert ids[0] == ids[1] == ids[2] != ids[3]
    assert not any(Recording.last.run.id == "" for _ in ids)


@pytest.mark.parametrize("fails", ["begin", "log"])
def test_a_tracker_that_fails_is_warned_of_once_and_the_others_go_on(
    fails: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken: list[Recording] = []

    def make(run: TrackedRun) -> Recording:
        broken.append(made := Recording.__new__(Recording))
        made.__init__(run, fails)  # type: ignore[misc]
        return made

    with caplog.at_level(logging.WARNING):
        writer = MetricsWriter(tmp_path, None, {"broken": make, "mine": Recording})
        for step in range(4):
            writer.write({"step": step, "reward": 1.0})
        writer.close()
    [warning] = [r.getMessage() for r in caplog.records]
    assert f"tracker 'broken' failed to {fails} and shows nothing more of this run, which goes on: " in warning
    assert warning.endswith({"begin": "no such server", "log": "quota"}[fails])
    assert broken[0].calls == {"begin": 0, "log": 1}[fails]
    assert len(read_metrics(tmp_path)) == 4
    assert [step for step, _ in Recording.last.figures] == ([0, 1, 2, 3] if Recording.last is not broken[0] else [])


def test_a_tracker_that_hangs_holds_nobody_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "CLOSE_SECONDS", 0.05)
    freed = threading.Event()

    class Hanging(Recording):
        def log(self, step: int, figures: Mapping[str, float]) -> None:
            freed.wait(60)

    writer = MetricsWriter(tmp_path, None, {"slow": Hanging})
    writer.write({"step": 0})
    writer.close()
    freed.set()
    assert "tracker 'slow' did not end in 0.05 s and was given up" in caplog.text


# -- by name -----------------------------------------------------------------------------------------------------


def test_a_tracker_of_another_package_is_found_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = importlib.metadata.EntryPoint("mine", f"{__name__}:Recording", trackers.GROUP)
    broken = importlib.metadata.EntryPoint("broken", "no_such_module:X", trackers.GROUP)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [entry, broken])
    monkeypatch.setitem(__import__("sys").modules, __name__, __import__("sys").modules[__name__])
    assert found_trackers(["mine", "tensorboard", "mine"]) == {
        "mine": Recording,
        "tensorboard": trackers.TensorBoard,
    }
    with pytest.raises(RollenvError, match=r"track=broken: the entry point \(no_such_module:X\) does not load"):
        found_trackers(["broken"])


@pytest.mark.usefixtures("colours")
def test_what_is_not_there_is_refused_before_anything_starts(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RollenvError, match=r"track=wandbb: there is no such tracker; did you mean 'wandb'\?"):
        TrainRun(runs.config(tmp_path / "run", track="tensorboard, wandbb"), model)
    own = trackers._Own(trackers.WandB, "no_such_package", "wandb")
    monkeypatch.setitem(trackers.OWN, "wandb", own)
    with pytest.raises(RollenvError, match=r"not installed: pip install 'rollenv\[wandb\]', or leave it out of track"):
        TrainRun(runs.config(tmp_path / "run", track=["wandb"]), model)
    assert not (tmp_path / "run").exists()


def test_names_come_as_a_list_or_with_commas(tmp_path: Path) -> None:
    assert runs.config(tmp_path).track == ["tensorboard"]
    assert runs.config(tmp_path, track="wandb, mlflow").track == ["wandb", "mlflow"]
    assert runs.config(tmp_path, track="none").track == []


# -- the real ones, without a network -----------------------------------------------------------------------------


def two_lives(name: str, folder: Path) -> TrackedRun:
    """Steps 0 to 2, then a resume from step 1. Returns what the second life was known as."""
    for step, last in ((None, 3), (1, 4)):
        writer = MetricsWriter(folder, step, found_trackers([name]), "shop", {"optim": {"lr": 0.5}, "env": "x"})
        for now in range(0 if step is None else step + 1, last):
            writer.write({"step": now, "success": now / 10, "stale_tokens/1": 2.0})
        writer.close()
        time.sleep(1.0)  # TensorBoard reads its files in the order of their names, which begin with a second
    return TrackedRun(folder, id=trackers.run_id(folder, begins=False)) if name != "tensorboard" else TrackedRun(folder)


@pytest.fixture(autouse=True)
def _no_warning(caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest) -> Any:
    yield
    if "real" in request.node.name:
        assert "tracker" not in caplog.text


def test_real_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    two_lives("tensorboard", tmp_path)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(e.step, pytest.approx(e.value)) for e in events.Scalars("success")] == [(i, i / 10) for i in range(4)]


def test_real_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="pip install 'rollenv[wandb]'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = two_lives("wandb", tmp_path)
    folders = sorted((tmp_path / "wandb").glob("offline-run-*"))
    assert folders
    assert all(folder.name.endswith(run.id) for folder in folders)
    logged = b"".join(file.read_bytes() for file in (tmp_path / "wandb").rglob("*.wandb"))
    assert b"success" in logged
    assert b"stale_tokens/1" in logged


def test_real_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="pip install 'rollenv[mlflow]'")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    run = two_lives("mlflow", tmp_path)
    client = mlflow.MlflowClient()
    [experiment] = [e for e in client.search_experiments() if e.name == "shop"]
    [found] = client.search_runs([experiment.experiment_id])
    assert found.data.tags["rollenv.id"] == run.id
    assert found.info.run_name == tmp_path.name
    assert found.info.status == "FINISHED"
    assert found.data.params == {"optim.lr": "0.5", "env": "x"}
    steps = {m.step: m.value for m in client.get_metric_history(found.info.run_id, "success")}
    assert steps == {i: i / 10 for i in range(4)}


def test_real_trackio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "store"))
    pytest.importorskip("trackio", reason="pip install 'rollenv[trackio]'")
    two_lives("trackio", tmp_path)
    [database] = (tmp_path / "store").glob("*.db")
    with sqlite3.connect(database) as store:
        rows = store.execute("select step, metrics from metrics").fetchall()
    shown = {int(step): json.loads(metrics)["success"] for step, metrics in rows}
    assert shown == {i: i / 10 for i in range(4)}
