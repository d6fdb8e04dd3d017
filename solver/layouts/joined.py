"""Plans a step and its generation together: each takes what the other gives, until the period no longer changes.

Generation's objective may count the rest of the step, as a deadline, as a budget or as the time that cost is weighed against.
So the step is planned with generation plans for no rest, generation is planned again with the rest that the step plan leaves,
and the step again, at most ``ROUNDS`` times. Where generation counts its time alone, the rest changes nothing, and one round is
enough. The best plan is kept. Bounds of all rounds hold for it, because they hold for every generation plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from solver.layouts.generation import GenerationPlans, StepGeneration, generated_options
from solver.layouts.graph import Graph
from solver.layouts.options import CallCosts
from solver.layouts.plan import StepPlan
from solver.layouts.searched import Asked, searched
from solver.model.cluster import Cluster
from solver.model.objective import NonGenerationPhases, Objective

ROUNDS = 3
SETTLED = 1e-3  # relative change of the period at which no further round is made


def plan_with_generation(
    graph: Graph, cluster: Cluster, costs: CallCosts, generation: Mapping[str, StepGeneration], asked: Asked
) -> StepPlan:
    """Return the best step plan, with the generation plans of its generate calls.

    Args:
        generation: by the name of every generate call.

    Raises:
        PlanningError: no plan fits into memory, or nothing can generate.
    """
    phases, bound_s = NonGenerationPhases(), 0.0
    best: StepPlan | None = None
    for _ in range(ROUNDS):
        plans = {name: GenerationPlans(one, cluster.gpus_per_node, phases, asked.seed) for name, one in generation.items()}
        options = generated_options(graph, cluster, costs, plans)
        found = _with_plans(searched(options, asked), plans)
        settled = best is not None and abs(found.period_s - best.period_s) < SETTLED * best.period_s
        bound_s = max(bound_s, found.lower_bound_s)
        if best is None or found.period_s < best.period_s:
            best = found
        phases = found.phases()
        if settled or all(one.objective == Objective(time_weight=1.0) for one in generation.values()):
            break
    assert best is not None, "there is at least one round"
    return replace(best, lower_bound_s=min(bound_s, best.period_s))


def _with_plans(plan: StepPlan, plans: Mapping[str, GenerationPlans]) -> StepPlan:
    """Return the step plan with the generation plan of each generate call."""
    calls = []
    for call in plan.calls:
        planned = plans[call.name].of(call.layout) if call.name in plans else None
        made = call if planned is None else replace(call, generation=planned.plan, release_s=planned.release_s)
        calls.append(made)
    return replace(plan, calls=tuple(calls))
