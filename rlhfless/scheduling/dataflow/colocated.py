"""Plans a step as verl maps models to GPUs: models in co-located sets, each set with GPUs of its own.

HybridFlow (arXiv:2409.19256), algorithm 1, tries all partitions of the models into sets, and all numbers of GPUs per set. Calls
of a set share its GPUs, one after the other, each with the parallel strategy that is fastest for it. The published system
estimates a step's seconds by stages; here all plans are judged by the times of following steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

import numpy as np

from rlhfless.scheduling.dataflow.judge import judged, judged_options
from solver.layouts import CallCosts, Graph, Mesh, StepPlan, meshes
from solver.layouts.costs import CallOptions, IntArray
from solver.layouts.times import Order, periods_s
from solver.model.cluster import Cluster

AT_ONCE = 2048  # plans that are timed side by side


def colocated_plan(
    graph: Graph,
    cluster: Cluster,
    costs: CallCosts,
    *,
    memory_bytes: float = math.inf,
    order: Order = "fifo",
    lower_bound_s: float = 0.0,
) -> StepPlan:
    """Return the best step plan of co-located sets of models.

    Args:
        graph, cluster, costs, memory_bytes: see ``solver.plan_step``. order: in which ready calls start.
        lower_bound_s: on the period of every plan, for example that of ``plan_step``.

    Returns:
        The plan, with status ``given``. Where no partition fits into memory, each call has the layout that needs least, and the
        status is ``infeasible`` unless that fits.

    Raises:
        PlanningError: an argument makes no sense, or a call runs in no layout.

    Example:
        >>> from solver import Cluster
        >>> from solver.layouts import CallMemory, dpo
        >>> from rlhfless.scheduling.dataflow import colocated_plan
        >>> class Costs:
        ...     def seconds(self, call, layout):
        ...         return (3.0 if call.kind == "train" else 1.0) / layout.mesh.gpus
        ...     def memory(self, call, layout):
        ...         return CallMemory(kept=0.0, working=0.0)
        ...     def reallocate(self, role, source, destination):
        ...         return 0.0, 0.0
        >>> plan = colocated_plan(dpo(), Cluster(1, 4, 1), Costs())
        >>> [call.layout.mesh.gpus for call in plan.calls], plan.period_s
        ([4, 4], 1.0)
    """
    options = judged_options(graph, cluster, costs, memory_bytes, order, lower_bound_s)
    sets = _Sets(options, memory_bytes)
    found = (sets.plan(placed) for placed in placements(options))
    plans = np.array([plan for plan in found if plan is not None])
    if not len(plans):
        leanest = np.array([int(memory.sum(axis=1).argmin()) for memory in options.memory])
        return judged(options, leanest, memory_bytes, order, lower_bound_s)
    parts = [periods_s(options, plans[at : at + AT_ONCE], order) for at in range(0, len(plans), AT_ONCE)]
    period_s = np.concatenate(parts)
    best = int(period_s.argmin())
    history = ((len(plans), float(period_s[best])),)
    return judged(options, plans[best], memory_bytes, order, lower_bound_s, history)


def partitions(items: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], ...]]:
    """Yield all partitions of items into sets.

    Example:
        >>> from rlhfless.scheduling.dataflow.colocated import partitions
        >>> list(partitions(("a", "b")))
        [(('a', 'b'),), (('a',), ('b',))]
    """
    if not items:
        yield ()
        return
    first, rest = items[0], items[1:]
    for others in partitions(rest):
        for at, one in enumerate(others):
            yield (*others[:at], (first, *one), *others[at + 1 :])
        yield ((first,), *others)


def placements(options: CallOptions) -> Iterator[dict[tuple[str, ...], Mesh]]:
    """Yield the meshes of co-located roles, for all partitions of the roles and all numbers of GPUs per set.

    Meshes follow each other, the largest first, so that parts of a node are aligned.
    """
    roles = tuple(dict.fromkeys(call.role for call in options.graph.calls))
    every = meshes(options.gpus, options.gpus_per_node)
    sizes = sorted({mesh.gpus for mesh in every}, reverse=True)
    known = {(mesh.first, mesh.gpus): mesh for mesh in every}
    for sets in partitions(roles):
        for of_sets in _sizes(sizes, len(sets), options.gpus):
            found, first = {}, 0
            for at in sorted(range(len(sets)), key=lambda one: -of_sets[one]):
                mesh = known.get((first, of_sets[at]))
                if mesh is None:
                    break
                found[sets[at]] = mesh
                first = mesh.last
            if len(found) == len(sets):
                yield found


def _sizes(sizes: list[int], sets: int, gpus: int) -> Iterator[tuple[int, ...]]:
    """Yield all numbers of GPUs per set that are together at most ``gpus``."""
    if not sets:
        yield ()
        return
    for size in sizes:
        if size <= gpus:
            for rest in _sizes(sizes, sets - 1, gpus - size):
                yield (size, *rest)


class _Sets:
    """The best strategies of the calls of roles that share a mesh; sets do not share GPUs, so each is planned alone."""

    def __init__(self, options: CallOptions, memory_bytes: float) -> None:
        self.options, self.memory_bytes = options, memory_bytes
        self.known: dict[tuple[tuple[str, ...], Mesh], dict[int, int] | None] = {}
        self.on_mesh = [
            {mesh: np.flatnonzero([layout.mesh == mesh for layout in of_call]) for mesh in {layout.mesh for layout in of_call}}
            for of_call in options.layouts
        ]

    def plan(self, placed: dict[tuple[str, ...], Mesh]) -> IntArray | None:
        """Return (K,) options of all calls, or None where the calls of a set do not fit on their mesh."""
        plan = np.empty(len(self.options.layouts), np.int64)
        for roles, mesh in placed.items():
            if (roles, mesh) not in self.known:
                self.known[roles, mesh] = self._best(roles, mesh)
            chosen = self.known[roles, mesh]
            if chosen is None:
                return None
            plan[list(chosen)] = list(chosen.values())
        return plan

    def _best(self, roles: tuple[str, ...], mesh: Mesh) -> dict[int, int] | None:
        """Return the option of every call of the roles that takes least together, reallocations included, or None."""
        options, graph = self.options, self.options.graph
        calls = [at for at, call in enumerate(graph.calls) if call.role in roles]
        if any(mesh not in self.on_mesh[call] for call in calls):
            return None
        trains = [call for call in calls if graph.trained_by[call] == call]
        others = [call for call in calls if call not in trains]
        least_others_s = sum(float(options.seconds[call][self.on_mesh[call][mesh]].min()) for call in others)
        combinations = list(product(*(self.on_mesh[train][mesh].tolist() for train in trains)))
        trained_s = [sum(float(options.seconds[t][o]) for t, o in zip(trains, one, strict=True)) for one in combinations]
        best, best_s = None, math.inf
        for at in np.argsort(trained_s, kind="stable").tolist():
            if trained_s[at] + least_others_s >= best_s:
                break
            trained = dict(zip(trains, combinations[at], strict=True))
            room = self.memory_bytes - sum(float(options.memory[train][option, 0]) for train, option in trained.items())
            if any(options.memory[train][option, 1:].sum() > room for train, option in trained.items()):
                continue
            chosen, total_s = dict(trained), trained_s[at]
            for call in others:
                option, seconds = self._fastest(call, mesh, trained, room)
                chosen[call], total_s = option, total_s + seconds
            if total_s < best_s:
                best, best_s = chosen, total_s
        return best

    def _fastest(self, call: int, mesh: Mesh, trained: dict[int, int], room: float) -> tuple[int, float]:
        """Return the option that takes least and fits into ``room``, with its seconds: infinite where none fits."""
        options, train = self.options, self.options.graph.trained_by[call]
        of_mesh = self.on_mesh[call][mesh]
        seconds, needs = options.seconds[call][of_mesh], options.memory[call][of_mesh, 1]
        if train is None:
            needs = needs + options.memory[call][of_mesh, 2]
        else:
            with_option = np.full(len(of_mesh), trained[train])
            seconds = seconds + options.reallocation_s(call, with_option, of_mesh)
            needs = needs + options.copies(call, of_mesh, with_option)
        seconds = np.where(needs <= room, seconds, math.inf)
        best = int(seconds.argmin())
        return int(of_mesh[best]), float(seconds[best])
