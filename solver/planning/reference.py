"""Computes the reference that plans are compared with, and says when a bound proves a value."""

from __future__ import annotations

from solver.model.plan import Reference
from solver.model.problem import PlanningProblem

PROVEN_GAP = 1e-6


def reference_of(problem: PlanningProblem, actors: int, makespan_s: float, gpu_s: float, usd: float) -> Reference:
    """Return the step of a plan as reference, from (mean) makespan, GPU-seconds and dollars of its generation."""
    phases = problem.phases
    time_s = phases.step_time_s(makespan_s)
    usd += problem.learner_rate("usd") * time_s
    return Reference(actors, max(time_s, 1e-12), max(phases.step_gpu_s(makespan_s, gpu_s), 1e-12), max(usd, 1e-12))


def proven(value: float, bound: float) -> bool:
    """Return whether the bound proves the value to be optimal."""
    return value - bound <= PROVEN_GAP * max(abs(value), 1e-12)
