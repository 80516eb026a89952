"""Device mapping: which devices train, which generate, and what each of them then holds.

Devices are numbered through the cluster, node after node: with 8 to a node, device 11 is the fourth of the second node.
A mapping is checked as a whole before anything starts.

Invariant: in a `DeviceMap` every role has whole workers, on devices that exist, and no device has two roles unless the
settings say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollenv.config.cluster import DevicesConfig
from rollenv.errors import RollenvError

Devices = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DeviceMap:
    """Workers of each role, each with its devices; a worker without devices runs on its host's CPU."""

    policy: tuple[Devices, ...]
    """Of each training rank."""
    rollout: tuple[Devices, ...]
    """Of each engine."""

    @property
    def devices(self) -> Devices:
        """All that have a role."""
        return tuple(sorted(_union(self.policy) | _union(self.rollout)))

    @property
    def shared(self) -> Devices:
        """Devices that train and generate by turns."""
        return tuple(sorted(_union(self.policy) & _union(self.rollout)))

    @property
    def layout(self) -> str:
        """`cpu`, `disjoint`, `colocated` (the same devices train and generate) or `overlapping` (some do both)."""
        policy, rollout = _union(self.policy), _union(self.rollout)
        if not policy | rollout:
            return "cpu"
        if policy == rollout:
            return "colocated"
        return "overlapping" if policy & rollout else "disjoint"

    def lines(self, nodes: Sequence[int] = ()) -> list[str]:
        """The plan in words: a line per worker.

        Args:
            nodes: how many devices each node has, to name nodes where there are several.
        """
        rows = [("training rank", i, devices) for i, devices in enumerate(self.policy)]
        rows += [("engine", i, devices) for i, devices in enumerate(self.rollout)]
        return [f"{role} {i}: {_where(devices, self.shared, nodes)}" for role, i, devices in rows]


def device_map(config: DevicesConfig, available: int | None, ranks: int = 1, engines: int = 1) -> DeviceMap:
    """The mapping that the settings ask for.

    Args:
        available: devices of the whole cluster; None: not known yet.
        ranks, engines: how many of each there are where settings name no devices.

    Raises:
        RollenvError: a device that does not exist, devices that do not make whole engines, two roles on one device
            without `devices.share`, or one role with devices and the other without.
    """
    policy, rollout = (parse_devices(getattr(config, key), f"devices.{key}") for key in ("policy", "rollout"))
    if not policy and not rollout:
        return DeviceMap(((),) * ranks, ((),) * engines)
    for key, devices, other in (("policy", policy, "rollout"), ("rollout", rollout, "policy")):
        if not devices:
            role = "trains" if key == "policy" else "generates"
            raise RollenvError(
                f"devices.{other} is set and devices.{key} is not: nothing {role}; give it devices, such as "
                f"devices.{key}={getattr(config, other)} with devices.share=true"
            )
        if available is not None and devices[-1] >= available:
            there = f"devices 0 to {available - 1}" if available else "no devices"
            raise RollenvError(f"devices.{key}={getattr(config, key)}: there is no device {devices[-1]}, only {there}")
    both = sorted(set(policy) & set(rollout))
    if both and not config.share:
        named = ", ".join(map(str, both))
        raise RollenvError(
            f"devices.policy={config.policy} and devices.rollout={config.rollout} both have device {named}: "
            "say devices.share=true if they are to take turns"
        )
    if len(rollout) % config.per_engine:
        raise RollenvError(
            f"devices.rollout={config.rollout} are {len(rollout)} devices, which do not make whole engines of "
            f"devices.per_engine={config.per_engine}"
        )
    return DeviceMap(tuple((device,) for device in policy), _chunks(rollout, config.per_engine))


def parse_devices(text: str, key: str) -> Devices:
    """`"0-2,6"` -> `(0, 1, 2, 6)`, ascending.

    Raises:
        RollenvError: it does not read so, or names a device twice; `key` is where it stands.

    >>> parse_devices("0-2,6", "devices.policy")
    (0, 1, 2, 6)
    """
    found: list[int] = []
    for part in text.replace(" ", "").split(","):
        if not part:
            continue
        first, dash, last = part.partition("-")
        if not (_number(first) and (_number(last) or not dash)) or (dash and int(last) < int(first)):
            raise RollenvError(f"{key}={text}: '{part}' is neither a device (3) nor a range of devices (0-3)")
        found += range(int(first), int(last or first) + 1)
    twice = sorted({device for device in found if found.count(device) > 1})
    if twice:
        raise RollenvError(f"{key}={text} names device {twice[0]} twice")
    return tuple(sorted(found))


def place_of(device: int, nodes: Sequence[int]) -> tuple[int, int]:
    """The node that a device is on, and its number there.

    Args:
        nodes: how many devices each node has.

    Raises:
        ValueError: there is no such device.
    """
    for node, count in enumerate(nodes):
        if device < count:
            return node, device
        device -= count
    raise ValueError(f"there are only {sum(nodes)} devices")


def _number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _union(workers: tuple[Devices, ...]) -> set[int]:
    return {device for devices in workers for device in devices}


def _chunks(devices: Devices, size: int) -> tuple[Devices, ...]:
    return tuple(devices[i : i + size] for i in range(0, len(devices), size))


def _where(devices: Devices, shared: Devices, nodes: Sequence[int]) -> str:
    if not devices:
        return "CPU"
    several = len(nodes) > 1
    names = [f"{device} (node {place_of(device, nodes)[0]})" if several else str(device) for device in devices]
    turns = ", by turns" if set(devices) & set(shared) else ""
    return f"device{'s' * (len(devices) > 1)} {', '.join(names)}{turns}"
