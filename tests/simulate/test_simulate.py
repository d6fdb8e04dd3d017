"""Simulating a log under several policies: sums and ratios of sums, history kept apart, and no look at the truth."""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
import pytest
from error_messages import refused

from rlhfless.errors import InputError
from rlhfless.plots.time_cost import results_by_policy
from rlhfless.scheduling import PlanningOptions, PolicyError, make_policy
from rlhfless.scheduling.policy import PlanningTime
from rlhfless.scheduling.solver import Solver
from rlhfless.simulate import (
    SimulationConfig,
    SimulationInterrupted,
    execute_steps,
    logged_steps,
    simulate,
    simulate_steps,
    simulate_variants,
)
from rlhfless.simulate.executions import Executions
from rlhfless.trace import TraceError, allocation_metrics, read_trace, step_metrics, validate
from solver import Cluster, LatencyModel, NonGenerationPhases, Objective, Plan, PlanningError, random_split
from solver.model.problem import PlanningProblem

LATENCY = LatencyModel("small", 1, 5e-3, 2e-4, 1e-7, prefill_per_token_s=1e-5, start_s=0.3, transfer_base_s=1e-3, max_batch=32)
SETTING = SimulationConfig(Cluster(1, 4, 1, usd_per_gpu_hour=36.0), LATENCY, max_response_tokens=600)
FIELDS = [
    "policy", "steps", "time_s", "gpu_seconds", "idle_gpu_seconds", "cost_usd", "speedup_vs_static",
    "cost_reduction_vs_static", "objective", "bound_cost_at_time", "above_bound", "bound_method", "planning_s",
    "planning_delay_s",
]  # fmt: skip


def log(visits: int = 3, prompts: int = 12, samples: int = 3, seed: int = 0, **columns: object) -> pd.DataFrame:
    """Two steps of half of the prompts per visit; the first visit has no history."""
    rng = np.random.default_rng(seed)
    mean = rng.normal(4.5, 0.8, prompts)
    rows = [
        {
            "step": 2 * visit + prompt * 2 // prompts,
            "prompt_id": f"p{prompt}",
            "sample": sample,
            "prompt_tokens": 20 + prompt,
            "response_tokens": int(np.clip(np.exp(mean[prompt] + rng.normal(0, 0.3)), 1, 600)),
            "finish_reason": "stop",
        }
        for visit in range(visits)
        for prompt in range(prompts)
        for sample in range(samples)
    ]
    return validate("rollouts", pd.DataFrame(rows).assign(**columns))


@pytest.fixture(scope="module")
def result():
    return simulate(log(), SETTING, ["static", "random", "rlhfuse", "rlhfless", "fold", "solver", "oracle"])


def test_no_schedule_has_a_lower_objective_than_the_least_of_any(result):
    for has_history in (True, False):
        summary, least = result.summary(has_history), result.least_objectives(has_history)
        assert least["policy"].tolist() == summary["policy"].tolist()
        assert (least["least_objective"] > 0).all()
        assert (summary["objective"] >= least["least_objective"]).all()
        assert least["above_least"].to_numpy() == pytest.approx(
            (summary["objective"] / least["least_objective"] - 1).to_numpy()
        )
        assert least["least_objective"].nunique() == 1, "all schedules have the same steps"


def test_the_least_objective_at_the_ends_of_the_weight_is_the_shortest_time_or_the_least_cost():
    for weight, column in ((1.0, "time_s"), (0.0, "gpu_seconds")):
        found = simulate(log(), replace(SETTING, objective=Objective(weight)), ["static"])
        bounds = [bound for bound, step in zip(found.bounds, found.logged, strict=True) if step.has_history]
        of = [bound.shortest_s() if weight else bound.gpu_seconds(1e9) for bound in bounds]
        least = found.least_objectives()["least_objective"].iloc[0] * found.summary()[column].iloc[0]
        assert least == pytest.approx(sum(of), rel=1e-6)


def test_phases_outside_generation_are_in_the_least_objective():
    phases = NonGenerationPhases(prepare_s=2.0, learn_s=3.0, learner_gpus=2)
    alone, whole = (simulate(log(), replace(SETTING, phases=of), ["static"]) for of in (NonGenerationPhases(), phases))
    weight = SETTING.objective.time_weight

    def least(found):
        row = found.summary().iloc[0]
        return (
            found.least_objectives()["least_objective"].iloc[0] * row["time_s"] ** weight * row["gpu_seconds"] ** (1 - weight)
        )

    steps = alone.summary()["steps"].iloc[0]
    assert least(whole) >= least(alone) + steps * phases.seconds * phases.learner_gpus ** (1 - weight) * (1 - 1e-9)
    assert whole.least_objectives()["above_least"].iloc[0] >= 0


