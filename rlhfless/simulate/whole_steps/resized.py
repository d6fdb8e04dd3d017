"""Corrects how many actors a plan has that was made on a part of a large step, by timing it on the whole step.

Among very many actors, the responses of some need more KV memory than there is, so that a long one waits for room. The part has
no such actors. More actors have fewer responses each. Actors are added, or else taken away, in small steps, as long as
the plan becomes better.
"""

from __future__ import annotations

from collections.abc import Callable

from rlhfless.simulate.whole_steps.candidates import WholeStepPlan

STEP = 1.1  # times as many actors are tried next, or else one more
MOST_STEPS = 3


def best_actors(
    plan: WholeStepPlan, with_actors: Callable[[int], WholeStepPlan], value: Callable[[WholeStepPlan], float]
) -> WholeStepPlan:
    """Return the plan with the number of actors that is best in steps from its own.

    Args:
        with_actors: returns the plan with so many actors, or with as many as there can be. value: of a plan on the whole step;
            less is better.
    """
    best, least = plan, value(plan)
    for more in (True, False):
        for _ in range(MOST_STEPS):
            actors = best.generation.way.actors
            other = with_actors(
                max(actors + 1, round(actors * STEP)) if more else max(1, min(actors - 1, round(actors / STEP)))
            )
            if other.generation.way == best.generation.way or (found := value(other)) >= least:
                break
            best, least = other, found
        if best is not plan:
            break
    return best
