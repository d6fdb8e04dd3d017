"""The 12 settings of Figure 10 as whole steps: everything together against the naive system, elastic plain and published ones.

Every plan is made from forecasts and executed on true lengths. Time and cost are those of generation, preparation, learning and
weight sync. The learner's size is a decision of the plan, and its charges are named options. The bound holds for every policy
with all optimisations.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import NamedTuple

import pandas as pd
import plotly.graph_objects as go

from rlhfless.paper.facets import FROM_ZERO, PERCENT, Look, Panel, facets
from rlhfless.paper.figure import Numbers, PaperFigure, Text
from rlhfless.paper.figures_10_to_13 import PRINTED_COST_SAVED, PRINTED_SPEEDUP, cell_lengths
from rlhfless.paper.machine import QWEN_3B_L40S, QWEN_7B_L40S, Machine
from rlhfless.paper.runs import Runs
from rlhfless.paper.whole_step_costs import ChargeOptions, size_variants, step_costs
from rlhfless.paper.whole_step_rows import (
    BOUND_SIZED,
    FAIR,
    FAIR_SIZED,
    TOGETHER,
    TOGETHER_SIZED,
    VALUES,
    WITHOUT,
    StepToCompare,
)
from rlhfless.paper.whole_step_summary import CELL, DRAFTS, Fair, against_naive, aims, bounds, fair, levers, stages
from rlhfless.paper.workloads import GSM8K_LENGTHS, Sources
from rlhfless.plots.palette import BLUE, BOUND, GREEN, GREY, ORANGE, PURPLE, VERMILLION
from rlhfless.simulate import SimulationConfig, WholeStep, logged_steps
from solver.model.objective import Objective

TITLE = "Figure 10 as whole steps, with all optimisations and a bound"
ASSUMED = ("GPQA", "LiveCodeBench")
SYSTEMS = {
    ("elastic", WITHOUT, ""): Look("elastic plain: right-sized, released, learned from on all GPUs", PURPLE, "pentagon-open"),
    (FAIR, WITHOUT, ""): Look("elastic plain with prefix caching: the fair comparator", PURPLE, "pentagon"),
    ("rlhfless", WITHOUT, ""): Look("RLHFless (paper's rule)", VERMILLION, "triangle-down"),
    ("rlhfuse", WITHOUT, ""): Look("RLHFuse's inter-stage fusion", ORANGE, "triangle-up"),
    ("real", WITHOUT, ""): Look("ReaL: layouts only", GREEN, "square"),
    ("rlhfspec", "weak", ""): Look("RLHFSpec: weak drafts only", GREY, "cross"),
    ("rlhfspec", "strong", ""): Look("RLHFSpec: strong drafts only (character task)", GREY, "x"),
    (TOGETHER, WITHOUT, "1.35x"): Look("all together, without drafts, planned for 1.35x", BLUE, "circle"),
    (TOGETHER, "weak", "1.35x"): Look("all together, weak drafts", BLUE, "circle-open"),
    (TOGETHER, "strong", "1.35x"): Look("all together, strong drafts (character task)", BLUE, "circle-dot"),
    (FAIR_SIZED, WITHOUT, ""): Look("elastic plain with prefix caching, any size of actors", PURPLE, "star-open"),
    (TOGETHER_SIZED, WITHOUT, "1.35x"): Look("all together, without drafts, any size of actors", BLUE, "star"),
}
"""(system, drafts, objective) to how it is drawn."""
LIMITS = {
    WITHOUT: Look("bound at 1.35x, without drafts", BOUND, "line-ew"),
    "strong": Look("bound at 1.35x, strong drafts", BLUE, "line-ew"),
    BOUND_SIZED: Look("bound at 1.35x, any size of actors, without drafts", GREEN, "line-ew"),
}
SIZED = "bars: without drafts, both with any size of actors"
BARS = {
    **{f"bars: {name} drafts": Look(f"bars: {name} drafts", colour, hatch=hatch)
       for name, colour, hatch in zip(DRAFTS, (BLUE, GREEN, ORANGE), ("", "/", "x"), strict=True)},
    SIZED: Look(SIZED, PURPLE, hatch="."),
    "stage": Look("value after each stage", GREY), "expected": Look("optimisation: expected", GREY, hatch="/"),
    "executed": Look("optimisation: executed", BLUE),
}  # fmt: skip


class Cell(NamedTuple):
    """One step of one setting."""

    algorithm: str
    machine: Machine
    data_set: str
    seed: int


def cells_of(
    algorithms: Sequence[str] = ("PPO", "GRPO"), machines: Sequence[Machine] = (QWEN_3B_L40S, QWEN_7B_L40S),
    data_sets: Sequence[str] = ("GSM8K", "GPQA", "LiveCodeBench"), seeds: int = 5,
) -> list[Cell]:  # fmt: skip
    """Return all settings with the first seed, then with the second one, and so on."""
    return [Cell(*names, seed) for seed in range(seeds) for names in product(algorithms, machines, data_sets)]


def step_of(
    cell: Cell, sources: Sources, responses: int = 512, draft_seeds: int = 5, epochs: int = 3,
    charges: ChargeOptions = ChargeOptions(),  # noqa: B008 (frozen)
) -> tuple[dict[str, str | int], StepToCompare]:  # fmt: skip
    """Return one step, with the columns that name it.

    Args:
        draft_seeds: seeds that are executed with drafts, too, which takes most of the time; the first one is bounded so.
        epochs: the last one is executed. charges: options of a learner's size.
    """
    machine = cell.machine
    history = cell_lengths(cell.data_set, cell.algorithm, sources, responses, epochs, cell.seed)
    limit = history.max_response_tokens
    (logged,) = logged_steps(history.rollouts, None, limit, steps=history.last(1))
    config = SimulationConfig(
        machine.cluster, machine.latency, Objective(0.7), max_response_tokens=limit, admission=machine.admission,
        seed=cell.seed,
    )  # fmt: skip
    costs = step_costs(machine, cell.algorithm, charges)
    step = StepToCompare(
        machine, WholeStep(logged, config, costs), config, costs, logged, cell.seed, with_drafts=cell.seed < draft_seeds,
        bounds_with_drafts=not cell.seed, sizes=size_variants(machine, costs, config, logged.predicted),
    )  # fmt: skip
    names: dict[str, str | int] = {
        "algorithm": cell.algorithm, "model": machine.model, "data_set": cell.data_set, "basis": history.basis,
        "seed": cell.seed,
    }  # fmt: skip
    return names, step


def whole_steps(
    runs: Runs, algorithms: Sequence[str] = ("PPO", "GRPO"), machines: Sequence[Machine] = (QWEN_3B_L40S, QWEN_7B_L40S),
    data_sets: Sequence[str] = ("GSM8K", "GPQA", "LiveCodeBench"), responses: int = 512, seeds: int = 5, draft_seeds: int = 5,
    epochs: int = 3,
) -> Numbers:  # fmt: skip
    """Return rows of systems, optimisations, stages and bounds of all steps; ``part`` says which. Every step is kept when it is
    computed. Seeds are draws of lengths (where they are a model), of random splits and of drafts."""
    tables = []
    for cell in cells_of(algorithms, machines, data_sets, seeds):
        name = f"{cell.algorithm} {cell.machine.model} {cell.data_set} seed {cell.seed}"
        with_drafts = int(cell.seed < draft_seeds)
        inputs = cell, runs.sources, responses, with_drafts, epochs
        compute = partial(_rows_of_step, cell, runs.sources, responses, draft_seeds, epochs)
        tables.append(runs.kept(name, inputs, compute, part=True))
    return Numbers(pd.concat(tables, ignore_index=True))


def _rows_of_step(cell: Cell, sources: Sources, responses: int, draft_seeds: int, epochs: int) -> pd.DataFrame:
    names, step = step_of(cell, sources, responses, draft_seeds, epochs)
    return pd.DataFrame(list(step.rows())).assign(**names)[[*CELL, "basis", "seed", "part", *VALUES]]


def label(data_set: str, basis: str) -> str:
    """Return the name of a data set, with what its lengths are."""
    kind = "log" if basis == "log" else "lengths assumed" if data_set in ASSUMED else "lengths modelled"
    return f"{data_set} ({kind})"


def printed(numbers: Numbers) -> list[str]:
    """Return every system in every setting, the bounds, what each optimisation saves, the waterfall, and the aims, as lines."""
    table = numbers.table
    means, limits, limits_sized = against_naive(table), bounds(table), bounds(table, BOUND_SIZED)
    against, sized = fair(table), fair(table, any_size=True)
    lines = [f"times faster and cost saved against naive static with 3 actors, {table['seed'].nunique()} seeds"]
    for cell, of in means.groupby(CELL, sort=False):
        lines.append(f"{cell[0]} {str(cell[1])[-2:]} {label(str(cell[2]), str(of['basis'].iloc[0]))}")
        names = tuple(map(str, cell))
        for row in of[of["objective"].isin(["", "1.35x", "2x"]) & (of["system"] != "naive")].itertuples():
            limit = limits_sized if row.system == TOGETHER_SIZED else limits[limits["drafts"] == row.drafts]
            of_cell = limit[(limit[CELL] == list(cell)).all(axis=1)]
            allowed = ""
            if row.objective and len(of_cell):
                one = of_cell.iloc[0]
                allowed = f"; bound {one[f'saved at {row.objective}']:.1%}, up to {one['most_speedup']:.2f}x"
            planned = f", planned for {row.objective}" * bool(row.objective)
            lines.append(f"    {row.system}, {row.drafts} drafts{planned}: {_pair(row)}{allowed}")
        lines += [f"    against elastic plain with prefix caching, {name} drafts: {_fairly(against[names, name])}"
                  for name in DRAFTS if (names, name) in against]  # fmt: skip
        lines += [f"    the same with any size of actors: {_fairly(sized[names, WITHOUT])}"] * ((names, WITHOUT) in sized)
    lines.append("optimisations, each left out (expected to save / saved of T^0.7 C^0.3 / used in steps), without drafts")
    lines += [f"    {row.lever}: {row.expected:.1%} / {row.saved:.1%} / {row.used:.0%}" for row in levers(table).itertuples()]
    lines.append("waterfall of T^0.7 C^0.3, naive = 1: " + ", ".join(f"{k} {v:.3f}" for k, v in stages(table).items()))
    lines.append("aims")
    rows = aims(table)
    return lines + [f"    {row.what} ({row.paper or 'no aim'}): {row.ours}{'; ' * bool(row.bound)}{row.bound}" for row in rows]


def _pair(row: tuple) -> str:  # type: ignore[type-arg]
    """Return speed and saving with intervals."""
    speed, saved = f"{row.speedup:.2f}", f"{row.cost_saved:.1%}"  # type: ignore[attr-defined]
    many = row.seeds > 1  # type: ignore[attr-defined]
    return f"{speed}±{row.speedup_ci:.2f}x {saved}±{row.cost_saved_ci:.1%}" if many else f"{speed}x {saved}"  # type: ignore[attr-defined]


def _fairly(one: Fair) -> str:
    return (
        f"{one.cheaper:.1%} cheaper at equal time, {one.faster:.2f}x faster at equal cost; one plan for its time: "
        f"{one.saved:.1%} cheaper in {one.time:.2f} of it (bound {one.possible:.1%})"
    )


def plot(numbers: Numbers) -> go.Figure:
    """Plot speed and saving of every system over the settings with the bound, elastic plain, and optimisations."""
    table = numbers.table
    means = against_naive(table)
    basis = means.groupby(CELL, sort=False)["basis"].first()
    names = {cell: f"{cell[0]} {cell[1][-2:]}<br>{label(cell[2], kind).replace(' ', '<br>')}" for cell, kind in basis.items()}
    means["hue"] = list(zip(means["system"], means["drafts"], means["objective"], strict=True))
    means = means[means["hue"].isin(list(SYSTEMS))]
    limits = bounds(table).assign(hue=lambda of: of["drafts"])
    limits = pd.concat([limits[limits["hue"].isin(list(LIMITS))], bounds(table, BOUND_SIZED).assign(hue=BOUND_SIZED)])
    found = pd.concat([means, limits.rename(columns={"saved at 1.35x": "bound_at"})], ignore_index=True)
    found["place"] = [names[cell] for cell in found[CELL].itertuples(index=False, name=None)]
    found["cost_saved"] = found["cost_saved"].fillna(found["bound_at"])
    both = [(f"bars: {drafts} drafts", cell, one) for (cell, drafts), one in fair(table).items()]
    both += [(SIZED, cell, one) for (cell, _), one in fair(table, any_size=True).items()]
    bars = pd.DataFrame([{"place": names[cell], "hue": hue, "cheaper": one.cheaper} for hue, cell, one in both])
    falls = stages(table).rename_axis("place").rename("value").reset_index().assign(hue="stage")
    saved = levers(table).rename(columns={"lever": "place"})
    saved = pd.concat(
        [saved.assign(hue=hue, lever=saved[column]) for hue, column in (("expected", "expected"), ("executed", "saved"))]
    )
    shown = pd.concat([found, bars, falls, saved], ignore_index=True)
    ticks = {"tickangle": 0, "tickfont": {"size": 10}}
    systems = Panel({"hue": (*SYSTEMS, *LIMITS)}, "place", "cost_saved", "hue", y_title="cost saved", error="cost_saved_ci",
                    printed=((PRINTED_COST_SAVED, "paper: 44.8 %"), (0.37, "aim: 37 %")), xaxis=ticks,
                    yaxis=PERCENT)  # fmt: skip
    panels = [
        [Panel({"hue": tuple(SYSTEMS)}, "place", "speedup", "hue", y_title="times faster than naive", error="speedup_ci",
               printed=((PRINTED_SPEEDUP, "paper: 1.35x"),), xaxis=ticks)],
        [systems],
        [Panel({"hue": tuple(BARS)}, "place", "cheaper", "hue", "bars", xaxis=ticks, yaxis=PERCENT,
               y_title="cheaper at equal time<br>(elastic, prefix caching)")],
        [Panel({}, "place", "value", "hue", "bars", y_title="T^0.7 C^0.3, naive = 1", yaxis=FROM_ZERO),
         Panel({}, "place", "lever", "hue", "across", x_title="saved by each optimisation, leave one out", xaxis=PERCENT)],
    ]  # fmt: skip
    note = "16 L40S, planned from forecasts; all together is planned for 1.35x"
    return facets(shown, TITLE, note, panels, {**SYSTEMS, **LIMITS, **BARS}, heights=[300, 300, 220, 260], between=110)


FIGURE = PaperFigure(
    "10_all", TITLE,
    Text(
        "Speed and saving of whole steps against the naive system, with 95 % intervals over seeds; the saving against elastic "
        "plain with prefix caching at equal time; the waterfall of optimisations, and what each is expected to save and saves "
        "when it alone is left out (without drafts).",
        f"Latency: measured operators on L40S. {GSM8K_LENGTHS} Lengths of GPQA and LiveCodeBench are assumed. Acceptance of "
        "drafts: weak as measured on MATH-500, strong as on the shipped run, a character task. Preparation and learning: 2 N "
        "and 6 N FLOPs a token at an assumed 30 % of the peak. A learner loses 10 % of its speed per doubling beyond the "
        "naive one; it loads models at 20 GB/s per GPU and reduces gradients at 20 GB/s (assumed). Prefill and weight sync "
        "are in the profile.",
        "The paper prints up to 1.35x and 44.8 % against naive static with 3 actors. Engines cache prefixes by default "
        "today, so everything together is also compared with elastic plain that does so. The naive system and published ones "
        "are as published: of these only RLHFless shares prefill. RLHFuse is its inter-stage fusion alone, ReaL its layouts "
        "alone. Actors, also those of the bounds, have the setting's size (2 GPUs for 3B, 4 for 7B), except where the legend "
        "says any size; latency of other sizes is from the same operators, with prefill in passes of its own, and their "
        "learner keeps the layout of the setting.",
    ),
    whole_steps, plot, lambda numbers: aims(numbers.table),
    {"machines": (QWEN_7B_L40S,), "data_sets": ("GSM8K",), "responses": 96, "seeds": 1, "epochs": 2}, printed=printed,
)  # fmt: skip
