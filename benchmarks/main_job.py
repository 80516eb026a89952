"""The main job: `rollenv train --env webshop`, from the seed policy's success to that after training, seed by seed.

Success is measured on the first 200 test goals of the generated store, before the first and after the last step, by
the run itself. Minutes are those of the whole command.

    python benchmarks/main_job.py --seeds 0 1 2
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def run(seed: int, folder: Path, words: list[str]) -> dict[str, float]:
    """Trains with one seed and returns its figures."""
    command = [str(Path(sys.executable).parent / "rollenv"), "train", "--env", "webshop", "--seed", str(seed)]
    began = time.perf_counter()
    subprocess.run([*command, "--out", str(folder), *words], check=True)
    minutes = (time.perf_counter() - began) / 60
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    panels = [line for line in lines if "eval_success" in line]
    steps = [line for line in lines if line["step"] > 0]
    return {
        "seed": seed,
        "before": panels[0]["eval_success"],
        "after": panels[-1]["eval_success"],
        "reward_before": panels[0]["eval_reward"],
        "reward_after": panels[-1]["eval_reward"],
        "steps": len(steps),
        "episodes": sum(line["episodes"] for line in steps),
        "minutes": minutes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, help="keep the runs in this folder")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args, words = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = args.out or Path(temporary)
        figures = [run(seed, root / f"seed-{seed}", words) for seed in args.seeds]
    for line in figures:
        print(
            f"seed {line['seed']}: success {line['before']:.1%} -> {line['after']:.1%}, "
            f"score {line['reward_before']:.3f} -> {line['reward_after']:.3f}, "
            f"{line['steps']:.0f} steps, {line['episodes']:.0f} episodes, "
            f"{line['minutes']:.1f} minutes"
        )
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
