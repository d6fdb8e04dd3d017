"""Compares two ways to choose a plan on scenarios that nothing was chosen on.

The best of many plans looks better than it is on the scenarios that it was chosen on. So every second scenario is one half, and
the others are the other. A plan is chosen on one half and compared on the other; then the halves change places. The
differences in all scenarios are then paired: a scenario with long responses delays both plans.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from solver.model.workload import FloatArray

OnHeldOut = Callable[[int], FloatArray]
"""Given ``half``, 0 or 1: chooses on the scenarios ``half``, ``half + 2``, ... and returns the values of what is chosen on
the other scenarios."""


class Saving(NamedTuple):
    """What a choice saves on held-out scenarios.

    Attributes:
        mean: the other choice's value minus this one's, the mean over all scenarios. error: its standard error.
        is_sure: whether the mean is larger than as many standard errors as were asked for.
    """

    mean: float
    error: float
    is_sure: bool


def held_out(chosen: OnHeldOut, other: OnHeldOut, errors: float) -> Saving:
    """Return what a choice saves, compared with another one, on scenarios that neither was made on.

    Args:
        chosen, other: return values on one half of what is chosen on the other half; less is better.
        errors: standard errors of the paired differences that the saving must exceed.

    Example:
        >>> import numpy as np
        >>> from solver.lengths.held_out import held_out
        >>> times_s = np.array([[1.0, 1.1, 0.9, 1.0], [2.0, 2.1, 2.2, 1.9]])  # of two plans in four scenarios
        >>> found = held_out(lambda half: times_s[0, 1 - half :: 2], lambda half: times_s[1, 1 - half :: 2], errors=2)
        >>> round(found.mean, 9), found.is_sure
        (1.05, True)
    """
    values, others = (np.concatenate([values_of(half) for half in (0, 1)]) for values_of in (chosen, other))
    difference = values - others
    spread = float(difference.std(ddof=1)) if len(difference) > 1 else 0.0
    mean, error = -float(difference.mean()), spread / math.sqrt(len(difference))
    return Saving(mean, error, mean > errors * error + 1e-12 * abs(float(others.mean())))
