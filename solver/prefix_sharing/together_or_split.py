"""Plans with a prompt's samples kept together and with samples split, and returns the better plan after deduplicating prefill.

The caller passes the function that makes the plans. Together, a prompt is computed on one actor and nothing is sent, but groups
are uneven. Split, they balance better, and a prefix that several actors need is computed by each of them, or once and sent over
links that take time. The better choice depends on lengths, links and GPUs, so both are planned.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from solver.model.cluster import Cluster, MixedCluster
from solver.model.errors import PlanningError
from solver.model.objective import NonGenerationPhases, Objective
from solver.model.offers import Latencies
from solver.model.plan import HistoryEntry, Plan
from solver.model.workload import Workload
from solver.prefix_sharing.deduplicate import deduplicate
from solver.prefix_sharing.step_value import StepValue

TOGETHER = {"split": False, "together": True}


def together_or_split(
    plan_with: Callable[[bool], Plan],
    workload: Workload,
    cluster: Cluster | MixedCluster,
    latency: Latencies,
    objective: Objective,
    phases: NonGenerationPhases,
    admission: str,
    prefill: Mapping[str, Any],
) -> Plan:
    """Return the better of two deduplicated plans.

    Args:
        plan_with: makes the plan with samples kept together or not. prefill: further arguments of ``deduplicate``.

    Returns:
        Its history ends with a line for each of the two, and ``notes["samples"]`` says which was kept and their values. There
        is no bound: those of planning charge every actor its own prefill.

    Raises:
        PlanningError: both are refused, or ``prefill`` makes no sense.
    """
    began = time.perf_counter()
    worth = StepValue.of(workload, cluster, latency, objective, phases, admission)
    found: dict[str, tuple[tuple[float, float], Plan]] = {}
    history: list[HistoryEntry] = []
    refusal: PlanningError | None = None
    for name, together in TOGETHER.items():
        try:
            plan = plan_with(together)
        except PlanningError as refused:
            refusal = refusal or refused
            continue
        assert plan.reference is not None
        if not found:
            worth = replace(worth, norms=plan.reference.norms(objective.cost))
            history += [replace(line, lower_bound=0.0) for line in plan.history]
        shared = deduplicate(
            plan, workload, cluster, latency, objective=objective, phases=phases, admission=admission, **prefill
        )
        found[name] = worth.rank(shared.plan), replace(shared.plan, reference=plan.reference)
        best = min(rank for rank, _ in found.values())
        history.append(HistoryEntry(f"{name}, {shared.how}", time.perf_counter() - began, best[1], 0.0))
    if not found:
        assert refusal is not None
        raise refusal
    kept = min(found, key=lambda name: found[name][0])
    (_, value), plan = found[kept]
    notes = {**plan.notes, "samples": {"kept": kept, **{name: rank[1] for name, (rank, _) in found.items()}}}
    return replace(
        plan, value=value, lower_bound=None, status="heuristic", history=tuple(history), notes=notes,
        solve_s=time.perf_counter() - began,
    )  # fmt: skip
