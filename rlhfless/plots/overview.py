"""Plots where the time or the GPU-seconds of a run went as one bar, and what the best schedule would save.

Inputs are the uses of an ``analysis.Account`` and a row of ``analysis.savings``, or the phases of a ``Diagnosis``. Idle GPUs
and empty slots are two kinds of waste, and both are named.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from rlhfless.plots.bars import bars
from rlhfless.plots.data_figure import DataFigure
from rlhfless.plots.palette import BOUND, GREEN, GREY, OCCUPANCY_SCALE, OUTLINE, PHASE_STYLES, VERMILLION, ink_on
from rlhfless.plots.style import WIDE_ONLY, clean, cost_line, hover, message_figure, number, styled, usd
from rlhfless.plots.tables import figure_of

TITLE = "Where the GPU-seconds went"
STEP = "One step as logged"
RUN = "this run"
SLOT = "a slot is room for one response in a replica's batch; empty slots cost as much as used ones"
WORK_COLOURS = {
    use: PHASE_STYLES[phase].colour
    for use, phase in {
        "decoding, slots in use": "decode", "prefill": "prefill", "starting actors": "start", "weight sync": "sync",
        "transferring KV caches": "transfer", "preparation": "prepare", "learning": "learn", "sending weights": "sync",
        "generation": "decode", "waiting for generation": "start", "rewards and log probabilities": "prepare",
    }.items()
}  # fmt: skip
"""Of uses of GPU-seconds, and of kinds of phases."""
SAVED, MOST = "GPU-seconds mean", "GPU-seconds most"  # of a row of savings
LITTLE, LETTER_SHARE = 0.005, 0.0085  # shares of the bar: of what is rounded to nothing, and of a letter


def plot_overview(uses: pd.DataFrame, best: pd.Series | None = None) -> DataFigure:
    """Plot a run's GPU-seconds by use as one bar, above what the best schedule would take and the lower bound.

    Args:
        uses: ``use, kind, gpu_s, usd, share`` of ``analysis.Account.lines``; or ``phase, kind, seconds, share`` of
            ``Diagnosis.step``, which makes a bar of the seconds of one step.
        best: the change that would help most: a row of ``analysis.savings``.

    Returns:
        A figure, whose table is ``uses``; without GPU-seconds or seconds one that says so.
    """
    return _of_step(uses) if "seconds" in uses else _of_run(uses, best)


def _of_step(phases: pd.DataFrame) -> DataFigure:
    """Return the bar of one step by phase; a phase's colour is that of its kind."""
    if phases.empty:
        return message_figure(STEP, "The log has no time of a step.", phases)
    fig, total, parts = figure_of(phases), float(phases["seconds"].sum()), {}
    for place, row in enumerate(phases.itertuples()):
        name = clean(f"{str(row.phase).rpartition('/')[2]} ({row.share:.0%})")
        said = [("seconds", number(row.seconds, "s")), ("share", f"{row.share:.1%}")]
        colour, text = WORK_COLOURS.get(str(row.kind), GREY), hover(said, clean(row.phase))
        parts[place] = _part(name, row.share, colour, text, _fits(name, row.share))
    fig.add_traces(bars(pd.DataFrame([phases["seconds"].tolist()]), ["step"], parts))
    fig.update_yaxes(visible=False)
    fig.update_xaxes(title="seconds", range=[0, 1.02 * total])
    legend = {"orientation": "h", "x": 0, "xanchor": "left", "y": -0.6, "yanchor": "top", "traceorder": "normal"}
    return styled(fig, f"{STEP}: {number(total, 's')}", height=230, barmode="stack", legend=legend)


