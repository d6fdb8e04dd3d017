"""What an engine committed as columns: objects are made when somebody looks at one, not when it is committed.

Knows completions and spans as the protocol has them; nothing of who committed them, or of who reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import overload

import numpy as np

from rlhfless.engine.protocol import Completion, EngineSpan
from solver.workload import FloatArray, IntArray


class Completions(Sequence[Completion]):
    """Completions of one engine in order of time.

    Attributes:
        responses, time_s, response_tokens: (n,) of each, as in ``Completion``.

    Args:
        make: gives the i-th completion.
    """

    def __init__(
        self, responses: IntArray, time_s: FloatArray, response_tokens: IntArray, make: Callable[[int], Completion]
    ) -> None:
        self.responses, self.time_s, self.response_tokens, self._make = responses, time_s, response_tokens, make

    @classmethod
    def of(cls, completions: Sequence[Completion]) -> Completions:
        """The columns of completions, which stay the same objects."""
        if isinstance(completions, cls):
            return completions
        responses = np.array([c.response for c in completions], dtype=np.int64)
        tokens = np.array([c.response_tokens for c in completions], dtype=np.int64)
        return cls(responses, np.array([c.time_s for c in completions], dtype=float), tokens, completions.__getitem__)

    def __len__(self) -> int:
        return len(self.responses)

    @overload
    def __getitem__(self, index: int) -> Completion: ...
    @overload
    def __getitem__(self, index: slice) -> Completions: ...
    def __getitem__(self, index: int | slice) -> Completion | Completions:
        places = range(len(self.responses))[index]
        if isinstance(places, int):
            return self._make(places)
        at, make = slice(places.start, places.stop, places.step), self._make
        return Completions(self.responses[at], self.time_s[at], self.response_tokens[at], lambda i: make(places[i]))

    def __iter__(self) -> Iterator[Completion]:
        return map(self._make, range(len(self.responses)))


class Spans(Sequence[EngineSpan]):
    """Spans that are computed when they are first looked at.

    Args:
        compute: gives all of them.
    """

    def __init__(self, compute: Callable[[], list[EngineSpan]]) -> None:
        self._compute: Callable[[], list[EngineSpan]] | None = compute
        self._spans: list[EngineSpan] = []

    def _all(self) -> list[EngineSpan]:
        if self._compute is not None:
            self._spans, self._compute = self._compute(), None
        return self._spans

    def __len__(self) -> int:
        return len(self._all())

    @overload
    def __getitem__(self, index: int) -> EngineSpan: ...
    @overload
    def __getitem__(self, index: slice) -> list[EngineSpan]: ...
    def __getitem__(self, index: int | slice) -> EngineSpan | list[EngineSpan]:
        return self._all()[index]

    def __iter__(self) -> Iterator[EngineSpan]:
        return iter(self._all())


def joined(parts: Sequence[Completions]) -> Sequence[Completion]:
    """Completions that follow on one another."""
    if len(parts) < 2:
        return parts[0] if parts else []
    starts = np.cumsum([0, *map(len, parts)])

    def make(i: int) -> Completion:
        part = int(starts.searchsorted(i, side="right")) - 1
        return parts[part][i - int(starts[part])]

    columns = ([getattr(p, name) for p in parts] for name in ("responses", "time_s", "response_tokens"))
    responses, time_s, tokens = (np.concatenate(column) for column in columns)
    return Completions(responses, time_s, tokens, make)
