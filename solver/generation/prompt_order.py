"""Divides whole prompts into equal counts, one for each actor, and chooses which numbers of actors to try."""

from __future__ import annotations

import itertools
import math

import numpy as np

from solver.model.workload import IntArray, Workload


def equal_counts(count: int, groups: int) -> list[tuple[int, int]]:
    """Return ``groups`` half-open ranges over ``count`` positions whose sizes differ by at most one; none is empty."""
    edges: IntArray = np.linspace(0, count, min(groups, count) + 1).round().astype(np.int64)
    return [(int(a), int(b)) for a, b in itertools.pairwise(edges)]


def candidate_counts(most: int, every: int = 16, step: float = 1.07) -> list[int]:
    """Return the actor counts to try: all up to ``every``, then steps of about 7 % (or another factor ``step``)."""
    counts = list(range(1, min(most, every) + 1))
    while counts[-1] < most:
        counts.append(min(most, math.ceil(counts[-1] * step)))
    return counts


def in_prompt_order(workload: Workload, prompts: IntArray) -> tuple[IntArray, IntArray]:
    """Return the (R,) responses prompt after prompt, and (P+1,) where each prompt's responses begin among them."""
    by_prompt = np.argsort(workload.prompt_of, kind="stable")
    counts = np.bincount(workload.prompt_of, minlength=len(workload.prompt_tokens))
    begin = np.concatenate([[0], np.cumsum(counts)])
    size = counts[prompts]
    first = np.concatenate([[0], np.cumsum(size)])
    return by_prompt[np.repeat(begin[prompts] - first[:-1], size) + np.arange(first[-1])], first
