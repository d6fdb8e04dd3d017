"""Measures of items, and the least load per unit of each measure on an actor, for the bound over sequences of actors.

Input: ``Items``. Positions are blocks of sorted items. A block counts as short as its shortest item and as cheap as its
cheapest; its measure is that of all its items.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solver.model.workload import FloatArray, IntArray
from solver.timing.items import Items

SINGLES = 64  # longest items that are positions of their own
BLOCKS, LEAST_BLOCKS = 6144, 256  # of the others: for all offers together, and for each at least
MOST_MEASURES = 16


@dataclass(frozen=True, eq=False)
class Measures:
    """F measures of the items that need an iteration, in B blocks, on R offers. All items measure 1 together.

    Attributes:
        length: (B,) iterations of each block's shortest item.
        covered: (F, B+1) measure of the items before each block, and of all.
        rho, sigma: (R, F, B) the least over a block and all behind it of w_i / u_i, and of what an item adds per u_i to an
            actor whose slots (or whose memory, the larger of the two) are full.
    """

    length: FloatArray
    covered: FloatArray
    rho: FloatArray
    sigma: FloatArray

    @classmethod
    def of(cls, items: Items) -> Measures:
        """Return iterations and the loads of all offers as measures, with their shares of slots and memory where those bind."""
        count = int(items.works.sum())
        loads, steps = items.load[:, :count], items.steps[:count]
        slot_loads = loads + items.base_s[:, None] * steps / items.slots[:, None]
        kv_loads = loads + items.base_s[:, None] * items.occupied[:count] / items.kv_tokens[:, None]
        memory = float(items.held.max(initial=0.0)) * np.minimum(len(items.order), items.slots) > items.kv_tokens
        refills = int((items.problem.workload.iterations > 0).sum()) > int(items.slots.min())
        rows = [steps, *loads, *(slot_loads if refills else []), *(kv_loads if memory.any() else [])]
        scaled = [np.maximum(row / max(float(row.sum()), 1e-300), 1e-15) for row in rows]
        measures = np.array(_different(scaled)[:MOST_MEASURES])  # alike offers have the same measure
        measures = measures / measures.sum(axis=1, keepdims=True)
        wide = max(1, -(-(count - SINGLES) // max(LEAST_BLOCKS, BLOCKS // len(items.offers))))
        first: IntArray = np.concatenate([np.arange(min(SINGLES, count)), np.arange(SINGLES, count, wide)])
        last = np.concatenate([first[1:], np.full(min(1, count), count)]) - 1
        covered = np.concatenate([np.zeros((len(measures), 1)), np.cumsum(measures, axis=1)[:, last]], axis=1)

        def least_after(per: FloatArray) -> FloatArray:
            """Return (R, F, B) least of per_i / u_i over a block and all behind it."""
            if not count:
                return np.zeros((len(per), len(measures), 0))
            ratio = np.minimum.reduceat(per[:, None, :] / measures[None, :, :], first, axis=2)
            return np.asarray(np.minimum.accumulate(ratio[:, :, ::-1], axis=2)[:, :, ::-1])

        # slots and memory as one: both divide the same room, so the larger of the two counts
        sigma = np.maximum(least_after(slot_loads), least_after(kv_loads) if memory.any() else 0.0)
        return cls(items.length[:count].astype(float)[last], covered, least_after(loads), sigma)


def _different(rows: list[FloatArray]) -> list[FloatArray]:
    """Return the rows without those that repeat an earlier one."""
    kept: list[FloatArray] = []
    for row in rows:
        if not any(np.abs(row - other).max(initial=0.0) < 1e-15 for other in kept):
            kept.append(row)
    return kept
