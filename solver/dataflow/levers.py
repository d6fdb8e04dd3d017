"""Says what a lever brings to a plan of model calls, so that less time is lost waiting.

Their names are those of all levers (``solver/model/step_levers.py``). Of model calls they mean:

- ``overlap``: passes over responses (reward, reference, values) run in parts, on GPUs that generation has given back.
- ``streaming``: trainings accumulate the gradients of each prompt as its responses are judged, and step once all are there.
- ``drafts``: generation verifies drafted tokens, with the latency that they are expected to give.

Each has to earn its place: the plan without it is always a candidate (``lever_search.py``).
"""

from __future__ import annotations

from dataclasses import dataclass

from solver.model.errors import shown


@dataclass(frozen=True)
class Lever:
    """A lever that a step plan was allowed.

    Attributes:
        name: one of ``CALL_LEVERS``. used: whether the plan uses it. choice: what it does, in words.
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
