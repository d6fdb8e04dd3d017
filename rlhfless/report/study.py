"""Computes everything a report says about a run beside its diagnosis: where its time went and what else would have done.

Input is a log or the trace of an executed run, and the user's assumptions. A log is first completed into traces
(``analysis.complete``); from there on both are the same. ``study`` returns ``Findings``, which the page shows.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from rlhfless import plots
from rlhfless.analysis import (
    SHUFFLED,
    Account,
    Assumptions,
    OwnTimes,
    account,
    complete,
    counts_frame,
    evenly,
    generating_parts,
    gpu_counts,
    own_times,
    plan_every_step,
    savings,
    steps_of_run,
)  # fmt: skip
from rlhfless.analysis.assumptions import PROFILE
from rlhfless.analysis.draft_savings import DraftSavings, draft_savings
from rlhfless.analysis.framework_defaults import DRAWN
from rlhfless.analysis.gpu_counts import of_all_draws
from rlhfless.analysis.log_texts import text_encoder
from rlhfless.analysis.split import splits_by_bound
from rlhfless.analysis.verl_router import RouterEffect, router_effect
from rlhfless.analysis.what_ifs.as_executed import with_took
from rlhfless.analysis.what_ifs.compare import MOST_RESPONSES, compare_ways
from rlhfless.analysis.what_ifs.outcome import RunToChange
from rlhfless.report.progress import Begin, silent
from rlhfless.report.schedules import Schedules, refuse_requests_without_steps, simulate_schedules
from rlhfless.report.words import words_of
from rlhfless.scheduling import POLICY_TABLE, policy_names
from rlhfless.simulate import Comparison, LoggedStep, SimulationConfig, simulate_steps
from rlhfless.simulate.executions import Executions
from rlhfless.trace import OpenedLog, Trace
from rlhfless.trace.metrics.cross_check import COUNTED, checks_frame
from solver.model.objective import Objective

GIVEN_BACK = policy_names("simple", "ours", "published")
"""Policies without true lengths whose savings are told where GPUs can be given back."""

RESERVED = tuple(name for name in GIVEN_BACK if not POLICY_TABLE[name].own_trade_off)
"""Policies that are asked for the least time where all GPUs are paid for in any case."""

DRAFTED_RESPONSES = 4_000
"""Responses that drafts are simulated on: the last steps up to so many, at least one."""

PLANNED_RESPONSES = 1_500_000
"""Responses of all steps that are planned one by one; of a longer log evenly chosen steps are."""

STEPS_OF_FURTHER_DRAWS = 3
"""That are simulated of each draw of the lengths but the first."""

SCHEMA, VERSION = "rlhfless-findings", 2


@dataclass(frozen=True, eq=False, repr=False)
class Findings:
    """What a report says of a logged or an executed run beside its diagnosis.

    Attributes:
        times: the run's own, whether it was executed, its setting with the profile scaled to them, its set-up and seconds
            outside generation, and what was measured against what.
        traces: the run as executed; or its log completed into a trace for each dispatch that it may have used and each draw of
            its lengths, the likeliest first.
        accounts: GPU-seconds by use of the likeliest dispatch, in each order of prompts and with each draw of lengths that are
            possible: the first is shown, the others are its range.
        took: parts of the own steps that other schedules are compared on (``analysis.step_parts``), of the likeliest trace;
            there are none where no step generated, and then there are no savings either.
        reserved, given_back: savings (``analysis.savings``) of policies that minimise time on all GPUs, and of policies that
            weigh time and cost and release GPUs.
        schedules: simulated in ``times.setting``, of generation alone.
        drawn: how lengths were drawn from the scalars of a log without responses, in sentences; empty for other logs.
        not_stated: as the user's assumptions have it.
        planned: a plan of every step (``analysis.plan_every_step``).
        gpu_counts: the run with other numbers, sizes and kinds of replicas, its own first (``analysis.gpu_counts``).
        router: what a router that plans every batch would have saved; None where the framework is not verl.
        drafts: vLLM's speculative methods that would have saved time, the best first; none for runs without texts, and for
            those that drafted.
        ways: other ways to generate and to learn, on the last steps; None where the profile does not tell the run's own steps
            (``Calibration.allows_savings``), or lengths were drawn: then no saving is expected.
        splits: how many GPUs generate and how many train (``analysis.split.splits_by_bound``), where the learner has its own.
    """

    times: OwnTimes
    traces: tuple[Trace, ...]
    accounts: tuple[Account, ...]
    took: pd.DataFrame
    reserved: pd.DataFrame
    given_back: pd.DataFrame
    schedules: Schedules
    drawn: str = ""
    not_stated: Mapping[str, str] = field(default_factory=dict)
    planned: pd.DataFrame = field(default_factory=pd.DataFrame)
    gpu_counts: Comparison = field(default_factory=lambda: Comparison(pd.DataFrame(), {}))
    router: RouterEffect | None = None
    drafts: tuple[DraftSavings, ...] = ()
    ways: Comparison | None = None
    splits: pd.DataFrame = field(default_factory=pd.DataFrame)

    @property
    def account(self) -> Account:
        """GPU-seconds of the likeliest trace by use."""
        return self.accounts[0]

    @property
    def idle_shares(self) -> tuple[float, float]:
        """The low and the high idle share; equal where only one trace is possible."""
        shares = [one.idle_share for one in self.accounts]
        return min(shares), max(shares)

    @property
    def own_took(self) -> pd.DataFrame | None:
        """What an executed run measured of its simulated steps, on GPUs of the kind that they are simulated on; else None."""
        if not self.times.executed or self.times.scale.ran_on:
            return None
        took = generating_parts(self.traces[0])
        return took[took["step"].isin([step.step for step in self.schedules.logged])]

    @property
    def counts(self) -> pd.DataFrame:
        """``gpu_counts`` with one row per number, size and kind (``analysis.counts_frame``), against what the run took."""
        return counts_frame(self.gpu_counts, self.own_took)

    def to_frame(self) -> pd.DataFrame:
        """Return one row per schedule and aim (``held``: least time on all GPUs; ``released``: time and cost): its savings."""
        tables = {"held": self.reserved, "released": self.given_back}
        return pd.concat([table.assign(gpus=gpus) for gpus, table in tables.items() if len(table)] or [pd.DataFrame()])

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers for JSON: ``schema``, ``version``, and what the attributes hold; what is unknown is None."""
        low, high = self.idle_shares
        return {
            "schema": SCHEMA,
            "version": VERSION,
            "times_of": words_of(self.traces[0]).times_of,
            "profile": self.times.scale.to_dict(),
            "idle_low_share": low,
            "idle_high_share": high,
            "idle_shares": [one.idle_share for one in self.accounts],
            "drawn": self.drawn,
            "uses": json_rows(self.account.lines),
            "last_responses": json_rows(self.account.steps),
            "own_steps": json_rows(self.took),
            "savings": json_rows(self.to_frame()),
            "checks": json_rows(checks_frame(self.times.checks)),
            "schedules": json_rows(self.schedules.table),
            "planned_steps": json_rows(self.planned),
            "gpu_counts": json_rows(self.counts),
            "ways": None if self.ways is None else _of_ways(self.ways),
            "drafts": json_rows(pd.DataFrame([_of_drafts(one) for one in self.drafts])),
            "router": None if self.router is None else {**vars(self.router), "recommended": self.router.is_recommended},
            "splits": json_rows(self.splits),
            "assumed": list(self.times.setup.assumed),
        }

    def to_json(self) -> str:
        """Return ``to_dict`` as a JSON text."""
        return json.dumps(self.to_dict(), allow_nan=False)

    def plot(self) -> go.Figure:
        """Return the GPU-seconds of the run by use as one bar, above those of the schedule that saves the most of them."""
        best = None
        if len(self.given_back):
            best = self.given_back.loc[self.given_back["GPU-seconds mean"].idxmax()]
        return plots.plot_overview(self.account.lines, best)

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        """What was found, by what it is: uses of GPU-seconds, savings, and all other settings that were simulated."""
        found = {
            "GPU-seconds by use": self.account.lines,
            "savings of other schedules": self.to_frame(),
            "other numbers, sizes and kinds of replicas": self.counts,
            "plan of every step": self.planned,
            "other ways to generate and to learn": pd.DataFrame() if self.ways is None else self.ways.means(),
            "speculative decoding": pd.DataFrame([_of_drafts(one) for one in self.drafts]),
            "divisions of the GPUs": self.splits,
        }
        return {name: table for name, table in found.items() if len(table)}

    def __repr__(self) -> str:
        low, high = self.idle_shares
        idle = f"{low:.1%}" if round(low, 3) == round(high, 3) else f"{low:.1%} to {high:.1%}"
        steps = ", ".join(str(step.step) for step in self.schedules.logged)
        lines = [
            f"Findings of steps {steps} (of {self.schedules.all_steps:,}), times of {words_of(self.traces[0]).times_of}",
            f"  {idle} of {self.account.gpu_s:.4g} GPU-seconds are idle",
        ]
        if len(self.given_back):
            best = self.given_back.loc[self.given_back["GPU-seconds mean"].idxmax()]
            saved = (f"{best[f'{kind} mean']:+.1%} of the {what}" for kind, what in (("time", "time"), ("GPU-seconds",) * 2))
            lines.append(f"  {best['policy']} with GPUs released saves {' and '.join(saved)}, the most GPU-seconds of all")
        lines += [f"  {name}: {len(table):,} rows" for name, table in self.tables.items()]
        if self.router is not None:
            lines.append(f"  router: saves {self.router.mean:+.1%}")
        return "\n".join([*lines, "  .tables has these tables, .to_dict() all numbers, .plot() the uses of GPU-seconds"])

    def _repr_html_(self) -> str:
        shown = (f"<h4>{name}</h4>{table.to_html(index=False, max_rows=20)}" for name, table in self.tables.items())
        return "".join(shown)


