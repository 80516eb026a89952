"""The parts of a run that may live elsewhere: what learns and what generates."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial

import torch

from rollenv.cluster.devices import DeviceMap, device_map
from rollenv.cluster.engine import EngineWorker, RemoteEngine, start_engine
from rollenv.cluster.runtime import Runtime, WorkerSpec
from rollenv.cluster.supervision import Supervisor
from rollenv.cluster.weights import Publisher
from rollenv.cluster.worker_group import WorkerGroup
from rollenv.config.train import TrainConfig
from rollenv.inference.base import Engine
from rollenv.inference.chat import ChatFormat
from rollenv.inference.proxy import LLMProxy
from rollenv.rollout.adapted import AdaptedEngine
from rollenv.rollout.setup import model_engine, torch_engine, vllm_engine
from rollenv.rollout.timeline import Timeline
from rollenv.trainers.device import choose_device
from rollenv.trainers.learner import Learner, LocalLearner, TrainJob
from rollenv.trainers.lora import base_weights, check_lora, scale_of, targeted_weights
from rollenv.trainers.policy import load_model
from rollenv.trainers.ranked import RankedLearner, TrainerRank
from rollenv.trainers.strategies.choose import check_strategy


@dataclass(slots=True)
class Parts:
    """A learner, an engine, and who watches over them."""

    learner: Learner
    engine: Engine
    watch: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Ends all, the engine first: it may be at work for nobody."""
        if self.watch is not None:
            self.watch.cancel()
        await self.engine.close()
        await self.learner.close()


def local_parts(job: TrainJob, timeline: Timeline | None = None) -> Parts:
    """Both in this process.

    Raises:
        RollenvError: the model cannot be read, or the device is not here.
    """
    trainer, config = job.trainer(), job.config
    policy = trainer.policy
    model, wrap = policy.model, lambda engine: engine
    if policy.adapter is not None:  # the engine's own copy has none: it is merged there
        model = load_model(job.model)[0]
        wrap = partial(AdaptedEngine, base=base_weights(policy.model), scale=policy.adapter.scale)
    engine = model_engine(model, policy.tokenizer, str(policy.device), config.rollout, timeline, config.vllm, wrap)
    return Parts(LocalLearner(trainer, config, beside=config.rollout.eta > 0), engine)


def devices_here(fake: int = 0) -> int:
    """Devices that a cluster started on this machine will have."""
    return fake or torch.cuda.device_count()


def planned(config: TrainConfig, available: int | None) -> DeviceMap:
    """The workers of a run on a cluster with so many devices (None: nobody knows yet). Raises RollenvError for a map
    a strategy or adapters that cannot be."""
    laid = device_map(config.devices, available, config.devices.ranks, config.rollout.replicas)
    check_strategy(config, len(laid.policy))
    check_lora(config.lora)
    return laid


async def cluster_parts(job: TrainJob, runtime: Runtime, laid: DeviceMap, timeline: Timeline | None = None) -> Parts:
    """Both on workers: a rank or an engine for each that `laid` has.

    Raises:
        RollenvError: what a worker raises that cannot be made.
        WorkerDied: a worker's process ended while it was made.
    """
    tokenizer = load_model(job.resume.model if job.resume else job.model)[1]
    learner, (engine, watch) = await asyncio.gather(
        _ranks(job, runtime, laid, ChatFormat(tokenizer)), _engines(job, runtime, laid, timeline)
    )

    return Parts(learner, engine, watch)


async def _ranks(job: TrainJob, runtime: Runtime, laid: DeviceMap, chat: ChatFormat) -> RankedLearner:
    size = len(laid.policy)
    specs = [
        WorkerSpec(
            f"rank-{i}", partial(TrainerRank, job, i, size, bool({*devices} & {*laid.shared})), devices, _share(laid)
        )
        for i, devices in enumerate(laid.policy)
    ]
    return await RankedLearner.join(await WorkerGroup.start(runtime, specs), runtime, chat, job)


async def _engines(
    job: TrainJob, runtime: Runtime, laid: DeviceMap, timeline: Timeline | None
) -> tuple[Engine, asyncio.Task[None]]:
    """The engines behind a proxy, and the task that watches over them."""
    publisher = Publisher(runtime.put)
    specs = {
        f"engine-{i}": WorkerSpec(f"engine-{i}", partial(_engine_worker, job), devices, _share(laid))
        for i, devices in enumerate(laid.rollout)
    }

    async def start(name: str) -> RemoteEngine:
        return await start_engine(runtime, specs[name], publisher)

    def drawn(name: str, engine: Engine) -> Engine:
        return engine if timeline is None else timeline.engine(engine, name)

    supervisor = Supervisor(start, runtime.leaving, drawn)
    engines = dict(zip(specs, await asyncio.gather(*map(supervisor.begin, specs)), strict=True))
    stall_seconds = 2 * job.config.rollout.generate_seconds
    proxy = LLMProxy(engines, stall_seconds=stall_seconds, successor=supervisor.succeed)
    return proxy, asyncio.ensure_future(supervisor.watch(proxy))


def _engine_worker(job: TrainJob) -> EngineWorker:
    """In the worker: an engine of the run's model. The present weights come with the first update."""
    config, lora = job.config, job.config.lora
    device = choose_device(config.device, config.threads)
    resumed = job.resume.model if job.resume and not lora.rank else None
    # A successor may begin when that checkpoint has made room for newer ones.
    model, tokenizer = load_model(resumed if resumed is not None and resumed.is_dir() else job.model)
    engine: Engine
    if config.rollout.engine == "torch":
        engine = torch_engine(model, tokenizer, device, config.rollout)
    else:
        options = config.vllm.model_copy(update={"tensor_parallel": config.devices.per_engine})
        engine = vllm_engine(model, tokenizer, device, config.rollout, options, can_sleep=config.devices.share)
    if lora.rank:
        base = {name: weight.to(device) for name, weight in targeted_weights(model, lora).items()}
        engine = AdaptedEngine(engine, base, scale_of(lora))
    return EngineWorker(lambda: engine, device)


def _share(laid: DeviceMap) -> float:
    """Of a device, what each of its roles is counted as taking."""
    return 0.5 if laid.shared else 1.0
