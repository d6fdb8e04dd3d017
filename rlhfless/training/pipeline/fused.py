"""Computes the gradients of one model, or of actor and critic, in pipeline stages, one process per device, by a plan.

The trainer's process has the models, their gradients and the optimizer. Processes read weights from shared memory and write
gradients to it; hidden states and their gradients go from process to process.
"""

from __future__ import annotations

import copy
import pickle
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

from rlhfless.errors import InputError
from rlhfless.system.cleanup import clean_up
from rlhfless.training import missing_torch

try:
    import torch
    from torch import Tensor
except ImportError as error:
    raise missing_torch(error) from None

from rlhfless.training.algorithms.critic import Critic
from rlhfless.training.pipeline import worker
from rlhfless.training.pipeline.stages import Stage, split_model
from rlhfless.training.pipeline.tasks import PipelineTask, forward_tasks, messages, tasks_of
from rlhfless.training.pipeline.worker import DeviceReport, DeviceStart, PipelineOrder
from rlhfless.training.worker_group import WorkerGroup
from solver.pipeline import PipelinePlan


class MicroBatch(Protocol):
    """Rows of a batch that go through the stages together; it can be pickled."""

    @property
    def input_ids(self) -> Tensor:
        """(B, T) tokens."""

    def to(self, device: Any) -> Any:
        """Return the same on a device."""


class ModelLoss(Protocol):
    """The loss of a model; it can be pickled, and its module can be imported by other processes."""

    def __call__(self, output: Tensor, micro_batch: Any, /) -> tuple[Tensor, Any]:
        """Return the loss of a micro-batch, and what to report of it. Gradients of micro-batches are added.

        Args:
            output: of the last stage, see ``split_model``.
        """

    def look(self, output: Tensor, micro_batch: Any, /) -> Any:
        """Return what to report of a forward pass alone."""


@dataclass(frozen=True, eq=False)
class PipelineStep:
    """What a step has given, beside the gradients.

    Attributes:
        reports: of the losses, by model and micro-batch.
        passes: one row per forward or backward pass: ``operation`` (as in ``PipelinePlan.table``), ``chain``, ``stage``,
            ``micro_batch``, ``device``, ``start``, ``end`` (seconds since the first).
        in_flight: per device, most micro-batches that it held at once.
        start_s: of the first pass, on the machine's monotonic clock.
    """

    reports: Mapping[str, Sequence[Any]]
    passes: pd.DataFrame
    in_flight: tuple[int, ...]
    start_s: float

    @property
    def latency_s(self) -> float:
        """Seconds from the start of the first pass to the end of the last."""
        return float(self.passes["end"].max())


