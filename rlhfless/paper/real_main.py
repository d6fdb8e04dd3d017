"""Figure ``real_main``: how much faster planned layouts are than Megatron's rule, in ReaL's 36 settings (arXiv:2406.14088).

Both plans are judged by one cost model (``rlhfless.latency.CallTable``). The GPUs of the paper are unknown and its profiles are
not public, so the model is not fitted: variants show what the result depends on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from rlhfless.latency import CallTable, CostOptions
from rlhfless.paper.draw import COLOURS, SYMBOLS, WIDE_LEGEND
from rlhfless.paper.paper_figure import Caption, Claim, Numbers, PaperFigure
from rlhfless.paper.real_fit import FITTED, step_flops
from rlhfless.paper.real_settings import GPUS_PER_NODE, RealSetting, real_settings
from rlhfless.paper.workloads import Sources
from rlhfless.plots.palette import GREY, SKY, VERMILLION
from rlhfless.plots.style import styled
from rlhfless.scheduling.dataflow import megatron_plan
from solver import Cluster
from solver.dataflow import StepPlan, plan_step, ppo
from solver.dataflow.options import CallOptions
from solver.dataflow.schedule import periods_s
from solver.dataflow.search import Search
from solver.dataflow.searched import BOUNDED_PER_EVALUATED

TITLE = "ReaL's main figure: planned layouts against Megatron's rule"
UNTUNED = "as modelled"
FITTED_TO_RULE = "fitted to the rule"
VARIANTS = {
    UNTUNED: CostOptions(host_s_per_layer=0.4e-3),
    "70 % of all-reduce": CostOptions(host_s_per_layer=0.4e-3, all_reduce_share=0.7),
    "40 % of all-reduce": CostOptions(host_s_per_layer=0.4e-3, all_reduce_share=0.4),
    "no all-reduce": CostOptions(host_s_per_layer=0.4e-3, all_reduce_share=0.0),
    "no host time": CostOptions(),
    "host time doubled": CostOptions(host_s_per_layer=0.8e-3),
    "40 % of all-reduce, host time doubled": CostOptions(host_s_per_layer=0.8e-3, all_reduce_share=0.4),
    FITTED_TO_RULE: FITTED,
}
"""Host time of a decode iteration is 0.4 ms per layer. Those with 40 % of all-reduce were chosen after results were seen.
The last one is fitted to the published throughput of Megatron's rule, and to nothing else."""
COLUMNS = [
    "variant", "scaled_model", "response_tokens", "gpus", "responses", "heuristic_s", "planned_s", "planned_fifo_s", "bound_s",
    "heuristic_status", "status", "gain", "gain_fifo", "published_gain", "heuristic_pflops", "published_heuristic_pflops",
]  # fmt: skip


@dataclass(frozen=True)
class RealMainSetting:
    """Setting: PPO on the published numbers of GPUs, with the costs of a GPU kind.

    Attributes:
        kind: of GPU; the paper's is unknown. most_gpus: settings on more are left out. variants: keys of ``VARIANTS``.
        mini_batches: of a training, as in the released script. work: of the search in each setting, counted.
    """

    kind: str = "a100"
    most_gpus: int = 128
    variants: tuple[str, ...] = tuple(VARIANTS)
    mini_batches: int = 4
    work: int = 500_000


def numbers(setting: RealMainSetting, sources: Sources) -> Numbers:
    """Return ``COLUMNS``, a row per variant and setting: seconds per step, and gains over Megatron's rule."""
    rows = []
    for variant in setting.variants:
        known: dict[tuple[object, ...], dict[str, object]] = {}  # two settings are the same problem
        for one in real_settings(setting.most_gpus):
            problem = (*one.models.values(), one.gpus, one.response_tokens)
            if problem not in known:
                known[problem] = _periods(setting, one, one.costs(setting.kind, setting.mini_batches, VARIANTS[variant]))
            rows.append({"variant": variant, **_published(one), **known[problem]})
    table = pd.DataFrame(rows)
    for gain, seconds in (("gain", "planned_s"), ("gain_fifo", "planned_fifo_s")):
        table[gain] = table["heuristic_s"] / table[seconds]
    return Numbers(table[COLUMNS])


def _published(one: RealSetting) -> dict[str, object]:
    return {
        "scaled_model": one.scaled, "response_tokens": one.response_tokens, "gpus": one.gpus, "responses": one.responses,
        "published_gain": one.published_gain, "published_heuristic_pflops": one.heuristic_pflops,
    }  # fmt: skip


