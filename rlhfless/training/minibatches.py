"""Splits a step's prompts into mini-batches by their order, before any response is there; an update learns from each in turn.

Composing mini-batches in the order of completion would sort responses by length, which is another algorithm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rlhfless.training.algorithms.batch import Batch

ADDED = ("tokens", "prepare_pass_tokens", "learn_pass_tokens", "prepare_seconds", "seconds")
OF_FIRST = ("mismatch_mean", "mismatch_max", "mismatch_kl")  # later updates have other weights than those that generated


def by_prompts(prompts: int, minibatches: int) -> list[range]:
    """Return the prompts of each mini-batch, in order; their numbers differ by one at most.

    Example:
        >>> by_prompts(5, 2)
        [range(0, 3), range(3, 5)]
    """
    parts = np.array_split(np.arange(prompts), minibatches)
    return [range(int(part[0]), int(part[-1]) + 1) for part in parts if len(part)]


def split(batch: Batch, minibatches: int) -> list[Batch]:
    """Return the mini-batches of a batch, in the order of its groups' numbers."""
    if minibatches == 1:
        return [batch]
    names, group = np.unique(np.asarray(batch.group_of), return_inverse=True)
    parts = by_prompts(len(names), minibatches)
    return [batch.take(np.flatnonzero((group >= part.start) & (group < part.stop))) for part in parts]


def of_step(numbers: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the numbers of a step from those of its mini-batches: sums of tokens and seconds, else means.

    The mismatch of engine and learner is the first mini-batch's, whose weights generated.
    """
    if len(numbers) == 1:
        return dict(numbers[0])
    named = {name: [each[name] for each in numbers if name in each] for each in numbers for name in each}
    return {
        name: values[0] if name in OF_FIRST else sum(values) / (1 if name in ADDED else len(values))
        for name, values in named.items()
    }
