"""Why no plan on several offers keeps a limit, in one sentence: the limit, what is needed at least, and what was found.

Knows the sequences' bound and what was found; nothing of how.
"""

from __future__ import annotations

import math

import numpy as np

from solver.errors import shown, shown_above
from solver.mixed.sequences import Sequences
from solver.mixed.work import MixedWork
from solver.mixed.worth import Worth


def blame(work: MixedWork, worth: Worth, sequences: Sequences, fastest_s: float, cheapest: tuple[float, float]) -> str:
    """The sentence for a deadline or a budget that no plan found keeps.

    Args:
        fastest_s: least makespan found. cheapest: makespan and cost of generation of the cheapest plan found.
    """
    objective, alone = worth.objective, ""
    if objective.deadline_s is not None:
        what, unit, limit = "deadline", "s", objective.deadline_s
        low, high = work.shortest_makespan_s, work.longest_makespan_s
        for _ in range(40):
            middle = math.sqrt(low * high) if high > 2 * low > 0 else (low + high) / 2
            found = sequences.at(middle)
            low, high = (low, middle) if math.isfinite(found.cost) else (middle, high)
        least, best, remedy = worth.rest.step_time_s(low), worth.rest.step_time_s(fastest_s), " or add GPUs"
        alone = _too_long_together(work, worth)
    else:
        assert objective.budget is not None
        what, unit, limit = "budget", objective.cost_unit, objective.budget
        found = sequences.at(work.longest_makespan_s)
        cost = found.cost if math.isfinite(found.cost) else 0.0
        least, best, remedy = worth.step(work.shortest_makespan_s, cost)[1], worth.step(*cheapest)[1], ""
    return (
        f"no plan found for the {what} of {shown(limit)} {unit}: the step needs at least {shown(least)} {unit}{alone}, and the "
        f"best plan found takes {shown(best)}; raise the {what} by {shown_above(best - limit)} {unit}{remedy}"
    )


def _too_long_together(work: MixedWork, worth: Worth) -> str:
    """The prompt to blame when its responses, which stay together, miss the deadline even with an actor of their own."""
    assert worth.objective.deadline_s is not None
    alone_s = work.alone_s.min(axis=0)
    i = int(np.argmax(alone_s))
    least_s, count = worth.rest.step_time_s(float(alone_s[i])), int(work.edge[i + 1] - work.edge[i])
    if count == 1 or least_s <= worth.objective.deadline_s:
        return ""
    return f" (the {count} responses of prompt {work.prompt[work.edge[i]]} stay together and take {least_s:.6g} s on an actor)"


def no_room(work: MixedWork, least: int, most: int) -> str:
    """Why not even the random split has a place."""
    room = sum(pool.gpus for pool in work.pools)
    return (
        f"no plan of {least} to {most} actors was found: the pools have {room} GPUs, and the smallest actor takes "
        f"{int(work.gpus.min())}; lower least_actors or add GPUs"
    )
