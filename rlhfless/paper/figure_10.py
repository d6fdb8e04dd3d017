"""Figure 10: step time and cost of two algorithms, two models and three data sets, under every policy.

The GRPO runs on GSM8K use the public log; the others use stated length models. As the paper does not print its batch size, a
second panel shows the effect of the batch size. It shows which number of static actors is best (3 in the paper's profiling),
and how much faster than 3 static actors any schedule can be.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from rlhfless.paper.comparison import ELASTIC, ELASTIC_TEXT, IN_FIGURES, NOT_BOUND, POLICIES, compare, label_of, totals
from rlhfless.paper.draw import WIDE_LEGEND, add_policies, marker_of, paper_line
from rlhfless.paper.lengths import GPQA, GSM8K, LIVECODEBENCH
from rlhfless.paper.machine import KEPT_PER_DOUBLING, QWEN_3B_L40S, QWEN_7B_L40S, Machine
from rlhfless.paper.paper_figure import Caption, Claim, Numbers, PaperFigure, Row
from rlhfless.paper.wording import NAIVE_LEARNER, spread
from rlhfless.paper.workloads import LengthHistory, Sources, about_logs, modelled
from rlhfless.plots.palette import GREY, PURPLE
from rlhfless.plots.style import styled
from rlhfless.scheduling import SchedulingPolicy
from rlhfless.scheduling.baselines import Static

TITLE = "Figure 10: time and cost of a step, relative to the naive static system"
PAPER_SPEEDUP, PAPER_COST_SAVED = 1.35, 0.448
SAMPLES = {"PPO": 1, "GRPO": 4}
LIMITS = {
    "most_speedup": "limit of time: a learner of the naive system's size",
    "most_speedup_on_all": "limit of time: a learner on all GPUs",
    "most_cost_saved": "limit of cost, whatever the learner's size",
}
"""Columns of ``totals`` to what no schedule goes below, whatever the other number."""
ROWS = (("time", "time / static"), ("cost", "GPU-seconds / static"), ("share", "share of the headroom"))


@dataclass(frozen=True)
class Figure10Setting:
    """Setting: the paper's testbed, 16 L40S, 2 or 4 GPUs an actor, 3 epochs (the last two have history).

    Attributes:
        responses: of a step; the paper does not print its batch on the testbed, 512 is that of its simulation.
        batches, static_counts: responses of a step and numbers of static actors in the second panel (PPO, GSM8K, the first
            machine).
    """

    algorithms: tuple[str, ...] = ("PPO", "GRPO")
    machines: tuple[Machine, ...] = (QWEN_3B_L40S, QWEN_7B_L40S)
    data_sets: tuple[str, ...] = ("GSM8K", "GPQA", "LiveCodeBench")
    policies: tuple[str, ...] = (*POLICIES, *ELASTIC)
    responses: int = 512
    batches: tuple[int, ...] = (256, 512, 1024, 2048, 4096)
    static_counts: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8)
    epochs: int = 3
    seed: int = 0


def history_of(data_set: str, algorithm: str, setting: Figure10Setting, sources: Sources) -> LengthHistory:
    """Return the lengths of one cell."""
    samples_per_prompt = SAMPLES[algorithm]
    if data_set == "GSM8K" and algorithm == "GRPO":
        return sources.gsm8k(samples_per_prompt)
    model = {"GSM8K": GSM8K, "GPQA": GPQA, "LiveCodeBench": LIVECODEBENCH}[data_set]
    return modelled(model, samples_per_prompt, responses=setting.responses, epochs=setting.epochs, seed=setting.seed)


def numbers(setting: Figure10Setting, sources: Sources) -> Numbers:
    """Return ``panel`` (``cell`` or ``batch``), ``algorithm, model, data_set, basis, responses`` and the columns of
    ``totals``."""
    tables, planning = [], []
    for algorithm in setting.algorithms:
        for machine in setting.machines:
            for data_set in setting.data_sets:
                history = history_of(data_set, algorithm, setting, sources)
                outcome = compare(history, machine, algorithm, setting.policies, seed=setting.seed)
                cell: dict[str, str | int] = {
                    "panel": "cell", "algorithm": algorithm, "model": machine.model, "data_set": data_set,
                    "basis": history.basis, "responses": history.responses,
                }  # fmt: skip
                tables.append(totals(outcome).assign(**cell))
                planning.append(outcome.planning.assign(**cell))
    tables += [_of_batch(setting, responses) for responses in setting.batches]
    first = ["panel", "algorithm", "model", "data_set", "basis", "responses"]
    table = pd.concat(tables, ignore_index=True)
    table = table[first + [name for name in table.columns if name not in first]]
    return Numbers(table, pd.concat(planning, ignore_index=True))


def _of_batch(setting: Figure10Setting, responses: int) -> pd.DataFrame:
    """Compare, on a batch of this size, the naive system with 3 and other numbers of actors, right-sizing, the paper and us."""
    machine = setting.machines[0]
    history = modelled(GSM8K, 1, responses=responses, epochs=2, seed=setting.seed)
    statics = [Static(n, name=f"static, {n} actors") for n in setting.static_counts]
    policies: list[str | SchedulingPolicy] = ["static", "random", "rlhfless", "solver+replan", *statics]
    held = frozenset({"static", *(p.name for p in statics)})
    outcome = compare(history, machine, "PPO", policies, held=held, seed=setting.seed)
    cell = {"panel": "batch", "algorithm": "PPO", "model": machine.model, "data_set": "GSM8K", "basis": history.basis}
    return totals(outcome).assign(**cell, responses=responses)


def cells(numbers: Numbers, scope: str = "step") -> pd.DataFrame:
    """Return the rows of the paper's cells."""
    table = numbers.table
    return table[(table["panel"] == "cell") & (table["scope"] == scope)]