class FusedTraining:
    """Trains models in stages, one process per device; ``with`` or ``close`` ends the processes.

    Args:
        actor: a causal language model of transformers; it is the plan's first chain.
        critic: the model of all other chains, which are copies of it; None if there are none.
        plan: the order of every device.
        losses: of ``actor`` and ``critic``; they may be replaced between steps.
        reference: a frozen model with the actor's stages, for ``look``.
        gpus: one GPU per process instead of the CPU. The models may stay on the CPU.
        unit_s: least seconds of an operation per unit of the plan's time. A pass that is faster sleeps, so that schedules can
            be measured with models that are too small.
        group: the devices' processes, not started; None: on this machine.

    Raises:
        InputError: a model does not fit the plan, or there are too few GPUs.
        LearnerError: a process died.
    """

    def __init__(
        self,
        actor: Any,
        critic: Critic | None,
        plan: PipelinePlan,
        losses: Mapping[str, ModelLoss],
        *,
        reference: Any = None,
        gpus: bool = False,
        unit_s: float = 0.0,
        group: WorkerGroup | None = None,
    ) -> None:
        chains = plan.problem.chains
        if (critic is None) != (len(chains) == 1):
            raise InputError(f"the plan has {len(chains)} chains; one for the actor, and others only for a critic")
        if gpus and torch.cuda.device_count() < plan.problem.devices:
            raise InputError(
                f"the plan has {plan.problem.devices} devices, but torch finds {torch.cuda.device_count()} GPUs; give a plan "
                "for them, or use the CPU"
            )
        self.plan, self.losses, self._gpus = plan, losses, gpus
        self._chains = {"actor": [0], "critic": list(range(1, len(chains)))}
        self._routes = {index: chain.route for index, chain in enumerate(chains)}
        models = {"actor": actor, "critic": critic, "reference": reference}
        if reference is not None:
            self._chains["reference"] = [len(chains)]
            self._routes[len(chains)] = chains[0].route
        self._stages: dict[tuple[int, int], Stage] = {}
        for name, indices in self._chains.items():
            for index in indices:
                stages = split_model(models[name], len(self._routes[index]))
                self._stages |= {(index, stage): module for stage, module in enumerate(stages)}
        ops = plan.operations
        self._least_s = {
            (op.chain, op.kind, op.stage): unit_s * duration * ops.unit
            for op, duration in zip(ops.types, ops.duration, strict=True)
            if unit_s
        }
        self._tasks, self._group = tasks_of(plan), WorkerGroup("pipeline") if group is None else group

    @property
    def pids(self) -> list[int]:
        """Process ids by device; empty before the first order and after the end."""
        return self._group.pids

    @property
    def has_reference(self) -> bool:
        """Whether there is a reference model to look at."""
        return "reference" in self._chains

    def __enter__(self) -> FusedTraining:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        clean_up(self.close, after=error)

    def follow(self, plan: PipelinePlan) -> None:
        """Take another plan of the same problem from the next step on.

        Raises:
            InputError: the plan is of another problem.
        """
        if plan.problem != self.plan.problem:
            raise InputError("the plan is of another problem; give one of the problem that the processes were started for")
        self.plan, self._tasks = plan, tasks_of(plan)

    def step(self, actor: Sequence[MicroBatch], critic: Sequence[MicroBatch] = ()) -> PipelineStep:
        """Run the plan: set the gradients of both models to those of the summed losses.

        Args:
            actor, critic: as many micro-batches as the plan has. Copies of the critic take equal shares in order, and their
                gradients are added.

        Raises:
            InputError: another number of micro-batches is needed. Any exception of a loss.
            LearnerError: a process died.
        """
        given = {**self._dealt("actor", actor), **self._dealt("critic", critic)}
        for index, chain in enumerate(self.plan.problem.chains):
            if len(given[index]) != chain.micro_batches:
                raise InputError(
                    f"chain {chain.name!r} has {len(given[index])} micro-batches, but the plan has {chain.micro_batches}; give "
                    "as many"
                )
        found = self._run(self._tasks, given, "__call__", training=True)
        self._take_gradients()
        return self._told(found)

    def look(self, model: str, micro_batches: Sequence[MicroBatch]) -> list[Any]:
        """Run forward passes alone, without gradients; return what the loss's ``look`` does, by micro-batch.

        Args:
            model: ``actor``, ``critic`` or ``reference``; the last takes the actor's loss.
        """
        given = self._dealt(model, micro_batches)
        routes = {index: self._routes[index] for index in given}
        counts = {index: len(parts) for index, parts in given.items()}
        tasks = forward_tasks(routes, counts, self.plan.problem.devices)
        reports = self._reports(self._run(tasks, given, "look", training=False))
        return [reports[index, k] for index, parts in given.items() for k in range(len(parts))]

    def close(self) -> None:
        """End the processes. Idempotent; a later order starts new ones."""
        self._group.end()

    def _dealt(self, model: str, micro_batches: Sequence[MicroBatch]) -> dict[int, Sequence[MicroBatch]]:
        """Return the micro-batches of each of the model's chains: consecutive shares."""
        indices, number = self._chains[model], len(micro_batches)
        cuts = [number * i // max(len(indices), 1) for i in range(len(indices) + 1)]
        return {index: micro_batches[cuts[i] : cuts[i + 1]] for i, index in enumerate(indices)}

    def _run(
        self, tasks: list[list[PipelineTask]], given: Mapping[int, Sequence[MicroBatch]], end: str, *, training: bool
    ) -> list[DeviceReport]:
        if not self._group:
            self._start()
        self._give_weights()
        ends = {
            index: getattr(self.losses["critic" if name == "critic" else "actor"], end)
            for name, indices in self._chains.items()
            for index in indices
        }
        order = PipelineOrder(tasks, given, ends, training, self._least_s if training else {})
        return [pickle.loads(answer) for answer in self._group.order("step", pickle.dumps(order))]

    def _start(self) -> None:
        """Start the processes, with their stages in shared memory."""
        stages = {key: _in_shared_memory(stage) for key, stage in self._stages.items()}
        self._weights = {key: [p.detach() for p in stage.parameters()] for key, stage in stages.items()}
        self._gradients = {
            key: [torch.zeros_like(weight).share_memory_() for weight in weights]  # type: ignore[no-untyped-call]
            for key, weights in self._weights.items()
            if key[0] < len(self.plan.problem.chains)
        }
        devices, pairs = self.plan.problem.devices, sorted(messages(self._tasks, self._routes))
        folder = tempfile.mkdtemp(prefix="rlhfless-pipeline-")
        try:
            meeting, kind = str(Path(folder) / "meeting"), "cuda" if self._gpus else "cpu"
            own = [(self._of(rank, stages), self._of(rank, self._gradients)) for rank in range(devices)]
            starts = [
                (rank, DeviceStart(devices, meeting, kind, self._routes, parts, gradients, pairs))
                for rank, (parts, gradients) in enumerate(own)
            ]
            self._group.start(worker.main, starts)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _of(self, device: int, values: Mapping[tuple[int, int], Any]) -> dict[tuple[int, int], Any]:
        """Return what belongs to the stages of a device."""
        return {(chain, stage): value for (chain, stage), value in values.items() if self._routes[chain][stage] == device}

    @torch.no_grad()
    def _give_weights(self) -> None:
        """Bring the models' weights to shared memory, where they are not in it already."""
        for key, weights in self._weights.items():
            for parameter, weight in zip(self._stages[key].parameters(), weights, strict=True):
                if parameter.data_ptr() != weight.data_ptr():
                    weight.copy_(parameter)

    @torch.no_grad()
    def _take_gradients(self) -> None:
        """Set the parameters' gradients: the sum over stages, in the order of chains, for copies and tied weights."""
        found: dict[Any, Tensor] = {}
        for key, gradients in self._gradients.items():
            for parameter, gradient in zip(self._stages[key].parameters(), gradients, strict=True):
                found[parameter] = found[parameter] + gradient if parameter in found else gradient
        for parameter, gradient in found.items():
            parameter.grad = gradient.to(parameter.device, copy=True)

    def _reports(self, found: Sequence[DeviceReport]) -> dict[tuple[int, int], Any]:
        return {key: told for device in found for key, told in device.reports.items()}

    def _told(self, found: Sequence[DeviceReport]) -> PipelineStep:
        """Return a step's reports and passes."""
        reports, chains = self._reports(found), self.plan.problem.chains
        by_model = {
            name: [reports[index, k] for index in indices for k in range(chains[index].micro_batches)]
            for name, indices in self._chains.items()
            if name != "reference"
        }
        start_s = min(each.start_s for device in found for each in device.passes)
        rows = [
            (
                each.task.kind, chains[each.task.chain].name, each.task.stage, each.task.micro_batch, device,
                each.start_s - start_s, each.end_s - start_s,
            )
            for device, told in enumerate(found)
            for each in told.passes
        ]  # fmt: skip
        columns = ["operation", "chain", "stage", "micro_batch", "device", "start", "end"]
        passes = pd.DataFrame(rows, columns=columns).sort_values(["start", "device"], kind="stable", ignore_index=True)
        return PipelineStep(by_model, passes, tuple(told.in_flight for told in found), start_s)


def _in_shared_memory(stage: Stage) -> Stage:
    """Return the stage with its weights in shared memory: itself on the CPU, a copy of it from a GPU."""
    on_cpu = all(parameter.device.type == "cpu" for parameter in stage.parameters())
    return (stage if on_cpu else copy.deepcopy(stage).cpu()).share_memory()
