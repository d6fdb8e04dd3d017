"""Calibrates simulated generation times to a log's own step times, and reads the seconds outside generation from the log.

Inputs are scalars of steps (those of an import, which ``trace/metrics/step_times.py`` completes) and simulated times. A latency
profile that is off by the same factor everywhere is corrected by that factor. The variation from step to step is stated as a
range, and as the error on held-out steps. ``rlhfless/latency/calibrate_from_log.py`` makes a new profile from a log instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from rlhfless.analysis.gpu_seconds import REST, PhaseSeconds
from rlhfless.latency.held_out_errors import HeldOut, held_out
from rlhfless.trace.metrics.step_times import NO_BOUNDS


@dataclass(frozen=True, eq=False)
class Calibration:
    """Ratio of logged to simulated seconds of generation, by which simulated times are scaled.

    Attributes:
        factor: multiplies simulated times; the median ratio over steps. If a constant predicts held-out steps better than the
            profile does, it is the factor with which the mean step takes as long as logged. If the log has only lower bounds,
            it is the smallest factor of at least 1 with which the mean step satisfies them.
        low, high: percentiles 10 and 90 over steps.
        steps: number of steps with both times; with 0 steps the factor is 1 or from lower bounds, and its error is unknown.
        checked: errors of predicting each step from the other steps, by the profile and by a constant; None without any step.
        exact: the run used the virtual clock with this profile, so all compared times are the profile's own.
    """

    factor: float = 1.0
    low: float = 1.0
    high: float = 1.0
    steps: int = 0
    checked: HeldOut | None = None
    exact: bool = False

    @property
    def allows_savings(self) -> bool:
        """Whether simulated times are good enough to state savings: they are the run's own, or better than a constant."""
        return self.exact or self.beats_a_constant

    @property
    def beats_a_constant(self) -> bool:
        """Whether the profile was compared with at least two held-out steps, and predicts them better than a constant."""
        return self.checked is not None and len(self.checked.seconds) > 1 and not self.by_constant

    @property
    def by_constant(self) -> bool:
        """Whether a constant predicts held-out steps better than the profile."""
        return self.checked is not None and self.checked.constant_is_better


def logged_phases(scalars: pd.DataFrame) -> PhaseSeconds | None:
    """Return the mean logged seconds of preparation, learning and weight sync; None if the log has none of them."""
    seconds = {name: float(scalars[name].mean()) for name in REST if name in scalars.columns and scalars[name].notna().any()}
    return PhaseSeconds(**seconds, basis="logged") if seconds else None


def stated_phases(prepare_s: float | None, learn_s: float | None, logged: PhaseSeconds | None) -> PhaseSeconds:
    """Return the stated seconds of each phase; a phase that is not stated keeps its logged seconds, or 0."""
    if prepare_s is None and learn_s is None:
        return PhaseSeconds() if logged is None else logged
    base = PhaseSeconds() if logged is None else logged
    return PhaseSeconds(
        base.prepare_s if prepare_s is None else prepare_s, base.learn_s if learn_s is None else learn_s, base.sync_s,
        basis="stated" if logged is None else "stated and logged",
    )  # fmt: skip


def calibration(scalars: pd.DataFrame, simulated_s: pd.Series, at_least_s: pd.Series = NO_BOUNDS) -> Calibration:
    """Compare logged generation times with simulated ones.

    Args:
        scalars: ``step`` and ``generate_s``. simulated_s: makespans of generation by step, all above 0.
        at_least_s: lower bounds on logged times of other steps.
    """
    logged = scalars.set_index("step").reindex(columns=["generate_s"])["generate_s"].dropna()
    logged = logged[np.isfinite(logged) & (logged > 0)]  # a step of no time was not generated
    both = logged.index.intersection(simulated_s.index)
    if not len(both):
        bounded = at_least_s.index.intersection(simulated_s.index)
        least = at_least_s[bounded].sum() / simulated_s[bounded].sum() if len(bounded) else 1.0
        return Calibration(max(1.0, float(least)))
    took, simulated = logged[both].to_numpy(dtype=float), simulated_s[both].to_numpy(dtype=float)
    ratio = took / simulated
    low, middle, high = np.percentile(ratio, [10, 50, 90])
    checked = held_out(took, both, lambda used: np.median(ratio[used]) * simulated)
    if checked.constant_is_better:
        middle = took.sum() / simulated.sum()
    return Calibration(float(middle), float(low), float(high), len(both), checked)