def by_policy(numbers: Numbers, scope: str = "step") -> dict[str, pd.DataFrame]:
    """Return policy to its rows of the paper's cells."""
    return {str(name): subset for name, subset in cells(numbers, scope).groupby("policy")}


def resting(numbers: Numbers) -> str:
    """Return the share of the naive step's time that is preparation and learning, over the cells."""
    whole, alone = (by_policy(numbers, scope)["static"] for scope in ("step", "generation"))
    return spread(pd.Series(1 - alone["time_s"].to_numpy() / whole["time_s"].to_numpy()), ".0%")


class CellsWithinBounds(NamedTuple):
    """Number of cells in which the paper's best numbers are within the bounds.

    Attributes:
        faster: the speedup, with a learner of the naive system's size. faster_on_all: with one on all GPUs. cheaper: the
            saving, with either. cells: number of all cells.
    """

    faster: int
    faster_on_all: int
    cheaper: int
    cells: int


def cells_within_bounds(numbers: Numbers, scope: str = "step") -> CellsWithinBounds:
    """Return the counts; see ``CellsWithinBounds``."""
    bound = by_policy(numbers, scope)["bound"]
    limits = {"most_speedup": PAPER_SPEEDUP, "most_speedup_on_all": PAPER_SPEEDUP, "most_cost_saved": PAPER_COST_SAVED}
    faster, faster_on_all, cheaper = (int((bound[what] >= paper).sum()) for what, paper in limits.items())
    return CellsWithinBounds(faster, faster_on_all, cheaper, cells=len(bound))


def elastic(numbers: Numbers) -> str:
    """Describe speed and saving of ``ELASTIC`` over the cells, in words."""
    of = by_policy(numbers)
    perfect, lossy = ((spread(of[p]["speedup"], ".2f"), spread(of[p]["cost_saved"], ".0%")) for p in ELASTIC)
    faster = of["elastic"]["speedup"] >= PAPER_SPEEDUP
    both = faster & (of["elastic"]["cost_saved"] >= PAPER_COST_SAVED)
    return (
        f"reaches 1.35x in {int(faster.sum())} of {len(faster)} cells, and 44.8 % lower cost as well in {int(both.sum())} of "
        f"them. At perfect scaling it is {perfect[0]}x faster and {perfect[1]} cheaper. If every doubling of the learner's "
        f"GPUs loses {1 - KEPT_PER_DOUBLING:.0%} (assumed), it is {lossy[0]}x faster and {lossy[1]} cheaper"
    )


def by_batch(numbers: Numbers) -> pd.DataFrame:
    """Return ``responses, best_static`` (actors), ``rlhfless, ours, possible``: how much faster a step is than with 3 static
    actors."""
    table = numbers.table
    table = table[(table["panel"] == "batch") & (table["scope"] == "step")]
    rows = []
    for responses, subset in table.groupby("responses"):
        by = subset.set_index("policy")
        static = by[by.index.str.startswith("static, ")]["value"]
        speedup = by["speedup"]
        rows.append(
            {
                "responses": responses, "best_static": int(static.idxmin().split()[1]), "random": speedup["random"],
                "rlhfless": speedup["rlhfless"], "ours": speedup["solver+replan"], "possible": by.loc["bound", "most_speedup"],
            }
        )  # fmt: skip
    return pd.DataFrame(rows)


