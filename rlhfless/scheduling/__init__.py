"""Scheduling policies by name: what each published system would do with the same workload.

``make_policy(name)`` is the one place that knows them all.
"""

from __future__ import annotations

from collections.abc import Callable

from rlhfless.scheduling.fixed import LeastLoaded, Random, Static
from rlhfless.scheduling.fold import Fold
from rlhfless.scheduling.policy import PlanningInput, PolicyError, SchedulingPolicy
from rlhfless.scheduling.rlhfless import RLHFless
from rlhfless.scheduling.rlhfuse import RLHFuse
from rlhfless.scheduling.solved import Solver

POLICIES = ("static", "random", "least-loaded", "rlhfuse", "rlhfless", "fold", "solver", "oracle")


def make_policy(name: str, *, tau: float = 0.7, static_actors: int | None = None, hold: str = "generation") -> SchedulingPolicy:
    """The policy called ``name``.

    Raises:
        PolicyError: the name is unknown, or a parameter is out of its range; the message says what would be right.
    """
    if not 0 < tau <= 1:
        raise PolicyError(f"tau is {tau}; a share above 0 and up to 1 is needed (1 never cuts)")
    if static_actors is not None and static_actors < 1:
        raise PolicyError(f"static actors are {static_actors}; at least 1 is needed")
    makers: dict[str, Callable[[], SchedulingPolicy]] = {
        "static": lambda: Static(static_actors, hold),
        "random": Random,
        "least-loaded": LeastLoaded,
        "rlhfuse": lambda: RLHFuse(actors=static_actors),
        "rlhfless": lambda: RLHFless(tau),
        "fold": Fold,
        "solver": Solver,
        "oracle": lambda: Solver("oracle", clairvoyant=True),
    }
    if name not in makers:
        raise PolicyError(f"policy {name!r} is unknown; choose from {', '.join(POLICIES)}")
    return makers[name]()


def ladder() -> tuple[SchedulingPolicy, ...]:
    """From static to the oracle, one idea more at a time: right-sizing, release, grouping, folding, true lengths.

    Each policy differs from the one before it by the idea that it is named after, so the differences between their results
    say what each idea contributes on a log. An idea can contribute less than nothing.
    """
    return (
        Static(),
        Random(release="generation", name="right-sizing"),
        Random(name="release"),
        Solver("grouping"),
        Fold(Solver(), name="folding"),
        Solver("oracle", clairvoyant=True),
    )


__all__ = ["POLICIES", "PlanningInput", "PolicyError", "SchedulingPolicy", "ladder", "make_policy"]
