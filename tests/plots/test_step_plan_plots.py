"""The figures of step plans: rectangles of calls over two steps, memory of GPUs, multiples of the bound, and searches."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from step_plans import AnalyticCosts, analytic_plan, named_graph

from rlhfless.plots import (
    plot_step_comparison,
    plot_step_plan,
    plot_step_search,
)
from rlhfless.plots.step_plan_data import MOVES, PERIODS
from solver import Cluster, LatencyModel, Workload
from solver.layouts import StepGeneration, StepPlan, dpo, grpo, plan_step, ppo, remax

GRAPHS = {"ppo": ppo, "grpo": grpo, "remax": remax, "dpo": dpo}
PLAN = analytic_plan(ppo())
SLOWER = replace(analytic_plan(ppo(), slow=1.5), lower_bound_s=0.0, status="given")


def busy_gpu_s(plan: StepPlan, name: str) -> np.ndarray:
    """(GPUs,) seconds for which rectangles of a call, or of its reallocation, lie over each GPU."""
    bars = plot_step_plan(plan).table
    seconds = np.zeros(plan.gpus)
    for bar in bars[bars["call"] == name].itertuples(index=False):
        seconds[bar.first_gpu : bar.first_gpu + bar.gpus] += bar.end_s - bar.start_s
    return seconds


@pytest.mark.parametrize("name", list(GRAPHS))
def test_every_call_is_drawn_for_two_steps_on_its_gpus_whenever_it_starts(name: str) -> None:
    plan = analytic_plan(GRAPHS[name]())
    trained = {call.role: call.layout.mesh for call in plan.calls if call.kind == "train"}
    for call in plan.calls:
        mesh, source = call.layout.mesh, trained.get(call.role, call.layout.mesh)
        expected = np.zeros(plan.gpus)
        expected[mesh.first : mesh.last] += PERIODS * call.seconds
        if call.reallocate_s:
            both = sorted({*range(mesh.first, mesh.last), *range(source.first, source.last)})
            expected[both] += PERIODS * call.reallocate_s
        assert busy_gpu_s(plan, call.name) == pytest.approx(expected)


@pytest.mark.parametrize("name", list(GRAPHS))
def test_rectangles_stay_within_two_steps_and_never_overlap(name: str) -> None:
    plan = analytic_plan(GRAPHS[name]())
    bars = plot_step_plan(plan).table
    assert bars["start_s"].min() >= 0
    assert bars["end_s"].max() <= PERIODS * plan.period_s + 1e-9
    no_rectangles_overlap(plan)


def no_rectangles_overlap(plan: StepPlan) -> None:
    bars = plot_step_plan(plan).table
    for one, other in itertools.combinations(bars.itertuples(index=False), 2):
        apart_in_space = one.first_gpu + one.gpus <= other.first_gpu or other.first_gpu + other.gpus <= one.first_gpu
        assert apart_in_space or one.end_s <= other.start_s + 1e-9 or other.end_s <= one.start_s + 1e-9, (one, other)


def test_gpus_that_generation_gives_back_early_are_drawn_free_and_used() -> None:
    """The critic of the step before trains on GPUs whose responses are done, while the longest ones are still decoded."""
    latency = {4: LatencyModel("tp 4", 4, base_s=0.01, per_response_s=1e-3)}
    workload = Workload([100] * 8, [at // 2 for at in range(16)], [150 + 40 * at for at in range(13)] + [900, 1200, 2000])
    plan = plan_step(
        ppo(),
        Cluster(1, 8, 1),
        AnalyticCosts(0.3),
        memory_bytes=200e9,
        generation=StepGeneration(workload, latency),
        work=20_000,
    )
    (generate,) = [call for call in plan.calls if call.kind == "generate"]
    early = [gpu for gpu, release_s in enumerate(generate.release_s) if 0 < release_s < generate.seconds]
    assert early
    assert busy_gpu_s(plan, "generate") == pytest.approx([PERIODS * release_s for release_s in generate.release_s])
    bars = plot_step_plan(plan).table
    for number, step in bars[bars["call"] == "generate"].groupby(bars["end_s"] > plan.period_s):
        assert step["largest"].sum() == 1
        assert step["end_s"].max() == pytest.approx(number * plan.period_s + generate.seconds)
    (trained,) = [call for call in plan.calls if call.name == "train_critic"]
    began_s = trained.start_s - plan.period_s
    assert generate.release_s[early[0]] <= began_s + 1e-9 < generate.seconds
    assert {*range(trained.layout.mesh.first, trained.layout.mesh.last)} <= set(early)
    no_rectangles_overlap(plan)
    texts = [
        text for trace in plot_step_plan(plan).data if trace.type == "bar" and trace.text is not None for text in trace.text
    ]
    assert sum(text.startswith("generate") for text in texts) == PERIODS


@settings(max_examples=30, deadline=None)
@given(st.floats(-30, 30), st.floats(0.01, 30))
def test_a_call_has_its_seconds_in_both_steps_wherever_it_starts(start_s: float, seconds: float) -> None:
    moved = replace(PLAN, calls=(replace(PLAN.calls[0], start_s=start_s, seconds=seconds, reallocate_s=0.0),))
    bars = plot_step_plan(moved).table
    assert (bars["end_s"] - bars["start_s"]).sum() == pytest.approx(PERIODS * seconds, rel=1e-6)


def test_a_plan_is_drawn_with_its_bound_its_memory_and_a_text_per_call() -> None:
    figure = plot_step_plan(PLAN, memory_bytes=400e9)
    bars = [trace for trace in figure.data if trace.type == "bar" and trace.base is not None]
    assert {bar.name for bar in bars} == {"actor", "critic", "reference", "reward", *([MOVES] if _moves(PLAN) else [])}
    strategies = {str(call.layout.strategy) for call in PLAN.calls}
    texts = {text for bar in bars if bar.text is not None for text in bar.text if text}
    assert texts
    assert {text.split("<br>")[1] for text in texts} <= strategies
    lines = {round(shape.x0, 9) for shape in figure.layout.shapes}
    assert {round(step * PLAN.lower_bound_s, 9) for step in (1, 2)} <= lines
    assert 400.0 in lines
    (memory,) = [trace for trace in figure.data if trace.name == "peak memory"]
    assert np.asarray(memory.x) * 1e9 == pytest.approx(PLAN.peak_bytes)


def _moves(plan: StepPlan) -> bool:
    return any(call.reallocate_s for call in plan.calls)


def test_several_plans_share_the_axis_and_the_proven_bound() -> None:
    figure = plot_step_plan({"rule": SLOWER, "ours": PLAN})
    bounds = [line.x0 for line in figure.layout.shapes if line.line.dash == "dash"]
    assert bounds == [PLAN.lower_bound_s, 2 * PLAN.lower_bound_s] * 2
    assert f"{SLOWER.period_s / PLAN.period_s:.2f}x as fast as rule" in figure.layout.title.text
    assert figure.layout.xaxis.range == figure.layout.xaxis3.range
    assert figure.layout.xaxis.range[1] >= PERIODS * SLOWER.period_s
    assert figure.layout.yaxis.domain[0] > figure.layout.yaxis3.domain[1]


def test_bounds_of_other_problems_are_not_mixed_up() -> None:
    other = analytic_plan(grpo())
    bounds = [line.x0 for line in plot_step_plan({"ppo": SLOWER, "grpo": other}).layout.shapes if line.line.dash == "dash"]
    assert bounds == [other.lower_bound_s, 2 * other.lower_bound_s]
    assert "No lower bound is proven for ppo" in str(plot_step_comparison({"ppo": SLOWER, "grpo": other}).layout.annotations)


def test_multiples_of_the_bound_add_up_to_the_period() -> None:
    figure = plot_step_comparison({"rule": SLOWER, "ours": PLAN})
    table = figure.table.set_index("plan")
    parts = table[["calls", "reallocation", "idle"]]
    assert (parts >= -1e-9).all(axis=None)
    assert parts.sum(axis=1).tolist() == pytest.approx(
        [SLOWER.period_s / PLAN.lower_bound_s, PLAN.period_s / PLAN.lower_bound_s]
    )
    gpu_s = table.loc["ours", ["calls_gpu_s", "reallocation_gpu_s", "idle_gpu_s"]].sum()
    assert gpu_s == pytest.approx(PLAN.gpus * PLAN.period_s)
    assert [trace.name for trace in figure.data] == ["model calls", "sending weights", "idle"]
    assert "Fastest: ours" in figure.layout.title.text


def test_a_search_is_drawn_as_it_improved_and_rules_without_a_search_are_left_out() -> None:
    figure = plot_step_search({"rule": replace(SLOWER, history=()), "ours": PLAN})
    assert figure.table["plan"].unique().tolist() == ["ours"]
    assert figure.table["period_s"].is_monotonic_decreasing
    assert figure.table["period_s"].iloc[-1] == pytest.approx(PLAN.period_s)
    assert figure.layout.shapes[0].y0 == PLAN.lower_bound_s


def test_what_does_not_fit_is_said() -> None:
    over = replace(PLAN, status="infeasible")
    assert "does not fit" in str(plot_step_plan(over, memory_bytes=1e9).layout.annotations)
    assert "does not fit into memory: ours" in plot_step_comparison({"ours": over}).layout.title.text


def test_roles_without_a_colour_of_their_own_get_different_ones() -> None:
    figure = plot_step_plan(analytic_plan(named_graph("model")))
    named = [trace.marker.color for trace in figure.data if trace.showlegend is None and "model" in trace.name]
    assert len(named) == 2
    assert len(set(named)) == 2


def test_without_plans_the_figures_say_so() -> None:
    for figure in (plot_step_plan({}), plot_step_comparison({}), plot_step_search({})):
        assert len(figure.layout.annotations) == 1
        assert not figure.data
