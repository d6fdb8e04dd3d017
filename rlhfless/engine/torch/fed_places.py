"""The places that a pass feeds: the last token of every response of a batch, and the tokens drafted after it.

Knows numbers of drafted tokens only. The places of a pass are often those of the pass before, so they are worth keeping.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

COLUMNS = (1, 2, 3, 5, 9, 17, 33)  # to which rectangles are rounded, so that few shapes have to be prepared
Indices = NDArray[np.int64]


class AttentionCall(NamedTuple):
    """Places that attend in one call: those of one row, or of rows ``first`` to ``last`` in one column.

    Attributes:
        begin, end: of these places, in the pass.
        among: which of the rows from ``first`` to ``last`` they are; None: all, or several places of one row.
    """

    begin: int
    end: int
    first: int
    last: int
    among: Tensor | None


@dataclass(frozen=True, eq=False)
class FedPlaces:
    """Places in the order in which they are fed: first whole columns, then what is left of each row.

    Attributes:
        rows: (N,) row of the cache of each; columns: (N,) 0 for the last token of a response, k for its k-th drafted token.
        passes: attention calls, by the forward pass that they belong to.
        by_row: (N,) the places row after row; ends: where each row ends there.
    """

    rows: Indices
    columns: Indices
    passes: Sequence[Sequence[AttentionCall]]
    by_row: Indices
    ends: list[int]

    @classmethod
    def of(cls, draft_tokens: Sequence[int], pass_tokens: int) -> FedPlaces:
        """Return the places of as many drafted tokens per row, in the order that takes the fewest attention calls.

        Args:
            pass_tokens: the most tokens of a forward pass; more are split. Every place comes after those it attends to.
        """
        fed = np.array(draft_tokens) + 1
        column = np.arange(fed.max() + 1)
        present = fed[:, None] > column
        whole = int((column + present.sum(axis=0)).argmin())  # a call per column, then a call per row that has more
        columns, rows = np.nonzero(present.T[:whole])
        if whole < len(column) - 1:
            more_rows, more_columns = np.nonzero(present[:, whole:])
            rows, columns = np.concatenate([rows, more_rows]), np.concatenate([columns, more_columns + whole])
        group = np.where(columns < whole, columns, rows + whole)
        splits = range(0, len(rows), pass_tokens)
        passes = [_calls(rows, group, begin, min(begin + pass_tokens, len(rows))) for begin in splits]
        return cls(rows, columns, passes, np.lexsort((columns, rows)), fed.cumsum().tolist())


def _calls(rows: Indices, group: Indices, begin: int, end: int) -> list[AttentionCall]:
    edges = [begin, *(begin + 1 + np.flatnonzero(np.diff(group[begin:end]))).tolist(), end]
    calls = []
    for a, b in pairwise(edges):
        first, last = int(rows[a]), int(rows[b - 1])
        among = torch.from_numpy(rows[a:b] - first) if b - a <= last - first else None
        calls.append(AttentionCall(a, b, first, last, among))
    return calls


def rounded(columns: int) -> int:
    """Return the columns of the rectangle that is prepared for passes of this many."""
    return next(size for size in COLUMNS if size >= columns)
