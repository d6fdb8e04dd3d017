"""Computes everything a report says about a run: its set-up, its calibrated profile, simulated schedules and findings.

Input is a log or a trace and the user's assumptions. ``study_log`` returns a ``ReportData``, which the page and the notebook
both show; ``study_executed`` returns an ``ExecutedRunFindings``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from rlhfless.analysis import (
    SHUFFLED,
    Account,
    Advice,
    Calibration,
    PhaseSeconds,
    RunSetup,
    account,
    advise,
    calibrated_by_spans,
    compare_log,
    evenly,
    executed_steps,
    generation_checks,
    generation_s,
    plan_every_step,
    run_setup,
    savings,
    savings_of_executed,
    variants,
    what_if,
)  # fmt: skip
from rlhfless.analysis.compare_log import CALIBRATION_STEPS
from rlhfless.analysis.draft_savings import DraftSavings, draft_savings
from rlhfless.analysis.log_texts import text_encoder
from rlhfless.analysis.phase_savings import PhaseSavings, phase_savings
from rlhfless.analysis.verl_router import RouterEffect, router_effect
from rlhfless.analysis.what_ifs.compare import MOST_RESPONSES, WaysCompared, compare_ways
from rlhfless.analysis.what_ifs.outcome import RunToChange
from rlhfless.latency import scaled
from rlhfless.report.schedules import Schedules, simulate_schedules
from rlhfless.simulate import LoggedStep, SimulationConfig, simulate_steps
from rlhfless.trace import OpenedLog, Trace
from rlhfless.trace.metrics.cross_check import CrossCheck
from solver.model.objective import NonGenerationPhases, Objective

GIVEN_BACK = ("random", "spread", "fold", "solver+replan", "solver", "rlhfuse", "rlhfless")
"""Policies without true lengths whose savings are told where GPUs can be given back."""

RESERVED = ("random", "spread", "fold", "solver", "solver+replan", "rlhfuse")
"""Policies that are asked for the least time where all GPUs are paid for in any case."""

WHAT_IF_RESPONSES = 4_000
"""Responses that what-if and advice look at: the last steps up to so many, at least one."""

PLANNED_RESPONSES = 1_500_000
"""Responses of all steps that are planned one by one; of a longer log evenly chosen steps are."""


@dataclass(frozen=True)
class Assumptions:
    """What a user states about a logged run; omitted values are assumed, and the page names the assumptions.

    Attributes:
        dispatch, learner_gpus: see ``analysis.run_setup``.
        prepare_s, learn_s: of a step outside generation; None: as the log says, or unknown.
        calibrate: scale the profile so that generation takes as long as was logged, where that was.
        prices: further prices by name, in USD per GPU-hour.
        tokenizer: folder or hub name, by which texts are counted where drafts are measured; None: in bytes.
        not_stated: what was assumed about the GPUs, one sentence each; the page names it.
    """

    dispatch: str | None = None
    learner_gpus: int | None = None
    prepare_s: float | None = None
    learn_s: float | None = None
    calibrate: bool = True
    prices: Mapping[str, float] = field(default_factory=dict)
    not_stated: tuple[str, ...] = ()
    tokenizer: str | None = None


def assuming(stated: Assumptions, sentence: str) -> Assumptions:
    """Return the assumptions with one more about the GPUs."""
    return replace(stated, not_stated=(*stated.not_stated, sentence))


@dataclass(frozen=True, eq=False)
class Savings:
    """What schedules would have saved of a run.

    Attributes:
        reserved, given_back: savings (``analysis.savings.compared``) of policies that minimise time on all GPUs, and of
            policies that weigh time and cost and release GPUs.
        setting: cluster and calibrated profile.
    """

    reserved: pd.DataFrame
    given_back: pd.DataFrame
    setting: SimulationConfig

    @property
    def best_time(self) -> pd.Series:
        """The row of ``reserved`` with the most time saved."""
        return self.reserved.loc[self.reserved["time mean"].idxmax()]

    @property
    def best_cost(self) -> pd.Series:
        """The row of ``given_back`` that is best at the objective's weight: the least ``T^w C^(1-w)`` of whole steps."""
        weight = self.setting.objective.time_weight
        value = weight * np.log(1 - self.given_back["time mean"]) + (1 - weight) * np.log(
            1 - self.given_back["GPU-seconds mean"]
        )
        return self.given_back.loc[value.idxmin()]


