"""Algorithms by the name of their paper: a preset is nothing but settings, which later words override.

A preset says everything about the algorithm: what it does not name goes back to its default, so that nothing of another
algorithm is left over. What an episode is worth belongs to the environment and stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rollenv.errors import RollenvError, did_you_mean

WORTH = ("reward", "invalid_penalty")
"""Settings of `algo` that a preset leaves alone."""


@dataclass(frozen=True, slots=True)
class Preset:
    """`settings` by their dotted names; `paper` on arXiv."""

    title: str
    paper: str
    settings: Mapping[str, Any]


_PPO = {"algo.advantage": "gae", "algo.whiten": True, "rollout.filter": "keep"}

PRESETS: dict[str, Preset] = {
    "grpo": Preset(
        "GRPO",
        "2402.03300",
        {"algo.advantage": "grpo", "algo.aggregation": "seq_mean_token_mean", "algo.kl_coef": 0.04},
    ),
    "dr_grpo": Preset(
        "Dr.GRPO",
        "2503.20783",
        {"algo.advantage": "dr_grpo", "algo.aggregation": "constant", "algo.constant_length": 3000},
    ),
    "dapo": Preset(
        "DAPO",
        "2503.14476",
        {
            "algo.clip_high": 0.28,
            "algo.overlong_length": 20480,
            "algo.overlong_cache": 4096,
            "rollout.filter": "refill",
        },
    ),
    "gspo": Preset("GSPO", "2507.18071", {"algo.loss": "gspo", "algo.aggregation": "seq_mean_token_mean"}),
    "cispo": Preset("CISPO", "2506.13585", {"algo.loss": "cispo", "rollout.filter": "refill"}),
    "rloo": Preset(
        "RLOO",
        "2402.14740",
        {
            "algo.advantage": "rloo",
            "algo.loss": "plain",
            "algo.aggregation": "seq_mean_token_sum",
            "algo.kl_coef": 0.03,
            "algo.kl_estimator": "k1",
            "algo.kl_in": "reward",
        },
    ),
    "reinforce_pp": Preset(
        "REINFORCE++",
        "2501.03262",
        {
            "algo.advantage": "reinforce_pp",
            "algo.whiten": True,
            "algo.kl_coef": 0.01,
            "algo.kl_estimator": "k1",
            "algo.kl_in": "reward",
            "rollout.filter": "keep",
        },
    ),
    "reinforce_pp_baseline": Preset(
        "REINFORCE++ with baseline",
        "2501.03262",
        {
            "algo.advantage": "reinforce_pp_baseline",
            "algo.whiten": True,
            "algo.kl_coef": 0.01,
            "algo.kl_estimator": "k2",
        },
    ),
    "gigpo": Preset("GiGPO", "2505.10978", {"algo.advantage": "gigpo", "algo.kl_coef": 0.01}),
    "ppo": Preset("PPO", "1707.06347", _PPO),
    "ppo_turn": Preset("PPO, GAE over turns", "1506.02438", {**_PPO, "algo.advantage": "gae_turn"}),
    "ppo_bilevel": Preset("PPO, bi-level GAE", "2510.16907", {**_PPO, "algo.advantage": "gae_bilevel"}),
    "vineppo": Preset(
        "VinePPO",
        "2410.01679",
        {
            "algo.advantage": "vine",
            "algo.branches": 9,
            "algo.gamma": 1.0,
            "algo.kl_coef": 1e-4,
            "rollout.filter": "keep",
        },
    ),
    "topr": Preset(
        "TOPR",
        "2503.14286",
        {"algo.advantage": "return", "algo.baseline": 0.5, "algo.loss": "topr", "rollout.filter": "keep"}
        | {"algo.aggregation": "seq_mean_token_sum"},
    ),
    "kimi": Preset("Kimi k1.5", "2501.12599", {"algo.advantage": "dr_grpo", "algo.loss": "kimi"}),
    "decoupled_ppo": Preset("Decoupled PPO (AReaL)", "2505.24298", {**_PPO, "algo.loss": "decoupled_ppo"}),
    "starpo": Preset(
        "StarPO",
        "2504.20073",
        {**_PPO, "algo.kl_coef": 0.001, "algo.entropy_coef": 0.001},
    ),
    "starpo_s": Preset(
        "StarPO-S",
        "2504.20073",
        {**_PPO, "algo.clip_high": 0.28, "algo.entropy_coef": 0.001, "algo.train_share": 0.25},
    ),
    "liteppo": Preset("LitePPO", "2508.08221", {"algo.advantage": "liteppo"}),
    "raft_pp": Preset("RAFT++", "2504.11343", {"algo.advantage": "raft", "algo.aggregation": "seq_mean_token_mean"}),
}
"""Name on the command line -> what it sets."""


def find_preset(name: str) -> Preset:
    """The preset of that name; `Dr.GRPO`, `REINFORCE++` and `StarPO-S` are understood as well.

    Raises:
        RollenvError: there is none.

    >>> find_preset("REINFORCE++").paper
    '2501.03262'
    """
    plain = name.lower().replace("++", "_pp")
    for sign in ".- ":
        plain = plain.replace(sign, "_")
    if plain not in PRESETS:
        near = did_you_mean(plain, PRESETS)
        raise RollenvError(f"algo={name}: there is no such preset{near} (there are {', '.join(PRESETS)})")
    return PRESETS[plain]


def replaced_algo(before: Any) -> dict[str, Any]:
    """What stays of the section `algo` when a preset takes it over."""
    return {key: value for key, value in before.items() if key in WORTH} if isinstance(before, Mapping) else {}
