"""What a rule sees of a step on the virtual clock, worked out as far as it looks.

Knows the vocabulary of rules; nothing of engines. Listing the responses of every actor and counting their tokens is most of
what it takes to ask a rule, and rules that are asked often look at little of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from solver.model.runtime_rules import ActorView, Signals, StepState
from solver.model.workload import IntArray

Ids = tuple[int, ...]
Look = Callable[[], tuple[Ids, Ids, Ids]]
"""Gives the responses of an actor that are running, waiting and arriving."""


class LazyView(ActorView):
    """A view whose responses and free memory are looked up when they are first read, which has to be before the step goes on.

    Args:
        unfinished_count: how many are running and waiting.
        look: gives those that are running, waiting and arriving; weigh: the KV tokens that some responses take.
        kv_capacity_tokens: of the actor's memory. Other arguments are those of ``ActorView``.
    """

    def __init__(
        self,
        actor: int,
        gpus: int,
        assigned: int,
        completed: int,
        free_slots: int,
        unfinished_count: int,
        kv_capacity_tokens: int,
        look: Look,
        weigh: Callable[[Ids], int],
    ) -> None:
        self.__dict__.update(
            actor=actor, gpus=gpus, assigned=assigned, completed=completed, free_slots=free_slots,
            _unfinished_count=unfinished_count, _capacity=kv_capacity_tokens, _look=look, _weigh=weigh,
        )  # fmt: skip

    @cached_property
    def _responses(self) -> tuple[Ids, Ids, Ids]:
        look: Look = self.__dict__.pop("_look")
        return look()

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
        """See ``ActorView``; nothing is looked up for it."""
        count: int = self.__dict__["_unfinished_count"]
        return count

    def settle(self) -> None:
        """Look everything up."""
        self.free_kv_tokens  # noqa: B018 (needs all the rest)


class LazyState(StepState):
    """A state whose ``generated_tokens`` and ``signals`` are looked up when they are first read, which has to be before the
    step goes on.

    Args:
        count: gives the tokens; tell: gives the signals; other arguments are those of ``StepState``.
    """

    def __init__(
        self,
        now_s: float,
        actors: tuple[ActorView, ...],
        complete: NDArray[np.bool_],
        prompt_tokens: IntArray,
        reserved_tokens: IntArray | None,
        count: Callable[[], IntArray],
        tell: Callable[[], Signals | None],
    ) -> None:
        self.__dict__.update(
            now_s=now_s, actors=actors, complete=complete, prompt_tokens=prompt_tokens, reserved_tokens=reserved_tokens,
            _count=count, _tell=tell,
        )  # fmt: skip

    @cached_property
    def generated_tokens(self) -> IntArray:
        """See ``StepState``."""
        count: Callable[[], IntArray] = self.__dict__.pop("_count")
        return count()

    @cached_property
    def signals(self) -> Signals | None:
        """See ``StepState``."""
        tell: Callable[[], Signals | None] = self.__dict__.pop("_tell")
        return tell()

    def settle(self) -> None:
        """Look both up."""
        self.generated_tokens, self.signals  # noqa: B018
