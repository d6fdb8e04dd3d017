"""Computes everything a report says about a run: its set-up, its calibrated profile, simulated schedules and findings.

Input is a log and the user's assumptions. ``study_log`` returns ``LoggedRunFindings``, which the page shows.
``report/executed_study.py`` does the same for the trace of an executed run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pandas as pd

from rlhfless.analysis import (
    SHUFFLED,
    Account,
    Calibration,
    ExecutedTimes,
    GpuCount,
    LoggedTimes,
    PhaseSeconds,
    RunSetup,
    account,
    evenly,
    executed_times,
    generation_s,
    gpu_counts,
    logged_times,
    plan_every_step,
    run_setup,
    savings,
    steps_of_run,
)  # fmt: skip
from rlhfless.analysis.draft_savings import DraftSavings, draft_savings
from rlhfless.analysis.drawn_lengths import DRAWN
from rlhfless.analysis.log_texts import text_encoder
from rlhfless.analysis.verl_router import RouterEffect, router_effect
from rlhfless.analysis.what_ifs.compare import MOST_RESPONSES, WaysCompared, compare_ways
from rlhfless.analysis.what_ifs.outcome import RunToChange
from rlhfless.report.not_stated import PRICE
from rlhfless.report.progress import Begin, silent
from rlhfless.report.schedules import Schedules, refuse_requests_without_steps, simulate_schedules
from rlhfless.simulate import LoggedStep, Simulation, SimulationConfig, simulate_steps
from rlhfless.simulate.executions import Executions
from rlhfless.trace import OpenedLog
from rlhfless.trace.metrics.cross_check import CrossCheck
from solver.model.objective import Objective

GIVEN_BACK = ("random", "spread", "fold", "solver+replan", "solver", "rlhfuse", "rlhfless")
"""Policies without true lengths whose savings are told where GPUs can be given back."""

RESERVED = ("random", "spread", "fold", "solver", "solver+replan", "rlhfuse")
"""Policies that are asked for the least time where all GPUs are paid for in any case."""

DRAFTED_RESPONSES = 4_000
"""Responses that drafts are simulated on: the last steps up to so many, at least one."""

PLANNED_RESPONSES = 1_500_000
"""Responses of all steps that are planned one by one; of a longer log evenly chosen steps are."""


@dataclass(frozen=True)
class Assumptions:
    """What a user states about a logged run; omitted values are assumed, and the page names the assumptions.

    Attributes:
        dispatch, learner_gpus: see ``analysis.run_setup``.
        prepare_s, learn_s: of a step outside generation; None: as the log says, or unknown.
        calibrate: scale the profile so that generation takes as long as was logged or executed, where that is known.
        prices: further prices by name, in USD per GPU-hour.
        tokenizer: folder or hub name, by which texts are counted where drafts are measured; None: in bytes.
        not_stated: what was assumed about the GPUs, by what was not stated (``report.not_stated``); the page names it.
    """

    dispatch: str | None = None
    learner_gpus: int | None = None
    prepare_s: float | None = None
    learn_s: float | None = None
    calibrate: bool = True
    prices: Mapping[str, float] = field(default_factory=dict)
    not_stated: Mapping[str, str] = field(default_factory=dict)
    tokenizer: str | None = None


@dataclass(frozen=True, eq=False)
class Savings:
    """What schedules would have saved of a run.

    Attributes:
        reserved, given_back: savings (``analysis.savings.compared``) of policies that minimise time on all GPUs, and of
            policies that weigh time and cost and release GPUs.
        setting: cluster and calibrated profile. calibrated: how the profile was scaled.
        checks: what was measured against counted or simulated values.
    """

    reserved: pd.DataFrame
    given_back: pd.DataFrame
    setting: SimulationConfig
    calibrated: Calibration
    checks: tuple[CrossCheck, ...]


@dataclass(frozen=True, eq=False)
class OwnRun:
    """What a logged run did by itself, by simulation of its own schedule.

    Attributes:
        account: its GPU-seconds by use, of the simulated steps. shuffled: the same with prompts dispatched in random orders,
            for a log whose order of dispatch is not known; empty otherwise.
    """

    account: Account
    shuffled: tuple[Account, ...]

    @property
    def idle_shares(self) -> tuple[float, float]:
        """The low and the high idle share of the simulated steps; equal where the order of dispatch is known."""
        shares = [order.idle_share for order in (self.account, *self.shuffled)]
        return min(shares), max(shares)


def own_run(simulation: Simulation, setting: SimulationConfig, setup: RunSetup, phases: PhaseSeconds) -> OwnRun:
    """Return what a logged run did by itself.

    Args:
        simulation: generation alone, under every dispatch that the run may have used, in ``simulated_steps``.
    """
    cluster, traces = setting.cluster, simulation.traces
    orders = () if setup.order_known else SHUFFLED[setup.dispatch]
    used = account(traces[setup.dispatch], setup, cluster, phases)
    return OwnRun(used, tuple(account(traces[policy.name], setup, cluster, phases) for policy in orders))


@dataclass(frozen=True, eq=False)
class LoggedRunFindings(Savings, OwnRun):
    """What a report simulates of a logged run.

    Attributes:
        setup: how it assigned responses and allocated GPUs. phases: seconds of a step outside generation, and their source.
        router: what a router that plans every batch would have saved; None where the framework is not verl.
        drafts: vLLM's speculative methods that would have saved time, the best first; none for logs without texts.
        gpu_counts: the run with other numbers, sizes and kinds of replicas, its own first.
        not_stated: as the user's assumptions have it.
        drawn: how lengths were drawn from the scalars of a log without responses, in sentences; empty for other logs.
        ways: other ways to generate and to learn, on the last steps; None where the profile was not checked on the run's own
            steps, or lengths were drawn: then no saving is expected.
        planned: a plan of every step (``analysis.plan_every_step``). schedules: simulated in ``setting``.
    """

    setup: RunSetup
    phases: PhaseSeconds
    schedules: Schedules
    planned: pd.DataFrame
    gpu_counts: tuple[GpuCount, ...]
    not_stated: Mapping[str, str] = field(default_factory=dict)
    router: RouterEffect | None = None
    drafts: tuple[DraftSavings, ...] = ()
    drawn: str = ""
    ways: WaysCompared | None = None


def calibrate_log(log: OpenedLog, setting: SimulationConfig, stated: Assumptions) -> LoggedTimes:
    """Return the assumed set-up of a logged run, and the profile scaled to the times that it logged.

    Args: as ``study_log``.

    Raises:
        TraceError, PlanningError, InputError: as ``study_log``.
    """
    setup = run_setup(
        log.framework, dispatch=stated.dispatch, learner_gpus=stated.learner_gpus, order_known=log.dispatch_order_known
    )
    times = logged_times(log, setting, setup, prepare_s=stated.prepare_s, learn_s=stated.learn_s, calibrate=stated.calibrate)
    unstated = (sentence for name, sentence in stated.not_stated.items() if name != PRICE)  # costs without it are unknown
    return replace(times, setup=replace(setup, assumed=(*unstated, *setup.assumed, *times.not_used)))


def times_of_run(log: OpenedLog, setting: SimulationConfig, stated: Assumptions) -> LoggedTimes | ExecutedTimes:
    """Return the own times of a logged or an executed run, to which its profile is scaled.

    Raises:
        TraceError, PlanningError, InputError: as ``study_log``.
    """
    if len(log.trace.allocations):
        return executed_times(log.trace, setting, calibrate=stated.calibrate)
    return calibrate_log(log, setting, stated)


def study_log(
    log: OpenedLog, setting: SimulationConfig, stated: Assumptions, max_steps: int, begin: Begin = silent
) -> LoggedRunFindings:
    """Simulate everything that a report says of a logged run beside its diagnosis.

    Args:
        log: responses, with step times if the run logged them or if its spans or responses give them (``with_step_times``).
        setting: cluster and profile; its ``phases`` is not used.
        stated: the user's assumptions about the run. max_steps: at most so many steps are simulated, evenly chosen.
        begin: is told every part of the work.

    Raises:
        TraceError: the log holds several runs, a response above the limit, or one step of very many requests.
        PlanningError: the responses fit on no actor.
        InputError: an assumption makes no sense.
    """
    refuse_requests_without_steps(log)
    begin("comparing with logged times")
    times = calibrate_log(log, setting, stated)
    setup, phases, calibrated, checks = times.setup, times.phases, times.calibrated, times.checks
    shared = Executions()
    setting = replace(times.setting, executions=shared)
    begin("simulating schedules")
    schedules = simulate_schedules(log.trace, setting, max_steps, dispatch=setup.dispatch, further=setup.shuffled)
    rollouts = log.trace.rollouts
    each = max(1, len(rollouts) // len(log.trace.steps))
    begin("simulating the least time")
    found = against_schedules(schedules, setting, setup, phases)
    begin("planning every step")
    planned = plan_every_step(rollouts, setting, evenly(log.trace.steps, max(1, PLANNED_RESPONSES // each)))
    begin("comparing numbers of GPUs")
    counts = gpu_counts(schedules.logged, setting, setup, phases, factor=calibrated.factor)
    begin("measuring drafts")
    own = schedules.simulation.traces[setup.dispatch].rollouts
    last_steps = _last(schedules.logged, DRAFTED_RESPONSES)
    drafts = draft_savings(rollouts, last_steps, own, setting, *text_encoder(stated.tokenizer))
    drawn = str(log.trace.meta.get(DRAWN) or "")
    ways = None
    if calibrated.beats_a_constant and not drawn:
        begin("comparing other ways to generate and to learn")
        changed = RunToChange(_last(schedules.logged, MOST_RESPONSES), setting, setup, phases, len(steps_of_run(log)))
        ways = compare_ways(changed, drafts)
    findings = LoggedRunFindings(
        **vars(found.own),
        reserved=found.reserved,
        given_back=found.given_back,
        setting=setting,
        calibrated=calibrated,
        checks=checks,
        setup=setup,
        phases=phases,
        schedules=schedules,
        planned=planned,
        gpu_counts=counts,
        not_stated=stated.not_stated,
        router=router_effect(rollouts, setting) if setup.framework == "verl" else None,
        drafts=drafts,
        drawn=drawn,
        ways=ways,
    )
    shared.clear()
    return findings


class AgainstSchedules(NamedTuple):
    """A run's own schedule beside others; the fields are those of ``LoggedRunFindings``."""

    reserved: pd.DataFrame
    given_back: pd.DataFrame
    own: OwnRun


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
    return AgainstSchedules(
        savings(fastest, theirs, setup, setting.cluster, RESERVED, phases),
        savings(schedules.simulation, theirs, setup, setting.cluster, GIVEN_BACK, phases, steps=steps),
        own_run(schedules.simulation, setting, setup, phases),
    )


def _last(logged: Sequence[LoggedStep], responses: int) -> list[LoggedStep]:
    """The last steps with at most so many responses in all, at least one."""
    chosen: list[LoggedStep] = []
    for step in reversed(logged):
        if chosen and sum(len(c.rows) for c in chosen) + len(step.rows) > responses:
            break
        chosen.insert(0, step)
    return chosen
