"""Checks whether a figure can be exported as a table; the error names the trace that cannot.

Figures and traces are plotly dictionaries.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np
from plotly.basedatatypes import BaseFigure

from rlhfless.errors import InputError
from rlhfless.plots.export.axes import Spec, plain

KINDS = ("scatter", "scattergl", "bar", "box", "violin", "histogram", "heatmap", "contour")
CELLS = ("heatmap", "contour")


def spec_of(figure: Any) -> Spec:
    """Return a figure, or its dictionary form, as a dictionary.

    Raises:
        InputError: it is neither.
    """
    spec = figure.to_dict() if isinstance(figure, BaseFigure) else figure
    if not isinstance(spec, Mapping) or "data" not in spec:
        raise InputError(f"a {type(figure).__name__} is no figure; a plotly figure, or one as a dictionary, is needed")
    return spec


def check_form(trace: Spec, x: np.ndarray | None, y: np.ndarray | None, z: np.ndarray | None) -> None:
    """Raise an InputError for a trace whose kind, coordinates or error bars cannot be written as a table."""
    kind = trace.get("type") or "scatter"
    if kind not in KINDS:
        raise _refused(trace, f"is a {kind}", f"only {', '.join(KINDS)} have a table")
    for letter, found in (("x", x), ("y", y)):
        if found is not None and len(found) and np.ndim(found[0]):
            raise _refused(trace, f"has several levels of {letter}", "one value per point is needed")
        if (how := _errors(trace, letter)) != "data":
            raise _refused(trace, f"has error bars by {how!r:.80}", f"give error_{letter} as an array")
    if kind in CELLS and z is not None:
        _check_cells(trace, z, x, y)


def counted(trace: Spec, letter: str, count: int) -> np.ndarray:
    """Return the coordinates of a trace that has none of its own: from ``x0`` on, ``dx`` apart (default 0 and 1).

    Raises:
        InputError: one of them is no number, such as a date.
    """
    start, step = (trace.get(name) for name in (f"{letter}0", f"d{letter}"))
    for name, value in ((f"{letter}0", start), (f"d{letter}", step)):
        if value is not None and not isinstance(value, Real):
            raise _refused(trace, f"has {name} {value!r:.80}", f"a number is needed, or {letter} itself")
    return (0 if start is None else start) + (1 if step is None else step) * np.arange(count)


def _errors(trace: Spec, letter: str) -> str:
    """Return the type of the error bars, as plotly reads it: ``data`` where they are arrays or there are none."""
    errors = trace.get(f"error_{letter}") or {}
    if errors.get("visible") is False:
        return "data"
    otherwise = "percent" if errors.get("array") is None and errors.get("value") is not None else "data"
    return str(errors.get("type") or otherwise)


def _check_cells(trace: Spec, z: np.ndarray, x: np.ndarray | None, y: np.ndarray | None) -> None:
    if any(np.ndim(row) != 1 for row in z) or len({len(row) for row in z}) > 1:
        raise _refused(trace, "has a z that is no table of cells", "rows of one length are needed")
    if trace.get("transpose"):
        raise _refused(trace, "is transposed", "a z with a row per y is needed")
    width = len(z[0]) if len(z) else 0
    for letter, found, cells in (("x", x, width), ("y", y, len(z))):
        if found is not None and len(found) != cells:
            raise _refused(trace, f"has {len(found)} values of {letter} for {cells} cells", "one per cell is needed, no edges")


def _refused(trace: Spec, wrong: str, right: str) -> InputError:
    name = plain(trace.get("name") or "")
    return InputError(f"trace {trace.get('number', 0)}{f' ({name:.80})' if name else ''} {wrong}; {right}")
