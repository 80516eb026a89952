"""Policy: a causal language model that is trained, its tokenizer, and log-probabilities of packed segments."""

from __future__ import annotations

import contextlib
import copy
import json
import threading
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging as transformers_logging

from rollenv.errors import RollenvError
from rollenv.inference.buckets import first_names
from rollenv.inference.chat import ChatFormat
from rollenv.trainers.lora import Adapter, adapter_state, merged_state, without_adapter
from rollenv.trainers.packing import ATTENTION, PackedRow

Precision = Literal["fp32", "bf16"]

ENTROPY_NUMBERS = 1 << 28
"""So many scores (1 GiB) at a time become entropies: they need two more tensors of that size."""
_ONE_AT_A_TIME = threading.Lock()
"""`transformers` changes global state while it makes a model."""


@dataclass(slots=True)
class Policy:
    """A model to train. Weights stay in fp32; `precision` is that of the arithmetic (autocast for bf16).

    `value_head` [d -> 1] makes values of its hidden states, for PPO; it is no part of what is saved or sampled from.
    `root` is there when its weights lie in shards (`strategies/sharded.py`): what computes with them has to be called
    through it. `adapter` is there when low-rank adapters are what is trained (`lora.py`).
    """

    model: PreTrainedModel
    tokenizer: Any
    chat: ChatFormat
    device: torch.device
    precision: Precision
    value_head: torch.nn.Module | None = None
    root: torch.nn.Module | None = None
    adapter: Adapter | None = None

    @classmethod
    def load(cls, path: str | Path, device: str = "cpu", precision: Precision = "fp32") -> Policy:
        """Loads a `transformers` folder, or a hub name.

        Raises:
            RollenvError: it is not a folder with a causal language model and a tokenizer.
        """
        model, tokenizer = load_model(path)
        return cls.of(model, tokenizer, device, precision)

    @classmethod
    def of(cls, model: PreTrainedModel, tokenizer: Any, device: str = "cpu", precision: Precision = "fp32") -> Policy:
        """A policy from parts; takes the model over (its attention becomes the packed one)."""
        model = model.float().to(device)
        model.config._attn_implementation = ATTENTION
        model.eval()  # without dropout: the policy that is trained is the one that sampled
        return cls(model, tokenizer, ChatFormat(tokenizer), torch.device(device), precision)

    @contextlib.contextmanager
    def arithmetic(self) -> Iterator[None]:
        """Autocast, when the precision asks for it."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            yield

    def parameters(self) -> list[torch.nn.Parameter]:
        """Those of the model, then those of the value head."""
        head = [] if self.value_head is None else list(self.value_head.parameters())
        return [*self.model.parameters(), *head]

    @property
    def sharded(self) -> bool:
        """Whether this rank has only a part of each weight."""
        return self.root is not None

    def layers(self) -> list[torch.nn.Module]:
        """The layers of its decoder."""
        return list(self.model.get_decoder().layers)

    def hidden(self, row: PackedRow) -> Tensor:
        """Last hidden states of a packed row, shape [T, d]."""
        output = self.model.get_decoder()(
            input_ids=row.ids_T[None], position_ids=row.positions_T[None], use_cache=False, packed=row
        )
        return output.last_hidden_state[0]

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """fp32 logits [N, V] for N selected hidden states: the vocabulary is only computed where it is needed."""
        return self.model.get_output_embeddings()(hidden_ND).float()

    def logprobs(
        self,
        row: PackedRow,
        rows_N: Tensor,
        targets_N: Tensor,
        temperature: float = 1.0,
        entropy_gradient: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Log-probability of each target and entropy (nats) at its place, shapes N.

        Args:
            rows_N: places in the packed row whose next token is predicted.
            targets_N: those next tokens.
            temperature: that of the sampling whose policy is trained.
            entropy_gradient: whether the entropy carries a gradient.
        """
        hidden_ND = self.hidden_at(row, rows_N)
        return self.logprobs_of(hidden_ND, targets_N, temperature, entropy_gradient)

    def hidden_at(self, row: PackedRow, rows_N: Tensor) -> Tensor:
        """Last hidden states at some places of a packed row, shape [N, d]."""
        with self.arithmetic():
            return self.hidden(row)[rows_N]

    def logprobs_of(
        self, hidden_ND: Tensor, targets_N: Tensor, temperature: float = 1.0, entropy_gradient: bool = False
    ) -> tuple[Tensor, Tensor]:
        """`logprobs`, from hidden states."""
        with self.arithmetic():
            logits_NV = self.logits(hidden_ND)
        if temperature != 1.0:
            logits_NV = logits_NV / temperature
        logp_NV = torch.log_softmax(logits_NV, dim=-1)
        del logits_NV  # where the vocabulary is large, each of these is the largest tensor there is
        rows = max(1, ENTROPY_NUMBERS // logp_NV.shape[1])
        with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
            entropy_N = torch.cat([-(part.exp() * part).sum(-1) for part in logp_NV.split(rows)])
        return logp_NV.gather(1, targets_N[:, None]).squeeze(1), entropy_N

    def values_of(self, hidden_ND: Tensor) -> Tensor:
        """Values of hidden states, fp32, shape N. Only with a value head."""
        assert self.value_head is not None
        values_N: Tensor = self.value_head(hidden_ND.float()).squeeze(-1)
        return values_N

    def state(self, keep: bool = True) -> dict[str, Tensor]:
        """The weights by name, detached, whole and with the adapter in them.

        Where they are in shards they are put together one by one, in the host's memory; all ranks have to ask together,
        and one that does not `keep` them gets nothing. Tied weights are one tensor, under each of their names.
        """
        state: dict[str, Tensor] = {}
        seen: dict[int | str, str] = {}
        parameters = {name: id(parameter) for name, parameter in self.model.named_parameters(remove_duplicate=False)}
        for name, tensor in self.model.state_dict().items():
            first = seen.setdefault(parameters.get(name, name), name)
            if first == name:
                together = whole(tensor.detach())
                if keep:
                    state[name] = together.cpu() if self.sharded else together
            elif keep:
                state[name] = state[first]
        return state if self.adapter is None or not keep else merged_state(state, self.adapter.scale)

    def adapter_state(self) -> dict[str, Tensor]:
        """A and B of every adapted module, detached and whole (as above)."""
        return {name: whole(tensor) for name, tensor in adapter_state(self.model).items()}

    def reference(self) -> contextlib.AbstractContextManager[None]:
        """In this context the policy is the one that its adapter, if it has one, began with."""
        return contextlib.nullcontext() if self.adapter is None else without_adapter(self.model)

    def save(self, folder: Path) -> None:
        """Writes a `transformers` folder: config, safetensors, tokenizer."""
        save_model(self.model, self.state(), self.tokenizer, folder)


def in_bf16(state: Mapping[str, Tensor], buffers: Collection[str]) -> dict[str, Tensor]:
    """Weights as an engine that computes in bf16 has them, half as many bytes; tied ones stay tied. `buffers` are kept
    as they are, as they are there."""
    rounded: dict[str, Tensor] = {}
    for name, first in first_names(state).items():
        if first != name:
            rounded[name] = rounded[first]
        else:
            rounded[name] = state[name] if name in buffers else state[name].to(torch.bfloat16)
    return rounded


def whole(tensor: Tensor) -> Tensor:
    """A tensor of which this rank has all, or a shard: all of it, on every rank (which have to ask together)."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local(tensor: Tensor) -> Tensor:
    """What this rank has of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' progress bars: what is on the disk already is there in no time."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


def load_model(path: str | Path) -> tuple[PreTrainedModel, Any]:
    """Model (fp32) and tokenizer of a folder or hub name.

    Raises:
        RollenvError: nothing usable is there.
    """
    folder = Path(path).expanduser()
    local = folder.exists()
    if local and not (folder / "config.json").is_file():
        raise RollenvError(
            f"model '{path}' is not a model folder: it has no config.json (a checkpoint keeps its model in 'model/')"
        )
    name = str(folder if local else path)
    try:
        with _ONE_AT_A_TIME, quiet() if local else contextlib.nullcontext():
            tokenizer = AutoTokenizer.from_pretrained(name)
            model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32)
    except (OSError, ValueError, KeyError, json.JSONDecodeError, RuntimeError) as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        where = "torn or not a causal language model" if local else "not a folder here, and not to be had from the hub"
        raise RollenvError(f"cannot load model '{path}' ({where}): {reason:.200}") from error
    except Exception as error:  # safetensors and tokenizers raise classes of their own for torn files
        raise RollenvError(f"cannot load model '{path}': {type(error).__name__}: {error!s:.200}") from error
    return model, tokenizer


def save_model(model: PreTrainedModel, state: Mapping[str, Tensor], tokenizer: Any, folder: Path) -> None:
    """Writes a model like `model` with the weights `state`, and its tokenizer. Standard settings are written, nothing
    of rollenv's own. `model` may be trained meanwhile."""
    config = copy.deepcopy(model.config)
    config._attn_implementation = None
    with _ONE_AT_A_TIME, torch.device("meta"):
        shell = type(model)(config)
    shell.load_state_dict(dict(state), assign=True)
    shell.tie_weights()
    shell.generation_config = model.generation_config
    with quiet():
        shell.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def n_parameters(model: PreTrainedModel) -> int:
    """Parameters, tied ones once."""
    return sum(parameter.numel() for parameter in model.parameters())
