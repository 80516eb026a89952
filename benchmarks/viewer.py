"""How soon the viewer shows the first episode of a large run, and how long its questions take. One line per claim.

    python benchmarks/viewer.py [--json FILE] [--episodes 100000]

Two runs side by side, one a hundred times as long as the other: the ratio says what length costs. The index is made
anew each time, then taken as it was kept. With Chromium and playwright the same is measured in the browser, from the
moment the address is typed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rollenv.evaluation.records import TRAJECTORIES
from rollenv.files import write_atomically
from rollenv.server.serve import listen
from rollenv.trajectory import Failure, StopReason, Trajectory, Turn
from rollenv.viewer.app import make_server
from rollenv.viewer.index import Query
from rollenv.viewer.library import Library

REPEATS = 5
QUESTIONS = {
    "a page": (Query(), 0),
    "the last page": (Query(), -50),
    "failed ones": (Query("failed"), 0),
    "the longest": (Query(sort="turns"), 0),
    "the most above their groups": (Query(sort="above"), 0),
    "a word in their tasks": (Query(text="thing 17"), 0),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--episodes", type=int, default=100_000, help="of the long run")
    arguments = parser.parse_args()
    figures: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="rollenv-bench-") as scratch:
        for name, n in (("short", max(100, arguments.episodes // 100)), ("long", arguments.episodes)):
            folder = Path(scratch) / name
            write_run(folder, n)
            figures[name] = measure(folder, n)
    for what, short in figures["short"].items():
        long = figures["long"][what]
        print(f"{what}: {1e3 * long:.1f} ms of {arguments.episodes}, {long / short:.1f} times that of a hundredth")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


def write_run(folder: Path, episodes: int) -> None:
    """An evaluation with as many episodes, four of each task, some of them failed. Twenty of them are made, and written
    again and again for other tasks."""

    def one(i: int) -> str:
        ids = list(range(40))
        text = "You want thing NUMBER. " * 5
        turns = [
            Turn(text, ids, ids[:8], [-0.5] * 8, [1] * 8, completion="take", action="take") for _ in range(1 + i % 5)
        ]
        turns[-1].reward = (i % 7) / 7
        trajectory = Trajectory(
            "Shop-v0", "task-NUMBER", i, 777, i % 4, 0, turns, StopReason.TERMINATED, None, i % 7 == 6
        )
        if i % 20 == 7:
            trajectory.stop, trajectory.failure = StopReason.FAILED, Failure("env", "timeout", "no answer")
        return json.dumps(trajectory.to_dict() | {"tasks_sha256": "sha"}) + "\n"

    made = [one(i) for i in range(20)]
    lines = (made[i % 20].replace("NUMBER", str(i // 4)).replace("777", str(i // 4), 1) for i in range(episodes))
    write_atomically(folder / TRAJECTORIES, lines)
    (folder / "summary.json").write_text(json.dumps({"env": "Shop-v0", "tasks_sha256": "sha", "episodes": episodes}))


def measure(folder: Path, episodes: int) -> dict[str, float]:
    """Seconds, medians: until the first episode is there, and of CPU time for each question once all are indexed."""
    figures: dict[str, float] = {}
    new = []
    for _ in range(REPEATS):
        with own_cache():
            new.append(timed(lambda: first_episode(folder)))
    with own_cache():
        if (seen := in_browser(folder)) is not None:
            figures["first episode visible in Chromium, new index"] = seen
        indexed(folder, episodes).close()
        kept = [timed(lambda: first_episode(folder)) for _ in range(REPEATS)]
        if (seen := in_browser(folder)) is not None:
            figures["first episode visible in Chromium, kept index"] = seen
        library = indexed(folder, episodes)
        for name, (query, at) in QUESTIONS.items():
            asked = [
                timed(lambda q=query, at=at: library.episodes(".", q, at % episodes, 50), time.process_time)
                for _ in range(REPEATS)
            ]
            figures[f"{name}, CPU"] = statistics.median(asked)
        library.close()
    medians = {"first episode, new index": statistics.median(new), "first episode, kept index": statistics.median(kept)}
    return medians | figures


@contextlib.contextmanager
def own_cache() -> Iterator[None]:
    """Indexes made in here are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="rollenv-bench-") as cache:
        os.environ["ROLLENV_CACHE"] = cache
        yield


def first_episode(folder: Path) -> None:
    """What the page asks before it shows something."""
    library = Library(folder)
    library.details(".")
    (row, *_) = library.episodes(".", Query(), 0, 50)["rows"]
    library.episode(".", row["id"])
    library.close()


def indexed(folder: Path, episodes: int) -> Library:
    library = Library(folder)
    library.index(".").wait()
    assert library.index(".").count(Query()) == episodes
    return library


def in_browser(folder: Path) -> float | None:
    """Seconds until the first episode can be seen; None without a browser."""
    chromium = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        return None
    if chromium is None:
        return None
    server = make_server(Library(folder), ["127.0.0.1"])
    with listen("127.0.0.1", 0) as listening, sync_playwright() as started:
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto("about:blank")
        address = f"http://127.0.0.1:{listening.getsockname()[1]}/"

        def visit() -> None:
            page.goto(address, wait_until="commit")
            page.locator("#episode h1").wait_for()

        seconds = timed(visit)
        browser.close()
        server.should_exit = True
        thread.join()
    return seconds


def timed(work: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    began = clock()
    work()
    return clock() - began


if __name__ == "__main__":
    main()
