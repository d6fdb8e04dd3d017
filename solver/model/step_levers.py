"""Names the levers of a step: what a plan may do beside the plainest one, so that the step is shorter or cheaper.

These are the only names of levers: for plans of a step's model calls (``solver/layouts``), and for whole steps of actors and
a learner (``rlhfless/simulate/whole_steps``). The plainest step decodes whole prompts at random on as many actors of the given
size as pay off. It releases each when it is done, and then prepares and learns on all GPUs in the actors' layout.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

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
    LEARNER: "the learner has other GPUs than all",
    OVERLAP: "responses are prepared while others decode",
    STREAMING: "groups are learned from while others decode",
    PREWARMING: "the learner's own GPUs are allocated before generation is over",
    DRAFTS: "drafted tokens are verified, as many as pay for each response",
}
CALL_LEVERS = (OVERLAP, STREAMING, DRAFTS)
"""Levers of plans of model calls, which have no actors of their own."""


def lever_names(given: object, known: Sequence[str] = LEVERS) -> tuple[str, ...]:
    """Return the levers that are named, in the order of ``LEVERS``.

    Args:
        given: ``all``, ``none``, a text of names with commas, or a collection of names. known: those that may be named.

    Raises:
        PlanningError: a name is none of these.

    Example:
        >>> from solver.model.step_levers import lever_names
        >>> lever_names("streaming, shared prefill")
        ('shared prefill', 'streaming')
    """
    needed = f"'all', 'none', or some of {', '.join(known)} are needed"
    if isinstance(given, str):
        given = {"all": known, "none": ()}.get(given, [name.strip() for name in given.split(",")])
    if not isinstance(given, Collection) or isinstance(given, bytes):
        raise PlanningError(f"levers are {as_given(given)}; {needed}")
    if unknown := [name for name in given if not (isinstance(name, str) and name in known)]:
        raise PlanningError(f"levers name {as_given(unknown[0])}; {needed}")
    return tuple(name for name in known if name in given)
