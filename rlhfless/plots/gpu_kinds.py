"""Plots plans on several GPU kinds: response lengths by kind, times and dollars, with a slider over what-ifs.

Inputs are plans and their workload.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from rlhfless.plots.bars import bars, hatched
from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.frames import start_at, with_frames
from rlhfless.plots.lines import line
from rlhfless.plots.palette import BLUE, BOUND, GREEN, ORANGE, POLICY_STYLES, PURPLE, SKY, VERMILLION
from rlhfless.plots.plane import this_plan
from rlhfless.plots.style import clean, cost_line, counted, hover, message_figure, number, usd
from rlhfless.plots.tables import figure_of, stacked

if TYPE_CHECKING:
    from solver.model.plan import Plan
    from solver.model.workload import Workload

TITLE = "Response lengths, times and cost by GPU kind"
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILLION)
HATCHES = ("", "/", ".", "x", "|", "-")
BINS = 24


class _Data(NamedTuple):
    """Data of ``plot_kinds``: plans by label.

    Attributes:
        plans: ``label, time_s, cost_usd, bound_usd, split_time_s, split_usd``: of the plan, the bound (NaN unless the
            objective is the dollars themselves) and the random split.
        actors: one row per actor: ``label, actor, kind`` (such as ``2 x l40s``), ``responses, shortest, longest`` (tokens),
            ``end_s, usd``.
        counts: ``label, kind``, and (BINS,) responses by length in ``count``. edges: (BINS+1,) tokens.
        kinds: all of them, in the order of their names.
        missing: why there is nothing to show, or the empty text.
    """

    plans: pd.DataFrame
    actors: pd.DataFrame
    counts: pd.DataFrame
    edges: np.ndarray
    kinds: tuple[str, ...]
    missing: str = ""

    def to_frame(self) -> pd.DataFrame:
        """Return all tables below each other; of the counts a row per bin: ``from_tokens, to_tokens, responses``."""
        actors = self.actors.rename(columns={"shortest": "shortest_tokens", "longest": "longest_tokens"})
        bins = {"from_tokens": self.edges[:-1], "to_tokens": self.edges[1:]}
        counts = [
            pd.DataFrame({"label": c.label, "kind": c.kind, **bins, "responses": c.count}) for c in self.counts.itertuples()
        ]
        return stacked(plans=self.plans, actors=actors, lengths=pd.concat(counts) if counts else pd.DataFrame())


def _data(plans: Mapping[Any, Plan], workload: Workload) -> _Data:
    """Return the data of ``plot_kinds``."""
    lengths = workload.response_tokens
    edges = np.linspace(0, max(int(lengths.max()), 1), BINS + 1)
    totals, actors, counts = [], [], []
    for label, plan in plans.items():
        in_usd = plan.value is not None and math.isclose(plan.value, plan.cost_usd, rel_tol=1e-6)
        bound = plan.lower_bound if in_usd and plan.lower_bound is not None else math.nan
        split = plan.reference
        totals.append((str(label), plan.makespan_s, plan.cost_usd, bound,
                       *((math.nan, math.nan) if split is None else (split.time_s, split.usd))))  # fmt: skip
        of_kind: dict[str, list[int]] = {}
        for i, a in enumerate(plan.actors):
            kind = f"{len(a.gpu_ids)} x {a.kind}"
            tokens = lengths[list(a.responses)]
            of_kind.setdefault(kind, []).extend(tokens.tolist())
            usd = len(a.gpu_ids) * a.usd_per_gpu_s * (a.predicted_s - a.start_s)
            ends = (int(tokens.min()), int(tokens.max())) if len(tokens) else (0, 0)
            actors.append((str(label), i, kind, len(tokens), *ends, a.predicted_s, usd))
        counts += [(str(label), kind, np.histogram(tokens, edges)[0]) for kind, tokens in of_kind.items()]
    table = pd.DataFrame(actors, columns=["label", "actor", "kind", "responses", "shortest", "longest", "end_s", "usd"])
    return _Data(
        pd.DataFrame(totals, columns=["label", "time_s", "cost_usd", "bound_usd", "split_time_s", "split_usd"]),
        table,
        pd.DataFrame(counts, columns=["label", "kind", "count"]),
        edges,
        tuple(sorted(table["kind"].unique())),
        "" if plans else "There are no plans to show.",
    )


def plot_kinds(plans: Mapping[Any, Plan], workload: Workload, *, of: str = "price", start: Any = None) -> DataFigure:
    """Plot lengths by GPU kind, the actors with their time, and dollars with the bound over all what-ifs.

    Args:
        plans: label (of the slider) to plan, on one or several kinds. workload: what the plans were made for.
        of: what the labels are. start: the label that is shown first; the middle one when None.

    Returns:
        A figure with one frame per label; without plans it is a figure that says so.
    """
    info = _data(plans, workload)
    if info.missing:
        return message_figure(TITLE, info.missing, info.to_frame())
    labels = [str(label) for label in plans]
    first = start_at(labels, start)
    shown_labels = [clean(label) for label in labels]
    what_ifs = info.plans.assign(shown=shown_labels)
    rows = max(1, int(info.actors.groupby("label").size().max()) if len(info.actors) else 1)
    fig = figure_of(info.to_frame(), rows=1, cols=3, column_widths=[0.36, 0.3, 0.34], horizontal_spacing=0.085)
    columns = [c for _ in info.kinds for c in (1, 2)] + [3]
    for trace, col in zip(_frame(info, labels[first], rows), columns, strict=True):
        fig.add_trace(trace, row=1, col=col)
    random = POLICY_STYLES["random"]
    for column, name, look, marker in (
        ("cost_usd", "plan", {"color": POLICY_STYLES["solver"].colour}, {"symbol": "star", "size": 7}),
        ("split_usd", "random split", {"color": random.colour, "width": 1.5}, {"symbol": random.symbol, "size": 6}),
        ("bound_usd", "lower bound of the cost", {"color": BOUND, "dash": "dash", "width": 2}, {"size": 1}),
    ):
        if info.plans[column].notna().any():
            at = "" if column == "bound_usd" else "<br>%{customdata:.3g} s"
            drawn = line(
                what_ifs, "shown", column, name=name, line=look, marker=marker,
                customdata=what_ifs["split_time_s" if column == "split_usd" else "time_s"],
                hovertemplate=f"<b>{name}</b><br>{clean(of)}: %{{x}}<br>%{{y:.4g}} USD{at}<extra></extra>",
            )  # fmt: skip
            fig.add_trace(drawn, row=1, col=3)
    latest = float(info.plans["time_s"].max())
    max_count = max((np.stack(counts["count"]).sum(axis=0).max() for _, counts in info.counts.groupby("label")), default=1)
    shown = list(range(0, rows, -(-rows // 24)))
    fig.update_xaxes(title="predicted length (tokens)", row=1, col=1)
    fig.update_yaxes(title="responses", range=[0, 1.08 * max_count], row=1, col=1)
    fig.update_xaxes(title="time (s)", range=[0, 1.04 * latest], row=1, col=2)
    fig.update_yaxes(title="actor", range=[rows - 0.4, -0.6], tickvals=shown, row=1, col=2)
    fig.update_xaxes(title=clean(of), type="category", categoryorder="array", categoryarray=shown_labels, row=1, col=3)
    fig.update_yaxes(title="cost of the step (USD)", rangemode="tozero", row=1, col=3)
    return with_frames(
        fig, TITLE, labels, first, lambda i: _frame(info, labels[i], rows), lambda i: _line(info, labels[i]), of=clean(of),
        px=(250, 120, 96), barmode="stack",
        panels=("responses by predicted length", "time of each actor", f"cost by {clean(of)}"),
    )  # fmt: skip


def _frame(info: _Data, label: str, rows: int) -> list[Any]:
    """Return one frame: lengths and actors by kind, then the plan among the what-ifs."""
    traces: list[Any] = []
    middle, width = (info.edges[:-1] + info.edges[1:]) / 2, np.diff(info.edges)
    for i, kind in enumerate(info.kinds):
        look = {"legendgroup": kind, "marker": hatched(COLOURS[i % len(COLOURS)], HATCHES[i % len(HATCHES)])}
        matching = info.counts[(info.counts["label"] == label) & (info.counts["kind"] == kind)]["count"]
        count = matching.iloc[0] if len(matching) else np.zeros(BINS)
        lengths = {
            **look, "name": f"actor of {clean(kind)}", "width": width, "showlegend": True,
            "hovertemplate": f"{clean(kind)}: %{{y}} responses of about %{{x:.0f}} tokens<extra></extra>",
        }  # fmt: skip
        traces += bars(pd.DataFrame({"responses": count}), middle, {"responses": lengths}, upright=True)
        actors = info.actors[(info.actors["label"] == label) & (info.actors["kind"] == kind)].set_index("actor")
        actors = actors[["responses", "shortest", "longest", "end_s", "usd"]].reindex(range(rows)).fillna(0)
        texts = [
            hover(
                [("responses", f"{int(a.responses):,} of {int(a.shortest):,} to {int(a.longest):,} tokens"),
                 ("done at", number(a.end_s, "s")), *cost_line(a.usd)],
                f"actor {a.Index}: {clean(kind)}",
            )
            for a in actors.itertuples()
        ]  # fmt: skip
        times = {**look, "name": clean(kind), "width": 0.66, "showlegend": False, "hovertext": texts}
        traces += bars(actors, actors.index, {"end_s": times})
    of_label = info.plans[info.plans["label"] == label]
    traces.append(this_plan([clean(label)] * len(of_label), of_label["cost_usd"], VERMILLION))
    return traces


def _line(info: _Data, label: str) -> str:
    """Describe the frame in words."""
    row = info.plans[info.plans["label"] == label].iloc[0]
    of_plan = info.actors[info.actors["label"] == label]
    kinds = ", ".join(f"{counted(len(actors), 'actor')} of {clean(kind)}" for kind, actors in of_plan.groupby("kind"))
    text = f"{kinds}: {number(row['time_s'], 's')}" + (f", {usd(row['cost_usd'])}" if row["cost_usd"] > 0 else "")
    if row["bound_usd"] > 0:
        gap = 1 - row["bound_usd"] / max(row["cost_usd"], 1e-300)
        text += f", lower bound {usd(row['bound_usd'])} (gap {gap:.1%})"
    return text
