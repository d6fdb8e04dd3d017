"""Weights that the trainer and its learner processes share, in a file in memory; and how processes get their first shards.

The parameters of the trainer's model are this file (``SharedWeights.into``), so there is no second copy of them on any device.
The first process replaces the file once per step. Processes make their models without memory for weights (device ``meta``),
shard them, and receive their shards weight by weight from the first process, which reads one weight at a time. The other
processes may be on other machines.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlhfless.errors import InputError, reason
from rlhfless.training import missing_torch

try:
    import torch
    from accelerate import init_empty_weights
    from torch import Tensor
    from transformers import AutoModelForCausalLM
    from transformers.initialization import no_init_weights
except ImportError as error:
    raise missing_torch(error) from None

from rlhfless.system.model_folders import NO_CODE
from rlhfless.training.algorithms.ranks import Ranks, scatter
from rlhfless.training.config import LearnerError

FORMAT = np.dtype(np.float32)


@dataclass(frozen=True)
class SharedWeights:
    """A file of float32 weights, one parameter after the other, on this machine.

    Attributes:
        path: of the file.
    """

    path: str

    @classmethod
    def of(cls, model: Any, path: Path) -> SharedWeights:
        """Write a model's weights into a new file.

        Raises:
            InputError: there is too little room for it, and for the weights that will replace it.
            LearnerError: it cannot be written, see ``replace``.
        """
        needed = 2 * FORMAT.itemsize * sum(parameter.numel() for parameter in model.parameters())
        if (free := shutil.disk_usage(path.parent).free) < needed:
            raise InputError(
                f"{path.parent}: has {free / 2**30:.1f} GiB free, but learner processes need {needed / 2**30:.1f} GiB for "
                "weights there; make it larger, or take learner_processes 1"
            )
        made = cls(str(path))
        made.replace(parameter.detach() for parameter in model.parameters())
        return made

    def replace(self, tensors: Iterable[Tensor]) -> None:
        """Replace the weights, one tensor after the other. Who has read the file before keeps what it has; whatever ends this
        half-way leaves the file as it was.

        Raises:
            LearnerError: there is no room, or the folder cannot be written to.
        """
        new = Path(f"{self.path}.new")
        try:
            with new.open("wb") as file:
                for tensor in tensors:
                    file.write(np.ascontiguousarray(tensor.to("cpu", torch.float32).numpy()).data)
            new.replace(self.path)
        except BaseException as error:
            with contextlib.suppress(OSError):
                new.unlink()
            if isinstance(error, OSError):
                raise LearnerError(
                    f"{new}: the new weights cannot be written ({reason(error)}); make room there or take learner_processes 1, "
                    "and resume the run"
                ) from error
            raise

    def into(self, model: Any) -> None:
        """Map the file into a model's parameters, on the CPU, without a copy. A change of a parameter stays in this process."""
        at = 0
        for parameter in model.parameters():
            mapped = np.memmap(self.path, FORMAT, "c", at, tuple(parameter.shape))
            parameter.data = torch.from_numpy(mapped)
            at += mapped.nbytes

    def read(self, shape: tuple[int, ...], place: int) -> Tensor:
        """Return a copy of one parameter.

        Args:
            place: how many weights stand before it.
        """
        count = math.prod(shape)
        return torch.from_numpy(np.fromfile(self.path, FORMAT, count, offset=place * FORMAT.itemsize)).view(shape)


def empty_model(config: Any) -> Any:
    """Return a causal language model of transformers whose weights have shapes but no memory. Its buffers are as usual.

    Example:
        >>> from transformers import Qwen2Config
        >>> config = Qwen2Config(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=16)
        >>> {weight.device.type for weight in empty_model(config).parameters()}
        {'meta'}
    """
    with no_init_weights(), init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, **NO_CODE).eval()
    model.tie_weights()
    return model


class FirstWeights:
    """Fills sharded models of an algorithm with the first weights of the policy: the policy itself, its reference, and a critic
    that begins as a copy of its layers. What is no copy of the policy (a critic's head) begins with zeros.

    Args:
        ranks: the learner processes.
        model: the policy, without memory. first: its weights, which the first process reads.
    """

    def __init__(self, ranks: Ranks, model: Any, first: SharedWeights) -> None:
        self._ranks, self._base, self._first = ranks, model.base_model_prefix, first
        self._shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
        counts = [math.prod(shape) for shape in self._shapes.values()]
        self._places = dict(zip(self._shapes, itertools.accumulate(counts, initial=0), strict=False))

    @torch.no_grad()
    def fill(self, module: Any, device: str) -> None:
        """Give a sharded module memory on a device, and its weights; all processes must call it. What has memory stays."""
        empty = {name for name, parameter in module.named_parameters() if parameter.device.type == "meta"}
        module._apply(lambda t: torch.zeros_like(t, device=device) if t.device.type == "meta" else t.to(device))
        for name, parameter in module.named_parameters():
            if name in empty and (own := self._of_policy(name)) is not None:
                first = self._first.read(self._shapes[own], self._places[own]) if self._ranks.rank == 0 else None
                scatter(first, parameter.detach(), self._ranks)

    def _of_policy(self, name: str) -> str | None:
        """Return the name of the policy's weight that a weight begins as."""
        own = name.removeprefix("policy.")
        if name.startswith("critic.backbone."):
            own = f"{self._base}.{name.removeprefix('critic.backbone.')}"
        return own if own in self._shapes else None
