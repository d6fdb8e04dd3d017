"""Says which levers a way to learn uses; ways to generate know theirs."""

from __future__ import annotations

from functools import cache

from solver.model.step_levers import LEARNER, OVERLAP, PREWARMING, STREAMING
from solver.step.work import Learner


def levers_of(way: Learner, actors: int, all_servers: int, generation_s: float) -> frozenset[str]:
    """Return the levers of a way to learn beside a plan of so many actors.

    Args:
        all_servers: that the cluster has. generation_s: how long generation is expected to take.
    """
    prewarms = way.own > 0 and way.from_s < generation_s * (1 - 1e-9)
    return _named(way.servers(actors) != all_servers, way.overlaps, way.streams, prewarms)


@cache
def _named(*used: bool) -> frozenset[str]:
    return frozenset(name for name, is_used in zip((LEARNER, OVERLAP, STREAMING, PREWARMING), used, strict=True) if is_used)