def test_the_least_objective_is_unknown_where_time_weights_differ():
    steps = logged_steps(log())
    variants = {str(weight): (replace(SETTING, objective=Objective(weight)), "static") for weight in (0.3, 0.7)}
    assert simulate_variants(list(steps), variants).least_objectives()["least_objective"].isna().all()


def test_a_summary_is_sums_and_ratios_of_sums(result):
    table = result.summary().set_index("policy")
    assert list(result.summary().columns) == FIELDS
    rows = result.table[result.table["has_history"]]
    for policy, own in rows.groupby("policy"):
        assert table.loc[policy, "steps"] == len(own) == 4
        for name in ("time_s", "gpu_seconds", "idle_gpu_seconds", "cost_usd"):
            assert table.loc[policy, name] == pytest.approx(own[name].sum())
        assert table.loc[policy, "speedup_vs_static"] == pytest.approx(table.loc["static", "time_s"] / own["time_s"].sum())
        cheaper = 1 - own["gpu_seconds"].sum() / table.loc["static", "gpu_seconds"]
        assert table.loc[policy, "cost_reduction_vs_static"] == pytest.approx(cheaper)
        assert table.loc[policy, "bound_cost_at_time"] == pytest.approx(own["bound_gpu_seconds"].sum())
        above = own["gpu_seconds"].sum() / own["bound_gpu_seconds"].sum() - 1
        assert table.loc[policy, "above_bound"] == pytest.approx(above)
        weighed = (table["time_s"] ** 0.7 * table["gpu_seconds"] ** 0.3).loc[[policy, "static"]]
        assert table.loc[policy, "objective"] == pytest.approx(weighed[policy] / weighed["static"])
    assert table.loc["static", "speedup_vs_static"] == 1.0
    assert np.all(table["bound_cost_at_time"] <= table["gpu_seconds"])
    assert np.all(result.table["bound_gpu_seconds"] <= result.table["gpu_seconds"])
    assert table.loc["oracle", "gpu_seconds"] < table.loc["static", "gpu_seconds"]
    np.testing.assert_allclose(table["cost_usd"], table["gpu_seconds"] * 0.01)


def test_steps_without_history_stand_in_rows_of_their_own(result):
    assert result.table.groupby("step")["has_history"].first().tolist() == [False, False, True, True, True, True]
    assert result.summary(False)["steps"].unique().tolist() == [2]
    both = result.to_dict()
    assert list(both) == ["policies", "without_history"]
    assert [list(row) for row in both["policies"]] == [[*FIELDS, "least_objective", "above_least"]] * 7
    assert {row["steps"] for row in both["without_history"]} == {2}


def test_what_is_not_known_is_none_and_never_a_number():
    both = simulate(log(visits=1), SETTING, ["random"]).to_dict()
    assert both["policies"] == []
    (row,) = both["without_history"]
    assert row["speedup_vs_static"] is None
    assert row["cost_reduction_vs_static"] is None
    json.dumps(both, allow_nan=False)


def test_gpus_without_a_price_have_unknown_costs():
    free = simulate(log(visits=1), replace(SETTING, cluster=Cluster(1, 4, 1)), ["static", "random"])
    assert free.table["cost_usd"].isna().all()
    assert free.summary(False)["cost_usd"].isna().all()
    assert [row["cost_usd"] for row in free.to_dict()["without_history"]] == [None, None]
    assert "cost in USD: unknown" in repr(free)


def test_sums_of_an_unknown_value_are_unknown(result):
    table = result.table
    of_random = table["policy"] == "random"
    one = of_random & (table["step"] == table.loc[table["has_history"], "step"].iloc[0])
    columns = ["bound_gpu_seconds", "idle_gpu_seconds", "planning_s"]
    unknown = replace(result, table=table.assign(**{name: table[name].mask(one) for name in columns}))
    row = unknown.summary().set_index("policy").loc["random"]
    assert row[["bound_cost_at_time", "idle_gpu_seconds", "planning_s"]].isna().all()
    assert row[["time_s", "gpu_seconds", "planning_delay_s"]].notna().all()
    (shown,) = (row for row in unknown.to_dict()["policies"] if row["policy"] == "random")
    assert shown["bound_cost_at_time"] is None
    sums = results_by_policy(unknown.table).set_index("policy")
    assert sums.index[sums["bound_gpu_seconds"].isna()].tolist() == ["random"]


