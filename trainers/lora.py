"""LoRA (arXiv 2106.09685), by `peft`: low-rank changes of some linear maps are trained, and nothing else.

Invariant: the weights that the model came with never change; `merged_state` adds the adapter to copies of them.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rollenv.config.cluster import LoraConfig
from rollenv.errors import RollenvError, did_you_mean
from rollenv.inference.adapters import DOWN, UP, merged

NAME = "default"
"""What `peft` calls an adapter without a name."""
PREFIX = "base_model.model."
"""What it puts before every name in an adapter's file."""
FILE = "adapter_model.safetensors"


@dataclass(frozen=True, slots=True)
class Adapter:
    """What makes a model's adapter: `settings` are `peft`'s, `scale` is alpha / rank."""

    settings: Any
    scale: float


def check_lora(config: LoraConfig) -> None:
    """Raises RollenvError when adapters are asked for and `peft` is not here."""
    if config.rank and importlib.util.find_spec("peft") is None:
        raise RollenvError(f"lora.rank={config.rank} needs peft: pip install 'rollenv[lora]', or leave lora.rank at 0")


def add_adapter(model: nn.Module, config: LoraConfig, seed: int, base: str = "") -> Adapter:
    """Puts adapters into a model, in place: B is 0, so that it computes what it did; all else is frozen.

    Args:
        seed: decides A (the global generator is put back).
        base: the model's folder or hub name, for who reads the adapter's folder.

    Raises:
        RollenvError: `peft` is not here, or the model has no such linear maps.
    """
    check_lora(config)
    from peft import LoraConfig as Settings
    from peft import inject_adapter_in_model

    targets = _targets(model, config)
    settings = Settings(
        r=config.rank,
        lora_alpha=scale_of(config) * config.rank,
        target_modules=targets,
        lora_dropout=0.0,  # the policy that is trained is the one that sampled
        bias="none",
        task_type="CAUSAL_LM",
        base_model_name_or_path=base or None,
    )
    model.requires_grad_(False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(settings, model, adapter_name=NAME)
    return Adapter(settings, scale_of(config))


def scale_of(config: LoraConfig) -> float:
    """alpha / rank."""
    return 2.0 if config.alpha is None else config.alpha / config.rank


def targeted_weights(model: nn.Module, config: LoraConfig) -> dict[str, Tensor]:
    """The weights of a model without adapters that adapters would change, by name, detached.

    Raises:
        RollenvError: the model has no such linear maps.
    """
    targets = _targets(model, config)
    return {
        f"{name}.weight": module.weight.detach()
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and name.rpartition(".")[2] in targets
    }


def _targets(model: nn.Module, config: LoraConfig) -> list[str]:
    """Last names of the linear maps that get adapters."""
    head = model.get_output_embeddings()  # type: ignore[operator]
    here = {
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not head
    }
    if config.targets == "all":
        return sorted(here)
    wanted = config.targets.replace(" ", "").split(",")
    if unknown := [name for name in wanted if name not in here]:
        raise RollenvError(
            f"lora.targets={config.targets}: the model has no linear maps '{unknown[0]}'"
            f"{did_you_mean(unknown[0], here)}; it has {', '.join(sorted(here))}"
        )
    return sorted(set(wanted))


# -- names --------------------------------------------------------------------------------------------------------


def adapter_state(model: nn.Module) -> dict[str, Tensor]:
    """A and B of every adapted module, detached, by the names that engines know."""
    state = {}
    for name, tensor in model.state_dict().items():
        plain = name.replace(f".{NAME}.", ".")
        if plain.endswith((DOWN, UP)):
            state[plain] = tensor.detach()
    return state


def base_weights(model: nn.Module) -> dict[str, Tensor]:
    """The frozen weights of the adapted modules, by the names that they have without adapters."""
    marker = ".base_layer.weight"
    return {
        name.removesuffix(marker) + ".weight": tensor.detach()
        for name, tensor in model.state_dict().items()
        if name.endswith(marker)
    }


def merged_state(state: Mapping[str, Tensor], scale: float) -> dict[str, Tensor]:
    """The weights of a model with adapters (its `state_dict`) as those of one without."""
    plain: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if ".lora_A." in name or ".lora_B." in name:
            continue
        module, inside, last = name.partition(".base_layer.")
        if inside and last == "weight":
            down, up = (state[f"{module}.{part}.{NAME}.weight"] for part in ("lora_A", "lora_B"))
            plain[f"{module}.weight"] = merged(tensor, down, up, scale).to(tensor.dtype)
        else:
            plain[name.replace(".base_layer.", ".")] = tensor
    return plain


@contextlib.contextmanager
def without_adapter(model: nn.Module) -> Iterator[None]:
    """The model computes what it did before it had adapters: the reference of a KL term costs no memory."""
    from peft.tuners.lora import LoraLayer

    layers = [module for module in model.modules() if isinstance(module, LoraLayer)]
    # Scaled by 0, not taken out: that would also change which parameters have gradients.
    scales = [layer.scaling[NAME] for layer in layers]
    for layer in layers:
        layer.scaling[NAME] = 0.0
    try:
        yield
    finally:
        for layer, scale in zip(layers, scales, strict=True):
            layer.scaling[NAME] = scale


# -- on the disk --------------------------------------------------------------------------------------------------


def save_adapter(adapter: Adapter, state: Mapping[str, Tensor], folder: Path) -> None:
    """Writes the folder that `peft` reads (`PeftModel.from_pretrained`)."""
    folder.mkdir(parents=True, exist_ok=True)
    adapter.settings.save_pretrained(str(folder))
    save_file({PREFIX + name: tensor.contiguous().cpu() for name, tensor in state.items()}, folder / FILE)


def load_adapter(model: nn.Module, folder: Path) -> None:
    """Puts the adapter of a folder into a model that has one of the same shape.

    Raises:
        RollenvError: the folder has none, it is torn, or of another shape.
    """
    try:
        found = load_file(folder / FILE)
        targets = model.state_dict()
        with torch.no_grad():
            for name in adapter_state(model):
                inside = name.replace(".lora_A.", f".lora_A.{NAME}.").replace(".lora_B.", f".lora_B.{NAME}.")
                targets[inside].copy_(found.pop(PREFIX + name))
        if found:
            raise RollenvError(f"it changes '{next(iter(found))}', too")
    except Exception as error:  # safetensors raises classes of its own
        raise RollenvError(f"adapter '{folder}' does not fit the model with this lora.*: {error!s:.200}") from error
