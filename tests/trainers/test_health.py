"""The collapse detector: each sign, patience, what is done about it, and that it survives a resume."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("colours")

from runs import assert_equal_runs, config, figures, interrupted, train  # noqa: E402

from rollenv.config import HealthConfig  # noqa: E402
from rollenv.errors import RollenvError  # noqa: E402
from rollenv.trainers import checkpoint  # noqa: E402
from rollenv.trainers.health import CollapseDetector  # noqa: E402

WELL = {
    "updates": 1.0,
    "skipped_updates": 0.0,
    "entropy": 1.0,
    "grad_norm": 0.5,
    "reward": 0.6,
    "turn_tokens_mean": 8.0,
    "mismatch_kl": 0.001,
    "clipped_share": 0.01,
}


def detector(**settings: Any) -> CollapseDetector:
    return CollapseDetector(HealthConfig.model_validate({"patience": 2, "window": 3} | settings))


def shown(watch: CollapseDetector, *steps: dict[str, float], first: int = 1) -> list[str | None]:
    return [watch.observe(WELL | step | {"step": number}) for number, step in enumerate(steps, first)]


SIGNS = {
    "entropy": ({"entropy": 0.01}, "entropy is 0.01 nats, below 0.02 of the 1 it began with"),
    "gradient": ({"grad_norm": 11.0}, "the gradient norm is 11, 20 times the usual 0.5"),
    "not finite": ({"skipped_updates": 1.0}, "a gradient was not finite"),
    "longer": ({"turn_tokens_mean": 40.0}, "turns have 40 tokens, 4 times more than the first steps' 8"),
    "shorter": ({"turn_tokens_mean": 1.0}, "turns have 1 tokens, 4 times fewer"),
    "mismatch": ({"mismatch_kl": 0.7}, "the KL divergence of sampler and trainer is 0.7, above 0.5"),
    "clipping": ({"clipped_share": 0.6}, "60% of the tokens are clipped, more than 50%"),
}


@pytest.mark.parametrize("name", SIGNS)
def test_each_sign_is_told_in_a_sentence_after_so_many_steps_in_a_row(name: str) -> None:
    step, sentence = SIGNS[name]
    watch = detector()
    assert shown(watch, {}, {}, {}, {}, step, {}, step) == [None] * 7  # interrupted: not in a row
    (reason,) = shown(watch, step, first=8)
    assert reason is not None
    assert reason.startswith("training collapses at step 8: ")
    assert sentence in reason
    assert "2 steps in a row" in reason
    assert shown(watch, step) == [None]  # it counts anew


def test_reward_that_is_lost_is_seen_in_its_running_mean() -> None:
    watch = detector()
    reasons = shown(watch, *[{}] * 5, *[{"reward": 0.0}] * 4)
    assert [reason is not None for reason in reasons] == [False] * 8 + [True]
    assert "mean reward is 0, below 0.5 of its best 0.6" in str(reasons[-1])


def test_what_is_none_is_not_looked_at() -> None:
    off = dict.fromkeys(
        ("entropy_share", "grad_spike", "reward_share", "length_factor", "mismatch_limit", "clip_limit")
    )
    watch = detector(**off)
    bad = {"entropy": 0.0, "grad_norm": 1e6, "reward": -9.0, "turn_tokens_mean": 900.0, "mismatch_kl": 9.0}
    assert shown(watch, *[{}] * 5, *[bad | {"clipped_share": 1.0}] * 9) == [None] * 14


def test_a_step_without_an_update_says_nothing() -> None:
    watch = detector(patience=1)
    assert shown(watch, *[{}] * 4, {"updates": 0.0, "entropy": 0.0, "grad_norm": 0.0}) == [None] * 5


def test_its_state_round_trip_judges_alike() -> None:
    steps = [{}, {}, {}, {"entropy": 0.01}, {"entropy": 0.01}]
    whole = shown(detector(), *steps)
    first, second = detector(), detector()
    before = shown(first, *steps[:4])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert before + shown(second, *steps[4:], first=5) == whole
    assert whole[-1] is not None


COLLAPSE = {"patience": 1, "window": 1, "mismatch_limit": None, "length_factor": None, "grad_spike": None}
ALWAYS = COLLAPSE | {"entropy_share": 1e9}  # every step but the first shows the sign


def test_a_collapse_stops_the_run_with_its_figures_and_a_checkpoint(model: Path, tmp_path: Path) -> None:
    c = config(tmp_path, health=ALWAYS | {"action": "stop"}, checkpoint={"every": 0})
    with pytest.raises(RollenvError, match=r"training collapses at step 2: entropy is .*health\.action"):
        train(c, model)
    assert figures(tmp_path)[-1]["step"] == 2
    last = checkpoint.newest(tmp_path)
    assert last is not None
    assert last.step == 2
    goes_on = c.model_copy(update={"health": c.health.model_copy(update={"action": "warn"})})
    train(goes_on, model, last)
    assert figures(tmp_path)[-1]["step"] == 4


def test_a_collapse_lowers_the_rate_and_a_resumed_run_remembers(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    health = ALWAYS | {"action": "slow", "slow_factor": 0.5}
    train(config(tmp_path / "whole", health=health), model)
    rates = [line["lr"] for line in figures(tmp_path / "whole")[1:]]
    assert rates == pytest.approx([3e-3, 3e-3, 1.5e-3, 0.75e-3])
    assert "the learning rate is now 0.25 of what it was to be" in caplog.text
    c = config(tmp_path / "broken", health=health)
    assert interrupted(c, model, monkeypatch, 130) is not None
    train(c, model, checkpoint.newest(tmp_path / "broken"))
    assert_equal_runs(tmp_path / "whole", tmp_path / "broken")


def test_a_warning_changes_nothing_but_the_log(model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        train(config(tmp_path / "warned", health=ALWAYS, steps=2), model)
    assert "training collapses at step 2" in caplog.text
    train(config(tmp_path / "quiet", steps=2), model)
    assert_equal_runs(tmp_path / "warned", tmp_path / "quiet")
