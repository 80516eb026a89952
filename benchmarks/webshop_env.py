"""How fast the native WebShop is: steps, searches, memory, creation. Prints one line per claim.

    python benchmarks/webshop_env.py [--json FILE] [--products 100000] [--data FOLDER]

The original's rate of 84 steps a second without search was measured on another day (its page rendering and parsing,
without Lucene); the ratio printed here is against that number. All times are CPU time of the one core in use, so that
other work on the machine does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ORIGINAL_STEPS_PER_SECOND = 84.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--products", type=int, default=100_000, help="size of the large catalogue (0: leave it out)")
    parser.add_argument("--data", help="folder with WebShop's files for the small catalogue (default: generated store)")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long to step in each mode")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rollenv-bench-") as scratch:
        # A cache of our own: the first creation below is a real first one.
        os.environ["ROLLENV_CACHE"] = scratch
        figures = measure(arguments, Path(scratch))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


def measure(arguments: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """All figures by name; each is printed when it is known."""
    figures: dict[str, Any] = {}

    def claim(name: str, value: float, text: str) -> None:
        figures[name] = value
        print(text, flush=True)

    import rollenv

    small = arguments.data
    first, env = timed(lambda: rollenv.make("webshop", data=small))
    claim("first_make_s", first, f"first environment, empty cache: {first:.2f} s ({env.catalogue})")
    thousand, _ = timed(lambda: [rollenv.make("webshop", data=small) for _ in range(1000)])
    claim("make_ms", thousand, f"every further environment: {thousand:.3f} ms")
    for mode in ("text", "text_rich", "html", "url"):
        rate = step_rate(rollenv.make("webshop", data=small, observation_mode=mode), arguments.seconds)
        ratio = rate / ORIGINAL_STEPS_PER_SECOND
        claim(f"steps_per_s_{mode}", rate, f"steps without search, {mode}: {rate:,.0f} /s, {ratio:,.0f} x the original")
    for name, value in search_times(env.catalogue, instructions(env)).items():
        claim(f"search_{name}_ms", value, f"search in {len(env.catalogue):,} products: {name} {value:.2f} ms")
    kib = memory_per_env(lambda: rollenv.make("webshop", data=small))
    claim("kib_per_env", kib, f"memory of an environment amid an episode, of 1,000: {kib:.1f} KiB")
    if arguments.products:
        folder = scratch / "large"
        write_large(folder, arguments.products)
        seconds, large = timed(lambda: rollenv.make("webshop", data=folder))
        rate = arguments.products / seconds
        claim(
            "index_large_s",
            seconds,
            f"reading and indexing {arguments.products:,} products: {seconds:.0f} s, {rate:,.0f} /s",
        )
        for name, value in search_times(large.catalogue, instructions(large)).items():
            claim(f"search_large_{name}_ms", value, f"search in {arguments.products:,} products: {name} {value:.2f} ms")
    return figures


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds that `action` took, and what it returned."""
    start = time.process_time()
    result = action()
    return time.process_time() - start, result


def instructions(env: Any, count: int = 400) -> list[str]:
    return [env.tasks.get(task).data["instruction_text"] for task in env.tasks.ids("test")[:count]]


def step_rate(env: Any, seconds: float) -> float:
    """Steps a second over episodes that browse products and buy; the searches between are not counted."""
    steps, spent = 0, 0.0
    rng = random.Random(0)
    tasks = env.tasks.ids("test")
    while spent < seconds:
        _, info = env.reset(options={"task": rng.choice(tasks)})
        _, _, _, _, info = env.step(f"search[{info['instruction']}]")
        done = False
        start = time.process_time()
        for _ in range(200):
            _, _, done, _, info = env.step(rng.choice(info["admissible_actions"]))
            steps += 1
            if done or info["available_actions"]["has_search_bar"]:
                break
        spent += time.process_time() - start
    return steps / spent


def search_times(catalogue: Any, queries: Sequence[str]) -> dict[str, float]:
    """Milliseconds of a search that nothing remembers, at the median and the 95th percentile."""
    for query in queries[:20]:
        catalogue.search(query)
    spent = [timed(lambda query=query: catalogue.search(query))[0] * 1e3 for query in queries]
    return {"p50": float(np.percentile(spent, 50)), "p95": float(np.percentile(spent, 95))}


def memory_per_env(make: Callable[[], Any]) -> float:
    """KiB of Python memory for each of 1,000 environments that have searched and opened a product."""
    # The shared pages are paid for once, by the first pass.
    for seed in range(1000):
        play_a_little(make(), seed)
    tracemalloc.start()
    envs = [play_a_little(make(), seed) for seed in range(1000)]
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return used / len(envs) / 1024


def play_a_little(env: Any, seed: int) -> Any:
    _, info = env.reset(seed=seed)
    _, _, _, _, info = env.step(info["admissible_actions"][-1])
    env.step(info["admissible_actions"][-1])
    return env


def write_large(folder: Path, count: int) -> None:
    """A catalogue of `count` products: the generated store's, repeated with a third of their words replaced."""
    from rollenv.envs.webshop import store

    items, notes, _ = store.generate()
    rng = random.Random(0)
    vocabulary = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(3, 9))) for _ in range(60_000)]
    # Words of a shop are few and common, or many and rare.
    weights = [1.0 / (rank + 10) for rank in range(len(vocabulary))]
    spare = iter(rng.choices(vocabulary, weights, k=200 * count))

    def perturbed(text: str) -> str:
        return " ".join(next(spare) if rng.random() < 1 / 3 else word for word in text.split())

    folder.mkdir()
    all_notes = {}
    with (folder / "items_shuffle.json").open("w") as file:
        for number in range(count):
            item = dict(items[number % len(items)])
            all_notes[f"B{number:09d}"] = notes[item["asin"]]
            item |= {"asin": f"B{number:09d}", "name": perturbed(item["name"])}
            item["full_description"] = perturbed(item["full_description"])
            file.write(("[" if number == 0 else ",\n") + json.dumps(item))
        file.write("]\n")
    (folder / "items_ins_v2.json").write_text(json.dumps(all_notes))


if __name__ == "__main__":
    main()
