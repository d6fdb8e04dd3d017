"""Makes dollars of GPU-seconds and prices as traces have them: a price of 0 stands for one that is not known."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def dollars(gpu_seconds: ArrayLike, usd_per_gpu_s: ArrayLike) -> np.ndarray:
    """Return what GPU-seconds cost; NaN where they have the price 0, as those have of GPUs that are emulated or not priced.

    Args:
        gpu_seconds, usd_per_gpu_s: numbers or arrays of one shape.
    """
    gpu_s, price = np.asarray(gpu_seconds, dtype=float), np.asarray(usd_per_gpu_s, dtype=float)
    return np.where((price > 0) | (gpu_s == 0), gpu_s * price, np.nan)
