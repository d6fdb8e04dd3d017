"""Plans the generation of an RLHF step: which replica (actor) generates which responses, with a lower bound.

OR-Tools chooses the plan: GLOP and SCIP choose which actors take which range of the sorted responses, and CP-SAT assigns single
responses if there are few. numpy computes the candidates' times and costs, and the lower bound. ``docs/planning.md`` has the
formulas.

The names of this package describe a problem, plan it and evaluate a plan. Everything else is imported from its module, such as
``solver.step.cut``. The package does not depend on rlhfless. Importing it loads only numpy; OR-Tools and pandas are
loaded by the functions that use them.
"""

from solver.generation.pareto_front import pareto_front
from solver.generation.plan_of import plan_of
from solver.generation.planner import plan
from solver.generation.random_split import random_split
from solver.lower_bound import bound
from solver.model.cluster import Cluster, GpuPool, MixedCluster
from solver.model.errors import PlanningError
from solver.model.latency import LatencyModel
from solver.model.objective import NonGenerationPhases, Objective
from solver.model.plan import Plan
from solver.model.problem import PlanningProblem
from solver.model.workload import Workload
from solver.timing.evaluate import evaluate

__all__ = [
    "Cluster",
    "GpuPool",
    "LatencyModel",
    "MixedCluster",
    "NonGenerationPhases",
    "Objective",
    "Plan",
    "PlanningError",
    "PlanningProblem",
    "Workload",
    "bound",
    "evaluate",
    "pareto_front",
    "plan",
    "plan_of",
    "random_split",
]


def __dir__() -> list[str]:
    return sorted(__all__)
