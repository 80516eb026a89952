"""Workers as Ray actors, on this machine or on a cluster.

Every worker is an actor with a process of its own. Devices are reserved by one placement group with a bundle for each
node that has some; a worker sees exactly the devices that its mapping names (`CUDA_VISIBLE_DEVICES`, out of those that
its node was started with), which Ray's own choice within a bundle would not promise, and counts as much of them as its
`share` says.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import ray
import ray._private.state
from ray.exceptions import (
    ActorUnschedulableError,
    NodeDiedError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
    RuntimeEnvSetupError,
)
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rollenv.cluster.devices import Devices, place_of
from rollenv.cluster.head import Replies, knock, watch_head
from rollenv.cluster.runtime import Handle, Host, WorkerDied, WorkerSpec
from rollenv.config.cluster import RayConfig
from rollenv.errors import RollenvError

log = logging.getLogger(__name__)

THRIFTY = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"}
"""Idle OpenMP threads would spin, and slow down every other worker of the machine."""
AS_NICE_AS_US = {"worker_niceness": 0}
"""By default Ray's workers give way to everything else on the machine (niceness 15): engines and ranks would wait for
the controller, for environments, and for whoever shares the machine."""
PLACEMENT_SECONDS = 60.0
"""How long the cluster may take to reserve devices."""
DEATHS = RayActorError, OutOfMemoryError, NodeDiedError, RuntimeEnvSetupError, ActorUnschedulableError
"""What Ray raises for an actor that is no more, or never will be: OutOfMemoryError where it has ended the actor itself
before the machine ran out of memory."""
VISIBLE, OURS = "CUDA_VISIBLE_DEVICES", "ROLLENV_NODE_DEVICES"


def node_devices(nodes: Sequence[Mapping[str, Any]], leaving: Collection[str] = ()) -> list[int]:
    """Devices of each living node that has some, most first (what `ray.nodes()` says is sorted so that it does not
    depend on who answered first).

    Args:
        leaving: ids of nodes that do not count any more.
    """
    stay = [node for node in nodes if node["Alive"] and node["NodeID"] not in leaving]
    found = [(int(node["Resources"].get("GPU", 0)), node["NodeID"]) for node in stay]
    return [devices for devices, _ in sorted(found, key=lambda one: (-one[0], one[1])) if devices]


class RayRuntime:
    """Starts workers on a Ray cluster; its own one, which ends with it, or one that is there.

    Args:
        config: where the cluster is, or what to start.

    Raises:
        RollenvError: the cluster cannot be reached.
    """

    def __init__(self, config: RayConfig) -> None:
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # no token file at home
        try:
            knock(config.address)
            with _own_sigterm():
                ray.init(**_init_arguments(config))
        except (ConnectionError, RayError, RuntimeError, ValueError, OSError) as error:
            where = f"at ray.address={config.address}" if config.address else "on this machine"
            raise RollenvError(f"no Ray cluster {where}: {str(error).splitlines()[0]:.200}") from error
        self._handles: list[_RayHandle] = []
        self._replies, self._head_seconds = Replies(), config.head_seconds
        address = config.address or ""
        self._head = address if ":" in address else str(ray.get_runtime_context().gcs_address)
        self._guard: asyncio.Task[None] | None = None
        self._group: PlacementGroup | None = None
        self._used: list[int] = []
        self.nodes = node_devices(ray.nodes(), _leaving_nodes())  # type: ignore[no-untyped-call]

    @property
    def n_devices(self) -> int:
        """Devices of the whole cluster."""
        return sum(self.nodes)

    def reserve(self, devices: Devices) -> None:
        """Reserves the devices that workers will use, on as many nodes as they are on. Of nodes that are alike Ray
        takes any, so another one may stand in for one that dies.

        Raises:
            RollenvError: the cluster does not give them in time: somebody else has them.
        """
        places = [place_of(device, self.nodes)[0] for device in devices]
        self._used = sorted(set(places))
        if not places:
            return
        bundles = [{"GPU": float(places.count(node))} for node in self._used]
        self._group = placement_group(bundles, strategy="STRICT_SPREAD" if len(bundles) > 1 else "PACK")
        if not self._group.wait(PLACEMENT_SECONDS):
            state = placement_group_table(self._group).get("state")
            raise RollenvError(
                f"the Ray cluster did not give devices {', '.join(map(str, devices))} within {PLACEMENT_SECONDS:.0f} s "
                f"({state}): another job may hold them ('ray status' tells)"
            )

    async def start(self, spec: WorkerSpec) -> Handle:
        self._replies.ensure_possible()
        if self._guard is None:
            self._guard = asyncio.ensure_future(watch_head(self._head, self._replies, self._head_seconds))
        actor = ray.remote(_Actor).options(**self._options(spec)).remote(spec.name, spec.make)
        handle = _RayHandle(spec.name, actor, self._replies)
        try:
            handle.node = await handle.reached("ready")
        except BaseException:
            handle.kill()
            raise
        self._handles.append(handle)
        return handle

    def put(self, value: Any) -> Any:
        return ray.put(value)

    async def leaving(self) -> frozenset[str]:
        if self._replies.silent:
            return frozenset()  # the question would wait for the head
        try:
            nodes = await asyncio.to_thread(_leaving_nodes)
        except Exception:  # a head that does not answer (Ray has many errors for it) says nothing of who leaves
            return frozenset()
        return frozenset(handle.name for handle in self._handles if handle.node in nodes and not handle.gone)

    def give_back(self) -> None:
        """Ends the reservation."""
        if self._group is not None and not self._replies.silent:
            remove_placement_group(self._group)
        self._group = None

    async def close(self) -> None:
        if self._guard is not None:
            self._guard.cancel()
        await asyncio.gather(*(handle.stop() for handle in self._handles), return_exceptions=True)
        self.give_back()
        if not self._replies.lost:
            ray.shutdown()

    def _options(self, spec: WorkerSpec) -> dict[str, Any]:
        env = {**THRIFTY, **spec.env}
        options: dict[str, Any] = {"num_cpus": 0, "max_concurrency": 1000, "max_restarts": 0, "max_task_retries": 0}
        if spec.devices:
            places = [place_of(device, self.nodes) for device in spec.devices]
            if len({node for node, _ in places}) > 1:
                named = ", ".join(map(str, spec.devices))
                raise RollenvError(f"worker '{spec.name}' has devices {named}, which are on different nodes")
            env[OURS] = ",".join(str(index) for _, index in places)
            env["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"] = "1"
            options["num_gpus"] = spec.share * len(places)
            if self._group is not None:
                bundle = self._used.index(places[0][0])
                options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(self._group, bundle)
        options["runtime_env"] = {"env_vars": env}
        return options


def _leaving_nodes() -> Collection[str]:
    """Ids of the nodes that `ray drain-node`, an autoscaler or a cloud's notice of preemption has told to leave. The
    call is not public, but it is the one that Ray's own libraries use."""
    return ray._private.state.state.get_draining_nodes()