def test_metrics_of_all_policies_at_once_are_those_of_each_trace(result):
    columns = ["actors", "gpu_seconds", "idle_gpu_seconds", "slot_idle_gpu_seconds", "cost_usd"]
    for policy, trace in result.traces.items():
        own = result.table[result.table["policy"] == policy].reset_index(drop=True)
        pd.testing.assert_frame_equal(own[columns], step_metrics(trace)[columns], check_exact=True)


def test_a_trace_is_made_once_and_unknown_policies_have_none(result):
    assert list(result.traces) == ["static", "random", "rlhfuse", "rlhfless", "fold", "solver", "oracle"]
    assert result.traces["fold"] is result.traces["fold"]
    assert "spread" not in result.traces


def test_steps_without_metrics_and_bounds_are_the_same_steps(result):
    executed = execute_steps(list(logged_steps(log(), max_response_tokens=600)), SETTING, ["static", "fold"])
    for policy, steps in executed.items():
        own = result.table[result.table["policy"] == policy]
        assert [record.end_s - record.start_s for record, _ in steps] == own["time_s"].tolist()


def test_shared_executions_change_no_result_and_run_every_schedule_once(monkeypatch):
    """Policies that re-plan start from plans that are made already, and other settings share nothing."""
    steps = list(logged_steps(log(visits=2), max_response_tokens=600))[-2:]
    policies = ["static", "fold", "solver", "oracle", "solver+replan", "oracle+replan"]
    apart = pd.concat([simulate_steps(steps, SETTING, [policy]).table for policy in policies]).sort_values(
        "step", kind="stable"
    )
    planned, plan = [], Solver.plan
    monkeypatch.setattr(Solver, "plan", lambda policy, *given: (planned.append(policy.name), plan(policy, *given))[1])
    at_once = simulate_steps(steps, SETTING, policies)
    assert sorted(planned) == ["oracle", "oracle", "solver", "solver"], "once for each step"
    shared = replace(SETTING, executions=Executions())
    together = simulate_steps(steps, shared, policies)
    measured = ["planning_s", "planning_delay_s"]
    alone = apart.drop(columns=measured).reset_index(drop=True)
    for one in (at_once, together):
        pd.testing.assert_frame_equal(alone, one.table.drop(columns=measured), check_exact=True)
    times = together.table.set_index(["policy", "step"])["planning_s"]
    assert all(times["solver+replan"] >= times["solver"]), "the plan that it starts from is counted"
    kept, records = shared.executions, dict(shared.executions.records)
    assert len(records) == len(kept.plans) == len(policies) * len(steps)
    execute_steps(steps, replace(shared, bound_work=0), policies)
    assert kept.records == records
    execute_steps(steps[1:], shared, ["static"])
    assert (len(kept.records), len(kept.plans)) == (len(records) + 1, len(records)), "it starts at another time"
    execute_steps(steps, replace(shared, objective=Objective(1.0)), [make_policy("rlhfless", tau=0.5), "random"])
    execute_steps(steps, shared, [make_policy("rlhfless", tau=0.9), one_actor])
    assert len(kept.plans) == len(records) + 3 * len(steps), "a function of the user is not kept"
    kept.clear()
    assert not kept.records
    assert not kept.plans


def one_actor(problem: PlanningProblem, options: PlanningOptions) -> Plan:
    return random_split(problem, actors=1)


def test_numbers_come_from_the_traces(result, tmp_path):
    for policy, trace in result.traces.items():
        own = result.table[result.table["policy"] == policy]
        assert allocation_metrics(trace)["gpu_seconds"].sum() == pytest.approx(own["gpu_seconds"].sum())
        again = read_trace(trace.save(tmp_path / policy))
        assert allocation_metrics(again)["cost_usd"].sum() == pytest.approx(own["cost_usd"].sum())
        assert again.meta["policy"] == policy
        assert [p["step"] for p in again.plans] == [0, 1, 2, 3, 4, 5]
        ends = again.rollouts.groupby("step")["end_s"].max()
        starts = again.allocations.groupby("step")["start_s"].min()
        assert np.all(starts.to_numpy()[1:] >= ends.to_numpy()[:-1])  # steps follow one another


def test_a_trace_keeps_the_logs_rows(result):
    rollouts = log()
    for trace in result.traces.values():
        for name in ("step", "prompt_id", "sample", "prompt_tokens", "response_tokens", "finish_reason"):
            assert trace.rollouts[name].tolist() == rollouts[name].tolist()
        assert trace.rollouts["predicted_tokens"].notna().all()


