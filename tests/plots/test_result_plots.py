"""Plane, waterfall, slider and the bound of several steps: what they show of results that a reader adds up by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from error_messages import refused
from every_plot import part
from plot_samples import EVIL

import solver
from rlhfless.errors import InputError
from rlhfless.plots import bound_of_sum, plot_plane, plot_waterfall
from rlhfless.scheduling import ladder

CLUSTER = solver.Cluster(nodes=1, gpus_per_node=8, gpus_per_actor=2)
LATENCY = solver.LatencyModel("made up", gpus_per_actor=2, base_s=0.01, per_response_s=0.0005, start_s=0.1, max_batch=64)
WORKLOAD = solver.Workload.grid(np.full(16, 20), np.random.default_rng(0).integers(20, 400, (16, 4)), max_response_tokens=400)


@pytest.fixture(scope="module")
def front():
    return solver.pareto_front(solver.PlanningProblem(WORKLOAD, CLUSTER, LATENCY), points=15)


@pytest.fixture(scope="module")
def plans():
    return {w: solver.plan(solver.PlanningProblem(WORKLOAD, CLUSTER, LATENCY, solver.Objective(w))) for w in (0.0, 0.5, 1.0)}


def results(**columns):
    table = {"policy": ["static", "fold", "oracle"], "time_s": [10.0, 11.0, 9.0], "gpu_seconds": [100.0, 70.0, 60.0]}
    return pd.DataFrame({**table, **columns})


def test_plane_adds_up_the_steps_of_a_policy(front):
    twice = pd.concat([results(), results()])
    fig = plot_plane(twice, front, lambda time_s: 400.0 / time_s if time_s > 15 else math.inf)
    policies, bound = part(fig, "policies"), part(fig, "bound")
    assert policies["policy"].tolist() == ["static", "fold", "oracle"]
    assert policies["gpu_seconds"].tolist() == [200.0, 140.0, 120.0]
    assert len(part(fig, "front")) == len(front.plans)
    assert (bound["gpu_seconds"] == 400.0 / bound["time_s"]).all()
    assert bound["time_s"].min() > 15


def test_plane_has_a_marker_per_policy_the_front_the_bound_and_which_way_is_better(front):
    fig = plot_plane(results(cost_usd=[1.0, 0.7, 0.6]), front, ([8.0, 12.0], [50.0, 40.0]))
    names = [one.name for one in fig.data]
    assert names == ["lower bound: no schedule is below", "best plans with known lengths", "static", "fold", "oracle"]
    assert {a.text for a in fig.layout.annotations} == {"static", "fold", "oracle", "better"}
    assert len({one.marker.symbol for one in fig.data[2:]}) == 3
    assert fig.layout.xaxis.title.text == "time (s)"
    assert "the time axis does not start at 0" in fig.layout.title.text
    assert fig.layout.xaxis.range[0] > 0
    assert fig.layout.yaxis.title.text == "cost (GPU-seconds)"
    assert fig.layout.yaxis.range[0] == 0


def test_plane_without_a_curve_shows_the_bound_at_each_policys_time():
    fig = plot_plane(results(bound_cost_at_time=[50.0, 48.0, 52.0]))
    assert fig.data[0].name == "lower bound at that time"
    assert np.asarray(fig.data[0].y).tolist() == [50.0, 48.0, 52.0]
    assert "100.0%" in fig.data[1].hovertext[0]


def test_plane_of_strange_results():
    assert "no policy has run" in plot_plane(results().iloc[:0]).layout.annotations[0].text
    assert plot_plane(results().iloc[:1], bound=lambda time_s: math.inf).data
    assert "\\u003cscript" not in plot_plane(results(policy=["static", EVIL, "oracle"])).to_json()
    with refused(InputError, "'gpu_seconds'"):
        plot_plane(results().drop(columns="gpu_seconds"))


def test_points_on_each_other_share_a_name_and_one_point_alone_says_so():
    same = results(time_s=[10.0, 10.001, 4.0], gpu_seconds=[100.0, 100.0, 60.0])
    named = {a.text for a in plot_plane(same).layout.annotations}
    assert named == {"static = fold", "oracle", "better"}
    assert plot_plane(same).layout.xaxis.range[0] == 0
    assert "one schedule only" in plot_plane(results().iloc[:1]).layout.title.text
    assert "steps" not in plot_plane(results()).layout.title.text
    assert "sums of 2 steps" in plot_plane(pd.concat([results(), results()])).layout.title.text
    many = pd.DataFrame({"policy": [f"p{i}" for i in range(20)], "time_s": range(1, 21), "gpu_seconds": range(1, 21)})
    fig = plot_plane(many)
    assert [a.text for a in fig.layout.annotations] == ["better"]
    assert all(one.showlegend for one in fig.data)
    assert "USD" not in plot_plane(results(cost_usd=0.0)).to_json()


def test_waterfall_adds_up_from_the_first_schedule_to_the_bound():
    fig = plot_waterfall(results(bound_gpu_seconds=[50.0, 48.0, 52.0]))
    cost, time = part(fig, "cost"), part(fig, "time")
    assert cost[["kind", "from_gpu_seconds", "to_gpu_seconds"]].to_numpy().tolist() == [
        ["total", 0, 100], ["saves", 100, 70], ["saves", 70, 60], ["total", 0, 60], ["left", 60, 52], ["bound", 0, 52],
    ]  # fmt: skip
    changes = (time["to_time_s"] - time["from_time_s"]).tolist()
    assert list(zip(time["kind"], changes, strict=True)) == [("total", 10), ("costs", 1), ("saves", -2), ("total", 9)]
    assert (cost["to_gpu_seconds"] - cost["from_gpu_seconds"])[:3].sum() == cost["to_gpu_seconds"][3]


def test_waterfall_draws_both_panels_and_says_what_costs():
    fig = plot_waterfall(results())
    names = {one.name for one in fig.data if one.type == "bar"}
    assert names == {"total of a schedule", "takes less than the schedule before", "takes more than the schedule before"}
    costs = next(one for one in fig.data if one.name == "takes more than the schedule before")
    assert costs.text[0] == "+1.00<br>(+10.0%)"
    assert [axis.title.text for axis in fig.select_yaxes()] == ["cost (GPU-seconds)", "time (s)"]


def test_long_names_of_schedules_are_broken_into_lines_under_the_bars_of_a_waterfall():
    table = results()
    middle = table["policy"].unique()[1]
    fig = plot_waterfall(table.replace({"policy": {middle: "assignment with the local cut"}}))
    assert "assignment<br>with the local<br>cut" in fig.layout.xaxis.categoryarray
    assert "assignment with the local cut" in part(fig, "cost")["label"].tolist()


def test_waterfall_has_a_bar_for_speculation_where_a_schedule_drafts():
    names = [rung.name for rung in ladder(drafting=True)]
    costs = np.linspace(100, 30, len(names))
    table = pd.DataFrame({"policy": names, "time_s": costs / 10, "gpu_seconds": costs, "bound_gpu_seconds": 20.0})
    bars = part(plot_waterfall(table), "cost")
    bar = bars[bars["label"].str.contains("speculation")].iloc[0]
    assert (bar["kind"], bar["from_gpu_seconds"], bar["to_gpu_seconds"]) == ("saves", costs[-3], costs[-2])
    without = plot_waterfall(table[~table["policy"].str.endswith("drafts")]).table
    assert not without["label"].str.contains("speculation").any()


def test_waterfall_of_one_schedule_says_what_is_missing():
    assert "fewer than two" in plot_waterfall(results().iloc[:1]).layout.annotations[0].text


def inverse(scale, shortest):
    return lambda time_s: math.inf if time_s <= shortest else scale / (time_s - shortest) + 1.0


def test_the_bound_of_one_step_is_its_own():
    assert bound_of_sum([inverse(3, 1)], [0.5, 4.0]).tolist() == [math.inf, 2.0]


@pytest.mark.parametrize("curves", [[(3, 1), (3, 1)], [(10, 2), (1, 0.5), (4, 1)]])
def test_the_bound_of_several_steps_is_below_every_way_to_share_the_time(curves):
    bounds = [inverse(*curve) for curve in curves]
    grid = np.linspace(0.6, 12, 40)
    for shares in itertools.islice(itertools.product(grid, repeat=len(bounds)), 0, None, 7):
        cost = sum(bound(t) for bound, t in zip(bounds, shares, strict=True))
        if math.isfinite(cost):
            assert cheapest(bounds, sum(shares)) <= cost + 1e-9


CACHE: dict[tuple[int, float], float] = {}


def cheapest(bounds, total_s):
    key = (len(bounds), round(total_s, 6))
    if key not in CACHE:
        CACHE[key] = float(bound_of_sum(bounds, [total_s])[0])
    return CACHE[key]


def test_the_bound_of_equal_steps_is_nearly_that_of_equal_shares():
    bounds = [inverse(3, 1)] * 3
    for total_s in (6.0, 9.0, 15.0):
        equal = 3 * bounds[0](total_s / 3)
        assert 0.97 * equal <= bound_of_sum(bounds, [total_s])[0] <= equal
