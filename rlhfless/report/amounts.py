"""Amounts of a run in words: dollars where its price is known, GPU-hours elsewhere, and shares where its speed is not known."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rlhfless.analysis import RunCost
from rlhfless.plots.style import number
from rlhfless.report.not_stated import PRICE, PROFILE
from rlhfless.report.savings import percent, percent_range
from rlhfless.report.study import LoggedRunFindings

NARROW = 0.02  # of its upper end: a range that is told as one amount, as its model is less exact
LEAST_HOURS = 0.1  # of a run that is told in GPU-hours; a shorter one is told in GPU-seconds


@dataclass(frozen=True)
class Amounts:
    """What a whole run cost, to say shares of it in words.

    Attributes:
        gpu_hours: of the run. usd: dollars; NaN where the price is not known. is_known: whether the run's times are known.
    """

    gpu_hours: float
    usd: float
    is_known: bool = True

    @property
    def is_priced(self) -> bool:
        """Whether the dollars are known."""
        return not math.isnan(self.usd)

    @property
    def in_gpu_time(self) -> str:
        """All of it in GPU-hours, or GPU-seconds of a short run: ``326 GPU-hours``."""
        return self._gpu_time(1.0)

    def of(self, share: float) -> str:
        """Return a share of the run's cost: in dollars where the price is known, else in GPU-hours."""
        return number(share * self.usd, "USD") if self.is_priced else self._gpu_time(share)

    def between(self, low: float, high: float) -> str:
        """Return a range of shares of the run's cost: in percent where times are not known, one amount if it is narrow."""
        if not self.is_known:
            return percent_range(low, high)
        least, most = self.of(low), self.of(high)
        if least != most and high - low <= NARROW * high:
            return f"about {self.of((low + high) / 2)}"
        return most if least == most else f"{least.partition(' ')[0]} to {most}"

    def _gpu_time(self, share: float) -> str:
        hours = share * self.gpu_hours
        return number(hours, "GPU-hours") if self.gpu_hours >= LEAST_HOURS else number(3600.0 * hours, "GPU-seconds")


def more_than_idle(idle_share: float) -> str:
    """Return why a change can save more of a run than was idle, where one does."""
    had = f"more than the {percent(idle_share)} that was idle" if percent(idle_share) != "0.0%" else "although no GPU was idle"
    return (
        f"A change can save {had}. Idle is a GPU that has nothing to run. GPUs that run nearly empty batches count as busy "
        "here, and can be given back, too."
    )


def is_unknown(findings: LoggedRunFindings) -> bool:
    """Return whether nobody stated the profile that the GPU-hours of a logged run need, as it has no times."""
    return _is_unknown(findings.cost, findings.not_stated)


def _is_unknown(cost: RunCost, not_stated: Mapping[str, str]) -> bool:
    return PROFILE in not_stated and not cost.logged_steps


def amounts_of(findings: LoggedRunFindings) -> Amounts:
    """Return what a logged run cost; without dollars where nobody stated a price."""
    return amounts(findings.cost, findings.not_stated)


def amounts(cost: RunCost, not_stated: Mapping[str, str]) -> Amounts:
    """Return what a run cost; without dollars where nobody stated a price."""
    return Amounts(cost.gpu_hours, math.nan if PRICE in not_stated else cost.usd, not _is_unknown(cost, not_stated))
