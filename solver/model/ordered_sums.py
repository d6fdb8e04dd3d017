"""Products that are summed in one order on every processor."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def dot(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.float64]:
    """Return ``a @ b`` for (..., N) times (N,) or (N, M).

    BLAS, which ``@`` calls, sums in an order of the processor's kernel. The last digit that this changes decides between plans
    that are equally good, so the same inputs would have another plan on another machine.

    Example:
        >>> dot(np.array([1.0, 2.0]), np.array([[1.0, 0.0], [0.0, 3.0]])).tolist()
        [1.0, 6.0]
    """
    return np.asarray(np.einsum("...i,i->..." if b.ndim == 1 else "...i,ij->...j", a, b))
