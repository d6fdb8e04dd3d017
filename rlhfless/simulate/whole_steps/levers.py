"""The levers of a whole step, by name, and which of them a way to generate or to learn uses."""

from __future__ import annotations

from rlhfless.simulate.whole_steps.learner_way import LearnerWay

ASSIGNMENT, SHARED_PREFILL, CUT, FOLDING = "assignment", "shared prefill", "cut", "folding"
LEARNER, OVERLAP, STREAMING, PREWARMING, DRAFTS = "learner size", "overlap", "streaming", "prewarming", "drafts"
LEVERS = (ASSIGNMENT, SHARED_PREFILL, CUT, FOLDING, LEARNER, OVERLAP, STREAMING, PREWARMING, DRAFTS)
MEANINGS = {
    ASSIGNMENT: "responses are dealt by predicted length, instead of whole prompts at random",
    SHARED_PREFILL: "an actor computes a prompt once for all its samples, as prefix caching does",
    CUT: "most actors are cut when few responses are left (RLHFuse)",
    FOLDING: "thin actors are folded into the others while the step runs",
    LEARNER: "the learner has other GPUs than all",
    OVERLAP: "responses are prepared while others decode",
    STREAMING: "groups are learned from while others decode",
    PREWARMING: "the learner's own GPUs are allocated before generation is over",
    DRAFTS: "drafted tokens are verified, as many as pay for each response",
}


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
