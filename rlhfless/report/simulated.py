"""Report sections about what other schedules would have done, simulated from logged lengths and labelled so on the page.

Inputs are simulated schedules and planning fronts; output are sections and figures.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import plotly.graph_objects as go

import solver
from rlhfless import plots
from rlhfless.analysis import Calibration, OwnTimes, evenly
from rlhfless.analysis.gpu_counts import gpu_in_words
from rlhfless.analysis.gpu_seconds import GENERATES
from rlhfless.analysis.own_times import is_far
from rlhfless.latency import list_profiles, read_profile
from rlhfless.plots.export.html_page import Page
from rlhfless.plots.lengths import MAX_SVG_POINTS
from rlhfless.plots.style import counted, number, signed_share, usd
from rlhfless.report.log_checks import calibrated_by
from rlhfless.report.not_stated import profile_in_words
from rlhfless.report.savings import merged, savings_table
from rlhfless.report.schedules import Schedules
from rlhfless.report.study import GIVEN_BACK, Findings
from rlhfless.report.where_time_went import MAX_STEPS_SHOWN
from rlhfless.report.words import Words, words_of
from rlhfless.scheduling import POLICY_TABLE
from rlhfless.simulate import SimulationConfig
from rlhfless.trace import Trace
from solver.generation.pareto_front import Front, pareto_front
from solver.model.objective import Objective

OTHERS = "Other schedules and settings"
OWN_PLANS = (
    "The run did not split the prompts of every step equally over all GPUs. The savings above are relative to the run itself; "
    "what follows is relative to the equal split (static)."
)
MAX_SPANS = 40_000  # bars of all timelines that can be chosen in one place; above, they become heatmaps
WEIGHTS = tuple(round(0.1 * i, 1) for i in range(11))
NEAR_POINTS, FAR_POINTS = 10, (31, 41)  # savings were off by, of the cost, up to FAR and above (``scaled_profiles.py``)


def schedules_section(page: Page, findings: Findings) -> None:
    """Add the folded section of other schedules: what they save, the published policies with the bound, and the front."""
    schedules, setting, calibrated = findings.schedules, findings.times.setting, findings.times.calibrated
    page.section(OTHERS, folded=True)
    for warning in far_from_its_profile(findings.times):
        page.text(warning)
    if not calibrated.steps:
        name = profile_in_words(setting.latency.name)
        page.text(f"All times here come from {name}, which was not compared with the run. Trust percentages, not seconds.")
    count, last = len(schedules.logged), schedules.logged[-1]
    if count < schedules.all_steps:
        steps = ", ".join(str(step.step) for step in schedules.logged)
        page.text(
            f"The simulation covers {count} of {schedules.all_steps:,} steps, evenly spaced: {steps}. Predictions use every "
            "earlier step."
        )
    if not schedules.has_history:
        page.text("All prompts of the simulated steps are new, so their predicted lengths are guesses.")
    page.heading("What each policy does")
    page.facts(schedules.policies.items())
    if len(findings.given_back):
        page.heading("What the policies would save")
        savings_table(page, findings)
    if findings.times.own_plans:
        page.text(OWN_PLANS)
    if len(schedules.shown) > 1:
        results = schedules.results(list(schedules.policies))
        title = f"Time and cost of generation: sum of {_summed(schedules)}"
        page.figure(plots.plot_plane(results, None, _bound(schedules, results), title=title))
    of_last = schedules.results(list(schedules.policies), last.step)
    front = true_front(schedules, setting)
    page.figure(
        plots.plot_plane(of_last, front, schedules.bound_of(last), title=f"Time and cost of generation: step {last.step}")
    )
    page.text(
        "No schedule that takes as long uses fewer GPU-seconds than the lower bound, even if it knew all lengths beforehand "
        "(without speculative decoding). The bound is the larger of two: a linear program over whole actors (configuration "
        "LP), and a formula with batch slots and KV memory (closed form). The best plans with known lengths assign all "
        "responses before the step. A policy that moves responses during the step can be better than they are, but never "
        "better than the bound."
    )
    for title, has_history in (
        ("Generation, sums over steps with repeated prompts (lengths predicted from earlier responses)", True),
        ("Generation, sums over steps with new prompts (lengths are guesses)", False),
    ):
        _table(page, schedules, title, has_history)
    if len(findings.given_back):
        page.text(_two_baselines(schedules.ladder[0]))
    _choices(page, schedules)
    page.heading("What you change to run them")
    page.facts(what_to_do(schedules.policies))
    page.figure(ladder_figure(schedules))
    page.text(
        "Policies minimise time and cost together, so an idea can lower one and raise the other: read both panels. What an "
        "idea contributes depends on the order in which ideas are added, and can be negative."
    )
    if findings.drawn:
        return  # plans at several weights are for predicted lengths, and nobody knows which prompts of drawn lengths are long
    page.heading("Time against cost")
    page.text(
        f"{len(WEIGHTS)} plans of step {last.step}, each the best found for the predicted lengths; the slider selects one. At "
        "weight 1 only time counts, at weight 0 only GPU-seconds. The left panel shows what the actors of the plan spend their "
        "time on. "
        "The policy solver also allows for lengths around the predicted ones, so it may run another plan."
    )
    page.figure(weights_figure(schedules, setting, predicted_front(schedules, setting)))


def what_to_do(policies: Iterable[str]) -> list[tuple[str, str]]:
    """Return what a user does to run each policy that needs no true lengths: names, then that; the same is said once."""
    rows = (POLICY_TABLE[name] for name in policies)
    return [(names, to_do) for names, to_do in merged([(row.name, row.to_do) for row in rows if not row.needs_truth])]


def timelines_section(page: Page, schedules: Schedules | None, own: Trace) -> None:
    """Add the folded section of timelines: of the run's own trace, and of every simulated schedule of the last step.

    Args:
        own: as executed, or the likeliest of its completed log.
    """
    page.section("Timelines", folded=True)
    own_timelines(page, own)
    if schedules is not None:
        _simulated_timelines(page, schedules)
    predicted = own if schedules is None or _has_predictions(own) else schedules.traces["static"]
    if _has_predictions(predicted):
        page.heading("How good the predictions were")
        last = int(predicted.rollouts["step"].max())
        of_steps = {f"step {last}": last, "all steps": None}
        lengths = {name: plots.plot_lengths(predicted, step, max_points=MAX_SVG_POINTS) for name, step in of_steps.items()}
        page.choice("Lengths of", lengths)


def _has_predictions(trace: Trace) -> bool:
    return "predicted_tokens" in trace.rollouts and bool(trace.rollouts["predicted_tokens"].notna().any())


def own_timelines(page: Page, trace: Trace) -> None:
    """Add the timelines of the steps of a run's own trace."""
    page.heading(words_of(trace).own)
    steps = sorted(int(step) for step in trace.allocations["step"].unique())
    shown = evenly(steps, MAX_STEPS_SHOWN)
    if len(shown) < len(steps):
        page.text(f"The menu offers {len(shown)} of {len(steps):,} steps, evenly spaced.")
    max_spans = MAX_SPANS // len(shown)
    roles = trace.allocations["role"]
    generates = [role for role in roles.unique() if role in GENERATES] or list(roles.unique())
    timelines = {f"step {step}": plots.plot_timeline(trace, step, roles=generates, max_spans=max_spans) for step in shown}
    page.choice("Step", timelines, f"step {shown[-1]}")
    if set(roles) - set(generates):
        other_roles = ", ".join(sorted(set(roles) - set(generates)))
        page.text(f"The timelines show generation only. Time and cost are of whole steps, including {other_roles} GPUs.")


