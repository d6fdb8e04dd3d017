"""Builds the error message for a deadline or budget that no plan meets: the limit, a lower bound, the best plan found, and what
would be enough.

Slots and KV memory are named as the cause if a plan meets the limit once actors have more of them. This is tested by planning
again, first with as much as can be of any use.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from solver.model.errors import shown, shown_above
from solver.model.objective import Objective

NEAR = 1.05  # the factor on slots or memory that is enough is found up to this one
MOST_TRIES = 12


def limit_of(objective: Objective) -> tuple[str, str, float]:
    """Return the name of the limited quantity, its unit, and the limit."""
    if objective.deadline_s is not None:
        return "deadline", "s", objective.deadline_s
    assert objective.budget is not None
    return "budget", objective.cost_unit, objective.budget


def limit_message(
    objective: Objective, least: float, best: float, *, scenarios: int = 1, where: str = "", room: str = ""
) -> str:
    """Return the error message.

    Args:
        least: lower bound on time (cost). best: time (cost) of the best plan found.
        scenarios: number of sets of lengths over which these are risks. where: what they hold for; room: the text from
            ``capacity_hint``.
    """
    what, unit, limit = limit_of(objective)
    over = ""
    if scenarios > 1:
        share = "" if objective.cvar_alpha == 1.0 else f" of the worst {objective.cvar_alpha:.0%}"
        over = f" in the mean{share} over the length scenarios"
    remedy = " or add GPUs" if what == "deadline" else ""
    return (
        f"no plan found for the {what} of {shown(limit)} {unit}{over}: the step needs at least {shown(least)} {unit}{where}, "
        f"and the best plan found takes {shown(best)}; raise the {what} by {shown_above(best - limit)} {unit}{remedy}{room}"
    )


def capacity_hint(
    slots: Sequence[int], kv_tokens: Sequence[int], most: tuple[int, int], what: str, keeps: Callable[[float, float], bool],
    stop_at: float,
) -> str:  # fmt: skip
    """Return the end of the message if slots, KV memory or both cause the failure; empty if they do not.

    Args:
        slots, kv_tokens: of an actor, one for each kind of actor. most: slots and KV tokens beyond which more is of no use.
        what: ``deadline`` or ``budget``.
        keeps: whether a plan meets the limit when slots and KV tokens are multiplied by these factors.
        stop_at: time of the clock (``perf_counter``) after which nothing more is tried.
    """
    ample = [max(1.0, n / min(values)) for n, values in zip(most, (slots, kv_tokens), strict=True)]
    tries = MOST_TRIES

    def kept(*factors: float) -> bool:
        nonlocal tries
        tries -= 1
        return tries >= 0 and time.perf_counter() < stop_at and keeps(*factors)

    if max(ample) == 1.0 or not kept(*ample):
        return ""
    only = [
        i for i in (0, 1) if ample[1 - i] == 1.0 or (ample[i] > 1.0 and kept(*(ample[j] if j == i else 1.0 for j in (0, 1))))
    ]
    chosen = only[:1] or [0, 1]
    low, high = 0.0, 1.0  # the share of the way, in logarithms, to what is ample
    widest = max(math.log(ample[i]) for i in chosen)

    def factors(share: float) -> list[float]:
        return [ample[i] ** share if i in chosen else 1.0 for i in (0, 1)]

    while (high - low) * widest > math.log(NEAR) and tries > 0 and time.perf_counter() < stop_at:
        middle = (low + high) / 2
        low, high = (low, middle) if kept(*factors(middle)) else (middle, high)
    enough = factors(high)
    names = [("slots", slots), ("KV tokens", kv_tokens)]
    have = " and ".join(f"{_range(names[i][1])} {names[i][0]}" for i in chosen)
    needed = " and ".join(f"{_range([scaled_up(v, enough[i]) for v in names[i][1]])}" for i in chosen)
    return f"; the cause is an actor's {have}: with {needed} a plan meets the {what}"


def scaled_up(value: int, factor: float) -> int:
    """Return a number of slots or KV tokens times a factor, rounded up."""
    return value if factor == 1.0 else math.ceil(value * factor * (1 - 1e-12))


def _range(values: Sequence[int]) -> str:
    return f"{min(values):,}" if min(values) == max(values) else f"{min(values):,} to {max(values):,}"
