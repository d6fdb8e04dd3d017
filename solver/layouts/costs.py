"""What each model call takes in each layout: seconds, bytes and GPU-seconds, as arrays.

``CallCosts`` is what a user gives. ``CallOptions`` has the layouts in which each call of a graph can run, with their costs. A
plan is one option (layout) per call, as (K,) indices; functions take (P, K) of them at once.

A task is a call, or a reallocation: weights of a trained role are sent from its training's layout to that of another call. The
reallocation follows the training of the step before, precedes the call, and occupies both meshes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from solver.layouts.graph import Call, Graph
from solver.layouts.layout import Layout, meshes, strategies
from solver.model.errors import PlanningError, as_given, is_number
from solver.model.plurals import counted

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class CallMemory(NamedTuple):
    """Bytes of a call per GPU.

    Attributes:
        kept: bytes that stay between calls (for training: weights, gradients and optimizer state).
        working: additional bytes while it runs.
        copy: bytes of its own copy of the weights while it runs, which a call of a trained role needs unless it has the layout
            of the training.
    """

    kept: float
    working: float
    copy: float = 0.0


class ReleasedEarly(NamedTuple):
    """When each of the n layouts of a generate call releases its GPUs, where that may be before the call ends.

    Attributes:
        release_s: (n, N) seconds from the start of the call until each GPU of the cluster is released.
        least_s, least_gpu_s: (n,) lower bounds on the seconds and the GPU-seconds of any generation plan on this mesh.
    """

    release_s: FloatArray
    least_s: FloatArray
    least_gpu_s: FloatArray


class CallCosts(Protocol):
    """Interface of the costs: seconds and bytes of a call in a layout, and of sending weights between two layouts."""

    def seconds(self, call: Call, layout: Layout) -> float:
        """Return the seconds of the call; infinity if it cannot run in this layout."""
        ...

    def memory(self, call: Call, layout: Layout) -> CallMemory:
        """Return the bytes of the call on each of its GPUs."""
        ...

    def reallocate(self, role: str, source: Layout, destination: Layout) -> tuple[float, float]:
        """Return the seconds and bytes of sending a role's weights from one layout to another."""
        ...


