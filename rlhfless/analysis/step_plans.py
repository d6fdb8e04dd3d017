"""Compares plans of whole steps: seconds per step, what GPUs do meanwhile, memory and cost, beside the lower bound."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pandas as pd

from rlhfless.errors import InputError
from solver.layouts import StepPlan
from solver.model.errors import as_given, is_number

COLUMNS = [
    "plan", "period_s", "bound_s", "calls_gpu_s", "reallocation_gpu_s", "idle_gpu_s", "peak_bytes", "cost_usd", "status",
]  # fmt: skip


def compare_step_plans(plans: Mapping[str, StepPlan], usd_per_gpu_hour: float = math.nan) -> pd.DataFrame:
    """Compare step plans in a table, one row per plan.

    Args:
        plans: label -> plan, all with the same costs and cluster.
        usd_per_gpu_hour: price of a GPU; NaN leaves the cost unknown.

    Returns:
        Columns ``plan, period_s, bound_s, calls_gpu_s, reallocation_gpu_s, idle_gpu_s, peak_bytes, cost_usd, status``. The
        three kinds of GPU-seconds are those of one period, and add up to those of all GPUs. ``bound_s`` is the largest lower
        bound of a plan with this graph and number of GPUs, NaN where none is proven. ``peak_bytes`` is that of the fullest
        GPU. ``cost_usd`` is that of a step whose GPUs are all held throughout.

    Raises:
        InputError: the price is negative, or no number.

    Example:
        >>> from rlhfless.analysis import compare_step_plans
        >>> table = compare_step_plans({"by rule": rule, "planned": plan})
        >>> list(table["plan"])
        ['by rule', 'planned']
    """
    if not (is_number(usd_per_gpu_hour, 0) or usd_per_gpu_hour != usd_per_gpu_hour):
        raise InputError(f"usd_per_gpu_hour is {as_given(usd_per_gpu_hour)}; a number of 0 or more is needed")
    best: dict[tuple[str, int], float] = {}
    for plan in plans.values():
        best[plan.algorithm, plan.gpus] = max(best.get((plan.algorithm, plan.gpus), 0.0), plan.lower_bound_s)
    rows = []
    for label, plan in plans.items():
        held_gpu_s = plan.gpus * plan.period_s
        calls_gpu_s = sum(call.gpu_seconds for call in plan.calls)
        gpu_s = (calls_gpu_s, plan.gpu_seconds - calls_gpu_s, max(0.0, held_gpu_s - plan.gpu_seconds))
        bound_s = best[plan.algorithm, plan.gpus] or math.nan
        cost_usd = held_gpu_s * usd_per_gpu_hour / 3600
        rows.append((str(label), plan.period_s, bound_s, *gpu_s, max(plan.peak_bytes, default=0.0), cost_usd, plan.status))
    return pd.DataFrame(rows, columns=COLUMNS)
