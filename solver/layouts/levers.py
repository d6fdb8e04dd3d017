"""What each optimisation ("lever") saves in a plan of model calls: less time is lost waiting.

The names are those of ``solver/model/step_levers.py``. In a plan of model calls they mean:

- ``overlap``: passes over responses (reward, reference, values) run in parts, on GPUs that generation has released. -
``streaming``: trainings accumulate the gradient of each prompt once its responses are scored; the optimizer steps when all are
in. - ``drafts``: speculative decoding, with the latency that its drafts are expected to give.

The plan without a lever is always a candidate, so each is used only where it helps (``lever_search.py``).
"""

from __future__ import annotations

from dataclasses import dataclass

from solver.model.errors import shown


@dataclass(frozen=True)
class Lever:
    """An optimisation ("lever") that a step plan may use.

    Attributes:
        name: one of ``CALL_LEVERS``. used: whether the plan uses it. choice: what it does, in words.
        saves_s: expected saving in seconds per step: the time per step of the best plan without this lever, minus the plan's.
        share: the same as a share of the time per step without it.
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
