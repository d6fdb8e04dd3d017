"""Chooses the order in which each actor admits its responses, where it refills slots or memory.

Whatever fits into the batch at once may stand in any order. Of the others, these orders are tried, and each actor keeps the one
in which it is done first:

- longest first (longest processing time first, after Graham 1969): what is admitted last is short, so slots end together;
- waves of as many responses as there are slots, the shortest wave first and each wave longest first. Where few responses share
  a slot, every slot gets one of each wave, and long ones join where short ones have left. Under a token budget the first wave
  may be in order of rising context;
- prompt after prompt, those of the longest responses first;
- where prompts are shared (``share_prefill``), longest first and waves, with one response of every prompt in front. What joins
  later finds its prompt computed and needs no prefill call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from solver.model.workload import FloatArray, IntArray, Workload
from solver.timing.group_times import Split

Timed = Callable[[Split], FloatArray]
"""(S, N) seconds of the groups of a split."""


def admission_orders(
    split: Split, workload: Workload, slots: int, shares_prompts: bool, short_prompts_first: bool = False
) -> Iterator[Split]:
    """Yield the split in the orders of the module docstring, longest first at the beginning.

    Args:
        short_prompts_first: the first wave is in order of rising context, so that under a token budget most of its responses
            decode early.
    """
    group, length, owner = _group(split), workload.iterations[split.order], workload.prompt_of[split.order]
    sorted_split = Split(split.order[np.lexsort((-length, group))], split.edges)
    rank = np.arange(len(group)) - split.edges[group]
    by_wave = Split(sorted_split.order[np.lexsort((rank, -(rank // slots), group))], split.edges)
    if short_prompts_first:
        joins_at_once = rank < slots  # rank is the position within the group
        context = np.where(joins_at_once, workload.context_tokens[by_wave.order], 0)
        by_wave = Split(by_wave.order[np.lexsort((rank, context, ~joins_at_once, group))], split.edges)
    longest = np.zeros(len(workload.prompt_tokens), dtype=np.int64)
    np.maximum.at(longest, owner, length)
    yield sorted_split
    yield by_wave
    yield Split(split.order[np.lexsort((-length, owner, -longest[owner], group))], split.edges)
    if shares_prompts:
        for ordered in (sorted_split, by_wave):
            owner, works = workload.prompt_of[ordered.order], workload.remaining_tokens[ordered.order] > 0
            key = np.where(works, group * (int(owner.max()) + 1) + owner, -1)
            later = np.ones(len(key), dtype=bool)
            later[np.unique(key, return_index=True)[1]] = False
            yield Split(ordered.order[np.lexsort((later & works, group))], split.edges)


def fastest_orders(split: Split, orders: Iterator[Split], timed: Timed) -> tuple[Split, FloatArray]:
    """Return the split with every group in the fastest of its given order and ``orders``, and its (S, N) seconds.

    Over several sets of lengths the mean counts.
    """
    busy_s, group, order = timed(split), _group(split), split.order
    for other in orders:
        if np.array_equal(other.order, split.order):
            continue
        seconds = timed(other)
        faster = seconds.mean(axis=0) < busy_s.mean(axis=0) * (1 - 1e-12)
        busy_s = np.where(faster, seconds, busy_s)
        order = np.where(faster[group], other.order, order)
    return Split(order, split.edges), busy_s


def _group(split: Split) -> IntArray:
    """Return the (R,) group of each position."""
    return np.repeat(np.arange(len(split.edges) - 1), np.diff(split.edges))
