"""The process of one device of a pipeline: runs its order of forward and backward passes, with messages to its peers.

It has a pipe to the trainer, its stages, and shared memory for their weights and gradients. It listens on the loopback
interface only, and ends with the trainer.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from rlhfless.system.parent_death import die_with_parent
from rlhfless.system.piped_processes import HeartbeatConnection
from rlhfless.training.pipeline.links import Links
from rlhfless.training.pipeline.stages import Stage
from rlhfless.training.pipeline.tasks import BACKWARD, FORWARD, INPUTS, WEIGHTS, PipelineTask, following, messages
from rlhfless.training.worker_group import DONE, LOOPBACK, READY, report


@dataclass(frozen=True)
class DeviceStart:
    """Arguments of a device's process at its start.

    Attributes:
        devices: number of processes. meeting: path of their rendezvous file. device: ``cuda`` for one GPU each, or ``cpu``.
        routes: by chain, the device of each stage.
        stages: of this device, by chain and stage. gradients: shared memory for those of each stage's parameters.
        pairs: (sender, receiver) of all messages that any order may need.
    """

    devices: int
    meeting: str
    device: str
    routes: Mapping[int, Sequence[int]]
    stages: Mapping[tuple[int, int], Stage]
    gradients: Mapping[tuple[int, int], Sequence[Tensor]]
    pairs: Sequence[tuple[int, int]]


@dataclass(frozen=True)
class PipelineOrder:
    """What all devices run together.

    Attributes:
        tasks: of each device in order.
        micro_batches: by chain; each has ``input_ids`` (B, T) and ``to(device)``.
        ends: by chain, what the last stage calls with its output and the micro-batch. In training it returns a loss and what to
            report of it, else what to report.
        training: with backward passes.
        least_s: by chain, kind and stage, the least seconds of a task, which sleeps for the rest.
    """

    tasks: Sequence[Sequence[PipelineTask]]
    micro_batches: Mapping[int, Sequence[Any]]
    ends: Mapping[int, Callable[[Tensor, Any], Any]]
    training: bool
    least_s: Mapping[tuple[int, str, int], float]


class TimedPass(NamedTuple):
    """A task as it ran, in seconds of the machine's monotonic clock, without what it waited for its input."""

    task: PipelineTask
    start_s: float
    end_s: float


class Held(NamedTuple):
    """A forward pass that waits for its backward pass: input, output, and the output's gradient once that of the input is
    computed.
    """

    x: Tensor
    output: Tensor
    gradient: Tensor | None = None


class DeviceReport(NamedTuple):
    """What a device tells of an order: its passes, most micro-batches held at once, and reports of last stages by chain and
    micro-batch.
    """

    passes: list[TimedPass]
    in_flight: int
    reports: dict[tuple[int, int], Any]


def main(pipe: Connection, rank: int, startup: DeviceStart) -> None:
    """Run the process until its pipe ends."""
    die_with_parent()
    connection = HeartbeatConnection(pipe)
    try:
        device = Device(rank, startup, connect(rank, startup))
        connection.send((READY, None))
        while True:
            _, order, _ = connection.recv()
            connection.send((DONE, pickle.dumps(device.run(pickle.loads(order)))))
    except Exception as error:
        report(connection, error)


def connect(rank: int, startup: DeviceStart) -> Links:
    """Meet the other processes; return the links to them."""
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = LOOPBACK
    on_gpu = startup.device == "cuda"
    if on_gpu:
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(1)
    meeting, backend = Path(startup.meeting).as_uri(), "nccl" if on_gpu else "gloo"
    dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=startup.devices)
    return Links(rank, startup.pairs)


