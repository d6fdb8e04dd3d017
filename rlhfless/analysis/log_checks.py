"""Cross-checks of a logged run: its measured scalars against values counted from responses, simulated or stated by the user.

Inputs are scalars of steps, responses, simulated times and the seconds outside generation.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from rlhfless.analysis.calibration import Calibration
from rlhfless.analysis.gpu_seconds import PhaseSeconds
from rlhfless.trace.metrics.cross_check import COUNTED, CrossCheck, counted_steps, cross_check
from rlhfless.trace.metrics.step_times import NO_BOUNDS


def log_checks(
    scalars: pd.DataFrame,
    rollouts: pd.DataFrame,
    simulated_s: pd.Series,
    calibrated: Calibration,
    phases: PhaseSeconds,
    *,
    profile: str,
    synchronous: bool,
    at_least_s: pd.Series = NO_BOUNDS,
) -> Iterator[CrossCheck]:
    """Compare a logged run's scalars with all values that a report states about the same steps.

    Args:
        scalars: one row per ``step``. rollouts: of the same run.
        simulated_s: seconds of generation by step, under the run's own schedule by the uncalibrated profile. profile: its name.
        calibrated: how the profile was scaled. phases: the seconds outside generation that the report computes with.
        synchronous: a step is generation and ``phases``, one after the other.
        at_least_s: lower bounds on logged seconds of generation by step.
    """
    yield from cross_check(scalars, counted_steps(rollouts), COUNTED, every_step=True)
    yield from generation_checks(scalars, simulated_s, calibrated, profile)
    if len(at_least_s):
        least = pd.DataFrame({"step": at_least_s.index, "generate_s": at_least_s.to_numpy()})
        ours = pd.DataFrame({"generate_s": simulated_s})
        yield from cross_check(least, ours, f"simulated by profile {profile}", lower_bound="logged")
        if calibrated.steps:
            yield from cross_check(least, calibrated.factor * ours, "calibrated by other steps", lower_bound="logged")
    stated = {name: getattr(phases, name) for name in ("prepare_s", "learn_s")} if "stated" in phases.basis else {}
    if stated:
        yield from cross_check(scalars, pd.DataFrame(stated, index=scalars["step"].to_numpy()), "as stated")
    if synchronous:
        whole = phases.prepare_s > 0 and phases.learn_s > 0
        ours = pd.DataFrame({"step_s": calibrated.factor * simulated_s + phases.seconds})
        how = "simulated, with all other phases" if whole else "simulated" + ", with the known phases" * bool(phases.seconds)
        yield from cross_check(scalars, ours, how, lower_bound="" if whole else "ours")


def generation_checks(
    measured: pd.DataFrame, simulated_s: pd.Series, calibrated: Calibration, profile: str
) -> Iterator[CrossCheck]:
    """Compare measured seconds of generation with simulated ones, and with calibrated predictions of held-out steps.

    Args:
        measured: ``step`` and ``generate_s``. simulated_s: by step.
    """
    if "generate_s" not in measured.columns:
        return
    took = measured[["step", "generate_s"]]
    took = took[took["generate_s"] > 0]
    yield from cross_check(took, pd.DataFrame({"generate_s": simulated_s}), f"simulated by profile {profile}")
    checked = calibrated.checked
    if checked is not None and np.isfinite(checked.predicted).all():
        ours = pd.DataFrame({"generate_s": checked.predicted}, index=checked.steps)
        yield from cross_check(took, ours, f"calibrated, {checked.how}")
