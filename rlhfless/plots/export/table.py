"""Exports the data of a figure as one tidy table: a row per point, bar, cell or line, over all its frames.

Figures of any origin are accepted; ``checks.py`` defines the supported kinds of traces and their forms. Columns are named by
the titles of the axes, with units at their end (``time (s)`` becomes ``time_s``), or by the ``meta`` of a trace where an axis
has no title (``{"y": "plan"}``). Lines that only join points of other traces (no name, no hover) are no data.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from rlhfless.plots.export.axes import UNITS, Axes, Spec, column_name, plain, values_of
from rlhfless.plots.export.checks import check_form, counted, spec_of

FIRST = ("frame", "panel", "panel_title", "series", "line")
CUSTOM = re.compile(r"(?:(?:^|[>\s])(?P<before>[^<>:%]+): )?%\{customdata(?:\[(?P<at>\d+)\])?[^}]*\}(?P<after> [^<%]+)?")


def data_of(figure: Any) -> pd.DataFrame:
    """Return the data that a figure draws, as a table.

    Args:
        figure: a plotly figure, or its dictionary form (read from JSON, for example).

    Returns:
        ``series`` (the name in the legend), then a column per axis. Where there are several: ``frame`` (of a slider; empty for
        what is in all of them), ``panel`` (1 is the first) and ``panel_title``. Bars with a base have ``from_...`` and
        ``to_...``, error bars ``low_...`` and ``high_...``, heatmaps a row per cell. Tick texts are in their own column, and
        their numbers in ``..._at``. ``hover`` is the hover text, as plain text. A straight line across a panel is a row with a
        value for one axis only. Texts are as they were before they were made safe for HTML.

    Raises:
        InputError: it is no figure; a trace is of another kind than ``checks.KINDS``, has several levels of categories, error
            bars by anything but arrays, a heatmap's edges instead of its cells, or dates that are only counted on.
    """
    spec = spec_of(figure)
    layout, traces = spec.get("layout") or {}, list(spec.get("data") or ())
    axes = Axes(layout, traces)
    rows = [part for trace in _drawn(spec, traces) if (part := _rows(trace, axes)) is not None]
    rows += [pd.DataFrame([line]) for line in _straight_lines(layout, axes)]
    rows = [part.dropna(axis="columns", how="all") for part in rows if len(part)]
    if not rows:
        return pd.DataFrame(columns=["series"])
    table = pd.concat(rows, ignore_index=True)
    last = [name for name in ("text", "hover") if name in table]
    first = [name for name in FIRST if name in table]
    return table[[*first, *(name for name in table if name not in (*first, *last)), *last]].infer_objects()


def _drawn(spec: Spec, traces: Sequence[Spec]) -> Iterator[dict[str, Any]]:
    """Return every trace once: those that frames change in every frame, the others unchanged; decoration left out."""
    frames = spec.get("frames") or ()
    moving = {i for frame in frames for i in frame.get("traces") or range(len(frame["data"]))}
    every = [{**trace, "number": i} for i, trace in enumerate(traces) if i not in moving]
    for frame in frames:
        numbers = frame.get("traces") or range(len(frame["data"]))
        every += [
            {**traces[i], **changed, "frame": frame.get("name"), "number": i}
            for i, changed in zip(numbers, frame["data"], strict=False)
        ]
    return (trace for trace in every if trace.get("name") or trace.get("hoverinfo") != "skip")


def _rows(trace: Spec, axes: Axes) -> pd.DataFrame | None:
    pair = axes.pair(trace)
    head = {"frame": trace.get("frame"), **axes.panel(pair), "series": plain(trace.get("name") or "") or None}
    x, y, z = (values_of(trace.get(name)) for name in ("x", "y", "z"))
    check_form(trace, x, y, z)
    if z is not None:
        table = _cells(trace, z, x, y, pair, axes)
    elif x is None and y is None:
        return None
    else:
        columns: dict[str, Any] = {}
        count = min(len(found) for found in (x, y) if found is not None)  # plotly draws as many
        box = trace.get("type") in ("box", "violin", "histogram")
        for letter, found, axis in (("x", x, pair[0]), ("y", y, pair[1])):
            if found is None and not box:
                found = counted(trace, letter, count)
            if found is not None:
                columns |= _coordinates(trace, letter, found, axis, axes, columns)
        columns |= _besides(trace, count)
        table = pd.DataFrame({name: list(values)[:count] for name, values in columns.items()})
        table = _without_gaps(table, *(found if found is None else found[:count] for found in (x, y)))
    for place, (name, value) in enumerate(head.items()):
        table.insert(place, name, value)
    return table


def _coordinates(
    trace: Spec, letter: str, found: np.ndarray, axis: str, axes: Axes, others: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the columns of one axis."""
    name = axes.column(axis, _said(trace, letter))
    name = f"{name}_{letter}" if name in others else name
    along = "x" if trace.get("orientation") == "h" else "y"
    if trace.get("type") == "bar" and trace.get("base") is not None and letter == along:
        base = trace["base"]
        start = np.full(len(found), base) if np.isscalar(base) else values_of(base)
        start = np.asarray(start, dtype=float)
        return {f"from_{name}": start, f"to_{name}": start + np.asarray(found, dtype=float)}
    columns: dict[str, Any] = {name: [plain(value) if isinstance(value, str) else value for value in found]}
    if ticks := axes.ticks(axis):
        columns = {name: [ticks.get(value) for value in found], f"{name}_at": found}
    errors = trace.get(f"error_{letter}") or {}
    if errors.get("visible") is not False and (up := values_of(errors.get("array"))) is not None:
        down = values_of(errors.get("arrayminus"))
        middle = np.asarray(found, dtype=float)
        columns[f"low_{name}"] = middle - np.asarray(up if down is None else down, dtype=float)
        columns[f"high_{name}"] = middle + np.asarray(up, dtype=float)
    return columns


