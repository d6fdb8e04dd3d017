"""What a rule sees of a step on the virtual clock, worked out as far as it looks.

Knows the vocabulary of rules; nothing of engines. Counting the tokens of every response is most of what it takes to ask a rule,
and rules that are asked at every completion do not look at them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from solver.rules import ActorView, StepState
from solver.workload import IntArray


class LazyState(StepState):
    """A state whose ``generated_tokens`` are counted when they are first read, which has to be before the step goes on.

    Args:
        count: gives them; other arguments are those of ``StepState``.
    """

    def __init__(
        self,
        now_s: float,
        actors: tuple[ActorView, ...],
        complete: NDArray[np.bool_],
        prompt_tokens: IntArray,
        count: Callable[[], IntArray],
    ) -> None:
        self.__dict__.update(now_s=now_s, actors=actors, complete=complete, prompt_tokens=prompt_tokens, _count=count)

    @cached_property
    def generated_tokens(self) -> IntArray:
        """See ``StepState``."""
        count: Callable[[], IntArray] = self.__dict__.pop("_count")
        return count()
