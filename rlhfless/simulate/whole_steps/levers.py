"""Says which levers a way to learn uses; ways to generate know theirs."""

from __future__ import annotations

from rlhfless.simulate.whole_steps.learner_way import LearnerWay
from solver.model.step_levers import LEARNER, OVERLAP, PREWARMING, STREAMING


def levers_of(way: LearnerWay, actors: int, all_servers: int, generation_s: float) -> frozenset[str]:
    """Return the levers of a way to learn beside a plan of so many actors.

    Args:
        all_servers: that the cluster has. generation_s: how long generation is expected to take.
    """
    used = {
        LEARNER: way.servers(actors) != all_servers,
        OVERLAP: way.overlaps,
        STREAMING: way.streams,
        PREWARMING: way.own > 0 and way.from_s < generation_s * (1 - 1e-9),
    }
    return frozenset(name for name, is_used in used.items() if is_used)
