"""Names the levers of a step: what a plan may do beside the plainest one, so that the step is shorter or cheaper.

These are the only names of levers. The plainest step decodes whole prompts at random on as many actors of the given size as pay
off. It releases each when it is done, and then prepares and learns on all GPUs in the actors' layout.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from solver.model.errors import PlanningError, as_given

ACTOR_SIZE, LAYOUTS, ASSIGNMENT, SHARED_PREFILL = "actor size", "layouts", "assignment", "shared prefill"
CUT, CONSOLIDATION, LEARNER, OVERLAP = "cut", "consolidation", "learner size", "overlap"
STREAMING, PREWARMING, DRAFTS = "streaming", "prewarming", "drafts"
LEVERS = (
    ACTOR_SIZE, LAYOUTS, ASSIGNMENT, SHARED_PREFILL, CUT, CONSOLIDATION, LEARNER, OVERLAP, STREAMING, PREWARMING, DRAFTS,
)  # fmt: skip
MEANINGS = {
    ACTOR_SIZE: "actors have another number of GPUs, over which the model is cut",
    LAYOUTS: "preparation and learning have layouts of their own, and weights are sent between them and the actors' (ReaL)",
    ASSIGNMENT: "responses are assigned by predicted length, instead of whole prompts at random",
    SHARED_PREFILL: "an actor computes a prompt once for all its samples, as prefix caching does",
    CUT: "most actors are cut when few responses are left (RLHFuse)",
    CONSOLIDATION: "nearly empty actors hand over their responses and are released while the step runs",
    LEARNER: "the learner has fewer or other GPUs than the whole cluster",
    OVERLAP: "responses are prepared while others decode",
    STREAMING: "groups are learned from while others decode",
    PREWARMING: "the learner's own GPUs are allocated before generation is over",
    DRAFTS: "drafted tokens are verified, as many as pay for each response",
}


def lever_bits(levers: Iterable[str]) -> int:
    """Return a set of levers as one number, with a bit for each: sets of thousands of plans are compared at once.

    Example:
        >>> from solver.model.step_levers import lever_bits, levers_of_bits
        >>> sorted(levers_of_bits(lever_bits(["cut", "overlap"])))
        ['cut', 'overlap']
    """
    return sum(1 << LEVERS.index(lever) for lever in set(levers))


def levers_of_bits(bits: int) -> frozenset[str]:
    """Return the levers of ``lever_bits``."""
    return frozenset(lever for number, lever in enumerate(LEVERS) if bits >> number & 1)


def lever_names(given: object) -> tuple[str, ...]:
    """Return the levers that are named, in the order of ``LEVERS``.

    Args:
        given: ``all``, ``none``, a text of names with commas, or a collection of names.

    Raises:
        PlanningError: a name is none of these.

    Example:
        >>> from solver.model.step_levers import lever_names
        >>> lever_names("streaming, shared prefill")
        ('shared prefill', 'streaming')
    """
    needed = f"'all', 'none', or some of {', '.join(LEVERS)} are needed"
    if isinstance(given, str):
        given = {"all": LEVERS, "none": ()}.get(given, [name.strip() for name in given.split(",")])
    if not isinstance(given, Collection) or isinstance(given, bytes):
        raise PlanningError(f"levers are {as_given(given)}; {needed}")
    if unknown := [name for name in given if not (isinstance(name, str) and name in LEVERS)]:
        raise PlanningError(f"levers name {as_given(unknown[0])}; {needed}")
    return tuple(name for name in LEVERS if name in given)