@pytest.mark.full
def test_other_phases_of_the_step_and_the_learner_are_billed():
    phases = NonGenerationPhases(1.0, 2.0, 2)
    alone, beside = (
        simulate(log(), replace(SETTING, phases=r, hold="step"), ["static"]) for r in (NonGenerationPhases(), phases)
    )
    a, b = alone.table, beside.table
    np.testing.assert_allclose(b["time_s"], a["time_s"] + 3.0)
    np.testing.assert_allclose(b["gpu_seconds"], a["gpu_seconds"] + 4 * 3.0 + 2 * b["time_s"])
    assert np.all(b["bound_gpu_seconds"] <= b["gpu_seconds"])


@pytest.mark.parametrize("policy", ["static", "random", "least-loaded", "rlhfuse", "rlhfless", "fold", "solver"])
def test_a_policy_plans_the_same_whatever_the_truth(policy):
    """Other lengths in the last step and the plan of that step stays; the oracle's does not."""
    one, other = log(), log()
    last = (other["step"] == 5).to_numpy()
    other.loc[last, "response_tokens"] = np.random.default_rng(1).integers(1, 600, last.sum())
    for name, differs in ((policy, False), ("oracle", True)):
        plans = []
        for rollouts in (one, other):
            logged = list(logged_steps(rollouts, max_response_tokens=600))[-1]
            chosen = make_policy(name)
            plans.append(chosen.plan(*logged.inputs(SETTING, chosen.clairvoyant)))
        same = [[(a.responses, a.predicted_s) for a in p.actors] for p in plans]
        assert (same[0] != same[1]) is differs


@dataclass
class Spy:
    """A policy that notes what it is given."""

    clairvoyant: bool
    name: str
    given: list[PlanningProblem] = field(default_factory=list)

    def plan(self, problem: PlanningProblem, options: PlanningOptions) -> Plan:
        self.given.append(problem)
        return make_policy("static").plan(problem, options)


def test_only_clairvoyant_policies_are_given_true_lengths():
    blind, seer = Spy(False, "blind"), Spy(True, "seer")
    rollouts = log()
    simulate(rollouts, SETTING, [blind, seer])
    for step, (guess, truth) in enumerate(zip(blind.given, seer.given, strict=True)):
        actual = rollouts.loc[rollouts["step"] == step, "response_tokens"].tolist()
        assert truth.workload.response_tokens.tolist() == actual
        assert guess.workload.response_tokens.tolist() != actual
        before = rollouts[(rollouts["step"] < step)]
        if step >= 2:  # window 1: the mean of the last visit, the same for all samples
            mean = before[before["step"] == step - 2].groupby("prompt_id", sort=False)["response_tokens"].mean()
            assert guess.workload.response_tokens.tolist() == [math.ceil(m) for m in mean for _ in range(3)]


def test_prompts_count_in_order_of_appearance_however_rows_are_ordered():
    rollouts = log(visits=1).sample(frac=1, random_state=3)
    for logged in logged_steps(rollouts):
        ids = logged.rows["prompt_id"].tolist()
        names = list(dict.fromkeys(ids))
        assert [names[k] for k in logged.truth.prompt_of] == ids
        tokens = logged.truth.prompt_tokens[logged.truth.prompt_of]
        assert tokens.tolist() == logged.rows["prompt_tokens"].tolist()


def test_empty_responses_are_simulated_too():
    rollouts = log(visits=2)
    rollouts.loc[rollouts["step"] == 3, "response_tokens"] = 0
    rollouts.loc[rollouts.index[:3], "response_tokens"] = 0
    result = simulate(rollouts, SETTING, ["static", "rlhfless", "fold", "oracle"])
    assert np.all(result.table["bound_gpu_seconds"] <= result.table["gpu_seconds"])
    assert result.traces["fold"].rollouts["end_s"].notna().all()


def test_several_runs_and_lengths_above_the_limit_are_refused():
    with refused(TraceError, "--run"):
        simulate(pd.concat([log(run="a"), log(run="b")]), SETTING, ["static"])
    with refused(TraceError, "10"):
        simulate(log(), replace(SETTING, max_response_tokens=10), ["static"])


@pytest.mark.parametrize("steps", [[], [99]])
def test_a_selection_without_steps_is_refused(steps):
    with refused(TraceError):
        simulate(log(), SETTING, ["static"], steps=steps)