def _of_run(uses: pd.DataFrame, best: pd.Series | None) -> DataFigure:
    total = float(uses["gpu_s"].sum()) if len(uses) else 0.0
    if not total:
        return message_figure(TITLE, "No GPU was allocated.", uses)
    fig, paid, done, parts = figure_of(uses), float(uses["usd"].sum(skipna=False)), 0.0, {}
    for place, row in enumerate(uses.itertuples()):
        said = [("GPU-seconds", number(row.gpu_s)), ("share", f"{row.share:.1%}"), *cost_line(row.usd)]
        name = f"{clean(row.use)} ({row.share:.0%})"
        works, colour = row.kind == "work", WORK_COLOURS.get(row.use, GREY)
        part = _part(name, row.share, colour, hover(said, clean(row.use)), works and _fits(name, row.share))
        parts[place] = part if works else {**part, "marker": _waste(row.kind, colour)}
        if not works and _fits(name, row.share):  # pale on light and dark on dark paper, as the figure's own ink expects
            fig.add_annotation(x=done + row.gpu_s / 2, y=RUN, text=name, showarrow=False, name=WIDE_ONLY)
        done += row.gpu_s
    fig.add_traces(bars(pd.DataFrame([uses["gpu_s"].tolist()]), [RUN], parts))
    names, longest = [RUN], total
    if best is not None and best[SAVED] == best[SAVED]:
        after, saved, most = clean(f"with {best['policy']}", 30), float(best[SAVED]), float(best[MOST])
        longest = total * max(1.0, 1.0 - saved)
        for label, share, colour, at_most in (
            [(after, saved, GREEN, "")] + [("lower bound", most, BOUND, "at most ")] * (most > 0)
        ):  # fmt: skip
            names.append(label)
            words = f"{at_most}{abs(share):.0%} {'saved' if share >= 0 else 'more'}"
            texts = [number(total * (1 - share), "GPU-seconds"), usd(paid * (1 - share)), words]
            look = {
                "marker": {"color": colour}, "hoverinfo": "skip", "showlegend": False, "insidetextanchor": "start",
                "constraintext": "none", "cliponaxis": False,
            }  # fmt: skip
            sums = {"text": [", ".join(filter(None, texts))], "textposition": "inside" if share < 0.55 else "outside"}
            fig.add_traces(bars(pd.DataFrame({"gpu_s": [total * (1 - share)]}), [label], {"gpu_s": {**look, **sums}}))
    all_of_it = ", ".join(filter(None, [number(total, "GPU-seconds"), usd(paid)]))
    fig.update_yaxes(categoryorder="array", categoryarray=names[::-1], showgrid=False)
    fig.update_xaxes(title=f"GPU-seconds (this run: {all_of_it})", range=[0, 1.02 * longest])
    legend = {"orientation": "h", "x": 0, "xanchor": "left", "y": -0.42, "yanchor": "top", "traceorder": "normal"}
    empty, idle = (float(uses.loc[uses["kind"] == kind, "gpu_s"].sum()) / total for kind in ("empty slots", "idle"))
    subtitle = "<br>".join(filter(None, [_change(best), SLOT if empty >= LITTLE else ""]))
    styled(
        fig, _verdict(empty, idle), subtitle, height=250 + 44 * len(names) + 16 * bool(subtitle), barmode="stack", bargap=0.25,
        legend=legend,
    )  # fmt: skip
    fig.update_layout(margin={"b": 108}, uniformtext={"minsize": 10, "mode": "hide"})
    return fig


def _verdict(empty: float, idle: float) -> str:
    """Both kinds of waste, as shares of the GPU-seconds, in one sentence without a full stop."""
    unused = f"{idle:.0%}" if idle >= LITTLE else "none"
    if empty < LITTLE:
        return f"{unused} of the GPU-seconds were idle"
    return f"{empty:.0%} of the GPU-seconds went to empty slots, and {unused} were idle"


def _change(best: pd.Series | None) -> str:
    """The change that would help most in one sentence, without a full stop; the empty text where nothing is known."""
    if best is None or not best["policy"]:
        return ""
    saved, faster = float(best[SAVED]), float(best["time mean"])
    most = f"no schedule that takes as long saves more than {float(best[MOST]):.0%}"
    if saved <= 0 and faster <= 0:
        return f"No simulated schedule saves anything; {most} of the GPU-seconds"
    cost = f"{'saves' if saved >= 0 else 'costs'} {abs(saved):.0%} of the GPU-seconds"
    time = f"takes {abs(faster):.0%} {'less' if faster >= 0 else 'more'} time" if abs(faster) >= LITTLE else "takes as long"
    return f"The schedule {clean(best['policy'], 30)} {cost} and {time}; {most}"


def _fits(name: str, share: float) -> bool:
    """Return whether there is room for a name on a part with this share of the bar."""
    return share >= LETTER_SHARE * len(name)


def _part(name: str, share: float, colour: str, text: str, named: bool) -> dict[str, Any]:
    """Return the look of one part of a bar, with its name on it where it is ``named``."""
    return {
        "name": name, "showlegend": share >= LITTLE, "marker": {"color": colour, "line": {"color": OUTLINE, "width": 1}},
        "hovertext": [text], "text": [name if named else ""], "textposition": "inside", "insidetextanchor": "middle",
        "textangle": 0, "constraintext": "inside", "insidetextfont": {"color": ink_on(colour)},
    }  # fmt: skip


def _waste(kind: str, colour: str) -> dict[str, Any]:
    """Return fill and hatch of what is no work: pale blue for empty slots, hatched for idle GPUs."""
    outline = {"color": OUTLINE, "width": 1}
    if kind == "idle":
        hatch = {"shape": "/", "fgcolor": VERMILLION, "bgcolor": "rgba(213,94,0,0.12)", "size": 9, "solidity": 0.1,
                 "fillmode": "replace"}  # fmt: skip
        return {"color": "rgba(213,94,0,0.12)", "line": outline, "pattern": hatch}
    return {"color": OCCUPANCY_SCALE[0][1] if kind == "empty slots" else colour, "line": outline}
