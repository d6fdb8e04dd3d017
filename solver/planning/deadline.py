"""Computes the clock time at which a search stops; a deterministic search never stops by the clock."""

from __future__ import annotations

import math


def stop_after(began: float, seconds: float, deterministic: bool) -> float:
    """Return the ``perf_counter`` time at which a search stops: ``seconds`` after it ``began``.

    Infinity for a ``deterministic`` search, which stops after a counted amount of work instead.
    """
    return math.inf if deterministic else began + seconds
