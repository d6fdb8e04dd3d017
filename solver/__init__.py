"""The solver: predicted response lengths in, a generation plan with a bound out.

A numpy search chooses the plan and proves the bound. For one kind OR-Tools then tries to improve both where time and a gap
are left (CP-SAT). It also solves the linear programmes behind the bounds of several kinds and of measured latency tables
(GLOP).

Knows nothing of rlhfless. Importing it loads numpy only; OR-Tools and pandas are loaded by the functions that use them.
"""

from solver.admission import Admission
from solver.clairvoyant import ClairvoyantBound, clairvoyant_bound
from solver.clairvoyant_mixed import MixedClairvoyantBound, mixed_clairvoyant_bound
from solver.cluster import Cluster, MixedCluster, Pool
from solver.errors import PlanningError
from solver.evaluate import Evaluation, evaluate
from solver.fleet import Fleet
from solver.front import Front, pareto_front
from solver.latency import LatencyModel, StepTable
from solver.objective import Objective, StepRest
from solver.offers import Latencies, Offer, offers_of
from solver.plan import ActorPlan, Improvement, Plan, Prefill, Reference
from solver.planner import plan_generation
from solver.prefill.dedup import Deduplication, deduplicate
from solver.prefill.placed import Placement
from solver.prefill.placement import place
from solver.prefill.prefix import PrefixChoice, PrefixCosts, PrefixTree, choose_prefixes, fixed_length_rule
from solver.reference import random_split
from solver.remaining import KnownLengths, RemainingLengths, SurvivalTable
from solver.replan import Replan, replan
from solver.rules import ActorView, Cut, Decision, Move, RuntimeRule, StepState, Trigger
from solver.scenarios import scenarios_from_quantiles
from solver.survival import from_batch, from_samples, from_scenarios, known_lengths
from solver.workload import Workload

__all__ = [
    "ActorPlan",
    "ActorView",
    "Admission",
    "ClairvoyantBound",
    "Cluster",
    "Cut",
    "Decision",
    "Deduplication",
    "Evaluation",
    "Fleet",
    "Front",
    "Improvement",
    "KnownLengths",
    "Latencies",
    "LatencyModel",
    "MixedClairvoyantBound",
    "MixedCluster",
    "Move",
    "Objective",
    "Offer",
    "Placement",
    "Plan",
    "PlanningError",
    "Pool",
    "Prefill",
    "PrefixChoice",
    "PrefixCosts",
    "PrefixTree",
    "Reference",
    "RemainingLengths",
    "Replan",
    "RuntimeRule",
    "StepRest",
    "StepState",
    "StepTable",
    "SurvivalTable",
    "Trigger",
    "Workload",
    "choose_prefixes",
    "clairvoyant_bound",
    "deduplicate",
    "evaluate",
    "fixed_length_rule",
    "from_batch",
    "from_samples",
    "from_scenarios",
    "known_lengths",
    "mixed_clairvoyant_bound",
    "offers_of",
    "pareto_front",
    "place",
    "plan_generation",
    "random_split",
    "replan",
    "scenarios_from_quantiles",
]
