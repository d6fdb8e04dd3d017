"""Plans whole training steps: ``plan_step`` chooses layouts and order of a step's model calls, with a proven bound."""

from __future__ import annotations

import math
from collections.abc import Mapping

from solver.layouts.generation import StepGeneration, by_call
from solver.layouts.graph import Graph
from solver.layouts.joined import plan_with_generation
from solver.layouts.options import CallCosts, CallOptions
from solver.layouts.plan import StepPlan
from solver.layouts.searched import MOST_GPUS, WORK, Asked, searched
from solver.model.cluster import Cluster
from solver.model.errors import PlanningError, as_given, check_real, is_number, is_whole


def plan_step(
    graph: Graph,
    cluster: Cluster,
    costs: CallCosts,
    *,
    memory_bytes: float = math.inf,
    gap: float = 0.01,
    work: int = WORK,
    seed: int = 0,
    generation: StepGeneration | Mapping[str, StepGeneration] | None = None,
) -> StepPlan:
    """Return the plan with the shortest time per step that was found: the layout of every model call, and their order.

    ReaL (arXiv:2406.14088) gives every call a mesh of GPUs and a parallel strategy, and searches with Markov chains. Here local
    search finds a plan, and branch and bound proves how much shorter the time per step could be.

    This function places the model calls of steps that follow each other. To also choose the number of replicas and move
    responses between them, use ``rlhfless.run.Run.plan_step``, which needs a log to predict lengths from.

    Args:
        graph: for example ``ppo()``. cluster: of one kind of GPUs; nodes of 1, 2, 4 or 8; at most 256 GPUs.
        costs: seconds and bytes of calls in layouts, and of sending weights between layouts. Costs that hold for some clusters
            only have a method ``check_cluster(cluster)``, which refuses others.
        memory_bytes: memory of a GPU.
        gap: the search stops when this relative gap is proven, after a little more work for a tenth of it.
        work: limit on the number of partial plans that are bounded.
        seed: seed of the local search; the same seed and work give the same plan.
        generation: responses of the generate call, or a mapping of its name to them. The seconds of generation are then those
            of generation plans, and GPUs of an actor that is done can run calls that do not wait for all responses. None: the
            seconds come from ``costs``.

    Raises:
        PlanningError: an argument makes no sense, or no plan fits into memory.

    Example:
        >>> from solver import Cluster
        >>> from solver.layouts import CallMemory, dpo, plan_step
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
    check_problem(graph, cluster, costs, memory_bytes)
    if not is_number(gap, 0) or gap >= 1:
        raise PlanningError(f"gap is {as_given(gap)}; a share of 0 or more and below 1 is needed")
    if not is_whole(work, 1):
        raise PlanningError(f"work is {as_given(work)}; a whole number of 1 or more is needed")
    if not is_whole(seed, 0):
        raise PlanningError(f"seed is {as_given(seed)}; a whole number of 0 or more is needed")
    asked = Asked(memory_bytes, gap, work, seed)
    if generation is not None:
        return plan_with_generation(graph, cluster, costs, by_call(graph, generation), asked)
    return searched(CallOptions.of(graph, cluster.gpus, cluster.gpus_per_node, costs), asked)


def problem_options(graph: Graph, cluster: Cluster, costs: CallCosts, memory_bytes: float) -> CallOptions:
    """Return the options of every call, for those who choose among them otherwise than ``plan_step``.

    Raises:
        PlanningError: an argument makes no sense, or a call runs in no layout.
    """
    check_problem(graph, cluster, costs, memory_bytes)
    return CallOptions.of(graph, cluster.gpus, cluster.gpus_per_node, costs)


def check_problem(graph: Graph, cluster: Cluster, costs: CallCosts, memory_bytes: float) -> None:
    """Refuse what is no graph, no cluster, no costs, or no number of bytes, and costs of another cluster.

    Raises:
        PlanningError: the sentence says which, and what is needed.
    """
    if not isinstance(graph, Graph):
        raise PlanningError(f"graph is {as_given(graph)}; a Graph, such as ppo(), is needed")
    if not isinstance(cluster, Cluster):
        raise PlanningError(f"cluster is {as_given(cluster)}; a Cluster is needed")
    if cluster.gpus > MOST_GPUS:
        raise PlanningError(f"the cluster has {cluster.gpus:,} GPUs; steps are planned on {MOST_GPUS} at most")
    check_real("memory_bytes", memory_bytes)
    if not memory_bytes > 0:
        raise PlanningError(f"memory_bytes is {as_given(memory_bytes)}; more than 0 is needed")
    if missing := [name for name in ("seconds", "memory", "reallocate") if not callable(getattr(costs, name, None))]:
        raise PlanningError(f"costs are {as_given(costs)} without the method {missing[0]}; the methods of CallCosts are needed")
    if callable(check := getattr(costs, "check_cluster", None)):
        check(cluster)
