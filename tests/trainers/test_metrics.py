"""The figures of a run on disk: torn lines, and what a resume drops."""

from __future__ import annotations

from pathlib import Path

from rollenv.trainers.metrics import MetricsWriter, read_metrics


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
