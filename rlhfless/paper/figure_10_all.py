"""The 12 settings of Figure 10 as whole steps: everything together against the naive system, elastic plain and published ones.

Every plan is made from forecasts and executed on true lengths. Time and cost are those of generation, preparation, learning and
weight sync. The learner's size is a decision of the plan, and its charges are named options. The bound holds for every policy
with all levers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from rlhfless.paper.figure_10 import Figure10Setting, history_of
from rlhfless.paper.machine import QWEN_3B_L40S, QWEN_7B_L40S, Machine
from rlhfless.paper.paper_figure import Caption, Numbers, PaperFigure
from rlhfless.paper.parts import FigurePart
from rlhfless.paper.whole_step_costs import ChargeOptions, step_costs
from rlhfless.paper.whole_step_rows import (
    BOUND_SIZED,
    FAIR,
    FAIR_SIZED,
    TOGETHER_SIZED,
    VALUES,
    WITHOUT,
    StepToCompare,
)
from rlhfless.paper.whole_step_sizes import size_variants
from rlhfless.paper.whole_step_summary import CELL, DRAFTS, against_naive, aims, bounds, fair, levers, stages
from rlhfless.paper.workloads import Sources, about_logs
from rlhfless.plots.palette import BLUE, BOUND, GREEN, GREY, ORANGE, PURPLE, VERMILLION
from rlhfless.plots.style import styled
from rlhfless.simulate import SimulationConfig, WholeStep, logged_steps
from solver.model.objective import Objective

TITLE = "Figure 10 as whole steps, with all levers and a bound"
FAIRLY = "cheaper at equal time<br>(elastic, prefix caching)"
ASSUMED = ("GPQA", "LiveCodeBench")
SYSTEMS = {  # (system, drafts, aim): label, colour, symbol
    ("elastic", WITHOUT, ""): ("elastic plain: right-sized, released, learned from on all GPUs", PURPLE, "pentagon-open"),
    (FAIR, WITHOUT, ""): ("with prefix caching: elastic plain, the fair comparator", PURPLE, "pentagon"),
    ("rlhfless", WITHOUT, ""): ("RLHFless (paper's rule)", VERMILLION, "triangle-down"),
    ("rlhfuse", WITHOUT, ""): ("RLHFuse's inter-stage fusion", ORANGE, "triangle-up"),
    ("real", WITHOUT, ""): ("ReaL: layouts only", GREEN, "square"),
    ("rlhfspec", "weak", ""): ("RLHFSpec: drafts only, weak", GREY, "cross"),
    ("rlhfspec", "strong", ""): ("RLHFSpec: drafts only, strong (character task)", GREY, "x"),
    ("together", WITHOUT, "1.35x"): ("all together, aims at 1.35x", BLUE, "circle"),
    ("together", "weak", "1.35x"): ("all together, weak drafts", BLUE, "circle-open"),
    ("together", "strong", "1.35x"): ("all together, strong drafts (character task)", BLUE, "circle-dot"),
    (FAIR_SIZED, WITHOUT, ""): ("any size of actors: elastic plain with prefix caching", PURPLE, "star-open"),
    (TOGETHER_SIZED, WITHOUT, "1.35x"): ("any size of actors: all together, without drafts", BLUE, "star"),
}


@dataclass(frozen=True)
class Figure10AllSetting:
    """Setting: that of Figure 10, several seeds, and named charges.

    Attributes:
        seeds: draws of lengths (where they are a model), of random splits and of drafts. epochs: the last one is executed.
        draft_seeds: seeds that are executed with drafts, too, which takes most of the time; the first one is bounded so.
        charges: options of a learner's size.
    """

    algorithms: tuple[str, ...] = ("PPO", "GRPO")
    machines: tuple[Machine, ...] = (QWEN_3B_L40S, QWEN_7B_L40S)
    data_sets: tuple[str, ...] = ("GSM8K", "GPQA", "LiveCodeBench")
    responses: int = 512
    seeds: int = 5
    draft_seeds: int = 5
    epochs: int = 3
    charges: ChargeOptions = field(default_factory=ChargeOptions)


def steps(setting: Figure10AllSetting, sources: Sources) -> Iterator[tuple[dict[str, str | int], StepToCompare]]:
    """Return every step that is compared, with the columns that name it."""
    for names in _names(setting):
        yield step_of(setting, sources, *names)


def parts(setting: Figure10AllSetting, sources: Sources) -> Iterator[FigurePart]:
    """Return one part per step: all settings with the first seed, then with the second one, and so on."""
    for names in _names(setting):
        algorithm, machine, data_set, seed = names
        name = f"{algorithm} {machine.model} {data_set} seed {seed}"
        inputs = replace(setting, seeds=seed, draft_seeds=int(seed < setting.draft_seeds)), sources, name
        yield FigurePart(name, inputs, partial(rows_of_step, setting, sources, *names))


def _names(setting: Figure10AllSetting) -> Iterator[tuple[str, Machine, str, int]]:
    seeds = range(setting.seeds)
    for seed, algorithm, machine, data_set in product(seeds, setting.algorithms, setting.machines, setting.data_sets):
        yield algorithm, machine, data_set, seed


def step_of(
    setting: Figure10AllSetting, sources: Sources, algorithm: str, machine: Machine, data_set: str, seed: int
) -> tuple[dict[str, str | int], StepToCompare]:
    """Return one step, with the columns that name it."""
    drawn = Figure10Setting(responses=setting.responses, epochs=setting.epochs, seed=seed)
    history = history_of(data_set, algorithm, drawn, sources)
    limit = history.max_response_tokens
    (logged,) = logged_steps(history.rollouts, None, limit, steps=history.last(1))
    config = SimulationConfig(
        machine.cluster, machine.latency, Objective(0.7), max_response_tokens=limit, admission=machine.admission, seed=seed,
    )  # fmt: skip
    costs = step_costs(machine, algorithm, setting.charges)
    step = StepToCompare(
        machine, WholeStep(logged, config, costs), config, costs, logged, seed, with_drafts=seed < setting.draft_seeds,
        bounds_with_drafts=not seed, sizes=size_variants(machine, costs, config, logged.predicted),
    )  # fmt: skip
    cell: dict[str, str | int] = {
        "algorithm": algorithm, "model": machine.model, "data_set": data_set, "basis": history.basis, "seed": seed
    }  # fmt: skip
    return cell, step


def rows_of_step(
    setting: Figure10AllSetting, sources: Sources, algorithm: str, machine: Machine, data_set: str, seed: int
) -> pd.DataFrame:
    """Return rows of systems, levers, stages and bounds of one step; ``part`` says which."""
    cell, step = step_of(setting, sources, algorithm, machine, data_set, seed)
    return pd.DataFrame(list(step.rows())).assign(**cell)[[*CELL, "basis", "seed", "part", *VALUES]]


def numbers(setting: Figure10AllSetting, sources: Sources) -> Numbers:
    """Return the rows of all steps."""
    return Numbers(pd.concat([part.table() for part in parts(setting, sources)], ignore_index=True))


def label(data_set: str, basis: str) -> str:
    """Return the name of a data set, with what its lengths are."""
    kind = "log" if basis == "log" else "lengths assumed" if data_set in ASSUMED else "lengths modelled"
    return f"{data_set} ({kind})"


def printed(setting: Figure10AllSetting, numbers: Numbers) -> list[str]:
    """Return the 12 rows, what each lever saves, the waterfall, and the aims, as lines of text."""
    table = numbers.table
    means, limits, against = against_naive(table), bounds(table), fair(table)
    seeds = int(table["seed"].nunique())
    lines = [
        f"times faster / cheaper than naive static with 3 actors, {seeds} seed{'s' * (seeds > 1)} (with drafts "
        f"{min(seeds, setting.draft_seeds)}); together: planned for 1.35x at least cost; bound: the most that any policy saves "
        "at 1.35x; fair: cheaper than elastic plain with prefix caching at equal time, faster at equal cost; naive and "
        "published systems are as published, so only RLHFless shares prefill; strong drafts are of a character task",
    ]  # fmt: skip
    for cell, of in means.groupby(CELL, sort=False):
        row = of.set_index(["system", "drafts", "aim"])
        lines.append(f"{cell[0]} {str(cell[1])[-2:]} {label(str(cell[2]), str(of['basis'].iloc[0]))}")
        shown = [f"{SYSTEMS[key][0].split(':')[0].split(' (')[0]} {_pair(row.loc[key])}" for key in list(SYSTEMS)[:5]]
        shown += [f"RLHFSpec {name} {_pair(row.loc[('rlhfspec', name, '')])}" for name in DRAFTS[1:]]
        lines.append("    " + "; ".join(shown))
        for name in DRAFTS:
            limit = limits[(limits[CELL] == list(cell)).all(axis=1) & (limits["drafts"] == name)].iloc[0]
            fairly = against[tuple(map(str, cell)), name]
            lines.append(
                f"    together, {name} drafts: {_pair(row.loc[('together', name, '1.35x')])} "
                f"(bound {limit['saved at 1.35x']:.1%}, "
                f"up to {limit['most_speedup']:.2f}x); fair: {fairly.cheaper:.1%} cheaper, {fairly.faster:.2f}x faster; "
                f"planned for its time: {fairly.saved:.1%} cheaper in {fairly.time:.2f} of it (bound {fairly.possible:.1%})"
            )
            if str(cell[1]).endswith("7B"):
                twice = f"{_pair(row.loc[('together', name, '2x')])} (bound {limit['saved at 2x']:.1%})"
                lines.append(f"        planned for 2x: {twice}")
        lines += _lines_of_any_size(table, row, tuple(map(str, cell)))
    lines.append(
        "levers without drafts, at w = 0.7 (share of T^w C^(1-w); leave one out): expected to save / saved / used in steps"
    )
    text = "; ".join(f"{one.lever} {one.expected:.1%} / {one.saved:.1%} / {one.used:.0%}" for one in levers(table).itertuples())
    lines.append(f"    {text}")
    lines.append("waterfall of T^w C^(1-w), naive = 1: " + ", ".join(f"{k} {v:.3f}" for k, v in stages(table).items()))
    lines += [f"aim: {what} -> {found}{f' ({possible})' if possible else ''}" for what, found, possible in aims(table)]
    return lines


def _lines_of_any_size(table: pd.DataFrame, row: pd.DataFrame, cell: tuple[str, ...]) -> list[str]:
    """Return what everything together and the fair comparator reach where each chooses the size of actors."""
    limits, fairly = bounds(table, BOUND_SIZED), fair(table, any_size=True)[cell, WITHOUT]
    limit = limits[(limits[CELL] == list(cell)).all(axis=1)].iloc[0]
    aims = [
        f"{'planned for 2x: ' if name == '2x' else ''}{_pair(row.loc[(TOGETHER_SIZED, WITHOUT, name)])} "
        f"(bound {limit[f'saved at {name}']:.1%})" for name in ("1.35x", "2x")
    ]  # fmt: skip
    return [
        f"    any size of actors: elastic plain with prefix caching {_pair(row.loc[(FAIR_SIZED, WITHOUT, '')])}; all together, "
        f"without drafts: {'; '.join(aims)}; fair: {fairly.cheaper:.1%} cheaper, {fairly.faster:.2f}x faster; planned for its "
        f"time: {fairly.saved:.1%} cheaper in {fairly.time:.2f} of it (bound {fairly.possible:.1%})"
    ]


def _pair(row: pd.Series) -> str:
    """Return speed and saving with intervals."""
    many = row["seeds"] > 1
    speed = f"{row['speedup']:.2f}" + (f"±{row['speedup_ci']:.2f}" if many else "")
    return f"{speed}x {row['cost_saved']:.1%}" + (f"±{row['cost_saved_ci']:.1%}" if many else "")


def plot(setting: Figure10AllSetting, numbers: Numbers) -> go.Figure:
    """Plot speed and saving of every system over the settings with the bound, the comparison with elastic plain, and levers."""
    table = numbers.table
    means, limits, against = against_naive(table), bounds(table), fair(table)
    basis = means.groupby(CELL, sort=False)["basis"].first()
    names = {cell: f"{cell[0]} {cell[1][-2:]}<br>{label(cell[2], kind).replace(' ', '<br>')}" for cell, kind in basis.items()}
    fig = make_subplots(
        rows=4, cols=2, specs=[[{"colspan": 2}, None], [{"colspan": 2}, None], [{"colspan": 2}, None], [{}, {}]],
        row_heights=[0.28, 0.28, 0.2, 0.24], vertical_spacing=0.08, horizontal_spacing=0.2,
    )  # fmt: skip
    for (system, drafts, aim), (name, colour, symbol) in SYSTEMS.items():
        of = means[(means["system"] == system) & (means["drafts"] == drafts) & (means["aim"] == aim)]
        x = [names[cell] for cell in of[CELL].itertuples(index=False, name=None)]
        marker = {"color": colour, "symbol": symbol, "size": 11, "line": {"width": 1, "color": "#444444"}}
        for row, value in ((1, "speedup"), (2, "cost_saved")):
            fig.add_scatter(
                x=x, y=of[value], error_y={"array": of[f"{value}_ci"].fillna(0), "thickness": 1, "width": 2}, mode="markers",
                name=name, legendgroup=name, showlegend=row == 1, marker=marker,
                hovertemplate=f"<b>{name}</b><br>%{{x}}: %{{y:.3g}}<extra></extra>", row=row, col=1,
            )  # fmt: skip
    for name, own, colour in (
        ("bound at 1.35x, without drafts", limits[limits["drafts"] == WITHOUT], BOUND),
        ("bound at 1.35x, strong drafts", limits[limits["drafts"] == "strong"], BLUE),
        ("bound at 1.35x, any size of actors, without drafts", bounds(table, BOUND_SIZED), GREEN),
    ):
        fig.add_scatter(
            x=[names[cell] for cell in own[CELL].itertuples(index=False, name=None)], y=own["saved at 1.35x"], mode="markers",
            name=name, marker={"symbol": "line-ew", "size": 24, "line": {"width": 3, "color": colour}},
            hovertemplate=f"<b>{name}</b><br>%{{x}}: %{{y:.3g}}<extra></extra>", row=2, col=1,
        )  # fmt: skip
    of_any_size = fair(table, any_size=True)
    bars = [(f"bars: {drafts} drafts", against, drafts) for drafts in DRAFTS]
    bars.append(("bars: without drafts, both with any size of actors", of_any_size, WITHOUT))
    for (name, found, drafts), colour in zip(bars, (BLUE, GREEN, ORANGE, PURPLE), strict=True):
        own_fair = {cell: value.cheaper for (cell, of), value in found.items() if of == drafts}
        fig.add_bar(
            x=[names[cell] for cell in own_fair], y=list(own_fair.values()), name=name, marker={"color": colour}, row=3, col=1
        )
    for y, row in ((1.35, 1), (0.448, 2), (0.37, 2)):
        fig.add_hline(y=y, line={"color": ORANGE, "width": 1.5, "dash": "dot"}, row=row, col=1)
    falls, saved = stages(table), levers(table)
    fig.add_bar(x=list(falls.index), y=falls, marker={"color": PURPLE}, showlegend=False, row=4, col=1)
    for name, column, colour in (("expected", "expected", GREY), ("executed", "saved", BLUE)):
        fig.add_bar(
            y=saved["lever"], x=saved[column], orientation="h", marker={"color": colour}, name=f"lever: {name}", row=4, col=2
        )
    for row, title in (
        (1, "times faster than naive"),
        (2, "cost saved"),
        (3, FAIRLY),
    ):
        fig.update_yaxes(title=title, row=row, col=1)
        fig.update_xaxes(showticklabels=row == 3, tickangle=0, tickfont={"size": 10}, row=row, col=1)
    fig.update_yaxes(tickformat=".0%", row=2, col=1)
    fig.update_yaxes(tickformat=".0%", row=3, col=1)
    fig.update_yaxes(title="T^0.7 C^0.3, naive = 1", row=4, col=1)
    fig.update_xaxes(title="saved by each lever, leave one out", tickformat=".0%", row=4, col=2)
    note = "16 L40S, planned from forecasts; all together aims at 1.35x<br>dotted: 1.35x, 44.8 % and 37 %"
    return styled(
        fig, TITLE, note, height=1450, legend={"x": 0, "xanchor": "left", "y": -0.09, "yanchor": "top", "orientation": "h"},
        margin={"l": 90, "r": 24, "t": 110, "b": 60},
    )  # fmt: skip


def caption(setting: Figure10AllSetting, numbers: Numbers) -> Caption:
    """Return the caption; see ``Caption``."""
    table, charges = numbers.table, setting.charges
    logs = " Lengths of the GRPO runs on GSM8K: a public log." if "log" in set(table["basis"]) else ""
    found = "; ".join(f"{what}: {value}{f' ({possible})' if possible else ''}" for what, value, possible in aims(table))
    return Caption(
        "Speed and saving of whole steps against the naive system, with 95 % intervals over seeds; the saving against elastic "
        "plain with prefix caching at equal time; the waterfall of levers, and what each is expected to save and saves when it "
        "alone is left out (without drafts). Actors, also those of the bounds, have the setting's size (2 GPUs for 3B, 4 for "
        "7B), except where the legend says any size.",
        f"Latency: measured operators on L40S.{logs}",
        "Lengths of GPQA and LiveCodeBench are assumed, those of PPO on GSM8K are modelled. Acceptance of drafts: weak as "
        "measured on MATH-500, strong as on the shipped run, a character task. Preparation and learning: 2 N and 6 N FLOPs a "
        f"token at an assumed 30 % of the peak. A learner loses {charges.loss_per_doubling:.0%} of its speed per "
        f"doubling beyond the naive one; it loads models at {charges.load_bytes_per_s / 1e9:g} GB/s per GPU and reduces "
        f"gradients at {charges.link_bytes_per_s / 1e9:g} GB/s (assumed). Prefill and weight sync are in the "
        f"profile.{about_logs(table['basis'])}",
        "Up to 1.35x faster and 44.8 % cheaper than naive static with 3 actors.",
        f"{found[0].upper()}{found[1:]}. Engines cache prefixes by default today. Everything together is compared with elastic "
        "plain that does so, too. The naive system and published ones are as published: of these only RLHFless shares prefill. "
        "The public log holds no lengths of prompts, so nothing is prefilled there. RLHFuse is its inter-stage fusion alone, "
        "ReaL its layouts alone. Latency of other sizes of actors is from the same operators, with prefill in passes of its "
        "own; their learner keeps the layout of the setting.",
    )


FAST = replace(Figure10AllSetting(), machines=(QWEN_7B_L40S,), data_sets=("GSM8K",), responses=96, seeds=1, epochs=2)
FIGURE = PaperFigure("10_all", TITLE, Figure10AllSetting(), FAST, numbers, plot, caption, printed=printed, parts=parts)
