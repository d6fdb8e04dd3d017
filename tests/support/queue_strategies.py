"""Random queues of one actor, and admissions under which every one of their responses fits."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from solver.model.admission import Admission
from solver.timing.batch import Batch, PassTokens


class Queue(NamedTuple):
    """Responses of one actor: iterations, context, most KV tokens, and cached tokens of each."""

    remaining: np.ndarray
    context: np.ndarray
    most: np.ndarray
    there: np.ndarray

    def batch(self, admission: Admission, running: int = 0, drafts: PassTokens | None = None) -> Batch:
        return Batch(self.remaining, self.context, self.context - self.there, self.most, admission, running, drafts)


@st.composite
def queues(draw: st.DrawFn) -> Queue:
    count = draw(st.integers(1, 12))
    columns = [
        draw(st.lists(element, min_size=count, max_size=count))
        for element in (st.integers(0, 20), st.integers(0, 15), st.integers(0, 8), st.sampled_from([0, 1, 7, 15]))
    ]
    remaining, context, spare, there = (np.array(column, dtype=np.int64) for column in columns)
    return Queue(remaining, context, context + remaining + spare, np.minimum(there, context))  # none, a part or all of it


@st.composite
def admissions(draw: st.DrawFn, queue: Queue) -> Admission:
    """Slots and memory from 'one at a time' to 'everyone at once'; every response fits alone."""
    alone, together = int(queue.most.max()), int(queue.most.sum())
    memory = draw(st.integers(max(1, alone), max(1, together)))
    return Admission(draw(st.integers(1, 13)), memory, draw(st.sampled_from(["reserve", "preempt"])))