def _simulated_timelines(page: Page, schedules: Schedules) -> None:
    """Add the timelines of the last step under every simulated schedule."""
    traces, last = schedules.traces, schedules.logged[-1]
    best, *equal = best_policies(schedules.results(list(schedules.policies), last.step), Objective(schedules.time_weight))
    page.heading(f"Before and after, simulated: step {last.step} under {schedules.ladder[0]} and {best}")
    pair = {name: traces[name] for name in (schedules.ladder[0], best)}
    bound = schedules.bounds[-1].gpu_seconds
    page.figure(plots.plot_before_after(pair, last.step, bound=bound))
    if equal:
        page.text(f"In this step {_and(equal)} took the same time and GPU-seconds as {best}.")
    page.heading(f"GPU timelines of step {last.step}, simulated")
    max_spans = MAX_SPANS // len(schedules.policies)
    timelines = {name: plots.plot_timeline(traces[name], last.step, max_spans=max_spans) for name in schedules.policies}
    page.choice("Policy", timelines, "solver")


def is_of_other_hardware(calibrated: Calibration) -> bool:
    """Whether a profile was scaled so much that it is of another model or other GPUs than the run's."""
    return calibrated.steps > 0 and is_far(calibrated.factor)


def far_from_its_profile(times: OwnTimes) -> list[str]:
    """Return the warning about a profile of other hardware, what it means for the result and what to do; else nothing."""
    calibrated, latency = times.calibrated, times.setting.latency
    if not is_of_other_hardware(calibrated):
        return []
    factor = calibrated.factor
    slower, pace = (factor, "slow") if factor > 1 else (1.0 / factor, "fast")
    return [
        f"Warning: your run is {number(slower)} times as {pace} as {profile_in_words(latency.name)}, so that profile is "
        "of another model or other GPUs. Logged times stay true; what was idle and what schedules save is rough. Between "
        f"profiles up to 3 times apart, savings differed by at most {NEAR_POINTS} points of the cost; between those 36 times "
        f"apart and more, by {FAR_POINTS[0]} to {FAR_POINTS[1]}. Measure your profile with rlhfless profile."
    ]


