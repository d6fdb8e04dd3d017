"""The solver: predicted response lengths in, a generation plan with a bound out.

Knows nothing of rlhfless. Importing it loads numpy only; OR-Tools and pandas are loaded by the functions that use them.
"""

from solver.admission import Admission
from solver.clairvoyant import ClairvoyantBound, clairvoyant_bound
from solver.cluster import Cluster
from solver.errors import PlanningError
from solver.evaluate import Evaluation, evaluate
from solver.front import Front, pareto_front
from solver.latency import LatencyModel, StepTable
from solver.objective import Objective, StepRest
from solver.plan import ActorPlan, Improvement, Plan, Reference
from solver.planner import plan_generation
from solver.reference import random_split
from solver.rules import ActorView, Cut, Decision, Move, RuntimeRule, StepState, Trigger
from solver.workload import Workload

__all__ = [
    "ActorPlan",
    "ActorView",
    "Admission",
    "ClairvoyantBound",
    "Cluster",
    "Cut",
    "Decision",
    "Evaluation",
    "Front",
    "Improvement",
    "LatencyModel",
    "Move",
    "Objective",
    "Plan",
    "PlanningError",
    "Reference",
    "RuntimeRule",
    "StepRest",
    "StepState",
    "StepTable",
    "Trigger",
    "Workload",
    "clairvoyant_bound",
    "evaluate",
    "pareto_front",
    "plan_generation",
    "random_split",
]
