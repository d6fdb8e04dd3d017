"""Report sections about what other schedules would have done, simulated from logged lengths and labelled so on the page.

Inputs are simulated schedules and planning fronts; output are sections and figures.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from rlhfless import plots
from rlhfless.analysis import Calibration
from rlhfless.analysis.own_times import is_far
from rlhfless.latency import list_profiles, read_profile
from rlhfless.plots.export.html_page import Page
from rlhfless.plots.lengths import MAX_SVG_POINTS
from rlhfless.plots.style import counted, number, signed_share, usd
from rlhfless.report.executed_run import MAX_SPANS, executed_timelines
from rlhfless.report.executed_study import ExecutedRunFindings
from rlhfless.report.log_checks import calibrated_by
from rlhfless.report.not_stated import profile_in_words
from rlhfless.report.savings import merged, savings_table
from rlhfless.report.schedules import Schedules
from rlhfless.report.study import GIVEN_BACK, LoggedRunFindings
from rlhfless.simulate import SimulationConfig
from rlhfless.trace import Trace
from solver.model.objective import Objective
from solver.planning.pareto_front import Front, pareto_front
from solver.planning.plan_generation import plan_generation

Simulated = LoggedRunFindings | ExecutedRunFindings
OTHERS = "Other schedules and settings"
WEIGHTS = tuple(round(0.1 * i, 1) for i in range(11))
WEIGHT_TIME_LIMIT_S = 0.3
NEAR_POINTS, FAR_POINTS = 12, (32, 44)  # savings were off by, of the cost, up to FAR and above (``scaled_profiles.py``)


def schedules_section(page: Page, findings: Simulated) -> None:
    """Add the folded section of other schedules: what they save, the published policies with the bound, and the front."""
    schedules, setting, calibrated = findings.schedules, findings.setting, findings.calibrated
    page.section(OTHERS, folded=True)
    if is_of_other_hardware(calibrated):
        page.text(_scaled_far(calibrated, setting))
    if not calibrated.steps:
        name = profile_in_words(setting.latency.name)
        page.text(f"All times here are those of {name}, which was not compared with the run. Trust percentages, not amounts.")
    count, last = len(schedules.logged), schedules.logged[-1]
    if count < schedules.all_steps:
        steps = ", ".join(str(step.step) for step in schedules.logged)
        page.text(
            f"The simulation covers {count} of {schedules.all_steps:,} steps, evenly spaced: {steps}. Predictions use every "
            "earlier step of the log."
        )
    if not schedules.has_history:
        page.text("All prompts are new in the simulated steps, so the predicted lengths are guesses.")
    if len(findings.given_back):
        savings_table(page, findings)
    if len(schedules.shown) > 1:
        results = schedules.results(list(schedules.policies))
        title = f"Time and cost: sum of {_summed(schedules)}"
        page.figure(plots.plot_plane(results, None, _bound(schedules, results), title=title))
    of_last = schedules.results(list(schedules.policies), last.step)
    front = true_front(schedules, setting)
    page.figure(plots.plot_plane(of_last, front, schedules.bound_of(last), title=f"Time and cost: step {last.step}"))
    page.text(
        "The lower bound is of generation with the true lengths: at a given time, no schedule takes fewer GPU-seconds "
        "(speculative decoding excluded). It is the larger of two: the configuration LP, which knows whole actors, and "
        "the closed form, which knows slots and KV memory. The front is of plans that know the true lengths, too. A policy "
        "that moves responses while it runs can be below the front, but none is below the bound."
    )
    for title, has_history in (
        ("Sums over steps with history (the same prompts were seen before)", True),
        ("Sums over steps without history (all prompts are new, lengths are guesses)", False),
    ):
        _table(page, schedules, title, has_history)
    page.facts(schedules.policies.items())
    page.text(
        "Schedules that assign all responses beforehand (random, spread, solver) need only a dispatcher. fold, solver+replan, "
        "rlhfuse and rlhfless migrate running responses, so the engine must support migration."
    )
    page.figure(ladder_figure(schedules))
    page.text(
        "Policies minimise a weighted sum of time and cost, so an idea can improve one and worsen the other: read both panels. "
        "A contribution depends on the order of the ideas and can be negative."
    )
    page.heading("Time against cost")
    page.text(
        f"{len(WEIGHTS)} plans of step {last.step}, each the best found for the predicted lengths; the slider selects one. At "
        "weight 1 only time counts, at weight 0 only GPU-seconds. The left panel shows the actors of the plan. Policy solver "
        "also plans for lengths around the predicted ones, so what it runs may differ."
    )
    page.figure(weights_figure(schedules, setting, predicted_front(schedules, setting)))


def timelines_section(page: Page, schedules: Schedules | None, executed: Trace | None, *, lengths: bool = True) -> None:
    """Add the folded section of timelines: as executed, and of every simulated schedule of the last step.

    Args:
        lengths: show predicted beside true lengths.
    """
    page.section("Timelines", folded=True)
    if executed is not None:
        executed_timelines(page, executed)
    if schedules is None:
        return
    traces, last = schedules.simulation.traces, schedules.logged[-1]
    best = best_policy(schedules.results(list(schedules.policies), last.step), schedules.time_weight)
    page.heading(f"Before and after, simulated: step {last.step} under {schedules.ladder[0]} and {best}")
    pair = {name: traces[name] for name in (schedules.ladder[0], best)}
    bound = schedules.simulation.bounds[-1].gpu_seconds
    page.figure(plots.plot_before_after(pair, last.step, bound=bound))
    page.heading(f"GPU timelines of step {last.step}, simulated")
    max_spans = MAX_SPANS // len(schedules.policies)
    timelines = {name: plots.plot_timeline(traces[name], last.step, max_spans=max_spans) for name in schedules.policies}
    page.choice("Policy", timelines, "solver")
    if lengths:
        page.heading("How good the predictions were")
        page.figure(plots.plot_lengths(traces["static"], last.step, max_points=MAX_SVG_POINTS))


def is_of_other_hardware(calibrated: Calibration) -> bool:
    """Whether a profile was scaled so much that it is of another model or other GPUs than the run's."""
    return calibrated.steps > 0 and is_far(calibrated.factor)


