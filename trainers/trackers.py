"""Trackers: where a run's figures appear, beside the files in its folder.

Invariant: a tracker never stops a run, nor does it hold it up. Each lives on a thread of its own; the first thing that
goes wrong with it is warned of, and it is left alone from then on.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import math
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rollenv.errors import RollenvError, did_you_mean
from rollenv.executor import DaemonThread
from rollenv.files import write_atomically

log = logging.getLogger(__name__)

GROUP = "rollenv.trackers"
"""Entry points of this group are trackers by name: a `MakeTracker` each."""
CLOSE_SECONDS = 60.0
"""How long the end of a run waits for a tracker to deliver what it has."""


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """What a tracker gets to know of a run.

    Attributes:
        folder: the run's; its name is what people call the run.
        step: figures of later steps follow.
        id: distinct, and the same when the run is resumed.
        project: what the run is listed under.
        config: all settings, as JSON would say them.
    """

    folder: Path
    step: int = 0
    id: str = ""
    project: str = "rollenv"
    config: Mapping[str, Any] = field(default_factory=dict)


class Tracker(Protocol):
    """Shows the figures of one run. All calls come from one thread; what they raise ends the tracker, not the run."""

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """The figures of a step. After a resume, steps may come a second time."""
        ...

    def close(self) -> None:
        """The run is over, or interrupted."""
        ...


MakeTracker = Callable[[TrackedRun], Tracker]


class TensorBoard:
    """Event files in `tensorboard/` of the run's folder. What came after the step of a resume is hidden."""

    def __init__(self, run: TrackedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run.folder / "tensorboard"), purge_step=run.step + 1)

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        for key, value in figures.items():
            self._writer.add_scalar(key, value, step)

    def close(self) -> None:
        self._writer.close()