def best_policies(results: pd.DataFrame, objective: Objective) -> tuple[str, ...]:
    """Return the policies without true lengths that release GPUs and have the least ``T^w C^(1-w)`` of one step.

    Several where time and cost are equal but for rounding, the simplest first (in the order of ``GIVEN_BACK``).
    """
    table = results[results["policy"].isin(GIVEN_BACK)].set_index("policy")[["time_s", "gpu_seconds"]]
    least = table.iloc[int(objective.product(table["time_s"], table["gpu_seconds"]).argmin())]
    equal = set(table.index[np.isclose(table, least, rtol=1e-9, atol=0.0).all(axis=1)])
    return tuple(name for name in GIVEN_BACK if name in equal)


def _and(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def ladder_figure(schedules: Schedules) -> go.Figure:
    """Return the waterfall from the run's own dispatch to the bound."""
    note = f"each bar adds one idea, from {schedules.ladder[0]} to {schedules.ladder[-1]}"
    title = f"What each idea contributes: sum of {_summed(schedules)}"
    return plots.plot_waterfall(schedules.results(schedules.ladder), title=title, note=note)


def _summed(schedules: Schedules) -> str:
    """Which steps figures add up, in words."""
    return f"{counted(len(schedules.shown), 'step')} with {'repeated' if schedules.has_history else 'new'} prompts"


def _bound(schedules: Schedules, results: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """The bound of the shown steps together, at the times of the results and around them."""
    total = results.groupby("policy")["time_s"].sum()
    times = np.linspace(0.5 * total.min(), 1.3 * total.max(), 200)
    return times, plots.bound_of_sum([schedules.bound_of(step) for step in schedules.shown], times)


def basis_of_simulation(findings: Findings) -> Iterator[tuple[str, str]]:
    """Return where the numbers of simulated schedules come from, in words."""
    times, schedules, words = findings.times, findings.schedules, words_of(findings.traces[0])
    setting, calibrated = times.setting, times.calibrated
    latency, cluster = setting.latency, setting.cluster
    origin = read_profile(latency.name)["origin"] if latency.name in list_profiles() else "no shipped profile"
    if findings.drawn:
        yield "Drawn", "response lengths, from the mean, the longest and the share of cut responses of every logged step."
    else:
        yield f"From the {words.source}", words.taken
    yield (
        "Modelled",
        f"{words.modelled}, on simulated engines with latency "
        f"profile {latency.name} ({origin}), on {counted(cluster.gpus, gpu_in_words(cluster.kind))} "
        f"in {counted(cluster.nodes, 'node')}, {cluster.gpus_per_actor} per actor, "
        + (f"at {usd(cluster.usd_per_gpu_hour)} per GPU-hour" if cluster.usd_per_gpu_hour > 0 else "without a price")
        + f"; time weight {setting.objective.time_weight:g}.",
    )
    yield from _other_gpus(findings)
    if calibrated.exact:
        yield (
            "Exact",
            "the run was on the virtual clock of this profile, so what is simulated takes the time that the run took.",
        )
    elif calibrated.steps:
        starts = "" if times.scale.start_s is None else f" Times of starts and weight syncs are those of the {words.source}."
        yield "Calibrated", calibrated_by(calibrated, words.ratio) + starts
    elif calibrated.factor > 1:
        yield (
            "Calibrated",
            f"by {number(calibrated.factor)}, the least factor that agrees with lower bounds on times of the {words.source}.",
        )
    else:
        yield "Not calibrated", f"the profile is used unchanged. {_why_not(times, words)}"
    yield (
        "Predicted",
        "response lengths, from earlier responses to the same prompt (moving average). Only oracles use the true lengths.",
    )
    rows = schedules.logged[-1].rows
    unknown = []
    if rows["prompt_tokens"].isna().all():
        unknown.append("there are no prompt lengths, so prefill time and the KV memory of prompts count as 0")
    if rows["finish_reason"].isna().all():
        unknown.append("there are no finish reasons, so in what is simulated every response counts as complete")
    if unknown:
        yield "Not known", "; ".join(unknown) + "."


def _why_not(times: OwnTimes, words: Words) -> str:
    """Return why a profile was not scaled to a run's times."""
    if times.scale.ran_on:
        return f"The run's times are of GPUs of another kind ({times.scale.ran_on})."
    return words.not_compared


def _other_gpus(findings: Findings) -> Iterator[tuple[str, str]]:
    """Say where a run had other GPUs than those that schedules are simulated on."""
    cluster, (trace, *_) = findings.times.setting.cluster, findings.traces
    recorded = trace.meta.get("cluster") or {}
    kinds, gpus = sorted(trace.allocations["kind"].unique()), recorded.get("nodes", 0) * recorded.get("gpus_per_node", 0)
    if kinds != [cluster.kind] or gpus not in (0, cluster.gpus):
        had = f"{counted(gpus, 'GPU') if gpus else 'an unknown number of GPUs'} of kind {' and '.join(kinds)}"
        yield "Other GPUs", f"the run had {had}; other schedules are modelled on the GPUs named above."


def fixed_in_words(findings: Findings) -> str:
    """Return in words what no schedule of generation changes."""
    sums = findings.took[["time_s", "gpu_s", "fixed_s", "fixed_gpu_s"]].sum()
    if not sums["fixed_s"] > 0:
        return "The steps are generation alone, from the first GPU that they held to the last."
    return (
        "In the steps that savings are of, phases outside generation, such as preparation and learning, take "
        f"{number(sums['fixed_s'] / len(findings.took), 's')} of a step "
        f"({max(0.0, sums['fixed_s']) / sums['time_s']:.0%} of its time) and "
        f"{sums['fixed_gpu_s'] / sums['gpu_s']:.0%} of the billed GPU-seconds. Generation schedules leave them unchanged; "
        "every share includes them."
    )


def _table(page: Page, schedules: Schedules, title: str, has_history: bool) -> None:
    table = schedules.summary(has_history).set_index("policy")
    if table["steps"].max() == 0:
        return
    baseline = schedules.ladder[0]
    time_s, gpu_s = table.loc[baseline, "time_s"], table.loc[baseline, "gpu_seconds"]
    priced = bool((table["cost_usd"] > 0).any())
    rows = []
    for name in schedules.policies:
        row = table.loc[name]
        above = row["gpu_seconds"] / row["bound_cost_at_time"] if row["bound_cost_at_time"] > 0 else float("nan")
        rows.append(
            (
                name, number(row["time_s"], digits=4), number(row["gpu_seconds"], digits=4),
                *([usd(row["cost_usd"]) or "none"] if priced else []), f"{time_s / row['time_s']:.2f}x",
                signed_share(row["gpu_seconds"] / gpu_s - 1),
                number(row["bound_cost_at_time"], digits=4), f"{above:.2f}x", row["bound_method"],
            )
        )  # fmt: skip
    head = ("policy", "time (s)", "GPU-seconds", *(["cost"] if priced else []), f"speed-up over {baseline}",
            f"cost relative to {baseline}", "lower bound (GPU-seconds)", "cost / lower bound", "which bound")  # fmt: skip
    page.table(f"{title}: {counted(int(table['steps'].max()), 'step')}", head, merged(rows))


def _two_baselines(first: str) -> str:
    """Say why the tables of savings and of sums compare the same policies with different baselines."""
    return (
        f"These tables compare single simulations, all with {first} ({POLICY_TABLE[first].sentence}): the simplest way that "
        "the run may have assigned its prompts in. The savings further above are relative to the run itself, over every way "
        "that it may have used and over resampled steps, so their percentages differ from these."
    )


def _choices(page: Page, schedules: Schedules) -> None:
    """Say in how many steps the policies that choose between plans ran which."""
    said = schedules.choices_in_words()
    if shown := [said[policy] for policy in schedules.policies if policy in said]:
        page.text(" ".join(shown))


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
    problem = setting.problem(schedules.logged[-1].predicted)
    plans = {
        f"{weight:g}": solver.plan(replace(problem, objective=Objective(weight)), quick=True, seed=setting.seed)
        for weight in WEIGHTS
    }
    return plots.plot_plan_bars(
        plans, problem.workload, setting.latency, front=front, of="time weight (1: time only, 0: cost only)",
        start=f"{round(setting.objective.time_weight, 1):g}",
    )  # fmt: skip
