"""Plans whole training steps: ``plan_step`` chooses layouts and order of a step's model calls, with a proven bound."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from solver.layouts.costs import CallCosts, CallOptions
from solver.layouts.generation import GenerationPlans, StepGeneration, by_call, generated_options, with_generation
from solver.layouts.graph import Call, Graph
from solver.layouts.layout import Layout, Mesh, strategies
from solver.layouts.plan import TIME_ONLY, StepPlan, step_plan
from solver.layouts.search import BOUNDED_PER_EVALUATED, Search, Value
from solver.layouts.times import ORDERS
from solver.model.cluster import Cluster
from solver.model.errors import PlanningError, as_given, check_real, is_number, is_whole, shown, shown_above
from solver.model.objective import Objective
from solver.model.plurals import counted

MOST_GPUS = 256  # layouts and their pairs grow with the square of the GPUs: 600, 2,400 and 9,700 per call on 64, 128 and 256
WORK = 20_000_000  # bounds; PPO on 128 A100 takes 18 million (3 CPU s) to prove 1 %, and up to 64 GPUs 0.03 to 1.3 million


def plan_step(
    graph: Graph,
    cluster: Cluster,
    costs: CallCosts,
    *,
    objective: Objective = TIME_ONLY,
    memory_bytes: float = math.inf,
    gap: float = 0.01,
    work: int = WORK,
    seed: int = 0,
    generation: StepGeneration | Mapping[str, StepGeneration] | None = None,
) -> StepPlan:
    """Return the best plan of a step that was found: the layout of every model call, and their order.

    ReaL (arXiv:2406.14088) gives every call a mesh of GPUs and a parallel strategy, and searches with Markov chains. Here local
    search finds a plan, and branch and bound proves how much better one could be. The default is the shortest time per step.

    This function places the model calls of steps that follow each other. To also choose the number of replicas and move
    responses between them, use ``rlhfless.run.Run.plan_step``, which needs a log to predict lengths from.

    Args:
        graph: for example ``ppo()``. cluster: of one kind of GPUs; nodes of 1, 2, 4 or 8; at most 256 GPUs.
        costs: seconds and bytes of calls in layouts, and of sending weights between layouts. Costs that hold for some clusters
            only have a method ``check_cluster(cluster)``, which refuses others.
        objective: a time weight, a deadline or a budget. Time is the period. Cost is that of the GPUs of calls and
            reallocations for their seconds, so GPUs that wait cost nothing. Where all GPUs are paid for throughout, the
            shortest step is the cheapest one. Values are relative to the shortest plan, so where cost counts there are two
            searches.
        memory_bytes: memory of a GPU.
        gap: a search stops when this relative gap is proven, after a little more work for a tenth of it.
        work: limit on the number of partial plans that are bounded, for each search.
        seed: seed of the local search; the same seed and work give the same plan.
        generation: responses of the generate call, or a mapping of its name to them. The seconds of generation are then those
            of generation plans, and GPUs of an actor that is done can run calls that do not wait for all responses. None: the
            seconds come from ``costs``.

    Raises:
        PlanningError: an argument makes no sense, no plan fits into memory, or none is within the deadline or the budget.

    Example:
        >>> from solver import Cluster, Objective
        >>> from solver.layouts import CallMemory, dpo, plan_step
        >>> class Costs:
        ...     def seconds(self, call, layout):
        ...         return (3.0 if call.kind == "train" else 1.0) / layout.mesh.gpus**0.5
        ...     def memory(self, call, layout):
        ...         return CallMemory(kept=0.0, working=0.0)
        ...     def reallocate(self, role, source, destination):
        ...         return 0.0, 0.0
        >>> plan = plan_step(dpo(), Cluster(1, 4, 1), Costs())
        >>> plan.period_s, plan.gpu_seconds, plan.status
        (2.0, 8.0, 'optimal')
        >>> cheap = plan_step(dpo(), Cluster(1, 4, 1), Costs(), objective=Objective(deadline_s=3.0))
        >>> cheap.period_s, cheap.gpu_seconds, cheap.status
        (3.0, 4.0, 'optimal')
    """
    _check(graph, cluster, costs, memory_bytes)
    if not isinstance(objective, Objective):
        raise PlanningError(f"objective is {as_given(objective)}; an Objective is needed")
    if not is_number(gap, 0) or gap >= 1:
        raise PlanningError(f"gap is {as_given(gap)}; a share of 0 or more and below 1 is needed")
    if not is_whole(work, 1):
        raise PlanningError(f"work is {as_given(work)}; a whole number of 1 or more is needed")
    if not is_whole(seed, 0):
        raise PlanningError(f"seed is {as_given(seed)}; a whole number of 0 or more is needed")
    if objective.cost == "usd" and not cluster.usd_per_gpu_hour:
        raise PlanningError("cost is counted in USD, but the cluster's usd_per_gpu_hour is 0; give its price")
    given = {} if generation is None else by_call(graph, generation)
    plans = {name: GenerationPlans(one, cluster.gpus_per_node, seed) for name, one in given.items()}
    if plans:
        options = generated_options(graph, cluster, costs, plans)
    else:
        options = CallOptions.of(graph, cluster.gpus, cluster.gpus_per_node, costs)

    def finished(plan: StepPlan) -> StepPlan:
        return replace(with_generation(plan, plans), objective=objective, usd_per_gpu_hour=cluster.usd_per_gpu_hour)

    search = Search(options, memory_bytes, seed=seed)
    ended, found = search.run([search.fastest], gap, work), search.found
    if found.plan is None:
        raise PlanningError(_nothing_fits(options, memory_bytes, ended))
    status, fastest = _status(search, ended, gap), found.plan
    made = step_plan(options, found.plan, status=status, order=found.order, lower_bound_s=found.bound)
    shortest = finished(replace(made, history=tuple(found.history)))
    reference = shortest.period_s, shortest.gpu_seconds
    weighed = Search(options, memory_bytes, Value(_in_gpu_seconds(objective, cluster), reference), seed)
    if not weighed.value.counts_cost:
        return shortest
    if not shortest.period_s:
        return replace(shortest, shortest=shortest)
    for order in ORDERS:
        weighed.take(fastest[None], order)
    ended, found = weighed.run([fastest, weighed.space.gpu_seconds.cheapest], gap, work), weighed.found
    if found.plan is None:
        raise PlanningError(_out_of_reach(weighed, shortest, ended, work))
    status, bound_s = _status(weighed, ended, gap), shortest.lower_bound_s
    plan = finished(step_plan(options, found.plan, status=status, order=found.order, lower_bound_s=bound_s))
    in_unit = cluster.usd_per_gpu_s if objective.deadline_s is not None and objective.cost == "usd" else 1.0
    return replace(plan, shortest=shortest, least_value=found.bound * in_unit)


def problem_options(graph: Graph, cluster: Cluster, costs: CallCosts, memory_bytes: float) -> CallOptions:
    """Return the options of every call, for those who choose among them otherwise than ``plan_step``.

    Raises:
        PlanningError: an argument makes no sense, or a call runs in no layout.
    """
    _check(graph, cluster, costs, memory_bytes)
    return CallOptions.of(graph, cluster.gpus, cluster.gpus_per_node, costs)


def _check(graph: Graph, cluster: Cluster, costs: CallCosts, memory_bytes: float) -> None:
    """Refuse what is no graph, no cluster, no costs, or no number of bytes, and costs of another cluster."""
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


def _status(search: Search, ended: bool, gap: float) -> str:
    return "optimal" if search.proven(gap) else "gap" if ended else "stopped"


def _in_gpu_seconds(objective: Objective, cluster: Cluster) -> Objective:
    """Return the objective with cost counted in GPU-seconds, which all have one price."""
    if objective.cost != "usd":
        return objective
    budget_gpu_s = None if objective.budget_usd is None else objective.budget_usd / cluster.usd_per_gpu_s
    return Objective(objective.time_weight, objective.deadline_s, budget_gpu_s)


def _out_of_reach(search: Search, shortest: StepPlan, ended: bool, work: int) -> str:
    """Return the sentence for a limit that no plan of the search keeps."""
    objective = shortest.objective
    name = next(name for name in ("deadline_s", "budget_gpu_s", "budget_usd") if getattr(objective, name) is not None)
    limit = f"{name} is {shown(getattr(objective, name))}"
    if not ended:
        return f"{limit}: no such plan was found within the work; allow more work or a larger limit"
    if objective.deadline_s is not None:
        return f"{limit}, but the shortest period that was found is {shown_above(shortest.period_s)} s; allow as much"
    cheapest = Search(search.options, search.limit_bytes, Value(Objective(time_weight=0.0)))
    cheapest.descend(search.space.gpu_seconds.cheapest, work // BOUNDED_PER_EVALUATED)
    price = shortest.usd_per_gpu_hour / 3600 if objective.cost == "usd" else 1.0
    least = min(shortest.cost, cheapest.found.value * price)
    return f"{limit}, but the cheapest plan that was found costs {shown_above(least)} {objective.cost_unit}; allow as much"


def _nothing_fits(options: CallOptions, memory_bytes: float, ended: bool) -> str:
    """Return the sentence for a search without a plan: the call that needs most bytes at least, and GPUs on which it fits."""
    where = f"{_shown_bytes(memory_bytes)} per GPU on {counted(options.gpus, 'GPU')}"
    if not ended:
        return f"no plan that fits into {where} was found within the work; allow more work"
    frozen = [options.graph.trained_by[call] is None for call in range(len(options.memory))]  # they hold a copy of their own
    needed = [
        table.sum(axis=1) if alone else table[:, :2].sum(axis=1) for table, alone in zip(options.memory, frozen, strict=True)
    ]
    least = [float(of_call.min()) for of_call in needed]
    most = int(np.argmax(least))
    call = options.graph.calls[most]
    if least[most] <= memory_bytes:
        return f"no plan fits into {where}, although every call alone does; give more memory or GPUs"
    enough = _gpus_that_fit(options, call, memory_bytes, frozen[most])
    fits = f"fits on {enough:,} GPUs" if enough else f"does not fit on {MOST_GPUS:,} either"
    return (
        f"no plan fits into {where}; call {call.name!r} alone needs {_shown_bytes(least[most])} at least, and {fits}; "
        "give more memory or GPUs"
    )


def _gpus_that_fit(options: CallOptions, call: Call, memory_bytes: float, frozen: bool) -> int:
    """Return a number of GPUs on which the call alone needs at most so many bytes; 0 where there is none."""
    node, gpus = options.gpus_per_node, options.gpus
    while (gpus := 2 * gpus) <= MOST_GPUS:
        cuts = [cut for cut in strategies(gpus, max(1, gpus // node)) if cut.tp <= node]
        for layout in (Layout(Mesh(0, gpus), cut) for cut in cuts):
            if options.costs.seconds(call, layout) < math.inf:
                memory = options.costs.memory(call, layout)
                if memory.kept + memory.working + (memory.copy if frozen else 0.0) <= memory_bytes:
                    return gpus
    return 0


def _shown_bytes(number: float) -> str:
    return f"{number / 1e9:,.4g} GB" if number >= 1e8 else f"{number:.4g} bytes"
