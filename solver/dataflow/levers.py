"""Names the levers of a step plan: what it may do beside choosing layouts, so that less time is lost waiting.

- ``drafts``: generation verifies drafted tokens, with the latency that they are expected to give.
- ``fuse``: passes over responses (reward, reference, values) run in parts, on GPUs that generation has given back.
- ``stream``: trainings accumulate the gradients of each prompt as its responses are judged, and step once all are there.

Each has to earn its place: the plan without it is always a candidate (``lever_search.py``).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from solver.model.errors import PlanningError, as_given, shown

DRAFTS, FUSE, STREAM = LEVERS = ("drafts", "fuse", "stream")


@dataclass(frozen=True)
class Lever:
    """A lever that a step plan was allowed.

    Attributes:
        name: one of ``LEVERS``. used: whether the plan uses it. choice: what it does, in words.
        saves_s: seconds per step that are expected to be lost without it: the best plan that was found without this lever,
            less the plan's period.
        share: the same as a share of the best period without it.
    """

    name: str
    used: bool
    choice: str
    saves_s: float
    share: float

    def __str__(self) -> str:
        if not self.used:
            return f"{self.name}: off, as no plan with it was found to be shorter"
        return f"{self.name}: {self.choice}; expected to save {shown(self.saves_s)} s per step ({self.share:.1%})"


def lever_names(given: object) -> tuple[str, ...]:
    """Return the levers that are named, in the order of ``LEVERS``.

    Args:
        given: ``all``, ``none``, a text of names with commas, or a collection of names.

    Raises:
        PlanningError: a name is none of these.

    Example:
        >>> lever_names("stream,drafts")
        ('drafts', 'stream')
    """
    needed = f"'all', 'none', or some of {', '.join(LEVERS)} are needed"
    if isinstance(given, str):
        given = {"all": LEVERS, "none": ()}.get(given, [name.strip() for name in given.split(",")])
    if not isinstance(given, Collection) or isinstance(given, bytes):
        raise PlanningError(f"levers are {as_given(given)}; {needed}")
    if unknown := [name for name in given if not (isinstance(name, str) and name in LEVERS)]:
        raise PlanningError(f"levers name {as_given(unknown[0])}; {needed}")
    return tuple(name for name in LEVERS if name in given)
