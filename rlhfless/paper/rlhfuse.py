"""Two figures of RLHFuse (arXiv:2409.13221): the share of the batch at which responses migrate, and the published pipelines.

``rlhfuse_cut`` (section 4): the last responses migrate to few actors, and finished ones are prepared on the GPUs that this
releases. RLHFuse chooses the share R_t by a simulation off-line. Here every share is timed with every number of actors that
continue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from rlhfless.latency import load_profile
from rlhfless.paper.facets import COLOURS, DASHES, FROM_ZERO, PERCENT, Look, Panel, facets
from rlhfless.paper.figure import Finding, Numbers, PaperFigure, Text, verdict
from rlhfless.paper.fused_pipelines import FusedInstance, rlhfuse_instances, schedule_instance, schedules_table
from rlhfless.paper.lengths import GPQA
from rlhfless.paper.runs import Runs
from rlhfless.paper.workloads import LengthHistory, Sources, modelled
from rlhfless.plots.palette import BOUND
from solver import Cluster, Objective, PlanningProblem, Workload, random_split
from solver.model.plurals import counted
from solver.step.cut import choose_cut
from solver.step.work import Learner, TokenWork

TITLE_CUT = "RLHFuse's cut: latency over the share of the batch at which responses migrate"
PRINTED_BEST = 0.2  # share, reported as best
PRINTED_GAIN = (1.2, 1.6)  # of generation and inference
CUTS = ["data_set", "basis", "passes", "share", "keep", "time_s", "generation_s", "prepare_s", "serial_s", "speed_up"]
CASE = ["data_set", "passes"]


def histories(sources: Sources, samples_per_prompt: int = 4) -> list[LengthHistory]:
    """Return the data sets: a log or model of short answers, a model of long ones, and long ones of a log where it exists."""
    found = [sources.gsm8k(samples_per_prompt), modelled(GPQA, samples_per_prompt, epochs=1), sources.math500()]
    return [history for history in found if history is not None]


def workload_of(history: LengthHistory) -> Workload:
    """Return the last step of a history with its true lengths; unknown prompt lengths count as 0."""
    rows = history.rollouts[history.rollouts["step"] == history.rollouts["step"].max()]
    prompt_of, names = pd.factorize(rows["prompt_id"])
    tokens = rows["prompt_tokens"].fillna(0).astype(int).groupby(prompt_of).first()
    return Workload(
        tokens.reindex(range(len(names))).to_numpy(), prompt_of, rows["response_tokens"].to_numpy(dtype=int),
        max_response_tokens=history.max_response_tokens,
    )  # fmt: skip


def cuts(
    runs: Runs, profile: str = "l40s-qwen2.5-7b-tp4", actors: int = 8, passes: Sequence[int] = (1, 3),
    samples_per_prompt: int = 4,
    draws: int = 3, shares: Sequence[float] = (0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
) -> Numbers:  # fmt: skip
    """Return ``CUTS``: a row per data set, passes and share (0: no cut); seconds are means over the draws.

    ``keep`` is the best number of actors that continue. ``serial_s`` is generation and then preparation on all GPUs, which
    speed-ups are of. Shares that no number of actors has room for are left out.

    Args:
        profile: GPUs and model. actors: before the cut. passes: of preparation over all tokens, before learning: GRPO has 1
            (reference), PPO 3 (reward, reference, critic). draws: random assignments of a step's prompts. shares: R_t.
    """
    rows = []
    for history in histories(runs.sources, samples_per_prompt):
        workload = workload_of(history)
        for count in passes:
            drawn = [_curve(profile, actors, shares, workload, count, seed) for seed in range(draws)]
            for share in (0.0, *shares):
                found = pd.concat([one[one["share"] == share] for one in drawn])
                of_keep = found.groupby("keep")["time_s"]
                times = of_keep.mean()[of_keep.size() == draws]  # with room in every draw
                if len(times):
                    base = found[["generation_s", "prepare_s"]].mean()
                    least = int(times.idxmin()), float(times.min())
                    serial_s = float(base.sum())
                    rows.append((history.name, history.basis, count, share, *least, *base, serial_s, serial_s / least[1]))
    return Numbers(pd.DataFrame(rows, columns=CUTS))


def _curve(profile: str, actors: int, shares: Sequence[float], workload: Workload, passes: int, seed: int) -> pd.DataFrame:
    """Return ``share, keep, time_s, generation_s, prepare_s`` of every cut of one random assignment."""
    latency = load_profile(profile).affine
    size = latency.gpus_per_actor
    problem = PlanningProblem(workload, Cluster(actors, size, size), latency, Objective(1.0))
    plan = random_split(problem, actors=actors, seed=seed)
    work = TokenWork(passes * latency.prefill_per_token_s, 0.0)
    cut = choose_cut(plan, problem, work, Learner(overlaps=True), shares=shares, followed=None)
    prepare_s = float(work.of(workload, size).prepare_s.sum()) / actors
    return pd.DataFrame(
        [(one.share, one.keep, one.time_s, plan.makespan_s, prepare_s) for one in cut.candidates if np.isfinite(one.time_s)],
        columns=["share", "keep", "time_s", "generation_s", "prepare_s"],
    )


def best(numbers: Numbers) -> pd.DataFrame:
    """Return the row of the least time of each data set and number of passes."""
    table = numbers.table
    return table.loc[table.groupby(CASE, sort=False)["time_s"].idxmin()]


def plot_cuts(numbers: Numbers) -> go.Figure:
    """Plot the latency of generation and preparation over the share, relative to doing one after the other."""
    table = numbers.table.assign(relative=numbers.table["time_s"] / numbers.table["serial_s"])
    names, passes = (list(table[column].unique()) for column in CASE)
    table["hue"] = [f"{row.data_set} ({row.basis}), {counted(row.passes, 'pass', 'passes')}" for row in table.itertuples()]
    stars = table.loc[best(numbers).index].assign(hue="best share")
    looks = {
        row.hue: Look(row.hue, COLOURS[names.index(row.data_set)], dash=DASHES[passes.index(row.passes)])
        for row in table.drop_duplicates("hue").itertuples()
    } | {"best share": Look("best share", "#F0E442", "star")}
    panel = Panel(
        {}, "share", "relative", "hue", "lines", x_title="unfinished share of the batch at the cut (R_t); 0: no cut",
        y_title="latency of generation and preparation, serial = 1", xaxis=PERCENT, at=(PRINTED_BEST,),
        printed=[(1 / gain, f"published: {gain} times as fast") for gain in PRINTED_GAIN],
    )  # fmt: skip
    note = "with the best number of actors that continue; stars: best share"
    return facets(pd.concat([table, stars]), TITLE_CUT, note, [[panel]], looks, heights=[380]).update_traces(
        mode="markers", marker_size=15, selector={"name": "best share"}
    )


def find_cuts(numbers: Numbers) -> list[Finding]:
    """Return the findings of the cut."""
    found = best(numbers)
    cases = [f"{row.data_set}, {counted(row.passes, 'pass', 'passes')}" for row in found.itertuples()]
    shares = "; ".join(f"{share:.0%} on {case}" for case, share in zip(cases, found["share"], strict=True))
    at_printed = numbers.table[numbers.table["share"] == PRINTED_BEST].set_index(CASE)["time_s"]
    lost = at_printed / found.set_index(CASE)["time_s"] - 1
    gains = "; ".join(f"{row.speed_up:.2f} on {case} (preparation is {row.prepare_s / row.generation_s:.2f} of generation)"
                      for case, row in zip(cases, found.itertuples(), strict=True))  # fmt: skip
    return [
        Finding(
            "about 20 % of the batch is the best share", "20 %",
            f"best: {shares}; at 20 % the step takes {lost.max():.1%} more at most",
            "every share and number of actors is tried", verdict(0.15 <= share <= 0.25 for share in found["share"]),
        ),
        Finding(
            "generation and inference are 1.2 to 1.6 times as fast", "1.2 to 1.6", f"{gains} with the best cut",
            "every share and number of actors is tried", verdict(found["speed_up"] >= PRINTED_GAIN[0]),
        ),
    ]  # fmt: skip


CUT = PaperFigure(
    "rlhfuse_cut", TITLE_CUT,
    Text(
        "Latency of generation and preparation by the share of the batch that is unfinished when responses migrate, with the "
        "best number of actors that continue. Stars mark the best share; share 0 already prepares on GPUs of actors that are "
        "done.",
        "Latency is the affine fit of l40s-qwen2.5-7b-tp4. 8 actors start together, prompts are assigned at random. "
        "Preparation takes 1 prefill pass over all tokens (GRPO) or 3 (PPO). Loading models and moving KV caches take no "
        "time. Prompts without a logged length count as 0 tokens.",
        "The paper's models, lengths and profiles are not public. The gain depends on the time of preparation beside "
        "generation, and on how few responses are long.",
    ),
    cuts, plot_cuts, find_cuts, {"draws": 1, "shares": (0.05, 0.1, 0.2, 0.3, 0.5, 0.7)}, paper="arXiv:2409.13221",
)  # fmt: skip

TITLE_SCHEDULES = "RLHFuse's fused pipelines: the 12 published instances"
ROUNDED = 0.05  # published memory has one digit
SERIES = {"ours": Look("ours", COLOURS[0]), "published": Look("published", COLOURS[1], "diamond-open"),
          "bound": Look("lower bound", BOUND, "line-ew")}  # fmt: skip
DRAWN = {"latency": ("latency", "paper_latency", "latency_bound"), "memory": ("peak_memory", "paper_memory", "memory_bound")}


def schedules(
    runs: Runs,
    instances: Sequence[str] = tuple(map(str, range(12))),
    memory: bool = True,
    time_limit_s: float = 20.0,
    seed: int = 0,
) -> Numbers:
    """Return a row per instance: the columns of ``schedules_table``; CPU seconds are those that a machine took.

    Args:
        instances: names of the published instances. memory: whether the least memory at that latency is searched, too.
        time_limit_s: of each instance, of counted work. seed: of the search.
    """

    def schedule(one: FusedInstance) -> pd.DataFrame:
        return schedules_table([schedule_instance(one, memory=memory, time_limit_s=time_limit_s, seed=seed)])

    tables = [
        runs.kept(f"rlhfuse schedule {one.name}", (memory, time_limit_s, seed), partial(schedule, one), part=True)
        for one in rlhfuse_instances() if one.name in instances
    ]  # fmt: skip
    table = pd.concat(tables, ignore_index=True)
    return Numbers(table.drop(columns="cpu_s"), table[["instance", "cpu_s"]])


def plot_schedules(numbers: Numbers) -> go.Figure:
    """Plot latency and memory of each instance beside the published ones and the lower bounds."""
    rows = [
        numbers.table[["instance"]].assign(value=numbers.table[column], of=of, series=series)
        for of, columns in DRAWN.items() for series, column in zip(SERIES, columns, strict=True)
    ]  # fmt: skip
    panel = Panel({}, "instance", "value", "series", x_title="instance", xaxis={"type": "category"}, yaxis=FROM_ZERO)
    titles = {"latency": "latency (units of time)", "memory": "peak memory of activations"}
    panels = [[replace(panel, where={"of": of}, y_title=title)] for of, title in titles.items()]
    searched = numbers.table["memory_search_share"].any()
    note = "memory is searched at that latency" if searched else "latency alone is searched"
    return facets(pd.concat(rows, ignore_index=True), TITLE_SCHEDULES, note, panels, SERIES, heights=[280])


def find_schedules(numbers: Numbers) -> list[Finding]:
    """Return the findings of the schedules; that of memory only where it is searched."""
    table = numbers.table
    at_bound = int((table["latency"] == table["latency_bound"]).sum())
    difference = table["peak_memory"] - table["paper_memory"]
    proven = int((table["peak_memory"] == table["memory_bound"]).sum())
    below, above = int((difference < -ROUNDED).sum()), int((difference > ROUNDED).sum())
    latency, memory = (
        Finding(
            "the fused schedule reaches the lower bound in 11 of 12 instances", "11 of 12",
            f"ours reaches it in {at_bound} of {len(table)}", "where it is reached, no schedule is faster",
            verdict(table["latency"] <= table["paper_latency"]),
        ),
        Finding(
            "peak memory of the fused schedule (ours at most as high)", "a value per instance",
            f"below the published one in {below} and above it in {above} of {len(table)}", f"proven least in {proven}",
            verdict(table["peak_memory"] <= table["paper_memory"] + ROUNDED),
        ),
    )  # fmt: skip
    return [latency, memory] if table["memory_search_share"].any() else [latency]


SCHEDULES = PaperFigure(
    "rlhfuse_schedules", TITLE_SCHEDULES,
    Text(
        "Latency and peak memory of each published instance: ours, the published value and the lower bound.",
        "Passes take their published whole units of time, transfers take none. Memory is searched at the latency that was "
        "reached, 20 counted seconds each; with --fast it is not searched and left out. CPU seconds are in the table of "
        "measured values.",
        "The paper reaches 613 instead of 606 in instance 9, in 20 to 4,979 s on 512 CPUs. The published memory is that of "
        "the better of two passes.",
    ),
    schedules, plot_schedules, find_schedules, {"memory": False}, paper="arXiv:2409.13221",
)  # fmt: skip
