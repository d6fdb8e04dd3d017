"""Computes what a report says about an executed run beside its trace: calibration, other schedules and their savings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd

from rlhfless.analysis import executed_times, savings_of_executed
from rlhfless.report.progress import Begin, silent
from rlhfless.report.schedules import Schedules, simulate_schedules, with_history
from rlhfless.report.study import GIVEN_BACK, RESERVED, Savings
from rlhfless.simulate import LoggedStep, SimulationConfig, simulate_steps
from rlhfless.trace import Trace
from solver.model.objective import NonGenerationPhases, Objective


@dataclass(frozen=True, eq=False)
class ExecutedRunFindings(Savings):
    """What a report says of an executed run, in addition to the contents of its trace.

    Attributes:
        took: the steps that are compared (``analysis.executed_steps``). There are none where no step generated, and then there
            are no savings either. The profile is calibrated by the trace's spans.
        schedules: simulated in ``setting``, its ``phases`` included.
    """

    took: pd.DataFrame
    schedules: Schedules


def compared_steps(took: pd.DataFrame, logged: Sequence[LoggedStep]) -> list[LoggedStep]:
    """Return which of the simulated steps of an executed run other schedules are compared on.

    Args:
        took: its steps that generated (``analysis.executed_times``).
    """
    executed = set(took["step"])
    return [step for step in with_history(logged) if step.step in executed]


def study_executed(
    trace: Trace, setting: SimulationConfig, max_steps: int, begin: Begin = silent, *, calibrate: bool = True
) -> ExecutedRunFindings:
    """Compute what schedules would have saved of an executed run; its spans give the part that no schedule changes.

    Args:
        trace: with allocations. setting: cluster and profile; ``phases`` belongs to the schedules that are simulated, while
            savings use the trace's own values. max_steps: at most so many steps are simulated, evenly chosen.
        begin: is told every part of the work. calibrate: scale the profile to the times of the trace.

    Raises:
        TraceError: the trace holds several runs, or a response above the limit.
        PlanningError: the responses fit on no actor.
    """
    begin("comparing with measured times")
    times = executed_times(trace, setting, calibrate=calibrate)
    took, calibrated, setting, checks = times.took, times.calibrated, times.setting, times.checks
    begin("simulating schedules")
    schedules = simulate_schedules(trace, setting, max_steps)
    alone = replace(setting, phases=NonGenerationPhases())
    of_generation = schedules if setting.phases == alone.phases else simulate_schedules(trace, alone, max_steps)
    shown = compared_steps(took, of_generation.logged)
    steps = [step.step for step in shown]
    reserved = given_back = pd.DataFrame()
    if steps:  # an allocation of no time, or a trace of learning alone, has nothing to save
        fastest = simulate_steps(shown, replace(alone, objective=Objective(1.0)), RESERVED)
        reserved = savings_of_executed(fastest, took, RESERVED, steps)
        given_back = savings_of_executed(of_generation.simulation, took, GIVEN_BACK, steps)
    compared = took[took["step"].isin(steps)]
    return ExecutedRunFindings(reserved, given_back, setting, calibrated, checks, compared, schedules)
