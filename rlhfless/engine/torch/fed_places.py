"""The places that a pass feeds: the last token of every response of a batch, and the tokens drafted after it.

Knows numbers of drafted tokens only. The places of a pass are often those of the pass before, so they are worth keeping.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
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
        order: (N,) which place, counted row after row, each is; by_row: the places row after row; ends: where each row ends
            there.
    """

    rows: Indices
    columns: Indices
    passes: Sequence[Sequence[AttentionCall]]
    order: Indices
    by_row: list[int]
    ends: list[int]

    @staticmethod
    @lru_cache(maxsize=512)
    def of(draft_tokens: tuple[int, ...], pass_tokens: int) -> FedPlaces:
        """Return the places of as many drafted tokens per row, in the order that takes the fewest attention calls.

        Args:
            pass_tokens: the most tokens of a forward pass; more are split. Every place comes after those it attends to.
        """
        columns = [[row for row, drafted in enumerate(draft_tokens) if drafted >= k] for k in range(max(draft_tokens) + 2)]
        whole = min(range(len(columns)), key=lambda k: k + len(columns[k]))  # a call per column, then one per row that has more
        starts = [0, *accumulate([drafted + 1 for drafted in draft_tokens])]
        groups = [[(row, k) for row in columns[k]] for k in range(whole)]
        groups += [[(row, k) for k in range(whole, draft_tokens[row] + 1)] for row in columns[whole]]
        rows, at = zip(*[place for group in groups for place in group], strict=True)
        order = [starts[row] + k for row, k in zip(rows, at, strict=True)]
        by_row = sorted(range(len(order)), key=order.__getitem__)
        return FedPlaces(np.array(rows), np.array(at), _passes(groups, pass_tokens), np.array(order), by_row, starts[1:])


def _passes(groups: Sequence[Sequence[tuple[int, int]]], pass_tokens: int) -> list[list[AttentionCall]]:
    """Return the attention calls of groups of (row, column): one for each part of a group that is in a pass of its own."""
    passes: list[list[AttentionCall]] = []
    begin = 0
    for group in groups:
        while group:
            if begin % pass_tokens == 0:
                passes.append([])
            part, group = group[: pass_tokens - begin % pass_tokens], group[pass_tokens - begin % pass_tokens :]
            end, first, last = begin + len(part), part[0][0], part[-1][0]
            among = torch.tensor([row - first for row, _ in part]) if len(part) <= last - first else None
            passes[-1].append(AttentionCall(begin, end, first, last, among))
            begin = end
    return passes


def rounded(columns: int) -> int:
    """Return the columns of the rectangle that is prepared for passes of this many."""
    return next(size for size in COLUMNS if size >= columns)