def _scaled_far(calibrated: Calibration, setting: SimulationConfig) -> str:
    """The warning about a profile of other hardware: what it means for the result, and what to do."""
    factor = calibrated.factor
    times, pace = (factor, "slow") if factor > 1 else (1.0 / factor, "fast")
    return (
        f"Warning: your run is {number(times)} times as {pace} as {profile_in_words(setting.latency.name)}, so that profile is "
        "of another model or other GPUs. Logged times stay true; what was idle and what schedules save is rough. Between "
        f"profiles up to 3 times apart, savings differed by at most {NEAR_POINTS} points of the cost; between those 37 times "
        f"apart and more, by {FAR_POINTS[0]} to {FAR_POINTS[1]}. Measure your profile with rlhfless profile."
    )


def best_policy(results: pd.DataFrame, time_weight: float) -> str:
    """Return the policy without true lengths that releases GPUs and has the least ``T^w C^(1-w)`` of one step."""
    table = results[results["policy"].isin(GIVEN_BACK)].set_index("policy")
    value = time_weight * np.log(table["time_s"]) + (1 - time_weight) * np.log(table["gpu_seconds"])
    return str(value.idxmin())


def ladder_figure(schedules: Schedules) -> go.Figure:
    """Return the waterfall from the run's own dispatch to the bound."""
    note = " → ".join(schedules.ladder)
    title = f"What each idea contributes: sum of {_summed(schedules)}"
    return plots.plot_waterfall(schedules.results(schedules.ladder), title=title, note=note)


def _summed(schedules: Schedules) -> str:
    """Which steps figures add up, in words."""
    return f"{counted(len(schedules.shown), 'step')} " + ("with" if schedules.has_history else "without") + " history"


