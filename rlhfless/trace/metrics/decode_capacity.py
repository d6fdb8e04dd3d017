"""Computes how much of the paid decode capacity stood empty: idle GPUs of actors, and empty slots of batches.

A GPU-second of an actor buys all of its slots for that time. Idle GPUs and empty slots are two kinds of waste; only here are
they added up.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import pandas as pd


class DecodeCapacity(NamedTuple):
    """GPU-seconds of decode actors; ``empty_slots`` is NaN where a decode span lacks its batch or slots.

    Attributes:
        paid_gpu_s: billed. idle_gpu_s: without a foreground span.
        empty_slots_gpu_s: of slots without a response, while the actor decodes.
    """

    paid_gpu_s: float
    idle_gpu_s: float
    empty_slots_gpu_s: float

    @property
    def empty_share(self) -> float:
        """Share of the paid capacity that stood empty; NaN where it is unknown."""
        return (self.idle_gpu_s + self.empty_slots_gpu_s) / self.paid_gpu_s if self.paid_gpu_s > 0 else math.nan


def decode_capacity(held: pd.DataFrame) -> DecodeCapacity:
    """Return the paid and the empty decode capacity.

    Args:
        held: rows of ``allocation_metrics``; only those with the role ``decode`` count.
    """
    actors = held[held["role"] == "decode"]
    names = ("gpu_seconds", "idle_gpu_seconds", "slot_idle_gpu_seconds")
    return DecodeCapacity(*(float(actors[name].sum(skipna=False)) for name in names))
