"""Builds the error message for a deadline or budget that no plan meets. It names the limit, a lower bound, the best plan found,
and what would be enough.

Where the lower bound does not exceed the limit, the message says that a plan may exist. More slots and KV memory are named if a
plan meets the limit with them, and as the cause if no plan does without. This is tested by planning again, first with as much
as can be of any use.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from solver.model.errors import PlanningError, shown, shown_above
from solver.model.latency import LatencyModel
from solver.model.objective import Objective
from solver.model.problem import PlanningProblem
from solver.planning.bound import Bound, least_step
from solver.timing.step_cost import StepObjective

NEAR = 1.05  # the factor on slots or memory that is enough is found up to this one
MOST_TRIES = 12
TOLERANCE = 1e-9  # relative, of a limit, which plans are allowed as well


def limit_of(objective: Objective) -> tuple[str, str, float]:
    """Return the name of the limited quantity, its unit, and the limit."""
    if objective.deadline_s is not None:
        return "deadline", "s", objective.deadline_s
    assert objective.budget is not None
    return "budget", objective.cost_unit, objective.budget


@dataclass(frozen=True)
class MissedLimit:
    """A deadline or budget that no plan found meets.

    Attributes:
        objective: with the limit. least: lower bound on the time (cost) of the step. best: that of the best plan found.
        scenarios: number of sets of lengths over which these are risks. where: what they hold for.
    """

    objective: Objective
    least: float
    best: float
    scenarios: int = 1
    where: str = ""

    @classmethod
    def of(cls, goal: StepObjective, bounds: Sequence[Bound], best: float, *, where: str, proven: bool) -> MissedLimit:
        """Return it with the lower bound.

        Args:
            bounds: of every scenario, or of the predicted lengths alone.
            proven: no plan comes nearer to the limit than the best.
        """
        least = best if proven else goal.objective.risk(np.array([least_step(bound, goal) for bound in bounds]))
        return cls(goal.objective, least, best, len(bounds), where)

    @property
    def impossible(self) -> bool:
        """Return whether the lower bound proves that no plan meets the limit."""
        return self.least > limit_of(self.objective)[2] * (1 + TOLERANCE)

    def message(self, room: str = "") -> str:
        """Return the error message; ``room`` is the text from ``more_room``."""
        what, unit, limit = limit_of(self.objective)
        over = ""
        if self.scenarios > 1:
            alpha = self.objective.cvar_alpha
            share = "" if alpha == 1.0 else f" of the worst {alpha:.0%}"
            over = f" in the mean{share} over the length scenarios"
        doubt, longer = ("", "") if self.impossible else (", though one may exist", "time_limit_s, or ")
        return (
            f"no plan found for the {what} of {shown(limit)} {unit}{over}{doubt}: "
            f"the step needs at least {shown(self.least)} {unit}{self.where}, and the best plan found takes "
            f"{shown(self.best)}; raise {longer}the {what} by {shown_above(self.best - limit)} {unit}"
            f"{' or add GPUs' if what == 'deadline' else ''}{room}"
        )


def more_room(problem: PlanningProblem, plan: Callable[[PlanningProblem], object], stop_at: float, *, impossible: bool) -> str:
    """Return the end of the message if a plan is found with more slots, KV memory or both; empty if none is.

    Args:
        impossible: no plan meets the limit without them, so that they are the cause.
        plan: raises a ``PlanningError`` where no plan of a problem meets its limit. stop_at: time of the clock
            (``perf_counter``) after which nothing more is tried.
    """
    models = [offer.latency for offer in problem.offers]
    have = [model.max_batch for model in models], [model.kv_capacity_tokens for model in models]
    most = len(problem.workload), int(problem.workload.reserved_tokens.sum())  # beyond which more is of no use
    ample = [max(1.0, n / min(values)) for n, values in zip(most, have, strict=True)]
    tries = MOST_TRIES

    def meets_limit(slots: float, kv_tokens: float) -> bool:
        """Return whether a plan meets the limit when slots and KV tokens are multiplied by these factors."""
        nonlocal tries
        tries -= 1
        if tries < 0 or time.perf_counter() >= stop_at:
            return False

        def roomier(model: LatencyModel) -> LatencyModel:
            room = scaled_up(model.max_batch, slots), scaled_up(model.kv_capacity_tokens, kv_tokens)
            return replace(model, max_batch=room[0], kv_capacity_tokens=room[1])

        try:
            plan(problem.with_latencies(roomier))
        except PlanningError:
            return False
        return True

    def factors(share: float, chosen: Sequence[int]) -> tuple[float, float]:
        return ample[0] ** share if 0 in chosen else 1.0, ample[1] ** share if 1 in chosen else 1.0

    if max(ample) == 1.0 or not meets_limit(*factors(1.0, (0, 1))):
        return ""
    only = [i for i in (0, 1) if ample[1 - i] == 1.0 or (ample[i] > 1.0 and meets_limit(*factors(1.0, (i,))))]
    chosen = only[:1] or [0, 1]
    low, high = 0.0, 1.0  # the share of the way, in logarithms, to what is ample
    widest = max(math.log(ample[i]) for i in chosen)
    while (high - low) * widest > math.log(NEAR) and tries > 0 and time.perf_counter() < stop_at:
        middle = (low + high) / 2
        low, high = (low, middle) if meets_limit(*factors(middle, chosen)) else (middle, high)
    enough = factors(high, chosen)
    names = ("slots", "KV tokens")
    has = " and ".join(f"{_range(have[i])} {names[i]}" for i in chosen)
    needed = " and ".join(f"{_range([scaled_up(v, enough[i]) for v in have[i]])}" for i in chosen)
    what = limit_of(problem.objective)[0]
    if impossible:
        return f"; the cause is an actor's {has}: with {needed} a plan meets the {what}"
    return f"; with {needed} instead of {has} per actor a plan meets the {what}"


def scaled_up(value: int, factor: float) -> int:
    """Return a number of slots or KV tokens times a factor, rounded up."""
    return value if factor == 1.0 else math.ceil(value * factor * (1 - 1e-12))


def _range(values: Sequence[int]) -> str:
    return f"{min(values):,}" if min(values) == max(values) else f"{min(values):,} to {max(values):,}"
