"""Plans whole training steps: ``plan_step`` chooses layouts and order of a step's model calls, with a proven bound."""

from __future__ import annotations

import math

import numpy as np

from solver.dataflow.assemble import step_plan
from solver.dataflow.graph import Graph
from solver.dataflow.options import CallCosts, CallOptions
from solver.dataflow.plan import StepPlan
from solver.dataflow.search import Search
from solver.model.cluster import Cluster
from solver.model.errors import PlanningError, as_given, check_real, is_number, is_whole

FIRST_GAP = 0.2  # that is proven before plans are improved
GAPS = (0.1, 0.05, 0.02)  # that are proven before the one that is asked for
BOUNDED_PER_EVALUATED = 100  # a plan's times take as long as so many bounds


def plan_step(
    graph: Graph,
    cluster: Cluster,
    costs: CallCosts,
    *,
    memory_bytes: float = math.inf,
    gap: float = 0.01,
    work: int = 20_000_000,
    seed: int = 0,
) -> StepPlan:
    """Return the layouts of a step's calls, and their order, with the shortest period that was found.

    ReaL (arXiv:2406.14088) gives every call a mesh of GPUs and a parallel strategy, and searches by Markov chains. Here the
    search is exact: descents find a plan, and branch and bound proves how much shorter a period could be.

    Args:
        graph: for example ``ppo()``. cluster: of one kind of GPUs; nodes of 1, 2, 4 or 8.
        costs: seconds and bytes of calls in layouts, and of sending weights between layouts.
        memory_bytes: of a GPU. gap: share of the period at which the search ends. work: partial plans that are bounded at most.
        seed: of the descents; the same seed and work give the same plan.

    Raises:
        PlanningError: an argument makes no sense, or no plan fits into memory.

    Example:
        >>> from solver import Cluster
        >>> from solver.dataflow import CallMemory, dpo, plan_step
        >>> class Costs:
        ...     def seconds(self, call, layout):
        ...         return (3.0 if call.kind == "train" else 1.0) / layout.mesh.gpus
        ...     def memory(self, call, layout):
        ...         return CallMemory(kept=0.0, working=0.0)
        ...     def reallocate(self, role, source, destination):
        ...         return 0.0, 0.0
        >>> plan = plan_step(dpo(), Cluster(1, 4, 1), Costs())
        >>> plan.period_s, plan.status
        (1.0, 'optimal')
    """
    check_problem(graph, cluster, memory_bytes)
    if not is_number(gap, 0) or gap >= 1:
        raise PlanningError(f"gap is {as_given(gap)}; a share of 0 or more and below 1 is needed")
    if not is_whole(work, 1):
        raise PlanningError(f"work is {as_given(work)}; a whole number of 1 or more is needed")
    options = CallOptions.of(graph, cluster.nodes * cluster.gpus_per_node, cluster.gpus_per_node, costs)
    search = Search(options, memory_bytes, seed)
    search.start(work // BOUNDED_PER_EVALUATED)
    ended = search.prove(max(FIRST_GAP, gap), work)  # finds a first plan, if descents did not
    search.improve(work // BOUNDED_PER_EVALUATED)
    ended = ended and all(search.prove(one, work) for one in (*(g for g in GAPS if g > gap), gap))
    found = search.found
    if found.plan is None:
        raise PlanningError(_nothing_fits(options, memory_bytes, ended))
    return step_plan(
        options, found.plan, status="optimal" if ended else "stopped", lower_bound_s=found.bound_s, history=tuple(found.history)
    )


def check_problem(graph: Graph, cluster: Cluster, memory_bytes: float) -> None:
    """Refuse what is no graph, no cluster, or no number of bytes.

    Raises:
        PlanningError: the sentence says which, and what is needed.
    """
    if not isinstance(graph, Graph):
        raise PlanningError(f"graph is {as_given(graph)}; a Graph, such as ppo(), is needed")
    if not isinstance(cluster, Cluster):
        raise PlanningError(f"cluster is {as_given(cluster)}; a Cluster is needed")
    check_real("memory_bytes", memory_bytes)
    if not memory_bytes > 0:
        raise PlanningError(f"memory_bytes is {as_given(memory_bytes)}; more than 0 is needed")


def _nothing_fits(options: CallOptions, memory_bytes: float, ended: bool) -> str:
    """Return the sentence for a search without a plan: it names the call that needs most bytes at least."""
    if not ended:
        return f"no plan that fits into {memory_bytes:.4g} bytes per GPU was found within the work; allow more work"
    least = [float((table[:, 0] + table[:, 1]).min()) for table in options.memory]
    most = int(np.argmax(least))
    return (
        f"no plan fits into {memory_bytes:.4g} bytes per GPU on {options.gpus} GPUs; call {options.graph.calls[most].name!r} "
        f"alone needs {least[most]:.4g} at least; give more memory or GPUs"
    )