@dataclass(frozen=True, eq=False)
class LoggedRunFindings(Savings):
    """What a report says of a logged run.

    Attributes:
        setup: how it assigned responses and allocated GPUs. phases: seconds of a step outside
            generation, and their source.
        account: its GPU-seconds by use. shuffled: the same with prompts dispatched in random orders, for a log whose order of
            dispatch is not known; empty otherwise.
        router: what a router that plans every batch would have saved; None where the framework is not verl.
        drafts: vLLM's speculative methods that would have saved time, the best first; none for logs without texts.
        overlaps: preparation, and learning with it, while other responses are decoded; none for logs without their times.
        drawn: how lengths were drawn from the scalars of a log without responses, in sentences; empty for other logs.
        ways: other ways to generate and to learn, on the last steps.
        planned: a plan of every step (``analysis.plan_every_step``).
        advice: actor sizes. what_if: one changed thing per row.
        calibrated: how the profile was scaled. checks: what the log measured against counted or simulated values.
    """

    setup: RunSetup
    phases: PhaseSeconds
    account: Account
    planned: pd.DataFrame
    advice: Advice
    what_if: pd.DataFrame
    calibrated: Calibration
    checks: tuple[CrossCheck, ...]
    shuffled: tuple[Account, ...] = ()
    router: RouterEffect | None = None
    drafts: tuple[DraftSavings, ...] = ()
    overlaps: tuple[PhaseSavings, ...] = ()
    drawn: str = ""
    ways: WaysCompared | None = None

    @property
    def idle_shares(self) -> tuple[float, float]:
        """The low and the high idle share of the GPU-seconds; equal where the order of dispatch is known."""
        shares = [order.idle_share for order in (self.account, *self.shuffled)]
        return min(shares), max(shares)


@dataclass(frozen=True, eq=False)
class ExecutedRunFindings(Savings):
    """What a report says of an executed run, in addition to the contents of its trace.

    Attributes:
        took: the steps that are compared (``analysis.executed_steps``). There are none where no step generated, and then there
            are no savings either. calibrated: how the profile was calibrated, by the trace's spans.
        schedules: simulated in ``setting``, its ``phases`` included.
        checks: what the trace measured against what the profile says of the same schedule.
    """

    took: pd.DataFrame
    calibrated: Calibration
    schedules: Schedules
    checks: tuple[CrossCheck, ...]


class ReportData(NamedTuple):
    """The calibrated setting, its calibration, the schedules simulated in it, and the findings about the run."""

    setting: SimulationConfig
    calibrated: Calibration
    schedules: Schedules
    findings: LoggedRunFindings


class CalibratedLog(NamedTuple):
    """A logged run, ready to be simulated.

    Attributes:
        setting: with the calibrated profile, of generation alone.
        setup, phases: how the run assigned responses, and its seconds outside generation.
        calibrated: how the profile was scaled.
        checks: what the log measured against counted or simulated values.
    """

    setting: SimulationConfig
    setup: RunSetup
    phases: PhaseSeconds
    calibrated: Calibration
    checks: tuple[CrossCheck, ...]


def calibrate_log(log: OpenedLog, setting: SimulationConfig, stated: Assumptions) -> CalibratedLog:
    """Return the assumed set-up of a logged run, and the profile scaled to the times that it logged.

    Args: as ``study_log``.

    Raises:
        TraceError, PlanningError, InputError: as ``study_log``.
    """
    setup = run_setup(
        log.framework, dispatch=stated.dispatch, learner_gpus=stated.learner_gpus, order_known=log.dispatch_order_known
    )
    compared = compare_log(log, setting, setup, prepare_s=stated.prepare_s, learn_s=stated.learn_s, calibrate=stated.calibrate)
    calibrated, phases = compared.calibrated, compared.phases
    setup = replace(setup, assumed=(*stated.not_stated, *setup.assumed, *compared.not_used))
    setting = replace(setting, phases=NonGenerationPhases(), latency=scaled(setting.latency, calibrated.factor))
    return CalibratedLog(setting, setup, phases, calibrated, compared.checks)