def _bound(schedules: Schedules, results: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """The bound of the shown steps together, at the times of the results and around them."""
    total = results.groupby("policy")["time_s"].sum()
    times = np.linspace(0.5 * total.min(), 1.3 * total.max(), 200)
    return times, plots.bound_of_sum([schedules.bound_of(step) for step in schedules.shown], times)


def basis_of_simulation(findings: Simulated) -> Iterator[tuple[str, str]]:
    """Return where the numbers of simulated schedules come from, in words."""
    schedules, setting, calibrated = findings.schedules, findings.setting, findings.calibrated
    latency, cluster = setting.latency, setting.cluster
    origin = read_profile(latency.name)["origin"] if latency.name in list_profiles() else "no shipped profile"
    yield "From the log", "response lengths."
    yield (
        "Modelled",
        f"all times, on simulated engines with latency profile {latency.name} ({origin}), on "
        f"{counted(cluster.gpus, f'{cluster.kind} GPU')} "
        f"in {counted(cluster.nodes, 'node')}, {cluster.gpus_per_actor} per actor, "
        + (f"at {usd(cluster.usd_per_gpu_hour)} per GPU-hour" if cluster.usd_per_gpu_hour > 0 else "without a price")
        + f"; time weight {setting.objective.time_weight:g}.",
    )
    if calibrated.steps:
        yield (
            "Calibrated",
            calibrated_by(calibrated, "logged to simulated generation time"),
        )
    elif calibrated.factor > 1:
        yield (
            "Calibrated",
            f"by {number(calibrated.factor)}, the least factor that agrees with the log's lower bounds on its times.",
        )
    yield (
        "Predicted",
        "lengths, from the same prompt's earlier responses (moving average over epochs). Only oracles use the true lengths.",
    )
    rows = schedules.logged[-1].rows
    unknown = []
    if rows["prompt_tokens"].isna().all():
        unknown.append("the log has no prompt lengths, so prefill time and the KV memory of prompts count as 0")
    if rows["finish_reason"].isna().all():
        unknown.append("the log does not say which responses were cut off, so every response counts as complete")
    if unknown:
        yield "Not known", "; ".join(unknown) + "."


def _table(page: Page, schedules: Schedules, title: str, has_history: bool) -> None:
    table = schedules.simulation.summary(has_history).set_index("policy")
    if table["steps"].max() == 0:
        return
    baseline = schedules.ladder[0]
    time_s, gpu_s = table.loc[baseline, "time_s"], table.loc[baseline, "gpu_seconds"]
    priced = bool((table["cost_usd"] > 0).any())
    rows = []
    for name in schedules.policies:
        row = table.loc[name]
        idle = row["idle_gpu_seconds"] / row["gpu_seconds"] if row["gpu_seconds"] > 0 else 0.0
        above = row["gpu_seconds"] / row["bound_cost_at_time"] if row["bound_cost_at_time"] > 0 else float("nan")
        rows.append(
            (
                name, number(row["time_s"], digits=4), number(row["gpu_seconds"], digits=4), f"{idle:.1%}",
                *([usd(row["cost_usd"]) or "none"] if priced else []), f"{time_s / row['time_s']:.2f}x",
                signed_share(row["gpu_seconds"] / gpu_s - 1),
                number(row["bound_cost_at_time"], digits=4), f"{above:.2f}x", row["bound_method"],
            )
        )  # fmt: skip
    head = ("policy", "time (s)", "GPU-seconds", "idle", *(["cost"] if priced else []), f"speed-up over {baseline}",
            f"cost relative to {baseline}", "lower bound (GPU-seconds)", "cost / lower bound", "bound by")  # fmt: skip
    page.table(f"{title}: {counted(int(table['steps'].max()), 'step')}", head, merged(rows))


def true_front(schedules: Schedules, setting: SimulationConfig) -> Front:
    """Return the front of plans of the last step, by its true lengths, as whole steps: as its results and its bound are."""
    in_gpu_s, phases = replace(setting, objective=Objective()), schedules.phases
    front = pareto_front(in_gpu_s.problem(schedules.logged[-1].truth))
    whole = [
        replace(
            plan,
            makespan_s=phases.step_time_s(plan.makespan_s),
            gpu_seconds=phases.step_gpu_s(plan.makespan_s, plan.gpu_seconds),
        )
        for plan in front.plans
    ]
    return replace(front, plans=tuple(whole))


def predicted_front(schedules: Schedules, setting: SimulationConfig) -> Front:
    """Return the front of plans of the last step, by its predicted lengths."""
    in_gpu_s = replace(setting, objective=Objective())
    return pareto_front(in_gpu_s.problem(schedules.logged[-1].predicted))


def weights_figure(schedules: Schedules, setting: SimulationConfig, front: Front) -> go.Figure:
    """Return plans of the last step at ``WEIGHTS``, with a slider that needs no kernel."""
    last = schedules.logged[-1]
    plans = {
        weight: plan_generation(
            replace(setting, objective=Objective(weight)).problem(last.predicted), time_limit_s=WEIGHT_TIME_LIMIT_S,
            seed=setting.seed, deterministic=True,
        )
        for weight in WEIGHTS
    }  # fmt: skip
    return plots.plot_time_weight(plans, front, round(setting.objective.time_weight, 1))