@contextlib.contextmanager
def _own_sigterm() -> Iterator[None]:
    """`ray.init` takes SIGTERM for itself, which then dumps the stack and exits: a handler that is there stays."""
    if threading.current_thread() is not threading.main_thread():  # Ray does not touch it then
        yield
        return
    ours = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if callable(ours):
            signal.signal(signal.SIGTERM, ours)


def _init_arguments(config: RayConfig) -> dict[str, Any]:
    common = {"log_to_driver": config.logs, "logging_level": logging.ERROR, "namespace": "rollenv"}
    if config.address:
        return {"address": config.address, **common}
    own: dict[str, Any] = {"address": "local", "include_dashboard": False, "_system_config": AS_NICE_AS_US, **common}
    if config.fake_gpus:
        own["num_gpus"] = config.fake_gpus
    return own


def visible(numbers: str, of: str) -> str:
    """`CUDA_VISIBLE_DEVICES` for devices by their numbers on a node.

    Args:
        of: what the node itself may see (numbers or UUIDs, as it was started); empty: all that it has.

    >>> visible("0,2", "")
    '0,2'
    >>> visible("0,2", "4,5,GPU-8a1")
    '4,GPU-8a1'
    """
    wanted, names = [int(number) for number in numbers.split(",")], [name.strip() for name in of.split(",") if name]
    return ",".join(names[i] if max(wanted) < len(names) else str(i) for i in wanted)


class _Actor:
    """A host in a process of its own."""

    def __init__(self, name: str, make: Any) -> None:
        if numbers := os.environ.pop(OURS, ""):
            os.environ[VISIBLE] = visible(numbers, os.environ.get(VISIBLE, ""))
        self._host = Host(name, make)

    async def ready(self) -> str:
        """Makes the worker; returns the id of the node that it is on."""
        await self._host.ready()
        return str(ray.get_runtime_context().get_node_id())

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return await self._host.call(method, *args, **kwargs)

    async def close(self) -> None:
        await self._host.close()


class _RayHandle:
    """An actor, called as a worker."""

    def __init__(self, name: str, actor: Any, replies: Replies) -> None:
        self.name, self._actor, self._replies = name, actor, replies
        self.node = ""
        self.gone = False

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        if self.gone:
            raise WorkerDied(f"worker '{self.name}' has ended")
        return await self.reached("call", method, *args, **kwargs)

    async def reached(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Calls a method of the actor itself."""
        try:
            reply = getattr(self._actor, method).remote(*args, **kwargs).future()
            return await self._replies.wait(asyncio.wrap_future(reply))
        except DEATHS as error:
            raise WorkerDied(f"worker '{self.name}' died: {str(error).strip().splitlines()[0]:.200}") from error
        except RayTaskError as error:
            cause = error.cause
            if isinstance(cause, BaseException) and not isinstance(cause, RayTaskError):
                raise cause from error
            raise

    async def stop(self, seconds: float = 10.0) -> None:
        if self.gone:
            return
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self.reached("close"), seconds)
        self.kill()

    def kill(self) -> None:
        self.gone = True
        # Where Ray has ended already the actor has, too, and the question would join any other cluster of this machine.
        if not self._replies.silent and ray.is_initialized():
            with contextlib.suppress(RayError, ValueError):  # one of a cluster before this one
                ray.kill(self._actor, no_restart=True)
