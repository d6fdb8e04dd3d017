"""A learner's weights in another process: it computes the gradient of a piece of a step, or prepares it, and keeps nothing.

The trainer's learner packs its weights when a process that joins it is started (``Loading``). What is in the trainer's own
process works with the learner itself.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhfless.training import missing_torch

try:
    import torch
    from transformers import AutoModelForCausalLM
except ImportError as error:
    raise missing_torch(error) from None

from rlhfless.engine.torch.model import one_thread
from rlhfless.system.model_folders import NO_CODE
from rlhfless.training.algorithms.base import Piece
from rlhfless.training.algorithms.batch import Batch
from rlhfless.training.learner.first_weights import laid_out
from rlhfless.training.learner.learner import LocalLearner
from rlhfless.training.random_state import streams_of


class StepWeights:
    """The trained weights of a learner. In another process they are a (N,) array of what they were when they were sent."""

    def __init__(self, learner: LocalLearner | None, flat: np.ndarray | None = None) -> None:
        self._learner, self.flat = learner, flat

    def __reduce__(self) -> tuple[Any, ...]:
        flat = self.flat if self._learner is None else flat_weights(self._learner.algorithm.trained)
        return StepWeights, (None, flat)


class InTrainer:
    """What threads of the trainer share.

    Attributes:
        failures: exceptions of learning here, as they were raised; the pool tells of them in words only.
    """

    def __init__(self) -> None:
        self.failures: list[BaseException] = []
        self._drawing = threading.Lock()

    @contextlib.contextmanager
    def draws(self, trained: Any, stream: Sequence[int]) -> Iterator[None]:
        """Context in which one thread has the process's random streams, seeded by ``stream``; keeps its exception.

        Args:
            trained: a model without dropout draws nothing, and need not wait; None: something else may draw.
        """
        try:
            if trained is not None and not drops(trained):
                yield
                return
            with self._drawing, streams_of(*stream):
                yield
        except BaseException as error:
            self.failures.append(error)
            raise


@dataclass(frozen=True)
class Joined:
    """The learner of one process, and how it computes there.

    Attributes:
        here: it is the trainer's own; None: a replica, which computes alone in its process.
        nbytes: of the weights that were sent to it.
    """

    learner: LocalLearner
    here: InTrainer | None = None
    nbytes: int = 0

    def look(self, batch: Batch, stream: Sequence[int]) -> dict[str, list[np.ndarray]]:
        """Return the numbers of the passes before the first update, see ``Algorithm``; ``stream`` as for ``piece``."""
        device = next(self.learner.algorithm.trained.parameters()).device
        with streams_of(*stream), one_thread(device):
            return self.learner.look(batch)

    def piece(self, batch: Batch, stream: Sequence[int], weights: StepWeights | None = None) -> Piece:
        """Return the gradient of a piece; on the CPU, where it can be sent to the trainer.

        Args:
            stream: numbers that seed its random streams. weights: that it is computed with; None: those that are there.
        """
        trained = self.learner.algorithm.trained
        device = next(trained.parameters()).device
        if self.here is not None:
            with self.here.draws(trained, stream), one_thread(device):
                return self.learner.piece(batch)
        if weights is not None and weights.flat is not None:
            fill(trained, weights.flat)
        with streams_of(*stream), one_thread(device):
            return self.learner.piece(batch).to("cpu")


class Loading:
    """Loads a learner in a process that joins it: a function for ``WorkGpus.load``.

    Args:
        learner: of this process. here: see ``Joined``. name, options: of ``LocalLearner.make``. config: of its model.
        only_looks: the process only runs passes before the first update, and gets the weights that these need.
    """

    def __init__(
        self,
        learner: LocalLearner,
        here: InTrainer,
        config: Any,
        name: str,
        options: Mapping[str, Any],
        *,
        only_looks: bool = False,
    ) -> None:
        self._learner, self._here, self._config, self._name, self._options = learner, here, config, name, options
        self._only_looks = only_looks

    def __call__(self, device: str | None) -> Joined:
        """Return the learner of this process."""
        return Joined(self._learner, self._here)

    def __reduce__(self) -> tuple[Any, ...]:
        algorithm = self._learner.algorithm
        reference = getattr(algorithm, "reference", None)
        trained = None if self._only_looks and not algorithm.looks_at_trained else flat_weights(algorithm.trained)
        packed = PackedLearner(
            self._config, None if reference is None else flat_weights(reference), trained, self._name, dict(self._options)
        )
        return _same, (packed,)


@dataclass(frozen=True, eq=False)
class PackedLearner:
    """A learner on its way to another process; calling it there makes the learner.

    Attributes:
        config: of the transformers model. reference, trained: (N,) weights; a reference is what training began with. None: they
            are not needed.
        name, options: of ``LocalLearner.make``.
    """

    config: Any
    reference: np.ndarray | None
    trained: np.ndarray | None
    name: str
    options: dict[str, Any]

    def __call__(self, device: str | None) -> Joined:
        """Return the learner on a device, the first of several."""
        model = AutoModelForCausalLM.from_config(self.config, dtype=torch.float32, **NO_CODE).eval()
        if self.reference is not None:
            fill(model, self.reference)
        learner = LocalLearner.make(self.name, model.to((device or "cpu").split(",")[0]), **self.options)
        if self.trained is not None:
            fill(learner.algorithm.trained, self.trained)
        return Joined(learner, nbytes=sum(flat.nbytes for flat in (self.reference, self.trained) if flat is not None))


def _same(packed: PackedLearner) -> PackedLearner:
    return packed


def piece_of_group(stream: Sequence[int], completions: Any, results: tuple[Any, ...], joined: Joined) -> Piece:
    """Return the piece of a batch: the function of a work item, which waits for the batch and perhaps for ``StepWeights``."""
    batch, *weights = results
    return joined.piece(batch, stream, weights[-1] if weights else None)


@torch.no_grad()
def flat_weights(model: Any) -> np.ndarray:
    """Return (N,) copies of all weights of a model, one after the other."""
    flat: np.ndarray = torch.cat([parameter.detach().flatten().cpu() for parameter in model.parameters()]).numpy()
    return flat


@torch.no_grad()
def fill(model: Any, flat: np.ndarray) -> None:
    """Set all weights of a model to those of ``flat_weights``."""
    parameters = list(model.parameters())
    for parameter, values in zip(parameters, laid_out(parameters, torch.from_numpy(np.array(flat))), strict=True):
        parameter.copy_(values)


def drops(model: Any) -> bool:
    """Return whether a model draws random numbers in training: one of its dropouts is not zero."""
    configs = [module.config.to_dict() for module in model.modules() if hasattr(module, "config")]
    named = any(value for each in configs for key, value in each.items() if "drop" in key and isinstance(value, float))
    return named or any(module.p > 0 for module in model.modules() if isinstance(module, torch.nn.Dropout))
