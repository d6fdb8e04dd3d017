"""What scheduling policies would have made of a logged run: predict, plan, execute on simulated engines, compare.

Knows logs, predictors, policies and the executor; nothing of plots or of the command line. Every policy sees the same
predictions (clairvoyant ones the true lengths), runs on the same cluster and latency profile, and stands beside the bound.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from rlhfless.engine.disturbed import DisturbedEngines
from rlhfless.engine.members import Requests
from rlhfless.engine.protocol import Request
from rlhfless.engine.simulated import SimulatedEngine
from rlhfless.executor import StepRecord, run_step
from rlhfless.executor.actors import EngineFactory
from rlhfless.executor.node_links import NodeLinks
from rlhfless.latency.effects import Effects
from rlhfless.predict import EwmaPredictor, Predictor
from rlhfless.scheduling import PlanningInput, SchedulingPolicy, make_policy
from rlhfless.trace import Trace, TraceError, step_metrics
from solver.clairvoyant import ClairvoyantBound, clairvoyant_bound
from solver.cluster import Cluster
from solver.latency import LatencyModel
from solver.objective import Objective, StepRest
from solver.remaining import RemainingLengths
from solver.tables import rows_table
from solver.workload import Workload

SCENARIOS = 8  # samples of lengths, around the predictions, that plans are timed with
MOST_NEW_PROMPTS = 0.5  # a step with a larger share of prompts that were never seen has no history


@dataclass(frozen=True)
class Setting:
    """Where, how fast and for what a log is planned.

    Attributes:
        response_limit: the longest response that the run allowed; the longest of the log when None.
        reference_answer_tokens: lengths of reference answers by prompt id, for prompts without history.
        planned_latency: what policies plan with, where it is not ``latency``, by which everything is executed and bounded: a
            profile that is off, say.
        tau, static_actors, hold: parameters of the policies that have them.
        migration: ``move``, ``recompute`` or ``cheaper``.
        effects: what happens to actors beside decoding; of its outages and delays every step has its own. Nobody plans for it.
        patience: far above 1, plans do not depend on how busy the machine is (see ``solver.plan_generation``).
    """

    cluster: Cluster
    latency: LatencyModel
    objective: Objective = field(default_factory=Objective)
    rest: StepRest = field(default_factory=StepRest)
    response_limit: int | None = None
    reference_answer_tokens: Mapping[str, int] | None = None
    time_limit_s: float = 0.3
    tau: float = 0.7
    static_actors: int | None = None
    hold: str = "generation"
    admission: str = "reserve"
    migration: str = "cheaper"
    seed: int = 0
    planned_latency: LatencyModel | None = None
    effects: Effects | None = None
    patience: float = 1.0


@dataclass(frozen=True, eq=False)
class LoggedStep:
    """One step of a log as planning sees it: predictions from earlier steps, and the truth for those who may see it.

    ``remaining`` is the predictor's own forecast of remaining lengths, where it has one.
    """

    step: int
    rows: pd.DataFrame
    predicted: Workload
    truth: Workload
    has_history: bool
    remaining: RemainingLengths | None = None

    def given(self, setting: Setting, clairvoyant: bool = False) -> PlanningInput:
        """What a policy plans this step with."""
        return PlanningInput(
            self.truth if clairvoyant else self.predicted,
            setting.cluster,
            setting.latency if setting.planned_latency is None else setting.planned_latency,
            setting.objective,
            setting.rest,
            setting.time_limit_s,
            setting.admission,
            setting.seed + self.step,
            None if clairvoyant else self.remaining,
            setting.patience,
        )

    def requests(self) -> Requests:
        """One request per response with its true length, for simulated engines."""
        finish = self.rows["finish_reason"].fillna("stop").tolist()
        limit = self.truth.response_limit
        lengths, owners = self.truth.response_tokens.tolist(), self.truth.prompt_of.tolist()
        prompts = self.truth.prompt_tokens.tolist()
        return Requests(
            Request(i, prompts[owner], limit, target_tokens=tokens, target_finish=reason, prompt=owner)
            for i, (owner, tokens, reason) in enumerate(zip(owners, lengths, finish, strict=True))
        )


def logged_steps(
    rollouts: pd.DataFrame,
    predictor: Predictor | None = None,
    response_limit: int | None = None,
    reference_answer_tokens: Mapping[str, int] | None = None,
    steps: Collection[int] | None = None,
) -> Iterator[LoggedStep]:
    """The steps of one run in order, each predicted from all steps before it.

    Args:
        steps: only these; all when None. Steps that are left out are history all the same.

    Raises:
        TraceError: the log holds several runs, or a response above the limit.
    """
    runs = rollouts["run"].unique()
    if len(runs) > 1:
        raise TraceError(f"the log holds {len(runs)} runs ({', '.join(map(str, runs))}); select one by its column 'run'")
    predictor = predictor or EwmaPredictor()
    longest = int(rollouts["response_tokens"].max())
    limit = max(1, longest) if response_limit is None else int(response_limit)
    if longest > limit:
        raise TraceError(f"the log holds a response of {longest} tokens, above the response limit of {limit}; raise the limit")
    for step, rows in rollouts.groupby("step", sort=True):
        if steps is not None and step not in steps:
            continue
        history = rollouts[rollouts["step"] < step]
        prompt_ids = rows["prompt_id"].astype(str)
        known = set(history["prompt_id"].astype(str))
        names, owner = np.unique(prompt_ids, return_inverse=True)
        first = np.unique(owner, return_index=True)[1]
        order = np.argsort(np.argsort(first))  # prompts count in their order of appearance
        prompt_tokens = rows["prompt_tokens"].fillna(0).to_numpy(dtype=np.int64)[np.sort(first)]
        asked, answers = prompt_ids.tolist(), reference_answer_tokens
        fitted = predictor.fit(history)
        point = fitted.predict(asked, reference_answer_tokens=answers, response_limit=limit)
        scenarios = fitted.sample(
            asked, reference_answer_tokens=answers, response_limit=limit, scenarios=SCENARIOS, seed=int(step)
        )
        lengths = rows["response_tokens"].to_numpy(dtype=np.int64)
        truth = Workload(prompt_tokens, order[owner], lengths, response_limit=limit)
        new = sum(name not in known for name in names) / len(names)
        predicted = Workload(prompt_tokens, order[owner], point, response_limit=limit, scenarios=scenarios)
        remaining = fitted.in_flight(prompt_ids.iloc[np.sort(first)].tolist(), predicted)
        yield LoggedStep(int(step), rows, predicted, truth, new <= MOST_NEW_PROMPTS, remaining)


@dataclass(frozen=True, eq=False)
class Simulation:
    """Results of several policies on one log.

    Attributes:
        steps: one row per policy and step: ``policy, step, has_history, actors, time_s`` (the whole step, its rest included),
            ``gpu_seconds, idle_gpu_seconds, slot_idle_gpu_seconds, cost_usd, bound_gpu_seconds, predicted_makespan_s,
            planning_s, moves``.
        traces: the trace of every policy.
        logged: the steps as planning saw them; bounds: the clairvoyant bound of each, on generation alone.
    """

    steps: pd.DataFrame
    traces: dict[str, Trace]
    logged: tuple[LoggedStep, ...] = ()
    bounds: tuple[ClairvoyantBound, ...] = ()

    def summary(self, has_history: bool = True) -> pd.DataFrame:
        """One row per policy over the steps with (or without) history: sums, and ratios of sums against ``static``."""
        chosen = self.steps[self.steps["has_history"] == has_history]
        rows = []
        for policy in self.traces:
            own = chosen[chosen["policy"] == policy]
            sums = {name: float(own[name].sum()) for name in ("time_s", "gpu_seconds", "idle_gpu_seconds", "cost_usd")}
            rows.append(
                {"policy": policy, "steps": len(own), **sums, "bound_cost_at_time": float(own["bound_gpu_seconds"].sum())}
            )
        table = pd.DataFrame(rows)
        static = table[table["policy"] == "static"]
        time_s, gpu_s = (float(static[name].iloc[0]) if len(static) else np.nan for name in ("time_s", "gpu_seconds"))
        with np.errstate(invalid="ignore", divide="ignore"):
            table.insert(6, "speedup_vs_static", time_s / table["time_s"])
            table.insert(7, "cost_reduction_vs_static", 1 - table["gpu_seconds"] / gpu_s)
        return table

    def to_dict(self) -> dict[str, Any]:
        """``{"policies": [...], "without_history": [...]}``; what is not known is None."""

        def plain(table: pd.DataFrame) -> list[dict[str, Any]]:
            rows = table[table["steps"] > 0].to_dict("records")
            return [
                {str(k): None if isinstance(v, float) and not np.isfinite(v) else v for k, v in row.items()} for row in rows
            ]

        return {"policies": plain(self.summary()), "without_history": plain(self.summary(False))}

    def _rows(self) -> list[tuple[str, ...]]:
        """Policy, time, cost and the least cost at that time of every policy: sums over all steps, as texts."""
        names = ["time_s", "gpu_seconds", "bound_gpu_seconds", "cost_usd"]
        sums = self.steps.groupby("policy", sort=False)[names].sum()
        return [
            (str(policy), *(f"{value:.4g}" for value in row)) for policy, row in zip(sums.index, sums.to_numpy(), strict=True)
        ]

    def __repr__(self) -> str:
        told = (
            f"  {name}: {time} s, {gpu} GPU-seconds (bound {bound}), {usd} USD" for name, time, gpu, bound, usd in self._rows()
        )
        return "\n".join([f"Simulation of {self.steps['step'].nunique()} steps", *told])

    def _repr_html_(self) -> str:
        head = ("policy", "time (s)", "GPU-seconds", "bound at that time", "cost (USD)")
        return rows_table(f"Simulation: sums over {self.steps['step'].nunique()} steps", head, self._rows())


def simulate(
    rollouts: pd.DataFrame,
    setting: Setting,
    policies: Sequence[str | SchedulingPolicy],
    predictor: Predictor | None = None,
    steps: Collection[int] | None = None,
    on_step: Callable[[int], object] | None = None,
) -> Simulation:
    """Plan and run every step of the log (or only ``steps``) under every policy.

    Args:
        rollouts: the rows of one run (``rlhfless.trace.read_rollouts``).
        policies: names or policy objects; a non-clairvoyant policy never sees the true lengths.
        on_step: called with every step that is done under all policies (for progress bars).

    Raises:
        TraceError: the log holds several runs, or a response above the limit.
        PlanningError: a step cannot be planned on this cluster.
        PolicyError: a policy is unknown.
    """
    logged = logged_steps(rollouts, predictor, setting.response_limit, setting.reference_answer_tokens, steps)
    return simulate_steps(logged, setting, policies, on_step)


def simulate_steps(
    logged_steps: Iterable[LoggedStep],
    setting: Setting,
    policies: Sequence[str | SchedulingPolicy],
    on_step: Callable[[int], object] | None = None,
) -> Simulation:
    """``simulate`` of steps that are predicted already, in another setting for example; the same policies and exceptions."""
    chosen = [
        make_policy(p, tau=setting.tau, static_actors=setting.static_actors, hold=setting.hold) if isinstance(p, str) else p
        for p in policies
    ]
    records: dict[str, list[tuple[StepRecord, pd.DataFrame]]] = {p.name: [] for p in chosen}
    clock_s = dict.fromkeys(records, 0.0)
    facts: list[dict[str, Any]] = []
    seen: list[tuple[LoggedStep, ClairvoyantBound]] = []
    for logged in logged_steps:
        bound = clairvoyant_bound(logged.truth, setting.cluster, setting.latency, admission=setting.admission)
        seen.append((logged, bound))
        requests = logged.requests()
        for policy in chosen:
            began = time.perf_counter()
            plan = policy.plan(logged.given(setting, policy.clairvoyant))
            planning_s = time.perf_counter() - began
            record = run_step(
                plan,
                requests,
                engines_of(setting, logged.step),
                setting.latency,
                setting.cluster,
                run=str(logged.rows["run"].iloc[0]),
                step=logged.step,
                start_s=clock_s[policy.name],
                rest=setting.rest,
                admission=setting.admission,
                migration=setting.migration,
                links=links_of(setting),
            )
            clock_s[policy.name] = record.end_s
            records[policy.name].append((record, rollout_rows(record, logged)))
            facts.append(
                {
                    "policy": policy.name,
                    "step": logged.step,
                    "has_history": logged.has_history,
                    "bound_gpu_seconds": bound.gpu_seconds(record.makespan_s) + setting.rest.step_gpu_s(record.makespan_s, 0.0),
                    "time_s": record.end_s - record.start_s,
                    "predicted_makespan_s": plan.makespan_s,
                    "planning_s": planning_s,
                    "moves": record.moves,
                }
            )
        if on_step is not None:
            on_step(logged.step)
    traces = {p.name: trace_of(records[p.name], setting, p.name) for p in chosen}
    measured = pd.concat([step_metrics(trace).assign(policy=name) for name, trace in traces.items()], ignore_index=True)
    columns = ["policy", "step", "actors", "gpu_seconds", "idle_gpu_seconds", "slot_idle_gpu_seconds", "cost_usd"]
    table = pd.DataFrame(facts).merge(measured[columns], on=["policy", "step"])
    return Simulation(table, traces, tuple(one for one, _ in seen), tuple(bound for _, bound in seen))


def engines_of(setting: Setting, step: int) -> EngineFactory:
    """Makes the engines of one execution of a step."""
    if setting.effects is None:
        return SimulatedEngine
    return DisturbedEngines(replace(setting.effects, step=step))


def links_of(setting: Setting) -> NodeLinks | None:
    """The links that transfers of one execution of a step share, if they share any."""
    contention = None if setting.effects is None else setting.effects.contention
    return None if contention is None else NodeLinks(contention.carries)


def rollout_rows(record: StepRecord, logged: LoggedStep) -> pd.DataFrame:
    """The log's rows of a step with the times of this execution in place of the log's own."""
    times = pd.DataFrame([record.rollout_times(i) for i in range(len(logged.rows))], index=logged.rows.index)
    times = times.drop(columns=["response_tokens", "finish_reason"])
    kept = logged.rows.drop(columns=[c for c in times.columns if c in logged.rows], errors="ignore")
    return pd.concat([kept, times], axis=1).assign(predicted_tokens=logged.predicted.response_tokens.astype(float))


def trace_of(records: Sequence[tuple[StepRecord, pd.DataFrame]], setting: Setting, policy: str) -> Trace:
    """One trace of all steps under one policy."""
    return Trace(
        rollouts=pd.concat([rows for _, rows in records], ignore_index=True),
        allocations=pd.DataFrame([row for record, _ in records for row in record.allocations]),
        spans=pd.DataFrame([row for record, _ in records for row in record.spans]),
        events=pd.DataFrame([row for record, _ in records for row in record.events]),
        plans=[{"step": record.step, **record.plan.to_dict()} for record, _ in records],
        meta=describe(setting, policy),
    )


def describe(setting: Setting, policy: str) -> dict[str, Any]:
    """What ``meta.json`` says of a simulated run."""
    return {
        "seeds": {"policy": setting.seed},
        "cluster": vars(setting.cluster),
        "profile": setting.latency.name,
        "policy": policy,
        "objective": vars(setting.objective),
        "clock": "virtual",
        "charging": "profile",
        "engine": "simulated",
        "device": "none",
    }
