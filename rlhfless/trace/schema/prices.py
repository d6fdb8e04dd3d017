"""Makes dollars of GPU-seconds and prices as traces have them: a price of 0 stands for one that is not known."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

AS_STATED = "price_as_stated"
"""Key of a trace's meta: what ``price_in_words`` says, where a user stated the price of an executed run."""


def dollars(gpu_seconds: ArrayLike, usd_per_gpu_s: ArrayLike) -> np.ndarray:
    """Return what GPU-seconds cost; NaN where they have the price 0, as those have of GPUs that are emulated or not priced.

    Args:
        gpu_seconds, usd_per_gpu_s: numbers or arrays of one shape.
    """
    gpu_s, price = np.asarray(gpu_seconds, dtype=float), np.asarray(usd_per_gpu_s, dtype=float)
    return np.where((price > 0) | (gpu_s == 0), gpu_s * price, np.nan)


def recorded_usd_per_gpu_hour(allocations: pd.DataFrame) -> tuple[float, ...]:
    """Return the different prices of allocations, in USD per GPU-hour, the lowest first; 0 is that of GPUs without one."""
    return tuple(sorted({round(3600.0 * float(price), 9) for price in allocations["usd_per_gpu_s"].unique()}))


def price_in_words(usd_per_gpu_hour: float, allocations: pd.DataFrame) -> str:
    """Return the price that a user states for an executed run, beside those that its allocations recorded.

    Example:
        >>> price_in_words(3.0, pd.DataFrame({"usd_per_gpu_s": [0.0]}))
        'price as stated, 3 USD per GPU-hour; the trace recorded none'
    """
    stated = f"{usd_per_gpu_hour:,.6g} USD per GPU-hour" if usd_per_gpu_hour > 0 else "none"
    recorded = recorded_usd_per_gpu_hour(allocations)
    priced = " to ".join(f"{usd:,.6g}" if usd > 0 else "none" for usd in dict.fromkeys((recorded[0], recorded[-1])))
    return f"price as stated, {stated}; the trace recorded {priced}"
