"""Gives learner processes their shards of the first weights, without a whole copy of a model in any process but the trainer.

A process makes its models without memory for weights (device ``meta``), shards them, and then receives its shards weight by
weight from the first process. That one reads whole weights from a file in shared memory, which the trainer writes
(``SharedWeights``). The other processes may be on other machines.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhfless.errors import InputError
from rlhfless.training import missing_torch

try:
    import torch
    from torch import Tensor, nn
    from transformers import AutoModelForCausalLM
    from transformers.initialization import no_init_weights
except ImportError as error:
    raise missing_torch(error) from None

from rlhfless.system.model_folders import NO_CODE
from rlhfless.training.algorithms.ranks import Ranks, scatter


@dataclass(frozen=True)
class SharedWeights:
    """A file of float32 weights, one after the other, which processes of one machine map into their memory.

    Attributes:
        path: of the file. count: of numbers in it.
    """

    path: str
    count: int

    @classmethod
    def of(cls, model: Any, path: Path) -> SharedWeights:
        """Write a model's weights into a new file.

        Raises:
            InputError: there is too little room for it.
        """
        count = sum(parameter.numel() for parameter in model.parameters())
        if (free := shutil.disk_usage(path.parent).free) < 4 * count:
            raise InputError(
                f"{path.parent}: has {free / 2**30:.1f} GiB free, but learner processes share {4 * count / 2**30:.1f} GiB of "
                "weights there; make it larger, or take learner_processes 1"
            )
        made = cls(str(path), count)
        made.write(model)
        return made

    def open(self) -> Tensor:
        """Return the (count,) weights; what is written into them is seen by all processes that have them."""
        return torch.from_file(self.path, shared=True, size=self.count, dtype=torch.float32)

    @torch.no_grad()
    def write(self, model: Any) -> None:
        """Write a model's weights into the file."""
        parameters = list(model.parameters())
        for parameter, values in zip(parameters, laid_out(parameters, self.open()), strict=True):
            values.copy_(parameter)


def laid_out(parameters: Iterable[Tensor], flat: Tensor) -> list[Tensor]:
    """Return views of ``flat`` in the shapes of the parameters, one after the other."""
    shapes = [parameter.shape for parameter in parameters]
    pieces = flat.split_with_sizes([shape.numel() for shape in shapes])
    return [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]


def empty_model(config: Any) -> Any:
    """Return a causal language model of transformers whose weights have shapes but no memory. Its buffers are as usual.

    Example:
        >>> from transformers import Qwen2Config
        >>> config = Qwen2Config(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=16)
        >>> {weight.device.type for weight in empty_model(config).parameters()}
        {'meta'}
    """
    with no_init_weights(), _weights_on_meta():
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, **NO_CODE).eval()
    model.tie_weights()
    return model


@contextlib.contextmanager
def _weights_on_meta() -> Iterator[None]:
    """Context in which modules keep no memory of a weight. It is allocated, but never written, so the system gives none."""
    register = nn.Module.register_parameter

    def forgetful(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None:
            parameter = nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)
        register(module, name, parameter)

    nn.Module.register_parameter = forgetful  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


class FirstWeights:
    """Fills sharded models of an algorithm with the first weights of the policy: the policy itself, its reference, and a critic
    that begins as a copy of its layers. What is no copy of the policy (a critic's head) begins with zeros.

    Args:
        ranks: the learner processes.
        model: the policy, without memory. flat: its weights in the layout of ``SharedWeights``; None but in the first process.
    """

    def __init__(self, ranks: Ranks, model: Any, flat: Tensor | None) -> None:
        self._ranks, self._base = ranks, model.base_model_prefix
        named = dict(model.named_parameters())
        self._names = set(named)
        self._weights: Mapping[str, Tensor] = {}
        if flat is not None:
            self._weights = dict(zip(named, laid_out(named.values(), flat), strict=True))

    @torch.no_grad()
    def fill(self, module: Any, device: str) -> None:
        """Give a sharded module memory on a device, and its weights; all processes must call it. What has memory stays."""
        empty = {name for name, parameter in module.named_parameters() if parameter.device.type == "meta"}
        module._apply(lambda t: torch.zeros_like(t, device=device) if t.device.type == "meta" else t.to(device))
        for name, parameter in module.named_parameters():
            if name in empty and (own := self._of_policy(name)) is not None:
                scatter(self._weights.get(own), parameter.detach(), self._ranks)

    def _of_policy(self, name: str) -> str | None:
        """Return the name of the policy's weight that a weight begins as."""
        own = name.removeprefix("policy.")
        if name.startswith("critic.backbone."):
            own = f"{self._base}.{name.removeprefix('critic.backbone.')}"
        return own if own in self._names else None
