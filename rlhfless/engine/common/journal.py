"""Journal of an actor's iterations: batch changes and token counts, from which the iterations can be replayed and retimed.

Outputs are counts and seconds, without token ids. A batch that stays unchanged needs one entry however many iterations it
lasts, so keeping a journal costs an iteration well under a microsecond.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class AdmittedResponse(NamedTuple):
    """A response that joins the batch.

    Attributes:
        context_tokens: KV tokens of its context at its first iteration here.
        cached_tokens: cached tokens among them, which prefill need not compute.
        forced: its length was given, so that the end of text is not checked.
    """

    response: int
    context_tokens: int
    cached_tokens: int
    forced: bool

    @property
    def prefill_tokens(self) -> int:
        """Return the uncached tokens of its context: what a latency model charges prefill for."""
        return self.context_tokens - self.cached_tokens

    @property
    def computed_tokens(self) -> int:
        """Return the tokens that prefill computes: the uncached ones but the last, which its first iteration feeds."""
        return max(0, self.prefill_tokens - 1)


class JournalledBatch(NamedTuple):
    """A new batch that is decoded from ``iteration`` on.

    Attributes:
        batch: number of responses in it; rows: fed rows, padding included.
        width: cache cells that the first of its iterations attends over, one more in each that follows.
        kv_tokens: of the batch at the first of its iterations, ``batch`` more in each that follows.
        left: responses that left the batch since the last change, finished or not.
        joined: in admission order; the uncached tokens of their contexts, but for the last token of each, are computed before
            ``iteration``.
    """

    iteration: int
    batch: int
    rows: int
    width: int
    kv_tokens: int
    left: tuple[int, ...]
    joined: tuple[AdmittedResponse, ...]

    @property
    def prefill_tokens(self) -> int:
        """Return the uncached tokens of the admitted contexts."""
        return sum(new.prefill_tokens for new in self.joined)

    @property
    def computed_tokens(self) -> int:
        """Return the uncached tokens that prefill computes."""
        return sum(new.computed_tokens for new in self.joined)

    @property
    def computing(self) -> int:
        """Return the number of admitted responses with uncached tokens."""
        return sum(new.prefill_tokens > 0 for new in self.joined)


class Replayed(NamedTuple):
    """Measured times of a journal's iterations, replayed alone and back to back.

    Attributes:
        seconds: (iterations, 2) of the prefill before each iteration (0 where there is none), and of the rest of it.
        warm_up_s: seconds spent on warming up and preparing shapes for the device; not part of ``seconds``.
    """

    seconds: NDArray[np.float64]
    warm_up_s: float


@dataclass
class EngineJournal:
    """Committed iterations of one actor.

    Attributes:
        slots: of the actor.
        start_s: when it was ready; end_s: end of its last committed iteration (``start_s`` before the first).
        changes: of its batch, in order.
        finished: (iterations committed by then, response) of every completion.
        prefill_s, decode_s: seconds charged for each iteration.
        prepare_s: total seconds of preparing shapes for the device (CUDA graphs); no iteration is charged for them.
    """

    slots: int
    start_s: float = 0.0
    changes: list[JournalledBatch] = field(default_factory=list)
    finished: list[tuple[int, int]] = field(default_factory=list)
    prefill_s: array[float] = field(default_factory=lambda: array("d"))
    decode_s: array[float] = field(default_factory=lambda: array("d"))
    prepare_s: float = 0.0
    end_s: float = field(init=False)
    _left: list[int] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        self.end_s = self.start_s

    def __len__(self) -> int:
        """Return the number of committed iterations."""
        return len(self.decode_s)

    def commit(self, prefill_s: float, decode_s: Sequence[float], end_s: float) -> None:
        """Append committed iterations; the first begins with a prefill if that takes any time."""
        self.prefill_s.append(prefill_s)
        self.prefill_s.extend([0.0] * (len(decode_s) - 1))
        self.decode_s.extend(decode_s)
        self.end_s = end_s

    def change(self, batch: int, rows: int, width: int, kv_tokens: int, joined: Sequence[AdmittedResponse]) -> None:
        """Note that the next committed iteration is the first of another batch."""
        self.changes.append(JournalledBatch(len(self), batch, rows, width, kv_tokens, tuple(self._left), tuple(joined)))
        self._left.clear()

    def leave(self, responses: Iterable[int]) -> None:
        """Note responses that have left the batch."""
        self._left += responses

    def finish(self, responses: Iterable[int]) -> None:
        """Note responses that end with the last committed iteration."""
        self.finished += [(len(self), response) for response in responses]

    def intervals(self) -> Iterator[tuple[JournalledBatch, int]]:
        """Yield every change with the iteration before which the next one comes."""
        ends = [later.iteration for later in self.changes[1:]]
        return zip(self.changes, [*ends, len(self)], strict=False)