def test_what_is_no_log_no_setting_and_no_policy_is_refused_in_a_sentence():
    with refused(TraceError):
        simulate(log().iloc[:0], SETTING, ["static"])
    with refused(TraceError, "read_rollouts"):
        simulate("out/run", SETTING, ["static"])
    with refused(InputError, "'x'"):
        replace(SETTING, effects="x")  # type: ignore[arg-type]
    with refused(InputError):
        simulate(log(), SETTING.cluster, ["static"])
    for policies in ([], "static"):
        with refused(PolicyError, str(repr(policies))):
            simulate(log(), SETTING, policies)
    with refused(PolicyError, "'statik'"):
        simulate(log(), SETTING, ["statik"])


@pytest.mark.parametrize("limit", [0, -3])
def test_max_response_tokens_below_one_is_refused(limit):
    with refused((TraceError, PlanningError), "limit", str(limit)):
        simulate(log(), replace(SETTING, max_response_tokens=limit), ["static"])


def test_notebooks_show_a_row_per_policy_and_names_are_text(result):
    page = result._repr_html_()
    assert page.count("<tr>") == 1 + len(result.traces)
    own = result.table[result.table["policy"] == "solver"]
    row = f"<td>solver</td><td>{own['time_s'].sum():.4g}</td><td>{own['gpu_seconds'].sum():.4g}</td>"
    assert row + f"<td>{own['bound_gpu_seconds'].sum():.4g}</td>" in page
    assert f"solver: {own['time_s'].sum():.4g} s" in repr(result)
    hostile = replace(result, table=result.table.assign(variant="<script>"))._repr_html_()
    assert "<script>" not in hostile
    assert "&lt;script&gt;" in hostile


def test_planning_delays_generation_only_beyond_what_the_step_before_prepares_and_learns(result):
    assert [PlanningTime.overlapping(3.0, before_s).planning_delay_s for before_s in (0.0, 2.0, 5.0)] == [3.0, 1.0, 0.0]
    of_policy = result.table.groupby("policy")
    first = of_policy.head(1)
    assert first["planning_delay_s"].tolist() == first["planning_s"].tolist()
    assert (result.table["planning_delay_s"] <= result.table["planning_s"]).all()
    summary = result.summary()
    assert summary.columns[-2:].tolist() == ["planning_s", "planning_delay_s"]
    own = result.table[result.table["has_history"]].groupby("policy", sort=False)[["planning_s", "planning_delay_s"]].sum()
    assert summary.set_index("policy")[own.columns].loc[own.index].to_numpy() == pytest.approx(own.to_numpy())


def test_a_wrong_type_is_named_without_an_article() -> None:
    with refused(InputError, "of type int", "SimulationConfig"):
        simulate(log(), 3, ["static"])  # type: ignore[arg-type]
    with refused(TraceError, "of type int", "DataFrame"):
        next(logged_steps(3))  # type: ignore[arg-type]


def pressed_in_step(number: int) -> Callable[[PlanningProblem, PlanningOptions], Plan]:
    """A policy that plans as ``random``, and during whose plan of one step Ctrl-C is pressed."""
    random, planned = make_policy("random"), []

    def pressed(problem: PlanningProblem, options: PlanningOptions) -> Plan:
        planned.append(problem)
        if len(planned) == number:
            signal.raise_signal(signal.SIGINT)
        return random.plan(problem, options)

    return pressed


def test_ctrl_c_keeps_the_steps_that_every_policy_has_finished(result):
    with pytest.raises(SimulationInterrupted) as stop:
        simulate(log(), SETTING, ["static", pressed_in_step(4), "fold"])
    finished = stop.value.finished
    assert list(finished.traces) == ["static", "pressed", "fold"]
    assert [step.step for step in finished.logged] == [0, 1, 2]
    columns = ["policy", "step", "time_s", "gpu_seconds", "bound_gpu_seconds", "cost_usd"]
    both = (frame[frame["policy"].isin(["static", "fold"]) & (frame["step"] < 3)] for frame in (finished.table, result.table))
    ours, whole = (frame[columns].reset_index(drop=True) for frame in both)
    pd.testing.assert_frame_equal(ours, whole)
    assert finished.summary(True)["steps"].tolist() == [1, 1, 1]
    assert finished.traces["fold"].steps == [0, 1, 2]
    assert (finished.least_objectives(True)["above_least"] >= 0).all()


def test_ctrl_c_in_the_first_step_keeps_the_policies_that_have_finished_it():
    with pytest.raises(SimulationInterrupted) as stop:
        simulate(log(), SETTING, ["static", "fold", pressed_in_step(1), "oracle"])
    assert list(stop.value.finished.traces) == ["static", "fold"]
    assert stop.value.finished.table["step"].tolist() == [0, 0]
    with pytest.raises(SimulationInterrupted) as stop:
        simulate(log(), SETTING, [pressed_in_step(1), "static"])
    assert stop.value.finished is None
