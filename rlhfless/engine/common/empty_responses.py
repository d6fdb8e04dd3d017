"""Queue of responses without tokens: they need neither slot nor memory, and end at the boundary at which they are available."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Set
from typing import Generic, Protocol, TypeVar


class Queued(Protocol):
    """A response with the time at which it became available."""

    queued_s: float


S = TypeVar("S", bound=Queued)


class EmptyResponses(Generic[S]):
    """Responses of no tokens, in the order in which they became available."""

    def __init__(self) -> None:
        self._queued: list[S] = []

    def __iter__(self) -> Iterator[S]:
        return iter(self._queued)

    def __len__(self) -> int:
        return len(self._queued)

    @property
    def first_s(self) -> float:
        """Return when the first one became available; infinite where there is none."""
        return self._queued[0].queued_s if self._queued else math.inf

    def add(self, responses: Iterable[S]) -> None:
        """Queue further responses."""
        self._queued += responses
        self._queued.sort(key=lambda s: s.queued_s)

    def due_s(self, clock_s: float, start_s: float) -> float:
        """Return when the next response ends, from ``clock_s`` on, if that is at most ``start_s``, the start of the next
        iteration; else infinite.
        """
        at_s = max(clock_s, self.first_s)
        return at_s if at_s <= start_s else math.inf

    def take_due(self, at_s: float) -> list[S]:
        """Remove and return the responses that end at ``at_s``."""
        count = sum(s.queued_s <= at_s for s in self._queued)
        due, self._queued = self._queued[:count], self._queued[count:]
        return due

    def remove(self, gone: Set[S]) -> None:
        """Remove these responses where they are queued here."""
        self._queued = [s for s in self._queued if s not in gone]