def json_rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table for JSON; unknown values are None."""
    plain = table.replace([np.inf, -np.inf], np.nan).astype(object)
    return list(plain.where(plain.notna(), None).to_dict("records"))


def _of_ways(ways: Comparison) -> dict[str, Any]:
    return {
        "rows": json_rows(ways.means()), "knobs": json_rows(ways.knobs), "left_out": dict(ways.left_out),
        "assumed": list(ways.assumed),
    }  # fmt: skip


def _of_drafts(drafts: DraftSavings) -> dict[str, Any]:
    numbers = {name: value for name, value in vars(drafts).items() if name != "configuration"}
    return {"method": drafts.configuration.method, **numbers, "speculative_config": dict(drafts.speculative_config)}


def study(
    log: OpenedLog,
    setting: SimulationConfig,
    stated: Assumptions | None = None,
    max_steps: int = 8,
    begin: Begin = silent,
    *,
    draws: Sequence[OpenedLog] = (),
) -> Findings:
    """Compute everything that a report says of a run beside its diagnosis.

    Args:
        log: of one run; with allocations where it was executed. setting: cluster and profile; its ``phases`` is not used.
        stated: what the user knows of a logged run. max_steps: at most so many steps are simulated, evenly chosen.
        begin: is told every part of the work.
        draws: draws of the lengths of a log without responses (``analysis.drawn_lengths``), of which ``log`` is the first.

    Raises:
        TraceError: the log holds several runs, a response above the limit, or one step of very many requests.
        PlanningError: the responses fit on no actor.
        InputError: an assumption makes no sense.
    """
    stated = stated or Assumptions()
    first = _with_schedules(log, setting, stated, max_steps, begin)
    findings = Findings(**first._asdict(), not_stated=stated.not_stated, drawn=str(log.trace.meta.get(DRAWN) or ""))
    findings = replace(findings, **_other_settings(log, findings, stated, begin))
    if len(draws) > 1:
        findings = _of_all_draws(findings, draws[1:], setting, stated, min(max_steps, STEPS_OF_FURTHER_DRAWS), begin)
    shared = findings.times.setting.executions
    assert shared is not None
    shared.clear()
    return findings


class _WithSchedules(NamedTuple):
    """The first fields of ``Findings``: a run beside other schedules."""

    times: OwnTimes
    traces: tuple[Trace, ...]
    accounts: tuple[Account, ...]
    took: pd.DataFrame
    reserved: pd.DataFrame
    given_back: pd.DataFrame
    schedules: Schedules


def _with_schedules(
    log: OpenedLog,
    setting: SimulationConfig,
    stated: Assumptions,
    max_steps: int,
    begin: Begin = silent,
    only: Collection[str] | None = None,
) -> _WithSchedules:
    """Return a run beside other schedules.

    Args:
        only: policies that are simulated beside the dispatches that the run may have used; all that the page shows when None.
    """
    refuse_requests_without_steps(log)
    begin("comparing with the run's own times")
    times = own_times(log, setting, stated)
    times = replace(times, setting=replace(times.setting, executions=Executions()))
    setup, setting = times.setup, times.setting
    begin("simulating schedules")
    kept = None if only is None else {*only, *setup.candidates}
    schedules = simulate_schedules(log.trace, setting, max_steps, dispatch=setup.dispatch, further=setup.shuffled, only=kept)
    completed = complete(log, times, simulated=schedules.traces)
    traces = dict(zip(setup.candidates, completed, strict=True))
    likely = [setup.dispatch, *(order.name for order in SHUFFLED[setup.dispatch] if order.name in traces)]
    begin("simulating the least time")
    own = [generating_parts(trace) for trace in traces.values()]
    shown = [step for step in schedules.shown if step.step in set(own[0]["step"])]
    steps = [step.step for step in shown]
    reserved = given_back = pd.DataFrame()
    if steps:  # an allocation of no time, or a trace of learning alone, has nothing to save
        fastest = simulate_steps(shown, replace(setting, objective=Objective(1.0)), RESERVED)
        reserved = savings(fastest, RESERVED, own)
        given_back = savings(schedules, GIVEN_BACK, own, steps)
    return _WithSchedules(
        times, completed, tuple(account(traces[name]) for name in likely),
        own[0][own[0]["step"].isin(steps)], reserved, given_back, schedules,
    )  # fmt: skip


def _other_settings(log: OpenedLog, found: Findings, stated: Assumptions, begin: Begin) -> dict[str, Any]:
    """Return what a report says of a run with other replicas, plans, drafts and ways to generate and to learn."""
    rollouts, logged, times = log.trace.rollouts, found.schedules.logged, found.times
    setting, setup, phases = times.setting, times.setup, times.phases
    each = max(1, len(rollouts) // len(log.trace.steps))
    begin("planning every step")
    planned = plan_every_step(rollouts, setting, evenly(log.trace.steps, max(1, PLANNED_RESPONSES // each)))
    begin("comparing numbers of GPUs")
    took = found.own_took
    measured_s = None if took is None else took.set_index("step")["fixed_s"].to_dict()
    counts = gpu_counts(
        logged,
        setting,
        setup,
        phases,
        factor=times.calibrated.factor,
        measured_s=measured_s,
        stand_in=PROFILE in stated.not_stated,
    )
    begin("measuring drafts")
    own = found.schedules.traces[setup.dispatch].rollouts
    drafts = draft_savings(rollouts, _last(logged, DRAFTED_RESPONSES), own, setting, *text_encoder(stated.tokenizer))
    ways, splits = None, pd.DataFrame()
    changed = RunToChange(_last(logged, MOST_RESPONSES), setting, setup, phases, len(steps_of_run(log)))
    if times.executed:
        changed = with_took(changed, log.trace, times)
    if not found.drawn:
        begin("dividing the GPUs")
        splits = splits_by_bound(changed)
    if times.calibrated.allows_savings and not found.drawn and not changed.not_compared:
        begin("comparing other ways to generate and to learn")
        ways = compare_ways(changed, drafts)
    knows_prompts = setup.framework == "verl" and not found.drawn  # nobody knows which prompts of drawn lengths are long
    router = router_effect(rollouts, setting) if knows_prompts else None
    return {"planned": planned, "gpu_counts": counts, "drafts": drafts, "ways": ways, "router": router, "splits": splits}


def _of_all_draws(
    found: Findings,
    draws: Sequence[OpenedLog],
    setting: SimulationConfig,
    stated: Assumptions,
    max_steps: int,
    begin: Begin,
) -> Findings:
    """Return findings whose ranges cover further draws of the lengths: of these, only what has a range is simulated."""
    others = []
    for number, log in enumerate(draws, start=2):
        begin(f"simulating draw {number} of {len(draws) + 1} of the lengths")
        others.append(_with_schedules(log, setting, stated, max_steps, only=GIVEN_BACK))
    counts = [
        gpu_counts(
            one.schedules.logged,
            one.times.setting,
            one.times.setup,
            one.times.phases,
            factor=one.times.calibrated.factor,
            stand_in=PROFILE in stated.not_stated,
        )
        for one in others
    ]
    checks = tuple(check for check in found.times.checks if check.how != COUNTED)  # lengths were drawn to meet these
    return replace(
        found,
        times=replace(found.times, checks=checks),
        traces=(*found.traces, *(trace for one in others for trace in one.traces)),
        accounts=(*found.accounts, *(account for one in others for account in one.accounts)),
        reserved=widened([found.reserved, *(one.reserved for one in others)]),
        given_back=widened([found.given_back, *(one.given_back for one in others)]),
        gpu_counts=of_all_draws(found.gpu_counts, counts),
    )


def widened(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return one row per policy: the lowest low, the highest high and most, and the mean of means."""
    rows = pd.concat(tables)
    how = {name: "min" if name.endswith(" low") else "mean" if name.endswith(" mean") else "max" for name in rows.columns[1:]}
    return rows.groupby("policy", sort=False).agg(how).reset_index()


def _last(logged: Sequence[LoggedStep], responses: int) -> list[LoggedStep]:
    """The last steps with at most so many responses in all, at least one."""
    chosen: list[LoggedStep] = []
    for step in reversed(logged):
        if chosen and sum(len(c.rows) for c in chosen) + len(step.rows) > responses:
            break
        chosen.insert(0, step)
    return chosen
