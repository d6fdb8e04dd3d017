"""The learner: runs an algorithm with its optimizer and schedule, and reads and writes their state as checkpoint files.

``LocalLearner`` is one process; ``process_group.py`` controls several. Files hold whole tensors by name, so a checkpoint can be
read by any number of processes.

State is not read by ``torch.distributed.checkpoint.state_dict``: its ``get_state_dict`` takes an optimizer step where there was
none yet (torch 2.13; the count of steps becomes 1), so a run that is saved before its first step would learn other weights. And
``broadcast_from_rank0`` sends whole tensors to every process, of which each needs its shard.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from rlhfless.training import missing_torch

try:
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import save_file
except ImportError as error:
    raise missing_torch(error) from None

from rlhfless.errors import other_version
from rlhfless.gone_options import without_gone
from rlhfless.training.algorithms.base import Algorithm
from rlhfless.training.algorithms.batch import Batch
from rlhfless.training.algorithms.critic import PolicyAndCritic
from rlhfless.training.algorithms.lora import merge_into
from rlhfless.training.algorithms.optimizer import make_schedule
from rlhfless.training.algorithms.ranks import ONE, Ranks, full_tensor, scatter
from rlhfless.training.algorithms.registry import make_algorithm
from rlhfless.training.config import TrainError, differences
from rlhfless.training.config.algorithm import AlgorithmConfig, name_of
from rlhfless.training.config.learning import OF_LEARNER, Schedule, UpdateOptions
from rlhfless.training.learner.checkpoint_files import TensorFile, as_written, read_json
from rlhfless.training.minibatches import of_step, split

SCHEMA, VERSION = "rlhfless-checkpoint", 1
UNNAMED = 1
"""Version of checkpoints that name none: those of RLHFless 0.1.0."""
CHANGE_NO_WEIGHT = ("gradient_checkpointing", "offload_reference", "seed")
"""Options of ``make_algorithm`` with and without which a checkpoint may be read. A seed's first weights are replaced by it."""


class Learner(Protocol):
    """Interface of what trains a model in place, in this process or in others."""

    def learn(self, batch: Batch) -> dict[str, float]:
        """Learn from a batch; return the algorithm's numbers and the ``learning_rate`` of the step."""

    def so_far(self) -> Mapping[str, float]:
        """Return the numbers of ``pass_tokens`` up to now, while ``learn`` runs in another thread; empty if unknown."""

    def begin(self) -> None:
        """Begin a step that is learned from in pieces, while others of its responses are generated."""

    def add(self, batch: Batch) -> None:
        """Add the gradient of a piece of the step, see ``Algorithm``; no weight changes."""

    def update(self) -> None:
        """Take the optimizer's step on the pieces of a mini-batch that is not the step's last; later pieces are the next's."""

    def finish(self) -> dict[str, float]:
        """Take the step's last update; return the numbers of ``learn``. ``seconds`` are of all calls together."""

    def write(self, folder: Path) -> None:
        """Write weights, optimizer and schedule into an empty folder.

        Raises:
            OSError: it cannot be written.
        """

    def read(self, folder: Path) -> None:
        """Continue from what ``write`` wrote.

        Raises:
            TrainError: the checkpoint is of another configuration (the message says what differs). Or one of its files cannot
                be read or was not written by a learner.
        """

    def close(self) -> None:
        """Release resources outside of this process. Idempotent."""