def _label(subset: pd.DataFrame) -> list[str]:
    """Label of every cell, for the axis."""
    basis = subset["basis"].map({"log": " (log)", "length model": " (model)"})
    return list(subset["algorithm"] + " " + subset["model"].str[-2:] + "<br>" + subset["data_set"] + basis)


def plot(setting: Figure10Setting, numbers: Numbers) -> go.Figure:
    """Plot relative time, relative cost and share of the headroom, for whole steps (left) and generation alone (right);
    below, the effect of the batch size."""
    fig = make_subplots(
        rows=4, cols=2, vertical_spacing=0.05, horizontal_spacing=0.06, row_heights=[0.25] * 4,
        specs=[[{}, {}], [{}, {}], [{}, {}], [{}, {}]], column_titles=["the whole step", "generation alone"],
    )  # fmt: skip
    names = [name for name in IN_FIGURES if name in set(cells(numbers)["policy"])]
    for col, scope in enumerate(("step", "generation"), start=1):
        part = cells(numbers, scope)
        for row, (what, _) in enumerate(ROWS, start=1):

            def points(policy: str, part: pd.DataFrame = part, what: str = what) -> tuple[list[str], list[float]] | None:
                subset = part[part["policy"] == policy]
                if (what == "share" and policy in ("static", "bound")) or (
                    policy in ELASTIC and set(subset["scope"]) != {"step"}
                ):
                    return None
                y = {"time": 1 / subset["speedup"], "cost": 1 - subset["cost_saved"], "share": subset["share"]}[what]
                return _label(subset), y.tolist()

            add_policies(fig, names, points, row=row, col=col, showlegend=row == 1 and col == 1)
            _add_limits(fig, part[part["policy"] == "bound"], what, row, col)
            fig.update_xaxes(showticklabels=row == len(ROWS), tickangle=-90, row=row, col=col)
    within = cells_within_bounds(numbers)
    faster = f"up to 1.35x faster, possible in {within.faster} of {within.cells} cells (naive learner), "
    faster += f"in {within.faster_on_all} (on all GPUs)"
    cheaper = f"up to 44.8 % cheaper, possible in {within.cheaper} of {within.cells} cells"
    for row, y, claim in ((1, 1 / PAPER_SPEEDUP, faster), (2, 1 - PAPER_COST_SAVED, cheaper)):
        paper_line(fig, y, "", row=row, col=1)
        fig.add_annotation(
            text=f"dotted: the paper's {claim}", x=0, y=0, showarrow=False,
            xref="x domain", yref="y domain", xanchor="left", yanchor="top", font={"size": 11, "color": "#9A6A00"},
            row=row, col=1,
        )  # fmt: skip
    for row, (_, title) in enumerate(ROWS, start=1):
        fig.update_yaxes(title=title, row=row, col=1)
    fig.update_yaxes(tickformat=".0%", row=3)
    _add_batches(fig, by_batch(numbers))
    low = "the lower the better; share: 0 % is the naive static system, 100 % the bound for a learner of its size<br>"
    low += "share above 100 %: a larger learner; lengths: a public log where it says so, else stated models; last row: PPO"
    fig = styled(fig, TITLE, low, height=1330, legend={**WIDE_LEGEND, "y": -0.06}, margin={"l": 70, "r": 24, "t": 112, "b": 60})
    for axis in ("yaxis7", "yaxis8"):  # the labels of the cells stand between the third row and the fourth
        bottom, top = fig.layout[axis].domain
        fig.layout[axis].domain = (bottom, bottom + (top - bottom) * 0.5)
    return fig


