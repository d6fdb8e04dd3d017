"""Plots of plans with sliders: what they show of plans whose numbers are known, and every degenerate input."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from every_plot import part

import solver
from rlhfless import plots
from solver.model.plan import HistoryEntry
from solver.prefix_sharing.deduplicate import deduplicate

CLUSTER = solver.Cluster(nodes=1, gpus_per_node=8, gpus_per_actor=2)
LATENCY = solver.LatencyModel("made up", gpus_per_actor=2, base_s=0.01, per_response_s=0.0005, start_s=0.1, max_batch=64)
WORKLOAD = solver.Workload.grid(np.full(16, 20), np.random.default_rng(0).integers(20, 400, (16, 4)), max_response_tokens=400)
ONE = solver.Workload.grid([3], [[7]], max_response_tokens=9)
COUNTS = (1, 2, 4)


def planned(workload=WORKLOAD, **options):
    return solver.plan(solver.PlanningProblem(workload, CLUSTER, LATENCY, **options))


@pytest.fixture(scope="module")
def plans():
    return {n: planned(min_actors=n, max_actors=n) for n in COUNTS}


@pytest.fixture(scope="module")
def splits():
    return {n: solver.random_split(solver.PlanningProblem(WORKLOAD, CLUSTER, LATENCY), actors=n) for n in COUNTS}


@pytest.fixture(scope="module")
def front():
    return solver.pareto_front(solver.PlanningProblem(WORKLOAD, CLUSTER, LATENCY), points=12)


def check_frames(fig, labels):
    """Every frame is reached by the slider and redraws the same traces, so that nothing of another frame stays."""
    assert [frame.name for frame in fig.frames] == list(labels)
    assert [step.args[0][0] for step in fig.layout.sliders[0].steps] == list(labels)
    assert len({tuple(frame.traces) for frame in fig.frames}) == 1
    for frame in fig.frames:
        assert len(frame.data) == len(frame.traces)
        assert [one.type for one in frame.data] == [fig.data[i].type for i in frame.traces]
    for axis in [*fig.select_xaxes(), *fig.select_yaxes()]:
        assert axis.title.text is None or "<" not in axis.title.text


# --- actors -----------------------------------------------------------------------------------------------------------------


def test_the_parts_of_an_actor_add_up_to_when_it_is_done(plans, splits):
    bars = part(plots.plot_plan_bars(plans, WORKLOAD, LATENCY, splits), "actors")
    assert bars.groupby(["label", "side"])["responses"].sum().unique().tolist() == [64]
    done = bars[["other_s", "base_s", "load_s"]].sum(axis=1)
    promised = [a.predicted_s for side in (plans, splits) for plan in side.values() for a in plan.actors]
    assert np.allclose(done, promised)
    assert np.allclose(bars["base_s"], 0.01 * bars["longest_tokens"])
    assert np.allclose(bars["other_s"], 0.1)  # the start; nothing is refilled here, and prefill takes no time
    assert bars.groupby(["label", "side"])["load_s"].sum().round(9).nunique() == 1  # the same however it is split


def test_actor_bars_with_slots_that_are_too_few_keep_the_refill_apart():
    narrow = replace(LATENCY, max_batch=4)
    plan = solver.plan(solver.PlanningProblem(WORKLOAD, CLUSTER, narrow))
    assert plots.plot_plan_bars({"4": plan}, WORKLOAD, narrow).table["other_s"].max() > 0.2


def test_actor_bars_have_a_frame_per_label_and_a_time_axis_that_fits_it(plans, splits):
    fig = plots.plot_plan_bars(plans, WORKLOAD, LATENCY, splits, start=4)
    check_frames(fig, ["1", "2", "4"])
    assert fig.layout.sliders[0].active == 2
    assert {len(bar.y) for frame in fig.frames for bar in frame.data if bar.type == "bar"} == {4}
    for frame, n in zip(fig.frames, COUNTS, strict=True):
        slowest = max(plans[n].makespan_s, splits[n].makespan_s)
        assert frame.layout.xaxis.range[1] == pytest.approx(1.04 * slowest)
        assert frame.layout.xaxis.range == frame.layout.xaxis2.range


def test_actor_bars_show_their_plans_on_a_front_above_its_bound_and_say_how_far_each_can_be_from_the_best(front):
    weights = (0.0, 0.5, 1.0)
    weighed = {w: solver.plan(solver.PlanningProblem(WORKLOAD, CLUSTER, LATENCY, solver.Objective(w))) for w in weights}
    fig = plots.plot_plan_bars(weighed, WORKLOAD, LATENCY, front=front, of="time weight", start=0.5)
    check_frames(fig, ["0.0", "0.5", "1.0"])
    shown, bound = part(fig, "plans"), part(fig, "bound")
    assert shown["gap"].tolist() == [weighed[w].gap for w in weights]
    assert len(part(fig, "front")) == len(front.plans)
    assert np.isfinite(bound["gpu_seconds"]).all()
    of_least = weighed[0.5].value / weighed[0.5].lower_bound - 1
    assert f"at most {of_least:.2%} above the best plan by what is minimised" in fig.layout.annotations[0].text
    assert {"front: cheapest plan found within each time", "lower bound of any plan"} <= {one.name for one in fig.data}
    plane = [fig.layout.xaxis2.range, fig.layout.yaxis2.range]
    for column, (low, high) in zip(("makespan_s", "gpu_seconds"), plane, strict=True):
        assert low < shown[column].min()
        assert shown[column].max() < high
    cut = [name for name, (low, _) in zip(("time", "cost"), plane, strict=True) if low > 0]
    assert all(name in fig.layout.title.text for name in cut)


# --- bound ------------------------------------------------------------------------------------------------------------------


def test_gaps_are_those_of_the_plans_and_bounds_stay_below_values(plans, front):
    fig = plots.plot_gap_history(plans, dict.fromkeys(COUNTS, front), of="actors")
    parts = part(fig, "parts")
    assert part(fig, "plans")["gap"].tolist() == [plans[n].gap for n in COUNTS]
    assert (parts["lower_bound"].dropna() <= parts["value"].loc[parts["lower_bound"].notna()] + 1e-9).all()
    assert len(part(fig, "front")) == 3 * len(front.plans)
    assert np.isfinite(part(fig, "bound")["gpu_seconds"]).all()
    check_frames(fig, ["1", "2", "4"])
    assert list(fig.layout.xaxis3.categoryarray) == ["1", "2", "4"]


def test_parts_lead_from_the_random_split_to_the_plan_each_by_what_it_moved(plans):
    parts = part(plots.plot_gap_history(plans), "parts")
    for n, plan in plans.items():
        mine = parts[parts["label"] == str(n)]
        assert mine["part"].tolist() == [row.solver for row in plan.moved()]
        assert mine["value"].iloc[0] == pytest.approx(plan.history[0].value)
        assert mine["value"].iloc[-1] == plan.value
        assert mine["lower_bound"].iloc[-1] == pytest.approx(plan.lower_bound)
        np.testing.assert_allclose(-mine["value"].diff().iloc[1:], mine["value_by"].iloc[1:], atol=1e-12)


def test_under_a_limit_parts_begin_with_the_first_plan_that_meets_it(plans):
    history = (HistoryEntry("random split", 0.0, np.inf, 0.0), HistoryEntry("columns", 0.1, 12.0, 0.0),
               HistoryEntry("fill", 0.2, 11.0, 0.0), HistoryEntry("bound", 0.3, 11.0, 10.0))  # fmt: skip
    found = replace(plans[1], history=history, value=11.0, lower_bound=10.0)
    parts = part(plots.plot_gap_history({1: found}), "parts")
    assert parts["part"].tolist() == ["columns", "fill", "bound"]
    assert parts["value"].tolist() == [12.0, 11.0, 11.0]
    assert parts["lower_bound"].tolist()[-1] == 10.0


def test_a_plan_without_bound_or_history_is_shown_without_them(splits):
    fig = plots.plot_gap_history(splits)
    assert fig.table["table"].unique().tolist() == ["plans"]
    assert "gap" not in fig.table
    assert "no lower bound" in fig.layout.annotations[0].text


# --- front ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cost", ["gpu_s", "usd"])
def test_the_front_shows_promise_outcome_and_both_bounds(plans, cost):
    priced = replace(CLUSTER, usd_per_gpu_hour=3600.0)
    front = solver.pareto_front(solver.PlanningProblem(WORKLOAD, priced, LATENCY, solver.Objective(cost=cost)), points=12)
    found = {n: solver.evaluate(plan, solver.PlanningProblem(WORKLOAD, priced, LATENCY)) for n, plan in plans.items()}
    least = solver.bound(solver.PlanningProblem(WORKLOAD, CLUSTER, LATENCY, admission="preempt"))
    fig = plots.plot_front(front, plans, found, least.gpu_seconds, usd_per_gpu_hour=1.0)
    shown = part(fig, "plans")
    assert np.allclose(shown["true_time_s"], shown["time_s"])
    assert part(fig, "least")["cost_usd" if cost == "usd" else "gpu_seconds"].is_monotonic_decreasing
    assert fig.layout.yaxis.title.text == ("cost (USD)" if cost == "usd" else "cost (GPU-seconds)")
    check_frames(fig, ["1", "2", "4"])
    assert ("yaxis2" in fig.to_dict()["layout"]) == (cost == "gpu_s")


def test_the_front_without_outcomes_shows_promises_only(plans, front):
    fig = plots.plot_front(front, plans)
    assert "true_gpu_seconds" not in fig.table
    assert fig.table["table"].unique().tolist() == ["plans", "front", "bound"]
    check_frames(fig, ["1", "2", "4"])


# --- kinds ------------------------------------------------------------------------------------------------------------------


def test_kinds_count_every_response_once_and_bounds_are_dollars_only_under_a_limit():
    slow = replace(LATENCY, kind="slow", base_s=0.02)
    latencies = {("fast", 2): replace(LATENCY, kind="fast"), ("slow", 2): slow}
    cluster = solver.MixedCluster([solver.GpuPool("fast", 1, 2, 4.0), solver.GpuPool("slow", 1, 4, 1.0, "preemptible")])
    mixed = {
        name: solver.plan(solver.PlanningProblem(WORKLOAD, cluster, latencies, objective))
        for name, objective in (
            ("deadline", solver.Objective(deadline_s=9.0, cost="usd")),
            ("weighted", solver.Objective(0.5, cost="usd")),
        )
    }
    fig = plots.plot_kinds(mixed, WORKLOAD, of="<objective>")
    actors = part(fig, "actors")
    assert actors.groupby("label")["responses"].sum().tolist() == [64, 64]
    assert part(fig, "lengths").groupby("label")["responses"].sum().tolist() == [64, 64]
    assert actors.groupby("label")["usd"].sum().tolist() == pytest.approx([p.cost_usd for p in mixed.values()])
    bounds = part(fig, "plans").set_index("label")["bound_usd"]
    assert bounds["deadline"] == mixed["deadline"].lower_bound
    assert math.isnan(bounds["weighted"])
    check_frames(fig, ["deadline", "weighted"])


# --- prefill ----------------------------------------------------------------------------------------------------------------


def test_prefill_shows_what_is_computed_before_and_after(plans):
    found = {
        n: deduplicate(plan, solver.PlanningProblem(WORKLOAD, CLUSTER, LATENCY), prefill_actor=False)
        for n, plan in plans.items()
    }
    fig = plots.plot_prefill(found, 16 * 20)
    assert fig.table["before_tokens"].unique().tolist() == [64 * 20]
    assert fig.table["after_tokens"].tolist() == [found[n].tokens_after for n in COUNTS]
    assert (fig.table["after_tokens"] >= fig.table["once_tokens"]).all()
    assert [bar.name for bar in fig.data][1] == "after: a shared prefix is computed once"


# --- strange input ----------------------------------------------------------------------------------------------------------


def test_nothing_to_show_is_said(front):
    for fig in (
        plots.plot_plan_bars({}, WORKLOAD, LATENCY),
        plots.plot_gap_history({}),
        plots.plot_front(front, {}),
        plots.plot_kinds({}, WORKLOAD),
        plots.plot_prefill({}, 0),
    ):
        assert "no plans" in fig.layout.annotations[0].text


@pytest.mark.parametrize("tokens", [7, 0])
def test_one_response_on_one_actor(tokens):
    workload = ONE.with_response_tokens([tokens])
    plan = planned(workload)
    front = solver.pareto_front(solver.PlanningProblem(workload, CLUSTER, LATENCY), points=3)
    label = {"<b>x</b>": plan}
    figures = (
        plots.plot_plan_bars(label, workload, LATENCY),
        plots.plot_plan_bars(label, workload, LATENCY, label),
        plots.plot_gap_history(label, dict.fromkeys(label, front)),
        plots.plot_front(front, label, {}, lambda time_s: math.inf),
        plots.plot_kinds(label, workload),
        plots.plot_prefill({"one": deduplicate(plan, solver.PlanningProblem(workload, CLUSTER, LATENCY))}, 3),
    )
    for fig in figures:
        assert fig.to_json()


def test_labels_are_harmless(plans):
    fig = plots.plot_gap_history({"<script>": plans[1]}, of="<script>")
    assert "<script>" not in "".join(note.text for note in fig.layout.annotations) + fig.layout.sliders[0].currentvalue.prefix


def test_ten_thousand_responses_are_drawn_quickly():
    lengths = np.random.default_rng(0).integers(20, 400, (2500, 4))
    workload = solver.Workload.grid(np.full(2500, 20), lengths, max_response_tokens=400)
    cluster = solver.Cluster(nodes=32, gpus_per_node=8, gpus_per_actor=2)
    split = solver.random_split(solver.PlanningProblem(workload, cluster, LATENCY), actors=128)
    fig = plots.plot_plan_bars(dict.fromkeys(range(4), split), workload, LATENCY)
    assert len(fig.data[0].y) == 128
    assert len(plots.plot_kinds(dict.fromkeys(range(4), split), workload).to_json()) < 2_000_000
