"""A change of a run's configuration, and what it would have saved of the run's cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

LEAST_SAVED = 0.005  # of the cost, in the mean; less is no advice
LEAST_SURE = 0.0005  # of the cost, at the low end of the range; less reads as 0.0 %


@dataclass(frozen=True)
class Change:
    """A change of a run's configuration, and what it would have saved.

    Attributes:
        what: the change in words, beginning with a verb: ``use 4 replicas of 2 GPUs instead of 8``.
        lines: of the framework's own configuration, to copy; empty where it has no option for the change.
        low, mean, high: shares of the run's cost that are saved. The range is that of the part which computes it.
        time: mean share of the run's time that is saved; negative where the run takes longer.
        needs: what the change needs, or what it changes in the data, in sentences; may be empty.

    Example:
        >>> Change("prepare on waiting GPUs", (), 0.01, 0.02, 0.03, 0.02).is_advice
        True
    """

    what: str
    lines: tuple[str, ...]
    low: float
    mean: float
    high: float
    time: float
    needs: str = ""

    @property
    def is_advice(self) -> bool:
        """Whether the whole range is a gain that reads as one, and the mean is no trifle."""
        return self.low >= LEAST_SURE and self.mean >= LEAST_SAVED


def ranked(changes: Iterable[Change]) -> list[Change]:
    """Return the changes that are advice, the largest mean saving first."""
    return sorted((change for change in changes if change.is_advice), key=lambda change: -change.mean)
