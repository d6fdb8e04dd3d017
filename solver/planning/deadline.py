"""Where the clock ends a search, and where only counted work does.

Knows the clock (``perf_counter``); nothing of planning.
"""

from __future__ import annotations

import math


def stop_after(began: float, seconds: float, deterministic: bool) -> float:
    """When the clock ends a search: ``seconds`` after it ``began``, both of ``perf_counter``. Never (infinity) for a
    ``deterministic`` search, which ends by counted work alone."""
    return math.inf if deterministic else began + seconds