def _periods(setting: RealMainSetting, one: RealSetting, costs: CallTable) -> dict[str, object]:
    """Return the periods of Megatron's rule, of the planned step, and of one whose calls run as they become ready."""
    cluster = Cluster(one.gpus // GPUS_PER_NODE, GPUS_PER_NODE, 1)
    rule = megatron_plan(ppo(), cluster, costs, memory_bytes=costs.gpu_memory_bytes)
    plan = plan_step(ppo(), cluster, costs, memory_bytes=costs.gpu_memory_bytes, work=setting.work)
    return {
        "heuristic_s": rule.period_s, "planned_s": plan.period_s, "planned_fifo_s": _fifo_s(setting, plan, cluster, costs),
        "bound_s": plan.lower_bound_s, "heuristic_status": rule.status, "status": plan.status,
        "heuristic_pflops": step_flops(costs) / rule.period_s / 1e15,
    }  # fmt: skip


def _fifo_s(setting: RealMainSetting, plan: StepPlan, cluster: Cluster, costs: CallTable) -> float:
    """Return the least period that is found when calls run in the order in which they become ready, as in ReaL.

    Descents search for it, and the layouts of the planned step are tried.
    """
    options = CallOptions.of(ppo(), cluster.gpus, GPUS_PER_NODE, costs)
    layout_of = {call.name: call.layout for call in plan.calls}
    chosen = [of_call.index(layout_of[call.name]) for call, of_call in zip(ppo().calls, options.layouts, strict=True)]
    search = Search(options, costs.gpu_memory_bytes, order="fifo")
    search.found.take(np.array([chosen]), periods_s(options, np.array([chosen]), "fifo"), "fifo")
    search.start(setting.work // BOUNDED_PER_EVALUATED)
    return search.found.period_s


def summary(numbers: Numbers) -> pd.DataFrame:
    """Return how ours and the published gains compare, a row per variant.

    Returns:
        Columns ``variant, settings, same_direction, weighted, published_weighted, plain, published_plain, fifo_weighted,
        median_error, rank, heuristic_error, heuristic_rank``: settings in which Megatron's rule is slower in both; mean gains,
        weighted by GPUs and plain; median relative error of the gain, and rank correlation (Spearman); the same two of the
        rule's petaFLOP/s.
    """
    rows = []
    for variant, part in numbers.table.groupby("variant", sort=False):
        ours, theirs = part["gain"], part["published_gain"]
        rows.append(
            {
                "variant": variant,
                "settings": len(part),
                "same_direction": int(((ours > 1) == (theirs > 1)).sum()),
                "weighted": float(np.average(ours, weights=part["gpus"])),
                "published_weighted": float(np.average(theirs, weights=part["gpus"])),
                "plain": float(ours.mean()),
                "published_plain": float(theirs.mean()),
                "fifo_weighted": float(np.average(part["gain_fifo"], weights=part["gpus"])),
                "median_error": float((ours / theirs - 1).abs().median()),
                "rank": _spearman(ours, theirs),
                "heuristic_error": float((part["heuristic_pflops"] / part["published_heuristic_pflops"] - 1).abs().median()),
                "heuristic_rank": _spearman(part["heuristic_pflops"], part["published_heuristic_pflops"]),
            }
        )
    return pd.DataFrame(rows)


def _spearman(one: pd.Series, other: pd.Series) -> float:
    return float(one.rank().corr(other.rank()))


def plot(setting: RealMainSetting, numbers: Numbers) -> go.Figure:
    """Plot gains without tuning over the published ones, with the line where both are equal, and mean gains of all variants."""
    table = numbers.table[numbers.table["variant"] == setting.variants[0]]
    fig = make_subplots(rows=1, cols=2, column_widths=[0.6, 0.4], horizontal_spacing=0.27)
    ends = [float(f(table[["gain", "published_gain"]].to_numpy())) for f in (np.min, np.max)]
    fig.add_scatter(
        x=ends, y=ends, mode="lines", name="equal gains", line={"color": GREY, "dash": "dash"}, hoverinfo="skip", row=1, col=1
    )
    for colour, (tokens, of_length) in zip(COLOURS, table.groupby("response_tokens"), strict=False):
        for symbol, (scaled, part) in zip(SYMBOLS, of_length.groupby("scaled_model", sort=False), strict=False):
            fig.add_scatter(
                x=part["published_gain"], y=part["gain"], mode="markers", name=f"{tokens} tokens, {scaled} scaled",
                marker={"color": colour, "symbol": symbol, "size": 6 + 2 * np.log2(part["gpus"] / 4)},
                customdata=part[["gpus", "heuristic_s", "planned_s", "bound_s"]],
                hovertemplate="%{customdata[0]} GPUs: published %{x:.2f}x, ours %{y:.2f}x<br>rule %{customdata[1]:.1f} s, "
                "planned %{customdata[2]:.1f} s, bound %{customdata[3]:.1f} s<extra></extra>", row=1, col=1,
            )  # fmt: skip
    fig.update_xaxes(title="ReaL over Megatron's rule, published", row=1, col=1)
    fig.update_yaxes(title="planned step over Megatron's rule, in our cost model", row=1, col=1)
    rows = summary(numbers)
    direction = [f"{row.same_direction} of {row.settings}" for row in rows.itertuples()]
    fig.add_bar(
        x=rows["weighted"], y=rows["variant"], orientation="h", text=direction, insidetextanchor="start", marker={"color": SKY},
        name="mean gain by variant (text: settings with the published direction)", row=1, col=2,
        hovertemplate="%{y}: %{x:.2f}x, direction in %{text}<extra></extra>",
    )  # fmt: skip
    fig.add_vline(x=float(rows["published_weighted"].iloc[0]), line={"color": VERMILLION, "dash": "dash"}, row=1, col=2)
    fig.update_xaxes(title="mean gain weighted by GPUs; dashed: published", rangemode="tozero", row=1, col=2)
    fig.update_yaxes(autorange="reversed", row=1, col=2)
    note = f"PPO on {setting.kind.upper()}, operators measured, training and network modelled; larger marks have more GPUs"
    return styled(fig, TITLE, note, legend={**WIDE_LEGEND, "y": -0.2}, height=620)


def caption(setting: RealMainSetting, numbers: Numbers) -> Caption:
    """Return the caption; see ``Caption``."""
    rows = summary(numbers)
    first = rows.iloc[0]
    table = numbers.table[numbers.table["variant"] == setting.variants[0]]
    lengths = ", ".join(
        f"{np.average(part['gain'], weights=part['gpus']):.2f} and "
        f"{np.average(part['published_gain'], weights=part['gpus']):.2f} with {tokens} tokens"
        for tokens, part in table.groupby("response_tokens")
    )
    others = "; ".join(
        f"{row.variant} {row.weighted:.2f} and {row.published_weighted:.2f}, median error {row.median_error:.0%}, rank "
        f"correlation {row.rank:.2f}"
        for row in rows.itertuples()
    )
    return Caption(
        "Left, a mark per published setting: the gain of the planned step over Megatron's rule here, against ReaL's published "
        "gain. Right, the mean gain of every variant of the cost model, and in how many settings the direction is the same.",
        f"Operators on {setting.kind.upper()}, by the authors of aiconfigurator-core; none by us.",
        f"Calls and memory by the formulas of rlhfless.latency.CallTable with {setting.mini_batches} mini-batches (as in the "
        "released script) and 0.4 ms of host time per layer and decode iteration; backward, optimizer and links are assumed. "
        "Megatron's rule has tp 8, as many stages as nodes and one copy. Where all models are scaled, sizes are inferred: each "
        "doubling of the GPUs takes the next one.",
        f"ReaL is faster than Megatron's rule in all settings, by {first.published_weighted:.2f} times weighted by GPUs.",
        f"The direction is the same in {first.same_direction} of {first.settings} settings. Mean gains, ours and published, "
        f"weighted by GPUs: {first.weighted:.2f} and {first.published_weighted:.2f}; plain: {first.plain:.2f} and "
        f"{first.published_plain:.2f}. With ReaL's order of calls (first come, first served) descents find a mean of "
        f"{first.fifo_weighted:.2f}. By response length: {lengths}. The petaFLOP/s of the rule have the published order (rank "
        f"correlation {first.heuristic_rank:.2f}). What the size depends on, weighted gains here and published: {others}. "
        f"Variants with less all-reduce were chosen after looking, so they show sensitivity and are no fit. {_fit(rows)}"
        "The direction is reproduced, the range roughly; the gain of a single setting and the published mean are not. The "
        "paper's GPUs are unknown and its software is of 2024. How much of tensor parallelism's all-reduce a training "
        "framework waits for, and the host's time in decoding, decide the size.",
    )


def _fit(rows: pd.DataFrame) -> str:
    """Return what constants that are fitted to the rule's column say about ReaL's; nothing where they were not tried."""
    found = rows.set_index("variant")
    if not {FITTED_TO_RULE, UNTUNED} <= set(found.index):
        return ""
    fitted, untuned = found.loc[FITTED_TO_RULE], found.loc[UNTUNED]
    return (
        f"With {FITTED.host_s_per_layer * 1e3:g} ms per layer and {FITTED.all_reduce_share:.0%} of all-reduce, fitted to the "
        f"rule's petaFLOP/s only, these are off by {fitted.heuristic_error:.0%} (median; as modelled "
        f"{untuned.heuristic_error:.0%}), and ReaL's gains by {fitted.median_error:.0%} ({untuned.median_error:.0%}). "
    )


def claims(numbers: Numbers) -> list[Claim]:
    """Return whether the paper's statements hold; see ``Claim``."""
    first = numbers.table[numbers.table["variant"] == numbers.table["variant"].iloc[0]]
    row = summary(numbers).iloc[0]
    return [
        Claim.of(
            "planned layouts are faster than Megatron's rule in every setting", first["gain"] > 1,
            f"{int((first['gain'] > 1).sum())} of {len(first)}, {first['gain'].min():.2f} to {first['gain'].max():.2f} times",
        ),
        Claim.of(
            "26 % faster on average, weighted by GPUs", [abs(row["weighted"] - row["published_weighted"]) <= 0.05],
            f"{row['weighted'] - 1:.0%} in our cost model, which is not fitted to the paper",
        ),
    ]  # fmt: skip


FAST = replace(RealMainSetting(), most_gpus=16, variants=(UNTUNED, "40 % of all-reduce"), work=20_000)
FIGURE = PaperFigure(
    "real_main", TITLE, RealMainSetting(), FAST, numbers, plot, caption, claims=claims, paper="arXiv:2406.14088"
)
