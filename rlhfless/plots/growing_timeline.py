"""Draws the timeline of a step again and again while the step runs: the bars of ``timeline.py``, in a bounded number.

Input is a ``StepSoFar``. The result is plotly's JSON, because plotly's own objects take more time than the drawing. The layout
is made by plotly once for every set of rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import plotly.graph_objects as go

from rlhfless.plots.clock import clock_words
from rlhfless.plots.style import clean, counted, hover, is_dark, number, styled, titles, usd
from rlhfless.plots.tracks import (
    ALLOCATED,
    BACKGROUND_NOTE,
    DRAWN_PHASES,
    PLANNED,
    PLANNED_NOTE,
    SHADES_NOTE,
    bar_trace,
    decode_style,
    event_marks,
    phase_style,
    shade_samples,
    track_axis,
    track_label,
)
from rlhfless.trace.metrics.growing_step import Bar, Held, StepSoFar

DIGITS = 5  # of the longest time: finer than a pixel
HOVER = "%{base:~f} s, lasts %{x:~f} s"


def growing_timeline(now: StepSoFar) -> dict[str, Any]:
    """Return the timeline of a step until now as plotly's JSON, ``data`` and ``layout``; times are seconds of the step.

    Where many spans are one bar, the subtitle says within how many seconds.
    """
    rows = {held.holder: row for row, held in enumerate(_first_of_each(now.held))}
    bars_of: dict[tuple[str, bool], list[Bar]] = {}
    for bar in now.bars:
        bars_of.setdefault((bar.phase, bar.background), []).append(bar)
        if bar.holder not in rows:
            rows[bar.holder] = len(rows)
    start_s = now.cost.start_s
    places = max(0, DIGITS - 1 - math.floor(math.log10(max(now.cost.end_s - start_s, 1e-9))))
    data, notes = [_allocations(now.held, rows, start_s, places)] if now.held else [], []
    if now.bar_s:
        notes.append(f"{now.spans:,} spans; those of a phase that begin within {number(now.bar_s, 's')} are one bar")
    for phase in DRAWN_PHASES:
        for background in (False, True):
            if bars := bars_of.get((phase, background)):
                data += _phase(phase, background, bars, rows, start_s, places)
    if any(not math.isnan(bar.in_use) for behind in (False, True) for bar in bars_of.get(("decode", behind), ())):
        notes.append(SHADES_NOTE)
    planned = [actor for actor in now.planned if actor[0] in rows]
    if planned:
        times = {
            "base": [round(begin, places) for _, begin, _, _ in planned], "y": [rows[holder] for holder, *_ in planned],
            "x": [round(end - begin, places) for _, begin, end, _ in planned],
        }  # fmt: skip
        responses = [f"planned, {counted(n, 'response')}" for *_, n in planned]
        data.append(_bars(times, PLANNED, "%{customdata}<br>" + HOVER, customdata=responses))
        notes.append(PLANNED_NOTE)
    if any(background for _, background in bars_of):
        notes.append(BACKGROUND_NOTE)
    data += _events(now, rows, start_s, places)
    text, _ = titles(title := f"GPU timeline of step {now.step}", below := "<br>".join([_sums(now), "; ".join(notes)]))
    gpus = {each.holder: each.gpu_ids for each in now.held}
    labels = tuple(track_label(holder, gpus.get(holder, ())) for holder in rows)
    layout = _layout(labels, *_lines(title, below), is_dark())
    return {
        "data": data,
        "layout": {**layout, "title": {**layout["title"], "text": text}, "uirevision": f"step {now.step}"},
    }


def _first_of_each(held: Iterable[Held]) -> list[Held]:
    return list({each.holder: each for each in reversed(list(held))}.values())[::-1]


def _sums(now: StepSoFar) -> str:
    cost = now.cost
    idle = f"{cost.idle_gpu_seconds / cost.gpu_seconds:.1%} idle" if cost.gpu_seconds > 0 else ""
    parts = [
        counted(cost.actors, "actor"), number(cost.end_s - cost.start_s, "s"), number(cost.gpu_seconds, "GPU-seconds"),
        usd(cost.cost_usd), idle, "" if cost.complete else "so far",
    ]  # fmt: skip
    return "; ".join(filter(None, [", ".join(filter(None, parts)), clock_words(now.meta)]))


def _bars(times: dict[str, Any], style: dict[str, Any], text: str, **further: Any) -> dict[str, Any]:
    return bar_trace(**times, **style, hovertemplate=f"{text}<extra></extra>", **further)


def _allocations(held: Sequence[Held], rows: dict[str, int], start_s: float, places: int) -> dict[str, Any]:
    times = {
        "base": [round(h.start_s - start_s, places) for h in held], "x": [round(h.end_s - h.start_s, places) for h in held],
        "y": [rows[h.holder] for h in held],
    }  # fmt: skip
    texts = [
        hover(
            [
                ("role", clean(h.role)),
                ("GPUs", clean(f"{', '.join(map(str, h.gpu_ids)) or 'none'} ({h.kind}, {h.market})")),
                ("cost", ", ".join(filter(None, [number(h.gpu_seconds, "GPU-seconds"), usd(h.cost_usd)]))),
                ("idle", number(h.idle_gpu_seconds, "GPU-seconds")),
            ],
            f"{clean(h.holder)}: allocated",
        )
        for h in held
    ]
    return _bars(times, ALLOCATED, "%{customdata}<br>" + HOVER, customdata=texts)


def _phase(
    phase: str, background: bool, bars: Sequence[Bar], rows: dict[str, int], start_s: float, places: int
) -> list[dict[str, Any]]:
    base, busy_s, shares = np.array([(bar.start_s - start_s, bar.busy_s, bar.in_use) for bar in bars]).T
    times = {
        "base": base.round(places).tolist(), "x": busy_s.round(places).tolist(), "y": [rows[bar.holder] for bar in bars],
    }  # fmt: skip
    name, text = f"{phase} (background)" if background else phase, f"<b>{phase}</b><br>{HOVER}"
    if phase != "decode":
        return [_bars(times, phase_style(phase, background), text, legendgroup=name)]
    if np.isnan(shares).any():
        return [_bars(times, decode_style(name=name), text)]
    text += "<br>slots in use: %{marker.color:.0%}"
    return [_bars(times, decode_style(shares.round(3).tolist(), name), text), *shade_samples(shares)]


def _events(now: StepSoFar, rows: dict[str, int], start_s: float, places: int) -> Iterator[dict[str, Any]]:
    names = sorted({str(event["name"]) for event in now.events})
    for i, name in enumerate(names):
        events = [event for event in now.events if event["name"] == name]
        at = [rows.get(event["holder"], 0) if isinstance(event["holder"], str) else 0 for event in events]
        times = [round(event["time_s"] - start_s, places) for event in events]
        yield event_marks(i, name, times, at, hovertemplate=f"{clean(name)}: %{{x:~f}} s<extra></extra>")


def _lines(title: str, below: str) -> tuple[str, str]:
    """Return texts with as many lines as the title and the subtitle have: they decide the layout's height."""
    _, further = titles(title, below)
    return title, "<br>".join(["."] * (1 + further // 15))


@lru_cache(maxsize=64)
def _layout(labels: tuple[str, ...], title: str, below: str, dark: bool) -> dict[str, Any]:
    """Return the layout of a timeline with these rows; its title is replaced."""
    fig = go.Figure()
    fig.update_yaxes(**track_axis(labels), title="actor or learner (its GPUs)")
    fig.update_xaxes(title="time since the start of the step (s)", rangemode="tozero")
    height = int(min(780, max(420, 190 + 34 * len(labels))))
    styled(fig, title, below, height=height, barmode="overlay", title_font_size=13)
    return fig.layout.to_plotly_json()  # type: ignore[no-any-return]
