"""Where a run works: devices, strategies, adapters and the Ray cluster."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from rollenv.config.section import Section


class DevicesConfig(Section):
    """Which devices train and which generate. They are numbered through the cluster, node after node: `0-3,6`."""

    policy: str = ""
    """Devices that train, one rank each; empty, with `rollout` empty too: no mapping, `device` decides."""
    rollout: str = ""
    """Devices that generate."""
    ranks: int = Field(1, ge=1)
    """Training ranks where no devices are named: processes on the CPU (`rollout.replicas` are the engines)."""
    per_engine: int = Field(1, ge=1)
    """Devices of one engine (tensor parallel)."""
    share: bool = False
    """Devices named in both train and generate by turns: engines sleep while they train."""
    offload: Literal["none", "host", "disk"] = "host"
    """With `share`: where the optimizer's state is while its device generates: where it was, in the host's memory, or
    in a file that has no name ($TMPDIR says on which disk)."""

    weights: Literal["auto", "direct", "host"] = "auto"
    """How engines get new weights: from the first rank directly (NCCL between GPUs, handles of memory on the same GPU,
    gloo between CPUs), or through hosts' memory and the controller; `auto` is `direct` between GPUs."""

    @model_validator(mode="before")
    @classmethod
    def _single_devices_are_text(cls, data: Any) -> Any:
        # `devices.policy=3` reads as a number.
        if not isinstance(data, dict):
            return data
        return {k: str(v) if k in ("policy", "rollout") and type(v) is int else v for k, v in data.items()}

    @model_validator(mode="after")
    def _offload_needs_turns(self) -> DevicesConfig:
        if self.offload == "disk" and not self.share:
            raise ValueError(
                "devices.offload=disk is for devices that train and generate by turns: say devices.share=true"
            )
        return self


class StrategyConfig(Section):
    """How the training of the policy is spread over ranks: `strategy=NAME`, and what differs from it."""

    kind: Literal["auto", "single", "ddp", "fsdp2"] = "auto"
    """One process; replicas whose gradients are summed; weights, gradients and optimizer state in shards (FSDP2);
    `auto` is `single` with one rank and `ddp` with several."""
    recompute: bool = False
    """Activation checkpointing: a layer's activations are computed again in the backward pass rather than kept."""
    reshard: bool = True
    """With `fsdp2`: a layer's weights are taken apart after its forward pass, too; `false` costs memory and saves
    traffic."""
    reduce: Literal["fp32", "bf16"] = "fp32"
    """With `fsdp2` and `optim.precision=bf16`: type that gradients are summed in."""
    cpu_offload: bool = False
    """With `fsdp2` on GPUs: shards, gradients and optimizer state stay in the host's memory."""

    @model_validator(mode="before")
    @classmethod
    def _may_be_named(cls, data: Any) -> Any:
        return {"kind": data} if isinstance(data, str) else data

    @model_validator(mode="after")
    def _options_are_the_kinds_own(self) -> StrategyConfig:
        usual = StrategyConfig.model_fields
        for name in ("reshard", "reduce", "cpu_offload"):
            if self.kind != "fsdp2" and getattr(self, name) != usual[name].default:
                raise ValueError(f"strategy.{name} is an option of strategy=fsdp2, not of strategy={self.kind}")
        return self


class LoraConfig(Section):
    """Low-rank adapters: all other weights stay as they are, and only adapters are kept and travel."""

    rank: int = Field(0, ge=0)
    """Rank of the adapters; 0 trains all weights."""
    alpha: float | None = Field(None, gt=0)
    """What an adapter adds is scaled by alpha / rank; none: alpha is twice the rank."""
    targets: str = "all"
    """Linear maps that get adapters, by their last names (`q_proj,v_proj`); `all`: every one but the output head."""
    sync: Literal["adapter", "merged"] = "adapter"
    """What engines get: the adapter, which they merge themselves, or whole weights."""

    @model_validator(mode="before")
    @classmethod
    def _targets_may_be_a_list(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("targets"), list):
            return {**data, "targets": ",".join(map(str, data["targets"]))}
        return data


class RayConfig(Section):
    """The Ray cluster, where `runtime` is `ray`."""

    address: str | None = None
    """A cluster that is there (`auto`, `HOST:PORT`); none starts one on this machine, which ends with the run."""
    fake_gpus: int = Field(0, ge=0)
    """Devices that a cluster started here pretends to have; to try a mapping without them."""
    head_seconds: float = Field(60.0, gt=0)
    """How long its head may be away before the run gives it up; one that restarts with its state needs that long."""
    logs: bool = False
    """Whether what workers print appears here."""

    @field_validator("address")
    @classmethod
    def _no_client(cls, address: str | None) -> str | None:
        if address is not None and address.startswith("ray://"):
            raise ValueError(
                f"'{address}' is that of Ray's client server, which does not carry a run: start it on a node of the "
                "cluster with ray.address=auto, or give HOST:6379"
            )
        return address
