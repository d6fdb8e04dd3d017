"""Latest model signals of every response (such as entropy), on either clock, stored as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solver.model.runtime_rules import Signals


class ObservedSignals:
    """Latest signals of ``count`` responses; stores nothing before the first report."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._tables: dict[str, NDArray[np.floating[Any]]] = {}

    def note(self, responses: NDArray[np.int64], signals: Signals) -> None:
        """Set the signals of these (n,) responses to ``signals``, (n, ...) by name."""
        for name, values in signals.items():
            if name not in self._tables:
                self._tables[name] = np.full((self._count, *values.shape[1:]), np.nan, values.dtype)
            self._tables[name][responses] = values

    def forget(self, responses: Sequence[int]) -> None:
        """Drop the signals of these responses."""
        for table in self._tables.values():
            table[list(responses)] = np.nan

    def shown(self, complete: NDArray[np.bool_]) -> Signals | None:
        """Return the current signals by name (R, ...), NaN where unknown and for ``complete`` (R,) responses; None if none were
        ever reported.
        """
        copies = {name: table.copy() for name, table in self._tables.items()}
        for table in copies.values():
            table[complete] = np.nan
        return copies or None
