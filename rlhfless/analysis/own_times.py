"""Scales latency profiles to a run's own times: the one place from which everything that is computed of a log takes them.

Inputs are an opened log, a set-up of the run and the user's cluster and profile. Report, plans, simulations, searches and
dashboards start here, so that a log has the same seconds, the same cost and the same contradictions wherever it is shown.

A logged run (responses, maybe with times) is compared with times that are simulated under its own dispatch. An executed run
(a trace with allocations and spans) is compared with times of its own assignment of responses.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from rlhfless.analysis.assumptions import Assumptions
from rlhfless.analysis.calibration import Calibration, calibration, logged_phases, stated_phases
from rlhfless.analysis.draft_savings import already_drafts
from rlhfless.analysis.executed_run import measured_start_and_sync, working_s_by_profile
from rlhfless.analysis.framework_defaults import DRAWN, RunSetup, run_setup
from rlhfless.analysis.gpu_seconds import GENERATES, PhaseSeconds
from rlhfless.analysis.log_checks import generation_checks, log_checks
from rlhfless.analysis.step_parts import generating_parts
from rlhfless.latency import load_profile, other_sizes, scaled
from rlhfless.simulate import SimulationConfig, simulate
from rlhfless.trace import OpenedLog, StepTimes, Trace, with_step_times
from rlhfless.trace.metrics.cross_check import CrossCheck, checks_frame
from rlhfless.trace.schema.casts import listed
from solver.model.html_tables import rows_table
from solver.model.latency import LatencyModel
from solver.model.objective import NonGenerationPhases
from solver.model.plurals import counted

CALIBRATION_STEPS = 24  # steps with a logged time that the profile is compared with
CALIBRATION_RESPONSES = 40_000
PLANS_LEFT_OUT = (
    "other ways, other replicas and static start from an equal split of every step's prompts over all actors, not from the "
    "executed plans"
)
OUTSIDE_LEARNS = "all that the run did outside generation counts as learning"
NOTHING_TO_COMPARE = "The log has nothing that can be compared with what is computed."
ROUNDING = 1e-6  # relative: measured and simulated times that differ by no more are the same
FAR = 3.5  # times as slow or as fast as its profile: shipped profiles of 3B and 7B models on L40S and H100 differ by 3.0


def is_far(factor: float) -> bool:
    """Return whether a run's times are so far from a profile's that the profile is of another model or other GPUs."""
    return not 1.0 / FAR <= factor <= FAR


@dataclass(frozen=True)
class ProfileScale:
    """How latency profiles are scaled to the speed of a run.

    Attributes:
        profile: name of the run's own profile.
        factor: multiplies its times; other profiles are assumed to be off by the same factor.
        steps: of the run, by whose times it was found; 0: by none, and the factor is 1 or from lower bounds.
        ran_on: GPU kind that the run's times are of, where the profile is of another kind and is therefore not scaled.
        start_s, sync_s: of an actor, where the run measured them; they replace those of the run's own profile only.
    """

    profile: str
    factor: float = 1.0
    steps: int = 0
    ran_on: str = ""
    start_s: float | None = None
    sync_s: float | None = None

    def of(self, latency: LatencyModel) -> LatencyModel:
        """Return a latency model scaled to the speed of the run."""
        measured = {"start_s": self.start_s, "sync_s": self.sync_s} if latency.name == self.profile else {}
        changes: dict[str, Any] = {name: seconds for name, seconds in measured.items() if seconds is not None}
        found = scaled(latency, self.factor)
        return replace(found, **changes) if changes else found

    def sizes_of(self, profile: str) -> tuple[LatencyModel, ...]:
        """Return the latency models of other actor sizes than a profile's, scaled to the speed of the run.

        For the run's own profile they also have the start-up time that it measured.
        """
        own = load_profile(profile).name == self.profile
        measured = {"start_s": self.start_s, "sync_s": self.sync_s} if own else {}
        changes: dict[str, Any] = {name: seconds for name, seconds in measured.items() if seconds is not None}
        return tuple(replace(self.of(model), **changes) for model in other_sizes(profile))

    def words(self, profile: str = "") -> str:
        """Return a sentence that says which profile the times come from, and how it was scaled.

        Args:
            profile: name of the profile; the run's own when empty. Another one was compared with no times of the run.
        """
        name = f"profile {profile or self.profile}"
        if self.steps and profile not in ("", self.profile):
            if f"{self.factor:.4g}" == "1":
                return f"{name} as it is, not compared with times of the log"
            return (
                f"{name}, its times multiplied by {self.factor:.4g} like those of the run's own profile {self.profile}, not "
                "compared with times of the log"
            )
        if self.steps:
            far = ", so it is of another model or other GPUs than those of the run" if is_far(self.factor) else ""
            steps, factor = counted(self.steps, "step"), f"{self.factor:.4g}"
            if factor == "1":
                return f"{name} as it is: its times agree with those of {steps} of the log"
            return f"{name}, its times multiplied by {factor} to match those of {steps} of the log{far}"
        if self.factor > 1:
            return f"{name}, its times multiplied by {self.factor:.4g}, the least that agrees with lower bounds in the log"
        if self.ran_on:
            return f"{name} as it is, not scaled to times of the run, which are of GPUs of another kind ({self.ran_on})"
        return f"{name} as it is, not scaled to times of the log"

    def to_dict(self) -> dict[str, Any]:
        """Return ``{"profile", "factor", "steps"}`` for JSON."""
        return {"profile": self.profile, "factor": self.factor, "steps": self.steps}


@dataclass(frozen=True, eq=False)
class OwnTimes:
    """The times that a run measured, compared with computed times of the same steps, and the latency profile scaled to them.

    Attributes:
        setting: the given setting, for generation alone, with the scaled profile.
        scale: how the profile was scaled.
        calibrated: the times it was scaled to, with the error.
        checks: one comparison per measured quantity and source of our value.
        not_used: logged values that no computation uses, and times that are only lower bounds, one sentence each.
        setup: how the run assigned responses and allocated its GPUs, and what of that is assumed.
        phases: seconds of a step outside generation, and their source; all of them are learning where the run was executed.
        executed: whether the run is an executed trace with allocations, which records its assignment of responses.
        own_plans: whether an executed run assigned responses differently from ``setup.dispatch`` on all GPUs, for example
            because a policy planned every step. Simulations under that dispatch are then not compared with the run itself.
    """

    setting: SimulationConfig
    scale: ProfileScale
    calibrated: Calibration
    checks: tuple[CrossCheck, ...]
    not_used: tuple[str, ...]
    setup: RunSetup
    phases: PhaseSeconds
    executed: bool = False
    own_plans: bool = False

    @property
    def whole_steps(self) -> bool:
        """Whether computed times are of whole steps; otherwise they are of generation alone."""
        return self.setup.synchronous and self.phases.basis != "unknown"

    @property
    def lines(self) -> list[str]:
        """One line per check, contradictions first, then what is not used."""
        ordered = sorted(self.checks, key=lambda check: not check.contradicts)
        return [*(f"{check.verdict}: {check}" for check in ordered), *(f"note: {sentence}" for sentence in self.not_used)]

    def _repr_html_(self) -> str:
        """One row per check, contradictions first; below, how the profile was scaled, and what is not used."""
        rows = [
            (check.quantity.name, check.logged_value(check.logged), check.ours_value(check.ours), check.how, check.difference,
             check.verdict)
            for check in sorted(self.checks, key=lambda check: not check.contradicts)
        ]  # fmt: skip
        head = ("means over the steps", "in the log", "computed", "how", "difference", "verdict")
        table = rows_table("Times and counts of the log, and ours", head, rows) if rows else f"<div>{NOTHING_TO_COMPARE}</div>"
        notes = [f"Times of {self.scale.words()}.", *self.not_used]
        return "".join([table, *(f"<div>{html.escape(note)}</div>" for note in notes)])

    def to_dict(self) -> dict[str, Any]:
        """Return ``{"checks": [...], "not_used": [...]}``: rows of ``checks_frame``; unknown values are None."""
        checks = checks_frame(self.checks).astype(object)
        return {"checks": checks.where(checks.notna(), None).to_dict("records"), "not_used": list(self.not_used)}


def own_times(log: OpenedLog, setting: SimulationConfig, stated: Assumptions | None = None) -> OwnTimes:
    """Return the times that a run measured, and the latency profile scaled to them.

    A logged run is compared with counted values, and with times simulated under its own dispatch. An executed run is compared
    with times of its own assignment of responses. If the trace records another GPU kind than the profile's, its times are not
    compared and the profile is not scaled.

    Args:
        log: of one run.
        setting: cluster and profile; its ``phases`` is not used.
        stated: what the user knows of a logged run; of an executed one only whether the profile is scaled.

    Raises:
        PlanningError: the responses fit on no actor.
        InputError: an assumption makes no sense.
    """
    stated = stated or Assumptions()
    setting = replace(setting, phases=NonGenerationPhases())
    recorded = (log.trace.meta.get("cluster") or {}).get("kind")
    ran_on = str(recorded) if recorded not in (None, setting.latency.kind) else ""
    if len(log.trace.allocations):
        return _executed(log.trace, setting, stated, ran_on)
    return _logged(log, setting, stated, ran_on)


def _logged(log: OpenedLog, setting: SimulationConfig, stated: Assumptions, ran_on: str) -> OwnTimes:
    setup = run_setup(
        log.framework, dispatch=stated.dispatch, learner_gpus=stated.learner_gpus, order_known=log.dispatch_order_known,
        drawn=DRAWN in log.trace.meta,
    )  # fmt: skip
    times = with_step_times(log.scalars, log.trace)
    scalars, rollouts, profile = times.scalars, log.trace.rollouts, setting.latency.name
    phases = stated_phases(stated.prepare_s, stated.learn_s, logged_phases(scalars))
    simulated_s = pd.Series(dtype=float) if ran_on else _simulated_s(rollouts, times, setting, setup.dispatch)
    calibrated = calibration(scalars, simulated_s, times.at_least_s) if stated.calibrate and not ran_on else Calibration()
    checks = log_checks(
        scalars, rollouts, simulated_s, calibrated, phases, profile=profile, synchronous=setup.synchronous,
        at_least_s=times.at_least_s,
    )  # fmt: skip
    scale = ProfileScale(profile, calibrated.factor, calibrated.steps, ran_on)
    not_used = (*_of_another_kind(ran_on, setting.latency), *_not_used(log.trace, times, setting))
    setup = replace(setup, assumed=(*stated.not_stated.values(), *setup.assumed, *not_used))
    return OwnTimes(_scaled(setting, scale), scale, calibrated, tuple(checks), not_used, setup, phases)


def _executed(trace: Trace, setting: SimulationConfig, stated: Assumptions, ran_on: str) -> OwnTimes:
    took = generating_parts(trace)
    profile = setting.latency.name
    calibrated, scale = Calibration(), ProfileScale(profile, ran_on=ran_on)
    checks: tuple[CrossCheck, ...] = ()
    if not ran_on:
        simulated_s = working_s_by_profile(trace, setting, evenly(took["step"].tolist(), CALIBRATION_STEPS))
        measured = took[["step", "working_s"]].rename(columns={"working_s": "generate_s"})
        if stated.calibrate:
            calibrated = calibration(measured, simulated_s)
            if _is_its_clock(trace, profile) and _are_equal(calibrated):
                calibrated = replace(calibrated, factor=1.0, exact=True)
            start_s, sync_s = measured_start_and_sync(trace)
            scale = ProfileScale(profile, calibrated.factor, calibrated.steps, start_s=start_s, sync_s=sync_s)
        checks = tuple(generation_checks(measured, simulated_s, calibrated, profile))
    not_used = tuple(_of_another_kind(ran_on, setting.latency))
    outside_s = took.loc[took["working_s"] > 0, "fixed_s"]
    phases = PhaseSeconds(learn_s=float(outside_s.mean()) if len(outside_s) else 0.0, basis="measured")
    generates = trace.allocations["role"].isin(GENERATES)
    actors, others = trace.allocations[generates], trace.allocations[~generates]
    held = set().union(*actors["gpu_ids"])
    as_planned = trace.meta.get("policy") == "static" and len(held) == setting.cluster.gpus and not ran_on
    own_plans = not as_planned or already_drafts(trace.rollouts)
    learner_gpus = max((len(set().union(*ids)) for _, ids in others.groupby("step")["gpu_ids"]), default=0)
    colocated = set().union(*others["gpu_ids"]) <= held
    of_setup = (PLANS_LEFT_OUT,) * own_plans + (OUTSIDE_LEARNS,) * bool(phases.seconds > 0) + not_used
    setup = replace(
        run_setup("rlhfless", dispatch="static"), assumed=of_setup, colocated=colocated,
        learner_gpus=0 if colocated and learner_gpus == len(held) else learner_gpus,
    )  # fmt: skip
    return OwnTimes(
        _scaled(setting, scale), scale, calibrated, checks, not_used, setup, phases, executed=True, own_plans=own_plans
    )


def _is_its_clock(trace: Trace, profile: str) -> bool:
    """Return whether a run was on the virtual clock of a profile."""
    return tuple(trace.meta.get(name) for name in ("clock", "charging", "profile")) == ("virtual", "profile", profile)


def _are_equal(calibrated: Calibration) -> bool:
    """Return whether all compared times are the profile's own."""
    if calibrated.checked is None:
        return False
    others = np.nan_to_num(calibrated.checked.errors)  # of one step by the others; not a number where it is the only one
    ratios = np.array([calibrated.low, calibrated.high])
    return bool((np.abs(ratios - 1.0) <= ROUNDING).all() and (others <= ROUNDING).all())


def _scaled(setting: SimulationConfig, scale: ProfileScale) -> SimulationConfig:
    return replace(setting, latency=scale.of(setting.latency))


OF_A_STEP = ("step_s", "generate_s", "response_tokens_mean")  # scalars that only a step of training has


def steps_of_run(log: OpenedLog) -> list[int]:
    """Return the training steps in order: those with responses, and those with averages that only a training step has."""
    scalars = with_step_times(log.scalars, log.trace).scalars
    of_training = scalars[scalars.reindex(columns=list(OF_A_STEP)).notna().any(axis=1)]["step"]
    return sorted({int(step) for step in (*log.trace.steps, *of_training)})


def evenly(values: Sequence[int], count: int) -> list[int]:
    """Return at most ``count`` of the values, evenly spaced, including the first and the last."""
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
    return simulate(rollouts, alone, [dispatch], steps=chosen).table.set_index("step")["time_s"]


def _of_another_kind(ran_on: str, latency: LatencyModel) -> Iterator[str]:
    if ran_on:
        yield (
            f"the run's times are of {ran_on} GPUs and profile {latency.name} is of {latency.kind}, so it is not scaled; "
            "what the run itself took is still of its own GPUs"
        )


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
