"""Builds the error message for a deadline or budget that no plan meets. It names the limit, a lower bound, the best plan found,
and what would be enough.

Where the lower bound does not exceed the limit, the message says that a plan may exist. More slots and KV memory are named if a
plan meets the limit with them, and as the cause if no plan does without. This is tested by planning again, first with as much
as can be of any use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from solver.bounds.plans import PlanBound
from solver.model.errors import PlanningError, shown, shown_above
from solver.model.latency import LatencyModel
from solver.model.objective import TOLERANCE, Objective
from solver.model.plurals import counted
from solver.model.problem import PlanningProblem
from solver.model.workload import IntArray
from solver.timing.items import Items

NEAR = 1.05  # the factor on slots or memory that is enough is found up to this one
MOST_TRIES = 12


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
        scenarios: number of sets of lengths over which these are risks. where: what the bound holds for, or its cause.
    """

    objective: Objective
    least: float
    best: float
    scenarios: int = 1
    where: str = ""

    @classmethod
    def of(cls, problem: PlanningProblem, best: float, *, where: str = "", proven: bool = False) -> MissedLimit:
        """Return it with the lower bound.

        Args:
            proven: no plan comes nearer to the limit than the best.
        """
        least = best if proven else min(best, PlanBound(problem, quick=True).least_limited())
        return cls(problem.objective, least, best, len(problem.workload.cases()), where)

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
        doubt = "" if self.impossible else ", though one may exist"
        return (
            f"no plan found for the {what} of {shown(limit)} {unit}{over}{doubt}: "
            f"the step needs at least {shown(self.least)} {unit}{self.where}, and the best plan found takes "
            f"{shown(self.best)}; raise the {what} by {shown_above(self.best - limit)} {unit}"
            f"{' or add GPUs' if what == 'deadline' else ''}{room}"
        )


def more_room(problem: PlanningProblem, plan: Callable[[PlanningProblem], object], *, impossible: bool) -> str:
    """Return the end of the message if a plan is found with more slots, KV memory or both; empty if none is.

    Args:
        impossible: no plan meets the limit without them, so that they are the cause.
        plan: raises a ``PlanningError`` where no plan of a problem meets its limit. It is called at most ``MOST_TRIES`` times.
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
        if tries < 0:
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
    while (high - low) * widest > math.log(NEAR) and tries > 0:
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


def too_long_together(problem: PlanningProblem, prompt_numbers: IntArray | None = None) -> str:
    """Return the text that names a prompt that misses the deadline even on an actor of its own, as its responses stay together.

    It is empty if there is none, and over scenarios.

    Args:
        prompt_numbers: (P,) the caller's numbers of the prompts; None when they are as in the workload.
    """
    deadline_s = problem.objective.deadline_s
    if deadline_s is None or not problem.keep_together or problem.workload.scenarios is not None:
        return ""
    items = Items.of(problem)
    alone_s = items.alone_s.min(axis=0)
    i = int(np.argmax(alone_s))
    least_s, count = problem.phases.step_time_s(float(alone_s[i])), int(items.edge[i + 1] - items.edge[i])
    if count == 1 or least_s <= deadline_s:
        return ""
    prompt = int(problem.workload.prompt_of[items.order[items.edge[i]]])
    number = prompt if prompt_numbers is None else int(prompt_numbers[prompt])
    return f" (the {count} responses of prompt {number} are kept together and take {shown(least_s)} s on one actor)"


def no_room(problem: PlanningProblem, least: int, most: int) -> str:
    """Return the error message if no split over ``least`` to ``most`` actors fits into the pools."""
    room, smallest = sum(pool.gpus for pool in problem.cluster.pools), min(offer.gpus for offer in problem.offers)
    wanted = counted(most, "actor") if least == most else f"{least} to {counted(most, 'actor')}"
    return (
        f"no plan of {wanted} was found: the pools have {counted(room, 'GPU')}, and the smallest actor takes {smallest}; "
        f"lower min_actors or add GPUs"
    )


def scaled_up(value: int, factor: float) -> int:
    """Return a number of slots or KV tokens times a factor, rounded up."""
    return value if factor == 1.0 else math.ceil(value * factor * (1 - 1e-12))


def _range(values: Sequence[int]) -> str:
    return f"{min(values):,}" if min(values) == max(values) else f"{min(values):,} to {max(values):,}"
