"""Device maps: what is valid is laid out whole, what is not is refused with the key that is wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollenv.cluster.devices import device_map, parse_devices
from rollenv.config.cluster import DevicesConfig
from rollenv.errors import RollenvError


def config(**settings: object) -> DevicesConfig:
    return DevicesConfig.model_validate(settings)


@given(st.sets(st.integers(0, 40), max_size=12))
def test_what_is_written_is_what_is_read(devices: set[int]) -> None:
    assert parse_devices(",".join(map(str, devices)), "key") == tuple(sorted(devices))


@given(st.integers(0, 30), st.integers(0, 9), st.integers(50, 60))
def test_ranges_hold_both_ends(first: int, length: int, single: int) -> None:
    expected = (*range(first, first + length + 1), single)
    assert parse_devices(f"{first}-{first + length}, {single}", "key") == expected


@pytest.mark.parametrize("text", ["a", "1-", "-1", "3-1", "1--2", "0x1", "1.5", "²"])
def test_what_is_no_device_is_refused(text: str) -> None:
    with pytest.raises(RollenvError, match=r"^devices\.policy=.*neither a device \(3\) nor a range"):
        parse_devices(text, "devices.policy")


@pytest.mark.parametrize(
    ("settings", "layout", "policy", "rollout"),
    [
        ({}, "cpu", ((), ()), ((), (), ())),
        ({"policy": "0-1", "rollout": "2-3"}, "disjoint", ((0,), (1,)), ((2,), (3,))),
        ({"policy": 0, "rollout": "2-3", "per_engine": 2}, "disjoint", ((0,),), ((2, 3),)),
        ({"policy": "0-1", "rollout": "0,1", "share": True}, "colocated", ((0,), (1,)), ((0,), (1,))),
        ({"policy": "0-3", "rollout": "2-3", "share": True}, "overlapping", ((0,), (1,), (2,), (3,)), ((2,), (3,))),
    ],
)
def test_layouts(settings: dict[str, object], layout: str, policy: object, rollout: object) -> None:
    laid = device_map(config(**settings), available=4, ranks=2, engines=3)
    assert (laid.layout, laid.policy, laid.rollout) == (layout, policy, rollout)
    assert len(laid.lines()) == len(laid.policy) + len(laid.rollout)


def test_the_plan_names_nodes_and_turns() -> None:
    laid = device_map(config(policy="0-1", rollout="1-2", share=True), available=4)
    assert laid.lines(nodes=[2, 2]) == [
        "training rank 0: device 0 (node 0)",
        "training rank 1: device 1 (node 0), by turns",
        "engine 0: device 1 (node 0), by turns",
        "engine 1: device 2 (node 1)",
    ]


@pytest.mark.parametrize(
    ("settings", "available", "sentence"),
    [
        ({"policy": "0-1", "rollout": "1-2"}, 4, "both have device 1: say devices.share=true"),
        ({"policy": "0-3", "rollout": "4-7"}, 4, "devices.rollout=4-7: there is no device 7, only devices 0 to 3"),
        ({"policy": "0", "rollout": "1"}, 0, "devices.policy=0: there is no device 0, only no devices"),
        ({"policy": "0-1"}, 4, "devices.policy is set and devices.rollout is not: nothing generates"),
        ({"rollout": "0-1"}, 4, "devices.rollout is set and devices.policy is not: nothing trains"),
        ({"policy": "0", "rollout": "1-3", "per_engine": 2}, 4, "3 devices, which do not make whole engines"),
        ({"policy": "0,0", "rollout": "1"}, 4, "names device 0 twice"),
    ],
)
def test_bad_maps_are_refused_with_their_key(settings: dict[str, object], available: int, sentence: str) -> None:
    with pytest.raises(RollenvError) as refusal:
        device_map(config(**settings), available)
    assert sentence in str(refusal.value)