class Device:
    """The stages of one device."""

    def __init__(self, rank: int, startup: DeviceStart, links: Links) -> None:
        self.rank, self.routes, self.links, self.gradients = rank, startup.routes, links, startup.gradients
        self.device = torch.device("cuda", rank) if startup.device == "cuda" else torch.device("cpu")
        self.weights = {key: [p.detach() for p in stage.parameters()] for key, stage in startup.stages.items()}
        self.stages = {key: stage.to(self.device) for key, stage in startup.stages.items()}

    def run(self, order: PipelineOrder) -> DeviceReport:
        """Run an order; gradients are then in shared memory."""
        self._refresh()
        self.order, self.done, most = order, DeviceReport([], 0, {}), 0
        self.held: dict[tuple[int, int, int], Held] = {}  # by chain, stage and micro-batch
        self.local: dict[PipelineTask, Tensor] = {}  # for tasks of this device
        self._expect()
        with torch.set_grad_enabled(order.training):
            for task in order.tasks[self.rank]:
                given = self._input(task)
                began = time.monotonic()
                computed = self._compute(task, given)
                if self.device.type == "cuda":
                    torch.cuda.synchronize(self.device)
                time.sleep(max(0.0, began + order.least_s.get(task[:3], 0.0) - time.monotonic()))
                self.done.passes.append(TimedPass(task, began, time.monotonic()))
                self._pass_on(task, computed)
                most = max(most, len(self.held))
        self.links.flush()
        if order.training:
            self._publish()
        return self.done._replace(in_flight=most)

    def _compute(self, task: PipelineTask, given: Tensor | None) -> Tensor | None:
        """Run a task on what another stage has computed for it; return what the next one needs."""
        key = (task.chain, task.stage, task.micro_batch)
        stage = self.stages[task.chain, task.stage]
        if task.kind == FORWARD:
            assert given is not None
            x = given.requires_grad_() if self.order.training and task.stage else given
            output = self._ended(task, stage(x))
            if self.order.training:
                self.held[key] = Held(x, output)
            return None if output is None else output.detach()
        held = self.held.pop(key)
        if task.kind == BACKWARD:
            torch.autograd.backward(held.output, given)
            return held.x.grad
        if task.kind == INPUTS:
            self.held[key] = held._replace(gradient=given)
            return torch.autograd.grad(held.output, held.x, given, retain_graph=True)[0] if task.stage else None
        torch.autograd.backward(held.output, held.gradient, inputs=list(stage.parameters()))
        return None

    def _ended(self, task: PipelineTask, output: Tensor) -> Tensor:
        """Return the loss of the last stage's output, and keep what is to be reported; other outputs as they are."""
        if task.stage + 1 < len(self.routes[task.chain]):
            return output
        found = self.order.ends[task.chain](output, self.order.micro_batches[task.chain][task.micro_batch].to(self.device))
        loss, told = found if self.order.training else (output, found)
        self.done.reports[task.chain, task.micro_batch] = told
        return loss

    def _input(self, task: PipelineTask) -> Tensor | None:
        """Return what a task needs of another one: tokens, hidden states, or the gradient of its output."""
        stages = len(self.routes[task.chain])
        if task.kind == FORWARD and task.stage == 0:
            tokens: Tensor = self.order.micro_batches[task.chain][task.micro_batch].input_ids.to(self.device)
            return tokens
        if task.kind == WEIGHTS or (task.kind != FORWARD and task.stage == stages - 1):
            return None
        return self.local.pop(task) if task in self.local else self.links.receive(task)

    def _pass_on(self, task: PipelineTask, computed: Tensor | None) -> None:
        then = following(task, len(self.routes[task.chain]))
        if then is None:
            return
        assert computed is not None
        target = self.routes[then.chain][then.stage]
        if target == self.rank:
            self.local[then] = computed
        else:
            self.links.send(target, computed)

    def _expect(self) -> None:
        """Begin to receive what peers will send."""
        incoming: dict[int, list[tuple[PipelineTask, Tensor]]] = {}
        for (sender, receiver), tasks in messages(self.order.tasks, self.routes).items():
            if receiver == self.rank:
                incoming[sender] = [(task, self._buffer(task)) for task in tasks]
        self.links.expect(incoming)

    def _buffer(self, task: PipelineTask) -> Tensor:
        """Return an empty tensor for the hidden states of a micro-batch, or their gradient."""
        stage = self.stages[task.chain, task.stage]
        shape = self.order.micro_batches[task.chain][task.micro_batch].input_ids.shape
        weight = next(stage.parameters())
        config: Any = stage.backbone.config
        return torch.empty(*shape, config.hidden_size, dtype=weight.dtype, device=self.device)

    @torch.no_grad()
    def _refresh(self) -> None:
        """Take the trainer's weights to the GPU; on the CPU they are the same memory."""
        for key, stage in self.stages.items() if self.device.type == "cuda" else ():
            for parameter, weight in zip(stage.parameters(), self.weights[key], strict=True):
                parameter.copy_(weight)

    @torch.no_grad()
    def _publish(self) -> None:
        """Write the gradients to shared memory, and clear them."""
        for key, gradients in self.gradients.items():
            for parameter, gradient in zip(self.stages[key].parameters(), gradients, strict=True):
                if parameter.grad is None:
                    gradient.zero_()
                else:
                    gradient.copy_(parameter.grad)
                parameter.grad = None
