"""Scales latency profiles to a run's own times: the one place from which everything that is computed of a log takes them.

Inputs are an opened log, a set-up of the run and the user's cluster and profile. Report, plans, simulations, searches and
dashboards start here, so that a log has the same seconds, the same cost and the same contradictions wherever it is shown.

A logged run (responses, maybe with times) is compared with times that are simulated under its own dispatch. An executed run
(a trace with allocations and spans) is compared with times of its own assignment of responses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from rlhfless.analysis.calibration import Calibration, calibration, logged_phases, stated_phases
from rlhfless.analysis.executed_run import executed_steps, measured_start_and_sync, working_s_by_profile
from rlhfless.analysis.framework_defaults import RunSetup, run_setup
from rlhfless.analysis.gpu_seconds import PhaseSeconds
from rlhfless.analysis.log_checks import generation_checks, log_checks
from rlhfless.latency import scaled
from rlhfless.simulate import SimulationConfig, simulate
from rlhfless.trace import OpenedLog, StepTimes, Trace, with_step_times
from rlhfless.trace.metrics.cross_check import CrossCheck, checks_frame
from rlhfless.trace.schema.casts import listed
from solver.model.latency import LatencyModel
from solver.model.objective import NonGenerationPhases
from solver.model.plurals import counted

CALIBRATION_STEPS = 24  # steps with a logged time that the profile is compared with
CALIBRATION_RESPONSES = 40_000
FAR = 3.5  # times as slow or as fast as its profile: shipped profiles of 3B and 7B models on L40S and H100 differ by 3.1


def is_far(factor: float) -> bool:
    """Return whether a run's times are so far from a profile's that the profile is of another model or other GPUs."""
    return not 1.0 / FAR <= factor <= FAR


@dataclass(frozen=True)
class ProfileScale:
    """How latency profiles are scaled to the times of a run.

    Attributes:
        profile: name of the run's own profile. factor: multiplies its times; other profiles are assumed to be off by the same
            factor. steps: of the run, by whose times it was found; 0: by none, and the factor is 1 or from lower bounds.
        start_s, sync_s: of an actor, where the run measured them; they replace those of the run's own profile only.
    """

    profile: str
    factor: float = 1.0
    steps: int = 0
    start_s: float | None = None
    sync_s: float | None = None

    def of(self, latency: LatencyModel) -> LatencyModel:
        """Return a profile with the speed of the run."""
        measured = {"start_s": self.start_s, "sync_s": self.sync_s} if latency.name == self.profile else {}
        changes: dict[str, Any] = {name: seconds for name, seconds in measured.items() if seconds is not None}
        found = scaled(latency, self.factor)
        return replace(found, **changes) if changes else found

    def words(self, profile: str = "") -> str:
        """Return which profile the times are of, and how it was scaled.

        Args:
            profile: name of another one than the run's own.
        """
        name = f"profile {profile or self.profile}"
        if self.steps:
            far = ", so it is of another model or other GPUs than those of the run" if is_far(self.factor) else ""
            steps = counted(self.steps, "step")
            return f"{name}, its times multiplied by {self.factor:.4g} to match those of {steps} of the log{far}"
        if self.factor > 1:
            return f"{name}, its times multiplied by {self.factor:.4g}, the least that agrees with lower bounds in the log"
        return f"{name} as it is, not scaled to times of the log"

    def to_dict(self) -> dict[str, Any]:
        """Return ``{"profile", "factor", "steps"}`` for JSON."""
        return {"profile": self.profile, "factor": self.factor, "steps": self.steps}


@dataclass(frozen=True, eq=False)
class OwnTimes:
    """What a run measured, next to what is computed for the same steps, and the profile that is scaled to it.

    Attributes:
        setting: as given, with the scaled profile. scale: how it was scaled. calibrated: by what times, with the error.
        checks: one per measured quantity and source of our value.
        not_used: logged values that no computation uses, and times that are lower bounds only, one sentence each.
    """

    setting: SimulationConfig
    scale: ProfileScale
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


@dataclass(frozen=True, eq=False)
class LoggedTimes(OwnTimes):
    """The same of a logged run, whose ``setting`` is of generation alone.

    Attributes:
        setup: how the run assigned responses. phases: seconds of a step outside generation, and their source.
    """

    setup: RunSetup
    phases: PhaseSeconds


@dataclass(frozen=True, eq=False)
class ExecutedTimes(OwnTimes):
    """The same of an executed run.

    Attributes:
        took: the steps that generated (``executed_steps``).
    """

    took: pd.DataFrame


def own_times(log: OpenedLog, setting: SimulationConfig, *, calibrate: bool = True) -> LoggedTimes | ExecutedTimes:
    """Return a run's own times, of which nothing is stated.

    Args: as ``logged_times``.

    Raises:
        PlanningError: the responses fit on no actor.
    """
    if len(log.trace.allocations):
        return executed_times(log.trace, setting, calibrate=calibrate)
    setup = run_setup(log.framework, order_known=log.dispatch_order_known)
    return logged_times(log, setting, setup, calibrate=calibrate)


def logged_times(
    log: OpenedLog,
    setting: SimulationConfig,
    setup: RunSetup,
    *,
    prepare_s: float | None = None,
    learn_s: float | None = None,
    calibrate: bool = True,
) -> LoggedTimes:
    """Compare a log's measurements with counted values and with times that are simulated under its own dispatch.

    Args:
        log: of one run. setting: cluster and profile; its ``phases`` is not used. setup: of the run.
        prepare_s, learn_s: seconds of a step that the user states; None: as logged, or unknown.
        calibrate: scale the profile to the logged times.

    Raises:
        PlanningError: the responses fit on no actor.
    """
    times = with_step_times(log.scalars, log.trace)
    scalars, rollouts, profile = times.scalars, log.trace.rollouts, setting.latency.name
    phases = stated_phases(prepare_s, learn_s, logged_phases(scalars))
    simulated_s = _simulated_s(rollouts, times, setting, setup.dispatch)
    calibrated = calibration(scalars, simulated_s, times.at_least_s) if calibrate else Calibration()
    checks = log_checks(
        scalars, rollouts, simulated_s, calibrated, phases, profile=profile, synchronous=setup.synchronous,
        at_least_s=times.at_least_s,
    )  # fmt: skip
    scale = ProfileScale(profile, calibrated.factor, calibrated.steps)
    setting = replace(setting, phases=NonGenerationPhases(), latency=scale.of(setting.latency))
    not_used = tuple(_not_used(log.trace, times, setting))
    return LoggedTimes(setting, scale, calibrated, tuple(checks), not_used, setup, phases)


def executed_times(trace: Trace, setting: SimulationConfig, *, calibrate: bool = True) -> ExecutedTimes:
    """Compare what an executed run measured with times of the same assignment of responses.

    Args:
        trace: with allocations. setting: cluster and profile. calibrate: scale the profile to the times of the trace.
    """
    took = executed_steps(trace)
    took = took[(took["generation_s"] > 0) & (took["gpu_s"] > 0)]
    simulated_s = working_s_by_profile(trace, setting, evenly(took["step"].tolist(), CALIBRATION_STEPS))
    measured = took[["step", "working_s"]].rename(columns={"working_s": "generate_s"})
    profile = setting.latency.name
    calibrated, scale = Calibration(), ProfileScale(profile)
    if calibrate:
        calibrated = calibration(measured, simulated_s)
        scale = ProfileScale(profile, calibrated.factor, calibrated.steps, *measured_start_and_sync(trace))
    checks = generation_checks(measured, simulated_s, calibrated, profile)
    return ExecutedTimes(replace(setting, latency=scale.of(setting.latency)), scale, calibrated, tuple(checks), (), took)


OF_A_STEP = ("step_s", "generate_s", "response_tokens_mean")  # scalars that only a step of training has


def steps_of_run(log: OpenedLog) -> list[int]:
    """Return the steps of training, in order: those with responses, and those with scalars that only such a step has."""
    scalars = with_step_times(log.scalars, log.trace).scalars
    of_training = scalars[scalars.reindex(columns=list(OF_A_STEP)).notna().any(axis=1)]["step"]
    return sorted({int(step) for step in (*log.trace.steps, *of_training)})


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