def _besides(trace: Spec, count: int) -> dict[str, Any]:
    """Return the other columns of a trace's points: custom data (named by the hover text), texts at points, hover texts."""
    columns: dict[str, Any] = {}
    custom = values_of(trace.get("customdata"))
    if custom is not None and len(custom) >= count:
        wide = np.ndim(custom[0]) == 1 if count else False
        for i in range(len(custom[0]) if wide else 1):
            name = _custom_name(trace, i if wide else None)
            columns[name] = [row[i] for row in custom] if wide else custom
    if "text" in str(trace.get("mode")):
        columns["text"] = _texts(trace.get("text"), count)
    if trace.get("hovertext") is not None:
        columns["hover"] = _texts(trace["hovertext"], count)
    return columns


def _said(trace: Spec, of: str) -> str:
    """Return the name that a trace's ``meta`` gives its custom data or an axis without title; or the empty text."""
    said = trace.get("meta")
    return str(said.get(of) or "") if isinstance(said, Mapping) else ""


def _custom_name(trace: Spec, at: int | None) -> str:
    """Return the name from the trace's ``meta`` or its hover text: ``with %{customdata} actors`` and ``busy: %{customdata} s``
    have the columns ``actors`` and ``busy_s``."""
    if said := _said(trace, "customdata"):
        return said
    for found in CUSTOM.finditer(str(trace.get("hovertemplate") or "")):
        if (int(found["at"]) if found["at"] else None) != at:
            continue
        before, after = (found["before"] or "").strip(), (found["after"] or "").strip()
        if after in UNITS:
            return f"{column_name(before, 'customdata')}_{UNITS[after]}"
        if before or after:
            return column_name(before or after, "customdata")
    return "customdata" if at is None else f"customdata_{at}"


def _texts(stored: Any, count: int) -> list[str | None]:
    """Return one plain text per point; lines of a hover text are separated by semicolons."""
    texts = [stored] * count if isinstance(stored, str) else [*stored, *[""] * count][:count]
    return [plain(str(text).replace("<br>", "; ")) or None for text in texts]


def _cells(
    trace: Spec, z: np.ndarray, x: np.ndarray | None, y: np.ndarray | None, pair: tuple[str, str], axes: Axes
) -> pd.DataFrame:
    """Return a row per cell of a heatmap."""
    height, width = len(z), len(z[0]) if len(z) else 0
    across = counted(trace, "x", width) if x is None else x
    down = counted(trace, "y", height) if y is None else y
    columns = _coordinates({}, "y", np.repeat(down, width), pair[1], axes, {})
    columns |= _coordinates({}, "x", np.tile(across, height), pair[0], axes, columns)
    title = ((trace.get("colorbar") or {}).get("title") or {}).get("text")
    columns[column_name(title or trace.get("name"), "z")] = [value for row in z for value in row]
    custom = values_of(trace.get("customdata"))
    if custom is not None and np.ndim(custom[0]) == 1:
        columns[_custom_name(trace, None)] = [value for row in custom for value in row]
    return pd.DataFrame(columns)


def _without_gaps(table: pd.DataFrame, x: np.ndarray | None, y: np.ndarray | None) -> pd.DataFrame:
    """Remove the gaps between the lines of a trace; the lines are numbered instead."""
    gap = np.all([pd.isna(found) for found in (x, y) if found is not None], axis=0)
    if not gap.any():
        return table
    return table.assign(line=1 + np.cumsum(gap))[~gap]


def _straight_lines(layout: Spec, axes: Axes) -> Iterator[dict[str, Any]]:
    """Return lines across a panel with the text at them: bounds, limits, and published values."""
    notes = layout.get("annotations") or ()
    for shape in layout.get("shapes") or ():
        if shape.get("type") != "line":
            continue
        for along, across in (("x", "y"), ("y", "x")):
            crossed, reference = str(shape.get(f"{across}ref") or across), str(shape.get(f"{along}ref") or along)
            if not (crossed == "paper" or crossed.endswith("domain")) or shape[f"{along}0"] != shape[f"{along}1"]:
                continue
            value = shape[f"{along}0"]
            at = (note for note in notes if note.get(along) == value and str(note.get(f"{along}ref") or along) == reference)
            other = crossed.removesuffix(" domain") if crossed != "paper" else across
            pair = (reference, other) if along == "x" else (other, reference)
            text = next((plain(note.get("text") or "") for note in at), "")
            yield {**axes.panel(pair), "series": text or "line", axes.column(reference): value}
