"""Completions stored as arrays; ``Completion`` objects are made when they are read, not when they are committed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import overload

import numpy as np

from rlhfless.engine.protocol import Completion
from solver.model.workload import FloatArray, IntArray


class Completions(Sequence[Completion]):
    """Completions of one engine in order of time.

    Attributes:
        responses, time_s, response_tokens: (n,) of each, as in ``Completion``.

    Args:
        make: returns the ``Completion`` objects at some of ``places``.
        places: (n,) indices of these completions for ``make``.
    """

    __slots__ = ("_make", "_places", "response_tokens", "responses", "time_s")

    def __init__(
        self,
        responses: IntArray,
        time_s: FloatArray,
        response_tokens: IntArray,
        make: Callable[[range], list[Completion]],
        places: range,
    ) -> None:
        self.responses, self.time_s, self.response_tokens = responses, time_s, response_tokens
        self._make, self._places = make, places

    @classmethod
    def of(cls, completions: Sequence[Completion]) -> Completions:
        """Return the arrays of existing completions, whose objects stay the same."""
        if isinstance(completions, cls):
            return completions
        responses = np.array([c.response for c in completions], dtype=np.int64)
        tokens = np.array([c.response_tokens for c in completions], dtype=np.int64)
        time_s = np.array([c.time_s for c in completions], dtype=float)
        return cls(responses, time_s, tokens, lambda at: [completions[i] for i in at], range(len(completions)))

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> Completion: ...
    @overload
    def __getitem__(self, index: slice) -> Completions: ...
    def __getitem__(self, index: int | slice) -> Completion | Completions:
        places = self._places[index]
        if isinstance(places, int):
            return self._make(range(places, places + 1))[0]
        columns = self.responses[index], self.time_s[index], self.response_tokens[index]
        return Completions(*columns, self._make, places)

    def __iter__(self) -> Iterator[Completion]:
        return iter(self._make(self._places))


def joined(parts: Sequence[Completions]) -> Sequence[Completion]:
    """Return the concatenation of consecutive completions."""
    if len(parts) < 2:
        return parts[0] if parts else []
    columns = ([getattr(p, name) for p in parts] for name in ("responses", "time_s", "response_tokens"))
    responses, time_s, tokens = (np.concatenate(column) for column in columns)

    def make(at: range) -> list[Completion]:
        together = list(itertools.chain(*parts))
        return [together[i] for i in at]

    return Completions(responses, time_s, tokens, make, range(len(responses)))
