"""Judges layouts that a published way of planning chose: by the times and bytes by which ``plan_step`` judges its own."""

from __future__ import annotations

from solver.dataflow import StepPlan
from solver.dataflow.assemble import step_plan
from solver.dataflow.options import CallOptions, IntArray
from solver.dataflow.schedule import Order


def judged(
    options: CallOptions,
    plan: IntArray,
    memory_bytes: float,
    order: Order,
    lower_bound_s: float,
    history: tuple[tuple[int, float], ...] = (),
) -> StepPlan:
    """Return the step plan of (K,) options, with status ``given``, or ``infeasible`` where a GPU has too few bytes."""
    fits = options.peak_bytes(plan[None]).max() <= memory_bytes
    status = "given" if fits else "infeasible"
    return step_plan(options, plan, status=status, order=order, lower_bound_s=lower_bound_s, history=history)
