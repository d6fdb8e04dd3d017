"""Plan and execute the steps of a log under every policy, on simulated engines.

Steps come with their predicted lengths (``logged_steps``); the result is a ``Comparison`` with one trace per policy.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import is_dataclass, replace
from typing import Any, NamedTuple

import pandas as pd

from rlhfless.engine.simulated.disturbances import FaultInjectingFactory, SimulatedEngines
from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.engine.simulated.requests import Requests
from rlhfless.errors import InputError
from rlhfless.executor import StepRecord, run_step
from rlhfless.executor.step.shared_links import NodeLinks
from rlhfless.executor.virtual.actors import EngineFactory
from rlhfless.predict import Predictor
from rlhfless.scheduling import FunctionPolicy, PolicyError, PolicyFunction, SchedulingPolicy, as_policy
from rlhfless.scheduling.policy import PlanningTime
from rlhfless.scheduling.replan import SolverReplan
from rlhfless.simulate.comparison import Comparison
from rlhfless.simulate.drafted_steps import drafted_engines
from rlhfless.simulate.executions import Executions, Key
from rlhfless.simulate.fused_steps import fused_bound, fused_items
from rlhfless.simulate.plan_bounds import bound_of_plan, bound_with_drafts
from rlhfless.simulate.steps import LoggedStep, SimulationConfig, logged_steps
from rlhfless.simulate.traces import Executed, SimulatedTraces, policy_metrics
from rlhfless.trace import TraceError
from solver.bounds.bound import Bound
from solver.model.plan import Plan


def simulate(
    rollouts: pd.DataFrame,
    setting: SimulationConfig,
    policies: Sequence[str | SchedulingPolicy | PolicyFunction],
    predictor: Predictor | None = None,
    steps: Collection[int] | None = None,
    on_step: Callable[[int], object] | None = None,
) -> Comparison:
    """Plan every step of the log (or only ``steps``) under every policy, and execute the plans on simulated engines.

    Args:
        rollouts: one row per response of one run (``rlhfless.trace.read_rollouts``).
        policies: names, policy objects, or functions ``(problem, options) -> Plan``; only a clairvoyant policy sees the true
            lengths.
        on_step: called with the number of every step that is finished under all policies, for progress bars.

    Raises:
        TraceError: the log holds no rows, several runs, none of ``steps``, or a response above the limit.
        InputError: the setting is no ``SimulationConfig``.
        PlanningError: a step cannot be planned on this cluster.
        PolicyError: a policy is unknown, or there is none.
        SimulationInterrupted: Ctrl-C; it has the results of the finished steps.
    """
    if not isinstance(setting, SimulationConfig):
        raise InputError(
            f"setting is of type {type(setting).__name__}; a SimulationConfig is needed, such as Settings(...).setting"
        )
    logged = logged_steps(rollouts, predictor, setting.max_response_tokens, setting.reference_answer_tokens, steps)
    return simulate_steps(logged, setting, policies, on_step)


class SimulationInterrupted(KeyboardInterrupt):
    """Ctrl-C, while steps were simulated.

    Attributes:
        finished: the results of the steps that every policy has finished. If there are none, those of the first step under the
            policies that have finished it; None if no policy has.
    """

    def __init__(self, finished: Comparison | None) -> None:
        super().__init__()
        self.finished = finished


class _Row(NamedTuple):
    """One step under one policy: its execution, its columns that are no metrics, and its bound."""

    record: StepRecord
    logged: LoggedStep
    facts: dict[str, Any]
    bound: Bound | None


def simulate_steps(
    logged_steps: Iterable[LoggedStep],
    setting: SimulationConfig,
    policies: Sequence[str | SchedulingPolicy | PolicyFunction],
    on_step: Callable[[int], object] | None = None,
) -> Comparison:
    """Run ``simulate`` on steps whose lengths are predicted already, to reuse them in another setting; same policies and
    errors.
    """
    chosen, keeping = _chosen(setting, policies), _keeping(setting)
    done: dict[str, list[_Row]] = {p.name: [] for p in chosen}
    seen: list[tuple[LoggedStep, Bound]] = []
    try:
        for logged in logged_steps:
            without = logged.bound(setting)
            whole = fused_bound(setting, logged)
            with_drafts: dict[int, Bound] = {}  # by the longest draft
            seen.append((logged, without))
            requests = logged.requests()
            for policy in chosen:
                before = done[policy.name]
                start_s = before[-1].record.end_s if before else 0.0
                record, planning_s = _execute(policy, logged, keeping, requests, start_s)
                plan = record.plan
                bound = bound_of_plan(setting, logged, plan)
                if plan.drafting is not None:
                    most = plan.drafting.max_draft_tokens
                    bound = with_drafts.get(most) or with_drafts.setdefault(most, bound_with_drafts(setting, logged, plan))
                elif bound is not None:
                    bound = whole or bound
                drafted = "-" if plan.drafting is None else str(plan.drafting.length)
                facts = {
                    "variant": policy.name,
                    "policy": policy.name,
                    "time_weight": setting.objective.time_weight,
                    "gpu_kind": setting.cluster.kind,
                    "gpus": setting.cluster.gpus,
                    "gpus_per_actor": _actor_size(plan),
                    **({} if setting.drafts is None else {"drafts": drafted}),
                    "step": logged.step,
                    "has_history": logged.has_history,
                    **_bound_columns(record, bound, of_step=bound is whole),
                    "time_s": record.end_s - record.start_s,
                    "predicted_makespan_s": plan.makespan_s,
                    **vars(PlanningTime.overlapping(planning_s, setting.phases.seconds if before else 0.0)),
                    "moves": record.moves,
                }
                before.append(_Row(record, logged, facts, bound))
            if on_step is not None:
                on_step(logged.step)
        if not seen:
            raise TraceError("there is no step to simulate; at least one step of the log is needed")
        return _compared(setting, done, seen)
    except KeyboardInterrupt as stop:
        raise SimulationInterrupted(_finished(setting, done, seen)) from stop


def _finished(
    setting: SimulationConfig, done: Mapping[str, list[_Row]], seen: Sequence[tuple[LoggedStep, Bound]]
) -> Comparison | None:
    """Return ``SimulationInterrupted.finished``, of what each policy has done of the steps seen."""
    steps = min(map(len, done.values())) or 1
    rows = {name: rows[:steps] for name, rows in done.items() if len(rows) >= steps}
    return _compared(setting, rows, seen[:steps]) if rows else None


def _compared(
    setting: SimulationConfig, done: Mapping[str, Sequence[_Row]], seen: Sequence[tuple[LoggedStep, Bound]]
) -> Comparison:
    """Return the results of policies that have all done the steps seen."""
    executed = {name: [(row.record, row.logged) for row in rows] for name, rows in done.items()}
    facts = [row.facts for of_step in zip(*done.values(), strict=True) for row in of_step]
    table = pd.DataFrame(facts).astype({"gpus_per_actor": "Int64"})
    table = table.merge(policy_metrics(executed), on=["policy", "step"], how="left")
    plans = {name: tuple(row.record.plan for row in rows) for name, rows in done.items()}
    bounds = () if setting.sizes else tuple(bound for _, bound in seen)  # plans with other sizes may be below it
    table.attrs["clock"] = {"clock": "virtual", "profile": setting.latency.name}  # figures of the table say it
    row_bounds = {name: tuple(row.bound for row in rows) for name, rows in done.items()}
    traces = SimulatedTraces(executed, setting)
    return Comparison(table, traces, tuple(step for step, _ in seen), bounds, plans=plans, row_bounds=row_bounds)


def _actor_size(plan: Plan) -> int | None:
    """Return the GPUs of each actor; None where they differ, or there is no actor."""
    sizes = {len(actor.gpu_ids) for actor in plan.actors}
    return sizes.pop() if len(sizes) == 1 else None


def execute_steps(
    logged_steps: Iterable[LoggedStep],
    setting: SimulationConfig,
    policies: Sequence[str | SchedulingPolicy | PolicyFunction],
) -> dict[str, Executed]:
    """Plan and execute steps under every policy, without computing metrics and bounds.

    ``policy_metrics`` computes metrics for many settings at once.

    The arguments and exceptions are those of ``simulate_steps``.
    """
    chosen, keeping = _chosen(setting, policies), _keeping(setting)
    executed: dict[str, list[tuple[StepRecord, LoggedStep]]] = {p.name: [] for p in chosen}
    for logged in logged_steps:
        setting.problem(logged.truth)  # refuses responses that fit on no actor
        requests = logged.requests()
        for policy in chosen:
            before = executed[policy.name]
            start_s = before[-1][0].end_s if before else 0.0
            before.append((_execute(policy, logged, keeping, requests, start_s)[0], logged))
    return dict(executed)


def _chosen(setting: SimulationConfig, policies: Sequence[str | SchedulingPolicy | PolicyFunction]) -> list[SchedulingPolicy]:
    if isinstance(policies, str) or not policies:
        raise PolicyError(f"policies is {policies!r}; a list of at least one is needed, such as ['static', 'solver']")
    chosen = [as_policy(p, tau=setting.tau, static_actors=setting.static_actors, hold=setting.hold) for p in policies]
    names = [p.name for p in chosen]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise PolicyError(f"policies are {', '.join(names)}; {twice[0]!r} is there twice, so give one of them another name")
    return chosen


def _keeping(setting: SimulationConfig) -> SimulationConfig:
    """Return a setting that keeps plans, those of one comparison at least: re-planning policies start from the static plan."""
    return setting if setting.executions is not None else replace(setting, executions=Executions())


def _execute(
    policy: SchedulingPolicy, logged: LoggedStep, setting: SimulationConfig, requests: Requests, start_s: float
) -> tuple[StepRecord, float]:
    """Plan and run one step; returns its record, and the seconds of planning."""
    kept = setting.executions
    key = None if kept is None else _kept_by(policy, logged, setting)
    plan, planning_s = _planned(policy, logged, setting, key)
    cluster, latency = setting.offered
    if kept is not None and key is not None and (*key, start_s) in kept.records:
        return kept.records[*key, start_s], planning_s
    record = run_step(
        plan,
        requests,
        engines_of(setting, logged, plan, policy.clairvoyant),
        latency,
        cluster,
        run=str(logged.rows["run"].iloc[0]),
        step=logged.step,
        start_s=start_s,
        phases=setting.phases,
        work=fused_items(setting, logged, policy, plan),
        admission=setting.admission,
        migration=setting.migration,
        links=links_of(setting),
    )
    if kept is not None and key is not None:
        kept.records[*key, start_s] = record
    return record, planning_s


def _kept_by(policy: SchedulingPolicy, logged: LoggedStep, setting: SimulationConfig) -> Key | None:
    """Return by what a plan is found again in ``SimulationConfig.executions``; None where it is not kept.

    Policies are distinguished by their parameters, so only those that are frozen dataclasses are kept. Nothing is kept of a
    user's functions, and in settings with faults, drafts or work beside decoding.
    """
    comparable = is_dataclass(policy) and policy.__dataclass_params__.frozen and policy.__dataclass_params__.eq
    disturbed = any(of is not None for of in (setting.effects, setting.drafts, setting.work))
    if not comparable or disturbed or isinstance(policy, FunctionPolicy):
        return None
    where = (setting.cluster, setting.latency, setting.planned_latency, setting.objective, setting.phases)
    how = (setting.sizes, setting.admission, setting.migration, setting.seed)
    return (type(policy), policy, logged, *where, *how)


def _planned(policy: SchedulingPolicy, logged: LoggedStep, setting: SimulationConfig, key: Key | None) -> tuple[Plan, float]:
    """Return the plan of a step and the seconds of planning it; both as they were where the plan is kept."""
    kept = setting.executions
    if kept is not None and key is not None and key in kept.plans:
        return kept.plans[key]
    problem, options = logged.inputs(setting, policy.clairvoyant)
    before_s = 0.0
    if kept is not None and isinstance(policy, SolverReplan):
        of_static = _kept_by(policy.static, logged, replace(setting, sizes=()))  # it re-plans actors of one size
        if of_static is not None and of_static in kept.plans:
            static, before_s = kept.plans[of_static]
            options = replace(options, static=static)
    began = time.perf_counter()
    plan = policy.plan(problem, options)
    planning_s = before_s + time.perf_counter() - began
    if kept is not None and key is not None:
        kept.plans[key] = plan, planning_s
    return plan, planning_s


def _bound_columns(record: StepRecord, bound: Bound | None, of_step: bool) -> dict[str, Any]:
    """Return the lower bound on GPU-seconds at the record's own time and what proves it.

    Args:
        of_step: the bound is one of the whole step, not of generation.
    """
    if bound is None:
        return {"bound_gpu_seconds": math.nan, "bound_method": "unknown, as the actors differ in size"}
    time_s = (record.end_s - record.start_s) * (1 + 1e-9) if of_step else record.makespan_s
    gpu_s = bound.gpu_seconds(time_s) + bound.phases.step_gpu_s(time_s, 0.0)
    return {"bound_gpu_seconds": gpu_s, "bound_method": bound.method(time_s)}


def engines_of(setting: SimulationConfig, logged: LoggedStep, plan: Plan, clairvoyant: bool) -> EngineFactory:
    """Return the engine factory of one execution of a plan.

    Args:
        clairvoyant: the plan's policy knows true lengths.

    Raises:
        InputError: the plan drafts, and the setting does not say what is accepted.
    """
    engines: SimulatedEngines = SimulatedEngine
    if plan.drafting is not None:
        engines = drafted_engines(setting, logged, plan, clairvoyant)
    if setting.effects is None:
        return engines
    return FaultInjectingFactory(replace(setting.effects, step=logged.step), engines)


def links_of(setting: SimulationConfig) -> NodeLinks | None:
    """Return the links that the transfers of one execution of a step share; None if they share none."""
    contention = None if setting.effects is None else setting.effects.contention
    return None if contention is None else NodeLinks(contention.carries)
