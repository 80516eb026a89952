"""An engine that takes adapters (LoRA, see `rollenv.inference.adapters`) for weights: W + s B A is made beside it, of
what the model began with. Only A and B travel.

Invariant: whatever versions came before, the weights of a version are those that its adapter makes of the first ones,
rounded once: nothing is added up or taken off again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rollenv.errors import did_you_mean
from rollenv.inference.adapters import DOWN, UP, merged
from rollenv.inference.base import Engine, InvalidRequest
from rollenv.rollout.layers import EngineLayer

if TYPE_CHECKING:
    import torch


class AdaptedEngine(EngineLayer):
    """In front of an engine: adapters come in, merged weights go on. Whole weights pass through.

    Args:
        inner: what serves.
        base: the weights, by name, that adapters change; they are read at every update.
        scale: s, alpha / rank.
    """

    def __init__(self, inner: Engine, base: Mapping[str, torch.Tensor], scale: float) -> None:
        super().__init__(inner)
        self._base, self._scale = base, scale

    async def update_weights(self, version: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """See `Engine.update_weights`. Of an adapter's tensors, A and B of a module come together.

        Raises:
            InvalidRequest: an adapter of no weight that is here, of another shape, or half of one; nothing has changed.
        """
        modules = [name.removesuffix(DOWN) for name in tensors if name.endswith(DOWN)]
        for module in modules:
            self._check(module, tensors)
        whole = {name: tensor for name, tensor in tensors.items() if not name.endswith((DOWN, UP))}
        if len(whole) + 2 * len(modules) != len(tensors):
            raise InvalidRequest("the adapter has a lora_B without its lora_A: send both")
        made = await asyncio.to_thread(self._merged, modules, tensors) if modules else {}
        await self.inner.update_weights(version, {**whole, **made})

    def _check(self, module: str, tensors: Mapping[str, torch.Tensor]) -> None:
        weight, up = self._base.get(f"{module}.weight"), tensors.get(module + UP)
        if weight is None:
            names = [name.removesuffix(".weight") for name in self._base]
            raise InvalidRequest(
                f"the adapter changes '{module}', which has no adapter here{did_you_mean(module, names)}"
            )
        if up is None:
            raise InvalidRequest(f"the adapter of '{module}' has a lora_A without its lora_B: send both")
        shape = (up.shape[0], tensors[module + DOWN].shape[1])
        if shape != tuple(weight.shape) or up.shape[1] != tensors[module + DOWN].shape[0]:
            raise InvalidRequest(
                f"the adapter of '{module}' is for a weight {shape}, the model's is {tuple(weight.shape)}"
            )

    def _merged(self, modules: Sequence[str], tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        weights = {}
        for module in modules:
            base = self._base[f"{module}.weight"]
            down, up = (tensors[module + end].to(base.device) for end in (DOWN, UP))
            weights[f"{module}.weight"] = merged(base, down, up, self._scale)
        return weights
