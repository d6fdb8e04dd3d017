"""Compares everything that a log measured with what is counted from its responses or simulated under its own dispatch.

Inputs are an opened log, a set-up of the run and the user's cluster and profile. The report and ``rlhfless simulate`` both
start here, so that they find the same contradictions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from rlhfless.analysis.calibration import Calibration, calibration, logged_phases, stated_phases
from rlhfless.analysis.framework_defaults import RunSetup
from rlhfless.analysis.gpu_seconds import PhaseSeconds
from rlhfless.analysis.log_checks import log_checks
from rlhfless.simulate import SimulationConfig, simulate
from rlhfless.trace import OpenedLog, StepTimes, Trace, with_step_times
from rlhfless.trace.metrics.cross_check import CrossCheck, checks_frame
from rlhfless.trace.schema.casts import listed
from solver.model.objective import NonGenerationPhases
from solver.model.plurals import counted

CALIBRATION_STEPS = 24  # steps with a logged time that the profile is compared with
CALIBRATION_RESPONSES = 40_000


@dataclass(frozen=True, eq=False)
class LogComparison:
    """What a log measured, next to what is computed for the same steps.

    Attributes:
        phases: seconds of a step outside generation, and their source. calibrated: how the profile is scaled.
        checks: one per measured quantity and source of our value.
        not_used: logged values that no computation uses, and times that are lower bounds only, one sentence each.
    """

    phases: PhaseSeconds
    calibrated: Calibration
    checks: tuple[CrossCheck, ...]
    not_used: tuple[str, ...]

    @property
    def lines(self) -> list[str]:
        """One line per check, contradictions first, then what is not used."""
        ordered = sorted(self.checks, key=lambda check: not check.contradicts)
        return [*(f"{check.verdict}: {check}" for check in ordered), *(f"note: {sentence}" for sentence in self.not_used)]

    def to_dict(self) -> dict[str, Any]:
        """Return ``{"checks": [...], "not_used": [...]}``: rows of ``checks_frame``; unknown values are None."""
        checks = checks_frame(self.checks).astype(object)
        return {"checks": checks.where(checks.notna(), None).to_dict("records"), "not_used": list(self.not_used)}


def compare_log(
    log: OpenedLog,
    setting: SimulationConfig,
    setup: RunSetup,
    *,
    prepare_s: float | None = None,
    learn_s: float | None = None,
    calibrate: bool = True,
) -> LogComparison:
    """Compare a log's measurements with counted values and with times that are simulated under its own dispatch.

    Args:
        log: of one run. setting: cluster and profile; its ``phases`` is not used. setup: of the run.
        prepare_s, learn_s: seconds of a step that the user states; None: as logged, or unknown.
        calibrate: scale the profile to the logged times.

    Raises:
        PlanningError: the responses fit on no actor.
    """
    times = with_step_times(log.scalars, log.trace)
    scalars, rollouts = times.scalars, log.trace.rollouts
    phases = stated_phases(prepare_s, learn_s, logged_phases(scalars))
    simulated_s = _simulated_s(rollouts, times, setting, setup.dispatch)
    calibrated = calibration(scalars, simulated_s, times.at_least_s) if calibrate else Calibration()
    checks = log_checks(
        scalars, rollouts, simulated_s, calibrated, phases, profile=setting.latency.name, synchronous=setup.synchronous,
        at_least_s=times.at_least_s,
    )  # fmt: skip
    return LogComparison(phases, calibrated, tuple(checks), tuple(_not_used(log.trace, times, setting)))


def evenly(values: Sequence[int], count: int) -> list[int]:
    """Return at most ``count`` of the values, evenly spaced, including the last and the first."""
    if len(values) <= count:
        return list(values)
    return [values[i] for i in np.unique(np.linspace(len(values) - 1, 0, max(1, count)).round().astype(int))]


def _simulated_s(rollouts: pd.DataFrame, times: StepTimes, setting: SimulationConfig, dispatch: str) -> pd.Series:
    """Return the seconds of generation by step under the run's own dispatch, for some of the steps with a logged time."""
    scalars = times.scalars
    timed = scalars[[name for name in ("generate_s", "step_s") if name in scalars.columns]].notna().any(axis=1)
    named = set(scalars.loc[timed, "step"]) | set(times.at_least_s.index)
    steps = sorted(int(step) for step in rollouts["step"].unique() if step in named)
    if not steps:
        return pd.Series(dtype=float)
    each = max(1, len(rollouts) // rollouts["step"].nunique())
    chosen = evenly(steps, min(CALIBRATION_STEPS, max(2, CALIBRATION_RESPONSES // each)))
    alone = replace(setting, phases=NonGenerationPhases(), bound_work=0)
    return simulate(rollouts, alone, [dispatch], steps=chosen).steps.set_index("step")["time_s"]


def _not_used(trace: Trace, times: StepTimes, setting: SimulationConfig) -> Iterator[str]:
    actors = trace.rollouts["actor"].nunique() if "actor" in trace.rollouts.columns else 0
    if actors:
        yield (
            f"responses are assigned to {counted(setting.cluster.max_actors, 'actor')}; the assignment in the log "
            f"({counted(actors, 'actor')}) is not used"
        )
    if times.overlapping:
        steps = f"{counted(len(times.overlapping), 'step')} ({listed(times.overlapping)})"
        yield f"logged generation times of {steps} are left out, because other steps generated at the same time"
    if len(times.at_least_s):
        steps = f"{counted(len(times.at_least_s), 'step')} ({listed(times.at_least_s.index)})"
        yield (
            f"logged generation times of {steps} are lower bounds, from the first to the last known time, because some "
            "responses lack a time"
        )
