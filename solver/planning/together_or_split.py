"""Plans with a prompt's samples kept together and with samples split, and returns the better plan after deduplicating prefill.

Together, a prompt is computed on one actor and nothing is sent, but groups are uneven. Split, they balance better. But a prefix
that several actors need is computed by each of them, or once and sent over links that take time. The better choice depends on
lengths, links and GPUs, so both are planned.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from numpy.typing import ArrayLike

from solver.model.errors import PlanningError
from solver.model.plan import HistoryEntry, Plan
from solver.model.problem import PlanningProblem, check_problem
from solver.planning.plan_generation import plan_generation
from solver.planning.search_options import check_search
from solver.prefix_sharing.deduplicate import StepValue, deduplicate

TOGETHER = {"split": False, "together": True}


def together_or_split(
    problem: PlanningProblem,
    token_ids: Sequence[ArrayLike] | None = None,
    *,
    time_limit_s: float = 1.0,
    seed: int = 0,
    deterministic: bool = False,
    **sharing: Any,
) -> Plan:
    """Return the better of two deduplicated plans: with the samples of a prompt on one actor, and with samples split.

    Args:
        problem: both values of its ``keep_together`` are tried, and actors always share the prefill of a prompt.
        token_ids: see ``solver.deduplicate``, as ``sharing``: its further arguments.
        time_limit_s, seed, deterministic: see ``solver.plan_generation``; each plan gets half of the time.

    Returns:
        Its history ends with a line for each of the two, and ``notes["samples"]`` says which was kept and their values. There
        is no bound: those of planning charge every actor its own prefill.

    Raises:
        PlanningError: both are refused, or an argument makes no sense.

    Example:
        >>> plan = together_or_split(problem, learner_node=0)
        >>> plan.notes["samples"]["kept"]
        'together'
    """
    check_problem(problem)
    check_search(time_limit_s, seed, deterministic)
    began = time.perf_counter()
    values = StepValue(problem)
    results: dict[str, tuple[tuple[float, float], Plan]] = {}
    history: list[HistoryEntry] = []
    refusal: PlanningError | None = None
    for name, together in TOGETHER.items():
        try:
            variant = replace(problem, keep_together=together, share_prefill=True)
            plan = plan_generation(variant, time_limit_s=time_limit_s / 2, seed=seed, deterministic=deterministic)
        except PlanningError as refused:
            refusal = refusal or refused
            continue
        assert plan.reference is not None
        if not results:
            values = replace(values, norms=plan.reference.norms(problem.objective.cost))
            history += [replace(line, lower_bound=0.0) for line in plan.history]
        shared = deduplicate(plan, problem, token_ids, **sharing)
        results[name] = values.rank(shared.plan), replace(shared.plan, reference=plan.reference)
        best = min(rank for rank, _ in results.values())
        history.append(HistoryEntry(f"{name}, {shared.how}", time.perf_counter() - began, best[1], 0.0))
    if not results:
        assert refusal is not None
        raise refusal
    kept = min(results, key=lambda name: results[name][0])
    (_, value), plan = results[kept]
    notes = {**plan.notes, "samples": {"kept": kept, **{name: rank[1] for name, (rank, _) in results.items()}}}
    return replace(
        plan, value=value, lower_bound=None, status="heuristic", history=tuple(history), notes=notes,
        solve_s=time.perf_counter() - began,
    )  # fmt: skip
