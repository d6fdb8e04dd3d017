"""What a log's own step times say: seconds outside generation, and how long generation took against a simulation of it.

Knows scalars of steps (those of an import, which ``trace/metrics/step_times.py`` completes) and simulated times; nothing of
profiles. A profile that is off by the same factor everywhere is corrected by that factor. What differs from step to step is
stated as a range, and as the error of steps that were left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from rlhfless.analysis.gpu_seconds import REST, Rest
from rlhfless.latency.held_out_errors import HeldOut, held_out


@dataclass(frozen=True, eq=False)
class Calibration:
    """Logged over simulated seconds of generation.

    Attributes:
        factor: by which simulated times are multiplied: the median over steps. Where a constant predicts left-out steps better
            than the profile does, the factor by which the mean step takes as long as was logged.
        low, high: percentiles 10 and 90 over steps. steps: with both times; without any the factor is 1 and nothing is known.
        checked: steps predicted from the others, in the order of the steps, beside a constant; None without any step.
    """

    factor: float = 1.0
    low: float = 1.0
    high: float = 1.0
    steps: int = 0
    checked: HeldOut | None = None

    @property
    def by_constant(self) -> bool:
        """Whether a constant is closer to left-out steps than the profile."""
        return self.checked is not None and self.checked.constant_is_better


def logged_rest(scalars: pd.DataFrame) -> Rest | None:
    """Mean seconds of preparation, learning and syncing as they were logged; None where the log has none of them."""
    found = {name: float(scalars[name].mean()) for name in REST if name in scalars.columns and scalars[name].notna().any()}
    return Rest(**found, basis="logged") if found else None


def stated_rest(prepare_s: float | None, learn_s: float | None, logged: Rest | None) -> Rest:
    """What is stated, else what was logged, else nothing."""
    if prepare_s is None and learn_s is None:
        return Rest() if logged is None else logged
    own = Rest() if logged is None else logged
    return Rest(
        own.prepare_s if prepare_s is None else prepare_s, own.learn_s if learn_s is None else learn_s, own.sync_s,
        basis="stated" if logged is None else "stated and logged",
    )  # fmt: skip


def calibration(scalars: pd.DataFrame, simulated_s: pd.Series) -> Calibration:
    """How the logged generation times stand to simulated ones.

    Args:
        scalars: ``step`` and ``generate_s``. simulated_s: makespans of generation by step, all above 0.
    """
    if "generate_s" not in scalars.columns:
        return Calibration()
    logged = scalars.set_index("step")["generate_s"].dropna()
    logged = logged[np.isfinite(logged) & (logged > 0)]  # a step of no time was not generated
    both = logged.index.intersection(simulated_s.index)
    if not len(both):
        return Calibration()
    took, simulated = logged[both].to_numpy(dtype=float), simulated_s[both].to_numpy(dtype=float)
    ratio = took / simulated
    low, middle, high = np.percentile(ratio, [10, 50, 90])
    checked = held_out(took, both, lambda used: np.median(ratio[used]) * simulated)
    if checked.constant_is_better:
        middle = took.sum() / simulated.sum()
    return Calibration(float(middle), float(low), float(high), len(both), checked)