def _add_limits(fig: go.Figure, bound: pd.DataFrame, what: str, row: int, col: int) -> None:
    """Add marks below which no schedule can be; for generation alone the learner's size changes nothing."""
    shown = {"time": ["most_speedup", "most_speedup_on_all"][: 2 if col == 1 else 1], "cost": ["most_cost_saved"]}
    for name in shown.get(what, []):
        on_all = name == "most_speedup_on_all"
        fig.add_scatter(
            x=_label(bound), y=1 - bound[name] if what == "cost" else 1 / bound[name], mode="markers", name=LIMITS[name],
            legendgroup=name, showlegend=col == 1,
            marker={"symbol": "line-ew", "size": 22, "line": {"width": 3, "color": PURPLE if on_all else "#222222"}},
            hovertemplate=f"<b>{LIMITS[name]}</b><br>%{{x}}: %{{y:.3g}}<extra></extra>", row=row, col=col,
        )  # fmt: skip


def _add_batches(fig: go.Figure, batches: pd.DataFrame) -> None:
    """Add the last row: speedup over 3 static actors, and the best number of static actors."""
    x = [f"{n:,}" for n in batches["responses"]]
    for column, policy in (("random", "random"), ("rlhfless", "rlhfless"), ("ours", "solver+replan"), ("possible", "bound")):
        fig.add_scatter(
            x=x, y=batches[column], mode="lines+markers", name=label_of(policy), legendgroup=policy, showlegend=False,
            marker=marker_of(policy), line={"color": marker_of(policy)["color"], "width": 1.5}, row=4, col=1,
        )  # fmt: skip
    fig.add_bar(x=x, y=batches["best_static"], marker={"color": GREY}, name="best static", showlegend=False, row=4, col=2)
    paper_line(fig, PAPER_SPEEDUP, "paper: 1.35x", row=4, col=1)
    paper_line(fig, 3, "paper: 3", row=4, col=2)
    fig.update_yaxes(title="times faster", row=4, col=1)
    fig.update_yaxes(title="best static actors", rangemode="tozero", row=4, col=2)
    fig.update_xaxes(type="category", title="responses in a step", row=4)


def caption(setting: Figure10Setting, numbers: Numbers) -> Caption:
    """Return the caption; see ``Caption``."""
    of, batches = by_policy(numbers), by_batch(numbers)
    rule, ours, bound = of["rlhfless"], of["solver+replan"], of["bound"]
    within, alone = cells_within_bounds(numbers), cells_within_bounds(numbers, "generation")
    large = batches.iloc[-1]
    best = ", ".join(f"{int(row.best_static)} at {int(row.responses):,}" for row in batches.itertuples())
    log = "Lengths of the GRPO runs on GSM8K (a public log, cap of 512 tokens)."
    return Caption(
        "Time, cost and share of the headroom of every policy, for whole steps (left) and generation alone (right). The share "
        "is above 100 % where the learner may be larger than the naive system's. The last row shows the effect of the batch "
        "size.",
        log if "log" in set(rule["basis"]) else "Nothing: no log is at hand.",
        f"{setting.machines[0].about}. All other lengths: stated lognormal models; the medians of GSM8K, GPQA and "
        "LiveCodeBench are assumed. Steps of the first epoch have no history "
        "and are left out. Planning holds no GPUs and is not charged; its seconds on this machine are in the measured csv."
        f"{about_logs(rule['basis'])}",
        "Up to 1.35x faster and 44.8 % cheaper than naive static with 3 actors, the best number of actors in the paper's "
        "profiling. The paper shows the bars only as a picture, so none is repeated here.",
        f"The paper's rule reaches {spread(rule['speedup'], '.2f')}x and saves {spread(rule['cost_saved'], '.0%')} of the "
        f"cost of whole steps, {spread(rule['share'], '.0%')} of the headroom. Ours with re-planning reaches "
        f"{spread(ours['share'], '.0%')} of the headroom. With a learner of the naive system's size no schedule is more than "
        f"{spread(bound['most_speedup'], '.2f')}x faster at any cost. Such a learner does not shorten preparation and "
        f"learning, {resting(numbers)} of the naive step. Elastic naive {elastic(numbers)}. {ELASTIC_TEXT} With a learner "
        f"on all GPUs no schedule is more than {spread(bound['most_speedup_on_all'], '.2f')}x faster, and 1.35x is possible in "
        f"{within.faster_on_all} of {within.cells} cells instead of {within.faster}. No schedule saves more than "
        f"{spread(bound['most_cost_saved'], '.0%')} at any time, on however many GPUs it learns. {NOT_BOUND} In generation "
        f"alone 1.35x is possible in {alone.faster} of {alone.cells} cells. Larger batches allow more speed with the naive "
        f"system's learner: up to {large['possible']:.2f}x with {int(large['responses']):,} responses, where the paper's rule "
        f"reaches {large['rlhfless']:.2f}x and ours {large['ours']:.2f}x. The best number of static actors is {best} "
        "responses, with time and cost weighted as in the objective.",
    )


