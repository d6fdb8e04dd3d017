"""Corrects how many actors a plan has that was made on a part of a large step, by timing it on the whole step.

The part lacks the actors that have the worst luck among very many: those whose responses need the most KV memory, so that a
long one waits for room. More actors have fewer responses each. Actors are added, or else taken away, in small steps, as long as
the plan becomes better.
"""

from __future__ import annotations

from collections.abc import Callable

from rlhfless.simulate.whole_steps.candidates import WholeStepPlan

STEP = 1.05  # times as many actors are tried next
MOST_STEPS = 6


def best_actors(
    plan: WholeStepPlan, resized: Callable[[float], WholeStepPlan], value: Callable[[WholeStepPlan], float]
) -> WholeStepPlan:
    """Return the plan with the number of actors that is best in steps from its own.

    Args:
        resized: returns the plan with so many times as many actors. value: of a plan on the whole step; less is better.
    """
    best, least = plan, value(plan)
    for direction in (STEP, 1 / STEP):
        for power in range(1, MOST_STEPS + 1):
            other = resized(direction**power)
            if other.generation.way == best.generation.way or (found := value(other)) >= least:
                break
            best, least = other, found
        if best is not plan:
            break
    return best