class LocalLearner:
    """The learner in this process: alone, or one of ``ranks``.

    Args:
        algorithm: with its optimizer. merged: gets the weights of an algorithm with adapters, merged, after every update; None
            where the algorithm trains all weights, in place.
        num_mini_batches: of a batch; each is learned from as a batch of its own, see ``rlhfless.training.minibatches``.
        lr_scheduler_type, warmup_steps, lr_scheduler_steps: see ``make_schedule``.
        configuration: any JSON value; only checkpoints of the same configuration can be read.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        *,
        merged: Any = None,
        ranks: Ranks = ONE,
        num_mini_batches: int = 1,
        lr_scheduler_type: Schedule = "constant",
        warmup_steps: int = 0,
        lr_scheduler_steps: int | None = None,
        configuration: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.algorithm, self.ranks, self.num_mini_batches = algorithm, ranks, num_mini_batches
        self.schedule = make_schedule(algorithm.optimizer, lr_scheduler_type, warmup_steps, lr_scheduler_steps)
        self._merged = merged
        self._seconds = 0.0  # of the pieces of a step so far
        self._updates: list[dict[str, float]] = []  # numbers of its mini-batches so far
        self._ends = math.inf if lr_scheduler_steps is None else lr_scheduler_steps
        rates = {"lr_scheduler_type": lr_scheduler_type, "warmup_steps": warmup_steps, "lr_scheduler_steps": lr_scheduler_steps}
        self._configuration = json.loads(json.dumps({**rates, **configuration}))

    @classmethod
    def make(cls, algorithm: str | type[AlgorithmConfig], model: Any, *, ranks: Ranks = ONE, **options: Any) -> LocalLearner:
        """Return the learner of a registered algorithm.

        Args:
            algorithm: its name, or its class.
            model: is trained in place. With several ranks its weights are sharded over them.
            options: of the schedule, and of ``make_algorithm``, and ``num_mini_batches``.

        Raises:
            InputError: an option or a value is unknown.
        """
        update = UpdateOptions(**{option: options.pop(option) for option in OF_LEARNER if option in options})
        name = algorithm if isinstance(algorithm, str) else name_of(algorithm)
        configuration = {"algorithm": name, **{key: value for key, value in options.items() if key not in CHANGE_NO_WEIGHT}}
        if update.num_mini_batches > 1:  # else as in checkpoints that are older than this option
            configuration["num_mini_batches"] = update.num_mini_batches

        made = make_algorithm(algorithm, model, ranks=ranks, **options)
        merged = None if options.get("lora_rank") is None else model
        of_learner = {option: getattr(update, option) for option in OF_LEARNER}
        return cls(made, merged=merged, ranks=ranks, configuration=configuration, **of_learner)

    def learn(self, batch: Batch) -> dict[str, float]:
        """See ``Learner``. The model is in training mode only while it learns."""
        rate = float(self.schedule.get_last_lr()[0])
        if (passes := getattr(self.algorithm, "passes", None)) is not None:
            passes.count_anew()
        with self._training():
            parts, recomputing = self._with_old(split(batch, self.num_mini_batches))
            numbers = of_step([self.algorithm.learn(part) for part in parts])
        self._merge()
        self._next_rate()
        return {**numbers, **{name: numbers[name] + more for name, more in recomputing.items()}, "learning_rate": rate}

    def _with_old(self, parts: list[Batch]) -> tuple[list[Batch], dict[str, float]]:
        """Recompute the log-probabilities of all mini-batches but the first, if that is asked for, while the weights that
        generated are there; return the mini-batches, and what this adds to numbers of the step.
        """
        config = getattr(self.algorithm, "config", None)  # an algorithm of one's own need not have one
        if len(parts) == 1 or config is None or not config.recomputes:
            return parts, {}
        began, sums = time.perf_counter(), {"prepare_seconds": 0.0, "prepare_pass_tokens": 0.0}
        later = [
            dataclasses.replace(part, recomputed_logprobs=self.algorithm.passes.logprobs(part, sums))  # type: ignore[attr-defined]
            for part in parts[1:]
        ]
        sums = self.ranks.sums(sums)
        seconds = {"prepare_seconds": sums["prepare_seconds"] / self.ranks.count, "seconds": time.perf_counter() - began}
        return [parts[0], *later], {**sums, **seconds}

    def so_far(self) -> Mapping[str, float]:
        """See ``Learner``; an algorithm of one's own need not count."""
        passes = getattr(self.algorithm, "passes", None)
        return {} if passes is None else dict(passes.tokens)

    def begin(self) -> None:
        """See ``Learner``."""
        self.algorithm.begin()
        self._seconds, self._updates = 0.0, []

    def add(self, batch: Batch) -> None:
        """See ``Learner``."""
        began = time.perf_counter()
        with self._training():
            self.algorithm.add(batch)
        self._seconds += time.perf_counter() - began

    def update(self) -> None:
        """See ``Learner``."""
        began = time.perf_counter()
        with self._training():
            self._updates.append(self.algorithm.finish())
        self.algorithm.begin()
        self._seconds += time.perf_counter() - began

    def finish(self) -> dict[str, float]:
        """See ``Learner``."""
        began, rate = time.perf_counter(), float(self.schedule.get_last_lr()[0])
        with self._training():
            numbers = of_step([*self._updates, self.algorithm.finish()])
        self._merge()
        self._next_rate()
        return {**numbers, "learning_rate": rate, "seconds": self._seconds + time.perf_counter() - began}

    @contextlib.contextmanager
    def _training(self) -> Iterator[None]:
        """Context in which the models are in training mode."""
        self.algorithm.trained.train()
        try:
            yield
        finally:
            self.algorithm.trained.eval()

    @property
    def adapted(self) -> Any:
        """The model with the adapters that are trained; None where all weights are."""
        if self._merged is None:
            return None
        trained = self.algorithm.trained
        return trained.policy if isinstance(trained, PolicyAndCritic) else trained

    def _merge(self) -> None:
        """Give the model that generates the weights with the adapters merged, if there are adapters."""
        if self._merged is not None:
            merge_into(self._merged, self.adapted)

    def _next_rate(self) -> None:
        if self.schedule.last_epoch < self._ends:  # beyond its end a cosine would rise again
            with warnings.catch_warnings():  # a first batch that teaches nothing has taken no step of the optimizer
                warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
                self.schedule.step()

    def write(self, folder: Path) -> None:
        """See ``Learner``. All ranks must call it; the first one writes."""
        parameters = self._parameters()
        weights = {name: self._gathered(value.detach()) for name, value in parameters.items()}
        optimizer = self.algorithm.optimizer
        moments = {
            f"{name}/{what}": self._gathered(torch.as_tensor(value))
            for name, parameter in parameters.items()
            for what, value in optimizer.state.get(parameter, {}).items()
            if value is not None
        }
        if self.ranks.rank > 0:
            return
        groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
        state = {
            "schema": SCHEMA, "version": VERSION, "configuration": self._configuration, "groups": groups,
            "schedule": self.schedule.state_dict(),
        }  # fmt: skip
        try:
            save_file(weights, folder / "model.safetensors")
            save_file(moments, folder / "optimizer.safetensors")
        except SafetensorError as error:
            raise OSError(str(error)) from error
        (folder / "state.json").write_text(json.dumps(state), encoding="utf-8")

    @torch.no_grad()
    def read(self, folder: Path) -> None:
        """See ``Learner``. All ranks must call it; the first one reads, tensor by tensor, and sends the others their shards."""
        ranks, first = self.ranks, self.ranks.rank == 0
        state: Any = ranks.broadcast(read_json(folder / "state.json") if first else None)
        with as_written(folder / "state.json"):
            if (version := state.get("version", UNNAMED)) != VERSION:
                raise TrainError(f"{folder}: {other_version('a checkpoint', version, VERSION)}, or start a new run")
            stored = without_gone(state["configuration"], folder / "state.json", TrainError)
            different = differences(self._configuration, stored)
        if different:
            raise TrainError(f"{folder}: was written with {different}; read it with the same options")
        parameters, optimizer = self._parameters(), self.algorithm.optimizer
        weights, moments = (TensorFile(folder / f"{name}.safetensors") if first else None for name in ("model", "optimizer"))
        shapes = {name: tuple(value.shape) for name, value in parameters.items()}
        if different := differences(shapes, ranks.broadcast(weights.shapes if weights else {})):
            raise TrainError(
                f"{folder}: holds the weights of another model ({different}); continue with the model that it was written for"
            )
        for name, parameter in parameters.items():
            scatter(weights.get(name) if weights else None, parameter.detach(), ranks)
        optimizer.state.clear()
        with as_written(folder / "optimizer.safetensors"):
            for key, shape in ranks.broadcast(moments.shapes if moments else {}).items():
                name, what = key.rsplit("/", 1)
                like, value = parameters[name].detach(), moments.get(key) if moments else None
                if shape == shapes[name]:
                    optimizer.state[parameters[name]][what] = moment = torch.empty_like(like)
                    scatter(value, moment, ranks)
                else:  # of the whole weight, such as the count of its steps, which torch has on the CPU
                    found: Any = ranks.broadcast(value)
                    optimizer.state[parameters[name]][what] = found.to(like.device) if shape else found
        with as_written(folder / "state.json"):
            for group, values in zip(optimizer.param_groups, state["groups"], strict=True):
                group.update({key: tuple(value) if isinstance(value, list) else value for key, value in values.items()})
            self.schedule.load_state_dict(state["schedule"])
        self._merge()

    def close(self) -> None:
        """See ``Learner``; there is nothing to release."""

    def _gathered(self, value: Any) -> Any:
        """Return a whole tensor on the CPU for the first rank; the others keep no more than one at a time."""
        gathered = full_tensor(value)
        return gathered.cpu().contiguous() if self.ranks.rank == 0 else None

    def _parameters(self) -> dict[str, Any]:
        """Return all trained weights by name, tied ones once. Base weights of adapters are those that training began with."""
        named = dict(self.algorithm.trained.named_parameters())
        return named if self._merged is None else {name: value for name, value in named.items() if value.requires_grad}
