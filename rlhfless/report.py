"""The report: one HTML page that says of any trace what was executed and what better schedules would have done.

Knows traces, simulation and plots; nothing of the command line. Every number of the first section is read from the trace;
everything after it is simulated from the logged lengths, and says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from rlhfless import __version__, plots
from rlhfless.latency import list_profiles, load_profile, read_profile, usd_per_gpu_hour
from rlhfless.plots.style import counted, number, signed_share
from rlhfless.report_page import Page, page_path, write_page
from rlhfless.report_schedules import LADDER, SHOWN, Schedules, evenly, simulate_schedules
from rlhfless.simulate import Setting
from rlhfless.trace import Trace, TraceError, read_rollouts, read_trace, step_metrics
from solver.cluster import Cluster
from solver.errors import PlanningError
from solver.front import Front, pareto_front
from solver.objective import Objective
from solver.planner import plan_generation

DEFAULT_PROFILE = "l40s-qwen2.5-3b-tp2"
MAX_SIMULATED_STEPS = 8
MAX_TIMELINES = 12
MAX_SPANS = 40_000  # bars of all timelines that can be chosen in one place; above, they become heatmaps
WEIGHTS = tuple(round(0.1 * i, 1) for i in range(11))
WEIGHT_TIME_LIMIT_S = 0.3


def default_setting() -> Setting:
    """What a report assumes when nothing else is said: 16 GPUs in two nodes at list price."""
    latency = load_profile(DEFAULT_PROFILE)
    return Setting(Cluster(2, 8, latency.gpus_per_actor, latency.kind, usd_per_gpu_hour(latency.kind)), latency)


def write_report(
    source: Trace | str | Path, out: str | Path, setting: Setting | None = None, *, max_steps: int = MAX_SIMULATED_STEPS
) -> Path:
    """Write the report of a trace as one HTML file that needs no network and no kernel.

    Args:
        source: a trace, a trace folder, or a parquet, csv or jsonl file with the rollout columns; of one run.
        out: the HTML file; it is replaced in one go.
        setting: cluster, profile and objective of the simulated sections; ``default_setting()`` when None.
        max_steps: at most so many steps are simulated, evenly chosen; fewer when steps have thousands of responses.

    Raises:
        TraceError: the source is no trace, holds several runs, or the file cannot be written.
        PlanningError: the source holds lengths only, and they cannot be planned on the cluster.
    """
    path = page_path(out, TraceError)
    return write_page(path, report_html(source, setting, max_steps=max_steps), TraceError)


def report_html(source: Trace | str | Path, setting: Setting | None = None, *, max_steps: int = MAX_SIMULATED_STEPS) -> str:
    """The page of ``write_report`` as text; the same arguments and exceptions."""
    trace = source if isinstance(source, Trace) else read_source(Path(source))
    setting = default_setting() if setting is None else setting
    executed = len(trace.allocations) > 0
    what = "What was executed, and " if executed else "A log of response lengths, and "
    page = Page(
        f"RLHFless report: {_name(trace, source)}", f"{what}what other schedules would have made of the same responses."
    )
    page.facts(_facts(trace))
    if executed:
        _executed(page, trace)
    try:
        schedules = simulate_schedules(trace, setting, max_steps)
        last = schedules.logged[-1].predicted
        front = pareto_front(last, setting.cluster, setting.latency, setting.rest, admission=setting.admission)
        _schedules(page, schedules, setting, front, lengths=not executed or bool(plots.lengths_info(trace).missing))
        _weights(page, schedules, setting, front)
    except PlanningError as error:
        if not executed:
            raise
        page.section("What better schedules would have done")
        page.text(f"This cannot be planned on {setting.cluster.gpus} GPUs with profile {setting.latency.name}: {error}")
    return page.render(f"Written by rlhfless {__version__}. plotly.js is part of this file; nothing is loaded from elsewhere.")


def read_source(path: Path) -> Trace:
    """A trace folder, or a parquet, csv or jsonl file with the rollout columns, as a trace."""
    return read_trace(path) if path.is_dir() else Trace(read_rollouts(path), source=str(path))


def _name(trace: Trace, source: Trace | str | Path) -> str:
    path = trace.source if isinstance(source, Trace) else str(source)
    return Path(path).resolve().name if path else f"run {trace.run}"


def _facts(trace: Trace) -> Iterator[tuple[str, str]]:
    rollouts, meta = trace.rollouts, trace.meta
    lengths, steps = rollouts["response_tokens"], trace.steps
    yield "run", trace.run
    yield "steps", f"{len(steps):,} ({steps[0]} to {steps[-1]})"
    yield "responses", f"{len(rollouts):,} to {rollouts['prompt_id'].nunique():,} prompts"
    yield "response lengths", f"{lengths.sum():,} tokens; median {lengths.median():,.0f}, longest {lengths.max():,}"
    reasons = rollouts["finish_reason"]
    cut = f"{(reasons == 'length').mean():.1%} of the responses" if reasons.notna().all() else "unknown"
    yield "cut off by limit", cut
    tables = ", ".join(f"{len(getattr(trace, name)):,} {name}" for name in ("allocations", "spans", "events"))
    yield "recorded", f"{tables}, {counted(len(trace.plans), 'plan')}"
    for key in ("policy", "engine", "clock", "charging", "device", "profile", "imported_from", "framework"):
        if meta.get(key) not in (None, "", "none"):
            yield key.replace("_", " "), str(meta[key])
    cluster = meta.get("cluster")
    if isinstance(cluster, dict):
        yield "cluster", ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in cluster.items() if value is not None)


# --- what was executed ----------------------------------------------------------------------------------------------------


def _executed(page: Page, trace: Trace) -> None:
    page.section("What was executed")
    page.basis(_basis_of_execution(trace))
    total = step_metrics(trace)[["time_s", "gpu_seconds", "idle_gpu_seconds", "cost_usd"]].sum(min_count=1).astype(float)
    share = total["idle_gpu_seconds"] / total["gpu_seconds"] if total["gpu_seconds"] > 0 else 0.0
    page.cards(
        [
            ("time, all steps", number(total["time_s"], "s", 5)),
            ("GPU-seconds billed", number(total["gpu_seconds"], digits=5)),
            ("of them idle", f"{number(total['idle_gpu_seconds'], digits=5)} ({share:.1%})"),
            ("cost", number(total["cost_usd"], "USD")),
        ]
    )
    steps = sorted(int(step) for step in trace.allocations["step"].unique())
    shown = evenly(steps, MAX_TIMELINES)
    if len(shown) < len(steps):
        page.text(f"{len(shown)} of {len(steps):,} steps can be chosen, evenly spread.")
    most = MAX_SPANS // len(shown)
    roles = trace.allocations["role"]
    generates = [role for role in roles.unique() if role in ("decode", "prefill")] or list(roles.unique())
    timelines = {f"step {step}": plots.plot_timeline(trace, step, roles=generates, max_spans=most) for step in shown}
    page.choice("Step", timelines, f"step {shown[-1]}")
    if set(roles) - set(generates):
        others = ", ".join(sorted(set(roles) - set(generates)))
        page.text(f"The timeline shows generation. Time and cost below are those of whole steps, GPUs of {others} included.")
    page.figure(plots.plot_steps(trace))
    if not plots.lengths_info(trace).missing:
        lengths = {f"step {steps[-1]}": plots.plot_lengths(trace, steps[-1]), "all steps": plots.plot_lengths(trace)}
        page.choice("Lengths of", lengths)


def _basis_of_execution(trace: Trace) -> Iterator[tuple[str, str]]:
    meta = trace.meta
    simulated, device, profile = meta.get("engine") == "simulated", meta.get("device"), meta.get("profile")
    by = f"latency profile {profile}" if profile else "a latency profile that the trace does not name"
    if meta.get("clock") == "wall":
        yield "Measured", f"all times, on {device or 'a device that the trace does not name'}."
    elif meta.get("clock") == "virtual" and meta.get("charging") == "measured":
        yield "Measured", f"every actor's own iterations, on {device or 'a device that the trace does not name'}."
        yield "Modelled", "that the actors work side by side: they share one device and a virtual clock."
    elif meta.get("clock") == "virtual":
        rest = trace.spans[trace.spans["phase"].isin(["prepare", "learn"])]
        learns = rest["detail"].fillna("").str.contains('"clock": "measured"').any()
        what = "generation times" if learns else "all times"
        yield "Modelled", f"{what}, by {by} on a virtual clock" + ("; no model was run." if simulated else ".")
        if learns:
            yield "Measured", "preparation and learning, on the device that ran them."
    else:
        yield "Unknown", "the trace does not say which clock its times come from."
    if simulated:
        yield "From the log", "response lengths."
    yield "Computed", "GPU-seconds and dollars from the allocations; idle is held time that no foreground span covers."


# --- what other schedules would have done ---------------------------------------------------------------------------------


def _schedules(page: Page, schedules: Schedules, setting: Setting, front: Front, lengths: bool) -> None:
    page.section("What better schedules would have done")
    page.basis(_basis_of_simulation(schedules, setting))
    count, last = len(schedules.logged), schedules.logged[-1]
    figures = f"{counted(len(schedules.shown), 'step')} " + ("with" if schedules.has_history else "without") + " history"
    if count < schedules.all_steps:
        steps = ", ".join(str(one.step) for one in schedules.logged)
        page.text(f"{count} of {schedules.all_steps:,} steps are simulated, evenly chosen: {steps}.")
        page.text("Predictions use every earlier step of the log.")
    if not schedules.has_history:
        page.text("No step has history: its prompts were never seen before, so the predicted lengths are a guess.")
    if len(schedules.shown) > 1:
        results = _named(schedules.results(list(SHOWN)))
        page.figure(plots.plot_plane(results, None, _bound(schedules, results), title=f"Time and cost: sum of {figures}"))
    own = _named(schedules.results(list(SHOWN), last.step))
    page.figure(plots.plot_plane(own, front, schedules.bound_of(last), title=f"Time and cost: step {last.step}"))
    page.text(
        "The bound is for the true lengths: no policy that decodes one token per pass, whatever it refills, moves or releases, "
        "takes fewer GPU-seconds at that time. The front is what plans promise by predicted lengths; where lengths came out "
        "differently, a policy that ran can lie on either side of it."
    )
    for title, has_history in (
        ("Sums over steps with history (the same prompts were seen before)", True),
        ("Sums over steps without history (lengths can only be guessed)", False),
    ):
        _table(page, schedules, title, has_history)
    page.facts(SHOWN.values())
    ladder_note = (
        "static → right-sizing → release → spreading → folding → re-planning with predictions; last, with the true lengths"
    )
    page.figure(
        plots.plot_waterfall(schedules.results(LADDER), title=f"What each idea contributes: sum of {figures}", note=ladder_note)
    )
    page.text(
        "Policies minimise time and cost together, so an idea can buy time with GPU-seconds or the reverse: read both panels. "
        "A contribution depends on the order of the ideas, and it can be negative."
    )
    page.heading(f"What the GPUs would have done in step {last.step}")
    traces = schedules.simulation.traces
    most = MAX_SPANS // len(SHOWN)
    timelines = {SHOWN[name][0]: plots.plot_timeline(traces[name], last.step, max_spans=most) for name in SHOWN}
    page.choice("Policy", timelines, "solver")
    if lengths:
        page.heading("How good the predictions were")
        page.figure(plots.plot_lengths(traces["static"], last.step))


def _named(results: pd.DataFrame) -> pd.DataFrame:
    """The results under the names that the page gives to policies."""
    return results.replace({"policy": {name: shown for name, (shown, _) in SHOWN.items()}})


def _bound(schedules: Schedules, results: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """The bound of the steps that figures show together, at the times of the results and around them."""
    total = results.groupby("policy")["time_s"].sum()
    times = np.linspace(0.5 * total.min(), 1.3 * total.max(), 200)
    return times, plots.bound_of_sum([schedules.bound_of(one) for one in schedules.shown], times)


def _basis_of_simulation(schedules: Schedules, setting: Setting) -> Iterator[tuple[str, str]]:
    latency, cluster = setting.latency, setting.cluster
    origin = read_profile(latency.name)["origin"] if latency.name in list_profiles() else "no shipped profile"
    yield "From the log", "response lengths."
    yield (
        "Modelled",
        f"all times, on simulated engines by latency profile {latency.name} ({origin}), on {cluster.gpus} {cluster.kind} GPUs "
        f"in {counted(cluster.nodes, 'node')}, {cluster.gpus_per_actor} per actor, at "
        f"{number(cluster.usd_per_gpu_hour, 'USD')} per GPU-hour; time weight {setting.objective.time_weight:g}.",
    )
    yield (
        "Predicted",
        "lengths, from the same prompt's earlier responses (moving average over epochs); only the oracle knows the true ones.",
    )
    rows = schedules.logged[-1].rows
    unknown = []
    if rows["prompt_tokens"].isna().all():
        unknown.append("the log has no prompt lengths, so prefill and prompt KV count as nothing")
    if rows["finish_reason"].isna().all():
        unknown.append("it is not known which responses were cut off, so every length counts as whole")
    if unknown:
        yield "Not known", "; ".join(unknown) + "."


def _table(page: Page, schedules: Schedules, title: str, has_history: bool) -> None:
    table = schedules.simulation.summary(has_history).set_index("policy")
    if table["steps"].max() == 0:
        return
    rows = []
    for name, (shown, _) in SHOWN.items():
        one = table.loc[name]
        idle = one["idle_gpu_seconds"] / one["gpu_seconds"] if one["gpu_seconds"] > 0 else 0.0
        rows.append(
            (
                shown, number(one["time_s"], digits=4), number(one["gpu_seconds"], digits=4), f"{idle:.1%}",
                number(one["cost_usd"]), f"{one['speedup_vs_static']:.2f}x", signed_share(-one["cost_reduction_vs_static"]),
                number(one["bound_cost_at_time"], digits=4), f"{one['gpu_seconds'] / one['bound_cost_at_time']:.2f}x",
            )
        )  # fmt: skip
    head = ("policy", "time (s)", "GPU-seconds", "idle", "cost (USD)", "speed, static = 1", "cost, against static",
            "bound (GPU-seconds)", "cost, bound = 1")  # fmt: skip
    page.table(f"{title}: {counted(int(table['steps'].max()), 'step')}", head, rows)


def _weights(page: Page, schedules: Schedules, setting: Setting, front: Front) -> None:
    last = schedules.logged[-1]
    page.section("Time against cost")
    page.basis(
        [
            ("Predicted", f"the lengths of step {last.step} and, by profile {setting.latency.name}, all times and costs."),
            (
                "Computed",
                f"{len(WEIGHTS)} plans beforehand, at most {WEIGHT_TIME_LIMIT_S:g} s each; moving the slider runs nothing.",
            ),
        ]
    )
    page.text("At weight 1 only time counts, at weight 0 only GPU-seconds. Each plan starts the actors on the left.")
    found = {
        weight: plan_generation(
            last.predicted, setting.cluster, setting.latency, Objective(weight), setting.rest,
            time_limit_s=WEIGHT_TIME_LIMIT_S, admission=setting.admission, seed=setting.seed,
        )
        for weight in WEIGHTS
    }  # fmt: skip
    page.figure(plots.plot_time_weight(found, front, round(setting.objective.time_weight, 1)))