def rows(numbers: Numbers) -> list[Row]:
    """Return the printed numbers beside ours; see ``Row``."""
    of = by_policy(numbers)
    rule, ours, bound, random, oracle = (of[p] for p in ("rlhfless", "solver+replan", "bound", "random", "oracle+replan"))
    within, alone, batches = cells_within_bounds(numbers), cells_within_bounds(numbers, "generation"), by_batch(numbers)
    possible = by_policy(numbers, "generation")["bound"]["most_speedup"]
    large_enough = batches[batches["possible"] >= PAPER_SPEEDUP]
    last = batches.iloc[-1]
    verdict = "Not possible in any cell" if within.faster == 0 else f"Possible in {within.faster} of {within.cells} cells"
    larger = (
        f"With the naive system's learner 1.35x becomes possible from {int(large_enough['responses'].iloc[0]):,} responses "
        "a step on"
        if len(large_enough)
        else f"With the naive system's learner and {int(last['responses']):,} responses a step, {last['possible']:.2f}x would "
        "be possible"
    )
    named = {"RLHFless' rule": rule, "right-sized random": random, "ours": ours, "the oracle": oracle}
    shares = ", ".join(f"{name} {spread(subset['share'], '.0%')}" for name, subset in named.items())
    return [
        Row(
            "speedup of a whole step over 3 static actors (16 L40S, best case)", "up to 1.35x",
            f"RLHFless' rule {spread(rule['speedup'], '.2f')}x, ours {spread(ours['speedup'], '.2f')}x",
            f"at any cost, with {NAIVE_LEARNER}: {spread(bound['most_speedup'], '.2f')}x; with a learner on all GPUs: "
            f"{spread(bound['most_speedup_on_all'], '.2f')}x (generation alone {spread(possible, '.2f')}x)",
            f"{verdict} with {NAIVE_LEARNER} that starts after generation. Such a learner does not shorten preparation and "
            f"learning, which are {resting(numbers)} of the naive step (a stated model). With a learner on all GPUs 1.35x is "
            f"possible in {within.faster_on_all} of {within.cells} cells. In generation alone it is possible in "
            f"{alone.faster} of {within.cells} cells. Elastic naive, which plans nothing, {elastic(numbers)}. "
            f"The paper does not print its batch; ours has {spread(rule['responses'], ',d')} responses. {larger}. What all "
            "levers together reach in whole steps is in figure 10_all.",
        ),
        Row(
            "saved cost of a whole step (same comparison)", "up to 44.8 %",
            f"RLHFless' rule {spread(rule['cost_saved'], '.0%')}, ours {spread(ours['cost_saved'], '.0%')}",
            f"at any time, on however many GPUs it learns: {spread(bound['most_cost_saved'], '.0%')}; 44.8 % is possible in "
            f"{within.cheaper} of {within.cells} cells",
            f"Most of it needs no prediction. Releasing all GPUs when generation ends saves "
            f"{spread(of['static-generation']['cost_saved'], '.0%')}. The right number of actors, each released when it is "
            f"done, saves {spread(random['cost_saved'], '.0%')}. Share of the headroom in time and cost together, with "
            f"{NAIVE_LEARNER}: {shares}.",
        ),
    ]  # fmt: skip


def claims(numbers: Numbers) -> list[Claim]:
    """Return whether the paper's statements hold; see ``Claim``."""
    subset = by_policy(numbers)["rlhfless"]
    faster, cheaper, speedup = subset["speedup"] > 1, subset["cost_saved"] > 0, spread(subset["speedup"], ".2f")
    text = f"RLHFless' rule is cheaper in {cheaper.sum()} of {len(subset)} cells and faster in {faster.sum()}: {speedup}x"
    return [Claim.of("faster and cheaper than naive static for every algorithm, model and data set", [*faster, *cheaper], text)]


FAST = replace(
    Figure10Setting(), machines=(QWEN_3B_L40S,), data_sets=("GSM8K", "GPQA"), epochs=2, responses=256, batches=(256, 1024),
    static_counts=(1, 2, 3),
)  # fmt: skip
FIGURE = PaperFigure("10", TITLE, Figure10Setting(), FAST, numbers, plot, caption, rows, claims)