class WandB:
    """Weights & Biases. `WANDB_MODE=offline` keeps everything in `wandb/` of the run's folder, for `wandb sync`."""

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        self._run = wandb.init(
            project=run.project,
            name=run.folder.name,
            id=run.id,
            resume="allow",
            dir=str(run.folder),
            config=dict(run.config),
            settings=wandb.Settings(silent=True),
        )
        # Of figures, not of calls: after a resume from an earlier step wandb would refuse them otherwise.
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self._run.log({"step": step, **figures})

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """MLflow, at `MLFLOW_TRACKING_URI` (by default where MLflow itself keeps runs); the project is an experiment."""

    def __init__(self, run: TrackedRun) -> None:
        from mlflow import MlflowClient

        self._client = MlflowClient()
        known = self._client.get_experiment_by_name(run.project)
        experiment = known.experiment_id if known is not None else self._client.create_experiment(run.project)
        found = self._client.search_runs([experiment], f"tags.`rollenv.id` = '{run.id}'", max_results=1)
        if found:
            self._id = found[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            return
        made = self._client.create_run(experiment, run_name=run.folder.name, tags={"rollenv.id": run.id})
        self._id = made.info.run_id
        for key, value in _flat(run.config).items():
            self._client.log_param(self._id, key, str(value)[:500])

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._client.log_batch(self._id, metrics=[Metric(key, value, now, step) for key, value in figures.items()])

    def close(self) -> None:
        self._client.set_terminated(self._id)


class Trackio:
    """Trackio, in its local store (`TRACKIO_DIR`), which `trackio show` displays."""

    def __init__(self, run: TrackedRun) -> None:
        import trackio

        name = f"{run.folder.name}-{run.id}"  # runs are known by their names there
        self._run = trackio.init(project=run.project, name=name, config=_flat(run.config), resume="allow", embed=False)

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self._run.log(dict(figures), step=step)

    def close(self) -> None:
        self._run.finish()


@dataclass(frozen=True, slots=True)
class _Own:
    make: MakeTracker
    package: str
    extra: str


OWN: dict[str, _Own] = {
    "tensorboard": _Own(TensorBoard, "tensorboard", "train"),
    "wandb": _Own(WandB, "wandb", "wandb"),
    "mlflow": _Own(MLflow, "mlflow", "mlflow"),
    "trackio": _Own(Trackio, "trackio", "trackio"),
}


def found_trackers(names: Sequence[str]) -> dict[str, MakeTracker]:
    """What makes each of the trackers, without making or importing any of rollenv's own.

    Raises:
        RollenvError: there is no such tracker, or its package is not installed.
    """
    others = {entry.name: entry for entry in importlib.metadata.entry_points(group=GROUP) if entry.name not in OWN}
    makers: dict[str, MakeTracker] = {}
    for name in dict.fromkeys(names):
        if name in others:
            makers[name] = _loaded(others[name])
        elif name not in OWN:
            known = [*OWN, *others]
            raise RollenvError(
                f"track={name}: there is no such tracker{did_you_mean(name, known)} (there are {', '.join(known)}; "
                f"packages bring their own as entry points of group '{GROUP}')"
            )
        elif importlib.util.find_spec(OWN[name].package) is None:
            raise RollenvError(
                f"track={name} needs the package {OWN[name].package}, which is not installed: "
                f"pip install 'rollenv[{OWN[name].extra}]', or leave it out of track"
            )
        else:
            makers[name] = OWN[name].make
    return makers


def _loaded(entry: importlib.metadata.EntryPoint) -> MakeTracker:
    try:
        make: MakeTracker = entry.load()
    except (ImportError, AttributeError) as error:
        raise RollenvError(
            f"track={entry.name}: the entry point ({entry.value}) does not load: {error}; mend or uninstall its package"
        ) from error
    return make


class Trackers:
    """All trackers of a run.

    Args:
        makers: see `found_trackers`.
        run: what they get to know.
    """

    def __init__(self, makers: Mapping[str, MakeTracker], run: TrackedRun) -> None:
        self._all = [_Guarded(name, make, run) for name, make in makers.items()]

    def log(self, step: int, figures: Mapping[str, Any]) -> None:
        """Shows the finite numbers among the figures of a step."""
        numbers = {
            key: float(value)
            for key, value in figures.items()
            if isinstance(value, (int, float)) and key != "step" and math.isfinite(value)
        }
        for tracker in self._all:
            tracker.call("log", lambda made: made.log(step, numbers))

    def close(self) -> None:
        """Waits until all has been delivered, but no longer than `CLOSE_SECONDS`."""
        for tracker in self._all:
            tracker.call("close", lambda made: made.close())
        deadline = time.monotonic() + CLOSE_SECONDS
        for tracker in self._all:
            tracker.join(deadline - time.monotonic())


class _Guarded:
    """A tracker on a thread of its own, left alone after its first fault."""

    def __init__(self, name: str, make: MakeTracker, run: TrackedRun) -> None:
        self._name, self._failed = name, False
        self._thread = DaemonThread(f"tracker-{name}")
        self._tracker: Tracker | None = None
        self._last: Future[None] = self._thread.submit(lambda: self._guard("begin", lambda: self._make(make, run)))

    def call(self, what: str, use: Callable[[Tracker], None]) -> None:
        """Calls it, later, unless it has failed by then."""

        def now() -> None:
            if self._tracker is not None:
                use(self._tracker)

        self._last = self._thread.submit(lambda: self._guard(what, now))

    def join(self, seconds: float) -> None:
        self._thread.stop(max(0.0, seconds))
        if not self._last.done():
            log.warning("tracker '%s' did not end in %g s and was given up", self._name, CLOSE_SECONDS)

    def _make(self, make: MakeTracker, run: TrackedRun) -> None:
        self._tracker = make(run)

    def _guard(self, what: str, function: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            function()
        except BaseException as error:  # some libraries exit where others raise
            self._failed = True
            reason = next(iter(str(error).splitlines()), "") or type(error).__name__
            log.warning(
                "tracker '%s' failed to %s and shows nothing more of this run, which goes on: %.300s",
                self._name,
                what,
                reason,
            )


def run_id(folder: Path, begins: bool) -> str:
    """The id under which a run is known elsewhere: a new one when it begins, the same when it goes on."""
    path = folder / "tracking-id"
    if not begins and path.is_file():
        return path.read_text(encoding="utf-8").strip()
    name = uuid.uuid4().hex[:16]
    write_atomically(path, [name + "\n"])
    return name


def _flat(settings: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Nested settings by their dotted names."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{above}{key}.")
        else:
            flat[f"{above}{key}"] = value if isinstance(value, (bool, int, float, str)) else str(value)
    return flat