@dataclass(frozen=True, eq=False)
class CallOptions:
    """All layouts that the calls of a step may have, and what they take.

    Attributes:
        graph: of K calls. gpus, gpus_per_node: of the cluster.
        layouts: for every call its n layouts. seconds: (n,) of each. memory: (n, 3) of each, see ``CallMemory``.
        costs: for reallocations, which are computed when they are first asked for.
        released_early: by call, where GPUs may be released before the call ends; others hold all their GPUs to their end.
        nowhere: by call, (n, 2) empty ranges behind the cluster in place of its layouts' GPUs; always_gpu_s: GPU-seconds of all
            plans that no task accounts for. Both are of ``bounding``.
    """

    graph: Graph
    gpus: int
    gpus_per_node: int
    layouts: tuple[tuple[Layout, ...], ...]
    seconds: tuple[FloatArray, ...]
    memory: tuple[FloatArray, ...]
    costs: CallCosts
    released_early: Mapping[int, ReleasedEarly] = field(default_factory=dict)
    nowhere: Mapping[int, IntArray] = field(default_factory=dict)
    always_gpu_s: float = 0.0

    @classmethod
    def of(cls, graph: Graph, gpus: int, gpus_per_node: int, costs: CallCosts) -> CallOptions:
        """Return every layout in which a call can run; parts of a weight stay within a node.

        Raises:
            PlanningError: the cluster has another number of GPUs, seconds or bytes are negative or no numbers, or a call runs
                in no layout.
        """
        every = [
            Layout(mesh, strategy)
            for mesh in meshes(gpus, gpus_per_node)
            for strategy in strategies(mesh.gpus, gpus // gpus_per_node)
            if strategy.tp <= gpus_per_node
        ]
        layouts, seconds, memory = [], [], []
        for call in graph.calls:
            took = [(layout, _seconds(call, layout, costs)) for layout in every]
            runs = [(layout, taken) for layout, taken in took if taken < math.inf]
            if not runs:
                raise PlanningError(f"call {call.name!r} runs in no layout on {gpus} GPUs; give costs of at least one")
            layouts.append(tuple(layout for layout, _ in runs))
            seconds.append(np.array([taken for _, taken in runs]))
            memory.append(np.array([_memory(call, layout, costs) for layout, _ in runs]))
        return cls(graph, gpus, gpus_per_node, tuple(layouts), tuple(seconds), tuple(memory), costs)

    @cached_property
    def reallocated(self) -> tuple[int, ...]:
        """Calls of trained roles other than their trainings: task K + r is the reallocation for the r-th of them."""
        return tuple(c for c, train in enumerate(self.graph.trained_by) if train is not None and train != c)

    @cached_property
    def _trainings(self) -> list[int]:
        """For each reallocation, the training that its weights come from."""
        return [self.graph.training_of(call) for call in self.reallocated]

    @cached_property
    def tasks(self) -> int:
        """Number T of tasks: calls, then reallocations."""
        return len(self.graph.calls) + len(self.reallocated)

    @cached_property
    def task_graph(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Dependencies of every task: in its own step, in the step before, and two steps back.

        A task that waits for nothing (the reference pass of DPO) could run ahead without end. It waits for the trainings of the
        step before the last, so two steps are under way at most.
        """
        calls, graph = len(self.graph.calls), self.graph
        same = [list(after) for after in graph.after] + [[] for _ in self.reallocated]
        before: list[list[int]] = [[] if train is None else [train] for train in graph.trained_by]
        before += [[] for _ in self.reallocated]
        for number, call in enumerate(self.reallocated):
            same[call].append(calls + number)
            before[calls + number].append(graph.training_of(call))
        trainings = tuple(sorted({train for train in graph.trained_by if train is not None}))
        early = [() if s or b else trainings for s, b in zip(same, before, strict=True)]
        return tuple(tuple(s) for s in same), tuple(tuple(b) for b in before), tuple(early)

    @cached_property
    def spans(self) -> tuple[IntArray, ...]:
        """For every call the (n, 2) first GPU and GPU after the last of its layouts."""
        own = [np.array([(one.mesh.first, one.mesh.last) for one in of_call]) for of_call in self.layouts]
        return tuple(self.nowhere.get(call, spans) for call, spans in enumerate(own))

    @cached_property
    def _reallocations(self) -> dict[int, FloatArray]:
        """For calls of trained roles the (options of the training, options of the call) seconds, NaN where not asked for."""
        return {
            call: np.full((len(self.layouts[train]), len(self.layouts[call])), np.nan)
            for call, train in zip(self.reallocated, self._trainings, strict=True)
        }

    def reallocation_s(self, call: int, trained: IntArray, option: IntArray) -> FloatArray:
        """Return (P,) seconds of sending weights from option ``trained`` of the role's training to ``option`` of the call."""
        train, known = self.graph.training_of(call), self._reallocations[call]
        found = known[trained, option]
        asked = np.flatnonzero(np.isnan(found))
        if len(asked):
            role = self.graph.calls[call].role
            for one, other in set(zip(trained[asked].tolist(), option[asked].tolist(), strict=True)):
                known[one, other] = _sent_s(role, self.layouts[train][one], self.layouts[call][other], self.costs)
            found = known[trained, option]
        return np.asarray(found)

    def durations(self, plans: IntArray) -> FloatArray:
        """Return (P, T) seconds of every task."""
        of_calls = [seconds[plans[:, call]] for call, seconds in enumerate(self.seconds)]
        pairs = zip(self.reallocated, self._trainings, strict=True)
        moved = [self.reallocation_s(call, plans[:, train], plans[:, call]) for call, train in pairs]
        return np.stack([*of_calls, *moved], axis=1)

    def blocks(self, plans: IntArray) -> NDArray[np.bool_]:
        """Return (P, T, N) whether a task occupies a GPU."""
        span = self.spans_of(plans)[:, :, :, None]
        gpu = np.arange(self.gpus)
        of_calls = (gpu >= span[:, :, 0]) & (gpu < span[:, :, 1])
        moved = of_calls[:, list(self.reallocated)] | of_calls[:, self._trainings]
        return np.asarray(np.concatenate([of_calls, moved], axis=1))

    def spans_of(self, plans: IntArray) -> IntArray:
        """Return (P, K, 2) the first GPU of each call and the GPU after its last."""
        return np.stack([span[plans[:, call]] for call, span in enumerate(self.spans)], axis=1)

    def meeting(self, spans: IntArray) -> tuple[NDArray[np.bool_], IntArray]:
        """Return (P, T, T) whether two tasks share a GPU, and (P, T) their numbers of GPUs.

        Args:
            spans: (P, K, 2) as of ``spans_of``; (0, 0) for a call without GPUs.
        """
        first, last = spans[:, :, 0], spans[:, :, 1]
        calls = (first[:, :, None] < last[:, None, :]) & (first[:, None, :] < last[:, :, None])
        of_call, of_train = list(self.reallocated), self._trainings
        moved = calls[:, of_call] | calls[:, of_train]  # (P, R, K)
        both = moved[:, :, of_call] | moved[:, :, of_train]
        meet = np.concatenate(
            [np.concatenate([calls, moved], axis=1), np.concatenate([moved.transpose(0, 2, 1), both], axis=1)], axis=2
        )
        common = np.minimum(last[:, of_call], last[:, of_train]) - np.maximum(first[:, of_call], first[:, of_train])
        gpus = last - first
        return meet, np.concatenate([gpus, gpus[:, of_call] + gpus[:, of_train] - np.maximum(common, 0)], axis=1)

    def gpu_s(self, plans: IntArray) -> FloatArray:
        """Return (P,) GPU-seconds for which calls and reallocations of a step hold their GPUs."""
        held = self.durations(plans) * self.meeting(self.spans_of(plans))[1]
        for call, released in self.released_early.items():
            held[:, call] = released.release_s[plans[:, call]].sum(axis=1)
        return np.asarray(held.sum(axis=1))

    def copies(self, call: int, option: IntArray, trained: IntArray) -> FloatArray:
        """Return (P,) bytes of a copy of the weights that options of a call need beside options of its role's training."""
        same = self._layout_numbers[call][option] == self._layout_numbers[self.graph.training_of(call)][trained]
        return np.where(same, 0.0, self.memory[call][option, 2])

    def holds_s(self, plans: IntArray, seconds: FloatArray) -> FloatArray:
        """Return (P, T, T) seconds from the start of a task until it needs no GPU of another; minus infinity without any.

        A task of no seconds, such as a reallocation where nothing is missing, needs no GPU.

        Args:
            seconds: (P, T) of the tasks.
        """
        holds = np.where(self.meeting(self.spans_of(plans))[0], seconds[:, :, None], 0.0)
        for call, released in self.released_early.items():
            holds[:, call] = np.where(self.blocks(plans), released.release_s[plans[:, call]][:, None, :], 0.0).max(axis=2)
        return np.where((holds > 0) & (seconds > 0)[:, None, :], holds, -math.inf)

    @cached_property
    def bounding(self) -> CallOptions:
        """Return options by which plans are bounded: these, or relaxed ones where calls release GPUs early.

        A relaxed call takes ``least_s`` on no GPU, so only the graph keeps it apart from others. The least of its
        ``least_gpu_s`` is in ``always_gpu_s``. Its reallocation has the GPUs of the training alone.
        """
        if not self.released_early:
            return self
        seconds = list(self.seconds)
        nowhere: dict[int, IntArray] = {}
        for call, released in self.released_early.items():
            seconds[call] = released.least_s
            mesh_number = np.unique(self.spans[call], axis=0, return_inverse=True)[1].reshape(-1)
            nowhere[call] = np.stack([self.gpus + mesh_number] * 2, axis=1)  # meshes stay apart from each other
        always = sum(float(released.least_gpu_s.min()) for released in self.released_early.values())
        return replace(self, seconds=tuple(seconds), released_early={}, nowhere=nowhere, always_gpu_s=always)

    def peak_bytes(self, plans: IntArray) -> FloatArray:
        """Return (P, N) bytes that each GPU needs: what trainings keep, and the most that any call on it works with."""
        occupied = self.blocks(plans)
        kept = np.zeros((len(plans), self.gpus))
        working = np.zeros_like(kept)
        for call, table in enumerate(self.memory):
            keeps, works, copy = table[plans[:, call]].T
            train = self.graph.trained_by[call]
            if train is not None:
                copy = self.copies(call, plans[:, call], plans[:, train])
            kept += occupied[:, call] * keeps[:, None]
            np.maximum(working, occupied[:, call] * (works + copy)[:, None], out=working)
        return kept + working

    @cached_property
    def _layout_numbers(self) -> tuple[IntArray, ...]:
        """For every call the (n,) numbers of its layouts, which are equal where layouts of two calls are."""
        numbers: dict[Layout, int] = {}
        return tuple(np.array([numbers.setdefault(one, len(numbers)) for one in of_call]) for of_call in self.layouts)


def _seconds(call: Call, layout: Layout, costs: CallCosts) -> float:
    seconds = costs.seconds(call, layout)
    if not (seconds == math.inf or is_number(seconds, 0)):
        raise PlanningError(
            f"seconds of call {call.name!r} on {_named(layout)} are {as_given(seconds)}; a number of 0 or more, or infinity, "
            "is needed"
        )
    return float(seconds)


def _sent_s(role: str, source: Layout, destination: Layout, costs: CallCosts) -> float:
    sent = costs.reallocate(role, source, destination)
    if not (isinstance(sent, tuple) and len(sent) == 2 and all(is_number(part, 0) for part in sent)):
        raise PlanningError(
            f"sending the weights of {role!r} from {_named(source)} to {_named(destination)} is {as_given(sent)}; seconds and "
            "bytes, two numbers of 0 or more, are needed"
        )
    return float(sent[0])


def _memory(call: Call, layout: Layout, costs: CallCosts) -> CallMemory:
    memory = CallMemory(*costs.memory(call, layout))
    if not all(is_number(part, 0) for part in memory):
        raise PlanningError(
            f"bytes of call {call.name!r} on {_named(layout)} are {as_given(tuple(memory))}; numbers of 0 or more are needed"
        )
    return memory


def _named(layout: Layout) -> str:
    return f"{counted(layout.mesh.gpus, 'GPU')} as {layout.strategy}"
