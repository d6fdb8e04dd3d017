"""What is known of the model's own signals of every response, on either clock.

Knows arrays; nothing of engines or of how their signals come here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solver.model.runtime_rules import Signals


class KnownSignals:
    """Of ``count`` responses, as they were told last; nothing is kept before anything is told."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._tables: dict[str, NDArray[np.floating[Any]]] = {}

    def note(self, responses: NDArray[np.int64], told: Signals) -> None:
        """From now on the signals of these (n,) responses are ``told``, (n, ...) by name."""
        for name, values in told.items():
            if name not in self._tables:
                self._tables[name] = np.full((self._count, *values.shape[1:]), np.nan, values.dtype)
            self._tables[name][responses] = values

    def forget(self, responses: Sequence[int]) -> None:
        """Nothing is known of these any more."""
        for table in self._tables.values():
            table[list(responses)] = np.nan

    def shown(self, complete: NDArray[np.bool_]) -> Signals | None:
        """By name (R, ...), as they are now, NaN of what is not known and of ``complete`` (R,) responses; None if nothing was
        ever told."""
        copies = {name: table.copy() for name, table in self._tables.items()}
        for table in copies.values():
            table[complete] = np.nan
        return copies or None
