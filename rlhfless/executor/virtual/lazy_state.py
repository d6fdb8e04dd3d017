"""Views of a step for runtime rules whose expensive parts are computed only when the rule reads them.

Listing the responses of every actor and counting their tokens is most of the cost of asking a rule. Rules that are asked often
read little of it. Values that the rule keeps must be read, or ``materialise`` called, before the step continues.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rlhfless.executor.virtual.actors import VirtualActor
from solver.model.runtime_rules import ActorView, Signals, StepState
from solver.model.workload import IntArray

Ids = tuple[int, ...]
ListResponses = Callable[[], tuple[Ids, Ids, Ids]]
"""Gives the responses of an actor that are running, waiting and arriving."""


class LazyView(ActorView):
    """An ``ActorView`` whose responses and free memory are computed when first read, which must happen before the step
    continues.

    Args:
        of: the actor. counts: numbers of its unfinished (running and waiting) and of its arriving responses.
        list_responses: returns the running, waiting and arriving responses.
        weigh: returns the KV tokens that given responses take.
    """

    def __init__(
        self, of: VirtualActor, counts: tuple[int, int], list_responses: ListResponses, weigh: Callable[[Ids], int]
    ) -> None:
        free_slots = of.engine.slots - of.expecting
        self.__dict__.update(
            actor=of.index, gpus=of.gpus, assigned=of.assigned, completed=of.completed, free_slots=max(0, free_slots),
            _counts=counts, _capacity=of.latency.kv_capacity_tokens, _list_responses=list_responses, _weigh=weigh,
        )  # fmt: skip

    @cached_property
    def _responses(self) -> tuple[Ids, Ids, Ids]:
        list_responses: ListResponses = self.__dict__.pop("_list_responses")
        return list_responses()

    @cached_property
    def running(self) -> Ids:
        """See ``ActorView``."""
        return self._responses[0]

    @cached_property
    def waiting(self) -> Ids:
        """See ``ActorView``."""
        return self._responses[1]

    @cached_property
    def arriving(self) -> Ids:
        """See ``ActorView``."""
        return self._responses[2]

    @cached_property
    def free_kv_tokens(self) -> float:
        """See ``ActorView``."""
        weigh: Callable[[Ids], int] = self.__dict__.pop("_weigh")
        return float(self.__dict__["_capacity"] - weigh(self.running + self.waiting + self.arriving))

    @property
    def unfinished_count(self) -> int:
        """See ``ActorView``; it needs no computation."""
        count: int = self.__dict__["_counts"][0]
        return count

    @property
    def arriving_count(self) -> int:
        """See ``ActorView``; it needs no computation."""
        count: int = self.__dict__["_counts"][1]
        return count

    def materialise(self) -> None:
        """Compute everything that was not read yet."""
        self.free_kv_tokens  # noqa: B018 (needs all the rest)


class LazyState(StepState):
    """A ``StepState`` whose ``generated_tokens`` and ``signals`` are computed when first read, which must happen before the
    step continues.

    Args:
        count: returns the tokens; read_signals: returns the signals; other arguments are those of ``StepState``.
    """

    def __init__(
        self,
        now_s: float,
        actors: tuple[ActorView, ...],
        complete: NDArray[np.bool_],
        prompt_tokens: IntArray,
        reserved_tokens: IntArray | None,
        count: Callable[[], IntArray],
        read_signals: Callable[[], Signals | None],
    ) -> None:
        self.__dict__.update(
            now_s=now_s, actors=actors, complete=complete, prompt_tokens=prompt_tokens, reserved_tokens=reserved_tokens,
            _count=count, _read_signals=read_signals,
        )  # fmt: skip

    @cached_property
    def generated_tokens(self) -> IntArray:
        """See ``StepState``."""
        count: Callable[[], IntArray] = self.__dict__.pop("_count")
        return count()

    @cached_property
    def signals(self) -> Signals | None:
        """See ``StepState``."""
        read_signals: Callable[[], Signals | None] = self.__dict__.pop("_read_signals")
        return read_signals()

    def materialise(self) -> None:
        """Compute tokens and signals if they were not read yet."""
        self.generated_tokens, self.signals  # noqa: B018
