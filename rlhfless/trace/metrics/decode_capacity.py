"""Computes how much of the paid decode capacity stood empty: idle GPUs of actors, and empty slots of batches.

A GPU-second of an actor buys all of its slots for that time. Idle GPUs and empty slots are two kinds of waste; only here are
they added up.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import pandas as pd


class DecodeCapacity(NamedTuple):
    """GPU-seconds of decode actors. ``empty_slots_gpu_s`` is NaN if a decode span lacks its batch or slots.

    Attributes:
        paid_gpu_s: billed GPU-seconds.
        idle_gpu_s: GPU-seconds without a foreground span.
        empty_slots_gpu_s: GPU-seconds of batch slots without a response, while the actor decodes.
    """

    paid_gpu_s: float
    idle_gpu_s: float
    empty_slots_gpu_s: float

    @property
    def empty_share(self) -> float:
        """Share of the paid capacity that was idle or had empty slots; NaN if unknown."""
        return (self.idle_gpu_s + self.empty_slots_gpu_s) / self.paid_gpu_s if self.paid_gpu_s > 0 else math.nan


def decode_capacity(held: pd.DataFrame) -> DecodeCapacity:
    """Return the paid, the idle and the empty decode capacity.

    Args:
        held: rows of ``allocation_metrics``; only those with the role ``decode`` count.
    """
    actors = held[held["role"] == "decode"]
    names = ("gpu_seconds", "idle_gpu_seconds", "slot_idle_gpu_seconds")
    return DecodeCapacity(*(float(actors[name].sum(skipna=False)) for name in names))
