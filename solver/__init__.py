"""Turns predicted response lengths into a generation plan with a lower bound.

A numpy search chooses the plan and proves the bound. For few actors of one GPU kind OR-Tools (CP-SAT) then improves both,
where time and a gap are left. OR-Tools (GLOP) also solves the linear programmes behind the bounds of several kinds and of
measured latency tables.

Knows nothing of rlhfless. Importing it loads numpy only; OR-Tools and pandas are loaded by the functions that use them.
"""

from solver.bounds.clairvoyant import ClairvoyantBound, clairvoyant_bound
from solver.bounds.clairvoyant_drafted import drafted_clairvoyant_bound, replayed_clairvoyant_bound
from solver.lengths.forecast import LengthForecast
from solver.lengths.remaining import KnownLengths, RemainingLengths
from solver.lengths.survival import from_samples, from_scenarios, known_lengths
from solver.model.acceptance import Acceptance
from solver.model.admission import Admission
from solver.model.cluster import Cluster, GpuPool, MixedCluster
from solver.model.drafting import Drafting
from solver.model.errors import PlanningError
from solver.model.iteration_table import IterationTable
from solver.model.latency import LatencyModel
from solver.model.objective import NonGenerationPhases, Objective
from solver.model.plan import ActorPlan, Plan, Prefill, Reference
from solver.model.problem import PlanningProblem
from solver.model.runtime_rules import ActorView, Cut, Decision, Move, RuntimeRule, StepState, Trigger
from solver.model.workload import CutLengthsWarning, Workload
from solver.planning.pareto_front import Front, pareto_front
from solver.planning.plan_generation import plan_generation
from solver.planning.random_split import random_split
from solver.prefix_sharing.deduplicate import Deduplication, deduplicate
from solver.replanning.replan import Replan, replan
from solver.stage_fusion.bound import phase_bound_s, step_bound
from solver.stage_fusion.cut import CutCandidate, CutPlan, choose_cut
from solver.stage_fusion.follow import follow
from solver.stage_fusion.late_start import latest_start
from solver.stage_fusion.learner import choose_learner
from solver.stage_fusion.learner_charges import LearnerCharges
from solver.stage_fusion.token_work import TokenWork
from solver.stage_fusion.whole_step_bound import whole_step_bound
from solver.stage_fusion.work import PhaseWork
from solver.timing.draft_length import DraftLength, best_length, length_table
from solver.timing.drafted_latency import drafted
from solver.timing.evaluate import Evaluation, evaluate
from solver.timing.even_lengths import even_lengths
from solver.timing.work_schedule import WorkItems, WorkSchedule, schedule_work

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
    "Drafting",
    "Evaluation",
    "Front",
    "GpuPool",
    "IterationTable",
    "KnownLengths",
    "LatencyModel",
    "LearnerCharges",
    "LengthForecast",
    "MixedCluster",
    "Move",
    "NonGenerationPhases",
    "Objective",
    "PhaseWork",
    "Plan",
    "PlanningError",
    "PlanningProblem",
    "Prefill",
    "Reference",
    "RemainingLengths",
    "Replan",
    "RuntimeRule",
    "StepState",
    "TokenWork",
    "Trigger",
    "WorkItems",
    "WorkSchedule",
    "Workload",
    "best_length",
    "choose_cut",
    "choose_learner",
    "clairvoyant_bound",
    "deduplicate",
    "drafted",
    "drafted_clairvoyant_bound",
    "evaluate",
    "even_lengths",
    "follow",
    "from_samples",
    "from_scenarios",
    "known_lengths",
    "latest_start",
    "length_table",
    "pareto_front",
    "phase_bound_s",
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