def study_log(log: OpenedLog, setting: SimulationConfig, stated: Assumptions, max_steps: int) -> ReportData:
    """Compute everything that a report says of a logged run.

    Args:
        log: responses, with step times if the run logged them or if its spans or responses give them (``with_step_times``).
        setting: cluster and profile; its ``phases`` is not used.
        stated: the user's assumptions about the run. max_steps: at most so many steps are simulated, evenly chosen.

    Raises:
        TraceError: the log holds several runs, or a response above the limit.
        PlanningError: the responses fit on no actor.
        InputError: an assumption makes no sense.
    """
    setting, setup, phases, calibrated, checks = calibrate_log(log, setting, stated)
    schedules = simulate_schedules(log.trace, setting, max_steps, dispatch=setup.dispatch, further=setup.shuffled)
    last_steps = _last(schedules.logged)
    rollouts = log.trace.rollouts
    each = max(1, len(rollouts) // len(log.trace.steps))
    traces = schedules.simulation.traces
    found = against_schedules(schedules, setting, setup, phases)
    drafts = draft_savings(rollouts, last_steps, traces[setup.dispatch].rollouts, setting, *text_encoder(stated.tokenizer))
    changed = RunToChange(_last(schedules.logged, MOST_RESPONSES), setting, setup, phases)
    findings = LoggedRunFindings(
        found.reserved,
        found.given_back,
        setting,
        setup,
        phases,
        found.account,
        plan_every_step(rollouts, setting, evenly(log.trace.steps, max(1, PLANNED_RESPONSES // each))),
        advise(last_steps, setting, setup, factor=calibrated.factor),
        what_if(last_steps, list(variants(setting, setup.dispatch, factor=calibrated.factor))),
        calibrated,
        checks,
        found.shuffled,
        router_effect(rollouts, setting) if setup.framework == "verl" else None,
        drafts,
        phase_savings([traces[name].rollouts for name in setup.candidates], setup, phases, setting),
        ways=compare_ways(changed, drafts),
    )
    return ReportData(setting, calibrated, schedules, findings)


class AgainstSchedules(NamedTuple):
    """A run's own schedule beside others; the fields are those of ``LoggedRunFindings``."""

    reserved: pd.DataFrame
    given_back: pd.DataFrame
    account: Account
    shuffled: tuple[Account, ...]


def against_schedules(
    schedules: Schedules, setting: SimulationConfig, setup: RunSetup, phases: PhaseSeconds
) -> AgainstSchedules:
    """Return what other schedules would have saved of a logged run, and its own GPU-seconds by use.

    Args:
        schedules: simulated in ``setting``, of generation alone.
    """
    steps = [step.step for step in schedules.shown]
    theirs = generation_s(schedules.simulation, setup.candidates)
    fastest = simulate_steps(schedules.shown, replace(setting, objective=Objective(1.0)), RESERVED)
    traces = schedules.simulation.traces
    orders = () if setup.order_known else SHUFFLED[setup.dispatch]
    return AgainstSchedules(
        savings(fastest, theirs, setup, setting.cluster, RESERVED, phases),
        savings(schedules.simulation, theirs, setup, setting.cluster, GIVEN_BACK, phases, steps=steps),
        account(traces[setup.dispatch], setup, setting.cluster, phases),
        tuple(account(traces[policy.name], setup, setting.cluster, phases) for policy in orders),
    )


def study_executed(trace: Trace, setting: SimulationConfig, max_steps: int) -> ExecutedRunFindings:
    """Compute what schedules would have saved of an executed run; its spans give the part that no schedule changes.

    Args:
        trace: with allocations. setting: cluster and profile; ``phases`` belongs to the schedules that are simulated, while
            savings use the trace's own values. max_steps: at most so many steps are simulated, evenly chosen.

    Raises:
        TraceError: the trace holds several runs, or a response above the limit.
        PlanningError: the responses fit on no actor.
    """
    took = executed_steps(trace)
    took = took[(took["generation_s"] > 0) & (took["gpu_s"] > 0)]
    chosen = evenly(took["step"].tolist(), CALIBRATION_STEPS)
    latency, calibrated, simulated_s = calibrated_by_spans(trace, setting, took, chosen)
    measured = took[["step", "working_s"]].rename(columns={"working_s": "generate_s"})
    checks = tuple(generation_checks(measured, simulated_s, calibrated, setting.latency.name))
    setting = replace(setting, latency=latency)
    schedules = simulate_schedules(trace, setting, max_steps)
    alone = replace(setting, phases=NonGenerationPhases())
    of_generation = schedules if setting.phases == alone.phases else simulate_schedules(trace, alone, max_steps)
    executed = set(took["step"])
    shown = [step for step in of_generation.shown if step.step in executed]
    steps = [step.step for step in shown]
    reserved = given_back = pd.DataFrame()
    if steps:  # an allocation of no time, or a trace of learning alone, has nothing to save
        fastest = simulate_steps(shown, replace(alone, objective=Objective(1.0)), RESERVED)
        reserved = savings_of_executed(fastest, took, RESERVED, steps)
        given_back = savings_of_executed(of_generation.simulation, took, GIVEN_BACK, steps)
    return ExecutedRunFindings(reserved, given_back, setting, took[took["step"].isin(steps)], calibrated, schedules, checks)


def _last(logged: Sequence[LoggedStep], responses: int = WHAT_IF_RESPONSES) -> list[LoggedStep]:
    """The last steps with at most so many responses in all, at least one."""
    chosen: list[LoggedStep] = []
    for step in reversed(logged):
        if chosen and sum(len(c.rows) for c in chosen) + len(step.rows) > responses:
            break
        chosen.insert(0, step)
    return chosen
