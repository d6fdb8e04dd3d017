"""Turns predicted response lengths into a generation plan with a lower bound.

A numpy search chooses the plan and proves the bound. For few actors of one GPU kind OR-Tools (CP-SAT) then improves both,
where time and a gap are left. OR-Tools (GLOP) also solves the linear programmes behind the bounds of several kinds and of
measured latency tables.

Knows nothing of rlhfless. Importing it loads numpy only; OR-Tools and pandas are loaded by the functions that use them.
"""

from solver.bounds.clairvoyant import ClairvoyantBound, clairvoyant_bound
from solver.bounds.clairvoyant_drafted import DraftedClairvoyantBound, drafted_clairvoyant_bound, replayed_clairvoyant_bound
from solver.lengths.forecast import LengthForecast
from solver.lengths.remaining import KnownLengths, RemainingLengths, SurvivalTable
from solver.lengths.survival import from_batch, from_samples, from_scenarios, known_lengths
from solver.model.acceptance import Acceptance
from solver.model.admission import Admission
from solver.model.cluster import Cluster, GpuPool, MixedCluster
from solver.model.drafting import Drafting
from solver.model.errors import PlanningError
from solver.model.iteration_table import IterationTable
from solver.model.latency import LatencyModel
from solver.model.objective import NonGenerationPhases, Objective
from solver.model.offers import Latencies, Offer, offers_of
from solver.model.plan import ActorPlan, HistoryEntry, Plan, Prefill, Reference
from solver.model.problem import PlanningProblem
from solver.model.runtime_rules import ActorView, Cut, Decision, Move, RuntimeRule, StepState, Trigger
from solver.model.workload import CutLengthsWarning, Workload
from solver.planning.pareto_front import Front, pareto_front
from solver.planning.plan_generation import plan_generation
from solver.planning.random_split import random_split
from solver.prefix_sharing.choose_prefixes import choose_prefixes, fixed_length_rule
from solver.prefix_sharing.costs_and_savings import PrefixChoice, PrefixCosts
from solver.prefix_sharing.deduplicate import Deduplication, deduplicate
from solver.prefix_sharing.placement import Placement, place
from solver.prefix_sharing.prefix_tree import PrefixTree
from solver.replanning.replan import Replan, replan
from solver.stage_fusion.bound import StepBound, phase_bound_s, step_bound
from solver.stage_fusion.cut import CutCandidate, CutPlan, choose_cut
from solver.stage_fusion.follow import PhaseRow, PhaseSchedule, follow
from solver.stage_fusion.late_start import LateStart, latest_start
from solver.stage_fusion.learner import LearnerCandidate, LearnerPlan, choose_learner
from solver.stage_fusion.learner_charges import LearnerCharges
from solver.stage_fusion.token_work import TokenWork
from solver.stage_fusion.whole_step_bound import WholeStepBound, whole_step_bound
from solver.stage_fusion.work import PhaseWork
from solver.timing.draft_length import DraftLength, best_length, length_table
from solver.timing.drafted_latency import drafted
from solver.timing.evaluate import Evaluation, evaluate
from solver.timing.even_lengths import even_lengths
from solver.timing.work_schedule import WorkInterval, WorkItems, WorkSchedule, schedule_work

__all__ = [
    "Acceptance",
    "ActorPlan",
    "ActorView",
    "Admission",
    "ClairvoyantBound",
    "Cluster",
    "Cut",
    "CutCandidate",
    "CutLengthsWarning",
    "CutPlan",
    "Decision",
    "Deduplication",
    "DraftLength",
    "DraftedClairvoyantBound",
    "Drafting",
    "Evaluation",
    "Front",
    "GpuPool",
    "HistoryEntry",
    "IterationTable",
    "KnownLengths",
    "LateStart",
    "Latencies",
    "LatencyModel",
    "LearnerCandidate",
    "LearnerCharges",
    "LearnerPlan",
    "LengthForecast",
    "MixedCluster",
    "Move",
    "NonGenerationPhases",
    "Objective",
    "Offer",
    "PhaseRow",
    "PhaseSchedule",
    "PhaseWork",
    "Placement",
    "Plan",
    "PlanningError",
    "PlanningProblem",
    "Prefill",
    "PrefixChoice",
    "PrefixCosts",
    "PrefixTree",
    "Reference",
    "RemainingLengths",
    "Replan",
    "RuntimeRule",
    "StepBound",
    "StepState",
    "SurvivalTable",
    "TokenWork",
    "Trigger",
    "WholeStepBound",
    "WorkInterval",
    "WorkItems",
    "WorkSchedule",
    "Workload",
    "best_length",
    "choose_cut",
    "choose_learner",
    "choose_prefixes",
    "clairvoyant_bound",
    "deduplicate",
    "drafted",
    "drafted_clairvoyant_bound",
    "evaluate",
    "even_lengths",
    "fixed_length_rule",
    "follow",
    "from_batch",
    "from_samples",
    "from_scenarios",
    "known_lengths",
    "latest_start",
    "length_table",
    "offers_of",
    "pareto_front",
    "phase_bound_s",
    "place",
    "plan_generation",
    "random_split",
    "replan",
    "replayed_clairvoyant_bound",
    "schedule_work",
    "step_bound",
    "whole_step_bound",
]


def __dir__() -> list[str]:
    return sorted(__all__)
