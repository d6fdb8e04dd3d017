"""Share of an actor's slots that are in use over time, from the spans of decoding and the times of the responses.

A span says the mean batch of its whole time only. Where the trace has the times and moves of responses, the batch at every
moment is counted from them, and scaled so that its mean is that of the span. Else a span has its mean throughout.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd
from numpy.typing import NDArray

MAX_PIECES = 640
"""Pieces of all spans of a step: a slider of a dashboard waits until they are drawn."""

PER_SPAN = 32
SAME = 0.02  # neighbouring pieces are one where their shares differ by less
AGREES = 0.2  # relative difference between a counted and a recorded mean batch; above, the count is not used


def decode_pieces(spans: pd.DataFrame, requests: pd.DataFrame) -> pd.DataFrame:
    """Return the decode spans in pieces of time with the share of slots in use.

    Args:
        spans: of one step. requests: the rows of its responses, as of ``tracks``; none where one lacks its actor or times.

    Returns:
        ``span`` (position in ``spans``), ``start_s, end_s, in_use``; NaN where a span lacks its batch or slots.
    """
    decode = np.flatnonzero((spans["phase"] == "decode").to_numpy())
    start, end, batch = (spans[name].to_numpy(dtype=float)[decode] for name in ("start_s", "end_s", "batch_mean"))
    slots = spans["slots"].to_numpy(dtype=float, na_value=np.nan)[decode]
    count = min(PER_SPAN, MAX_PIECES // max(1, len(decode)))
    running = _running(requests) if count > 1 else {}
    rows: list[tuple[int, float, float, float]] = []
    for i, holder in enumerate(spans["holder"].to_numpy()[decode]):
        edges = np.linspace(start[i], end[i], count + 1)
        in_use = _counted(running.get(holder), edges, batch[i])
        if in_use is None:
            rows.append((int(decode[i]), start[i], end[i], batch[i] / slots[i]))
        else:
            rows += [(int(decode[i]), *piece) for piece in _joined(edges, in_use / slots[i])]
    return pd.DataFrame(rows, columns=["span", "start_s", "end_s", "in_use"])


def _counted(running: NDArray[np.float64] | None, edges: NDArray[np.float64], mean: float) -> NDArray[np.float64] | None:
    """Return the mean number of responses between two edges; None where responses do not explain the recorded mean."""
    width = edges[-1] - edges[0]
    if running is None or not width > 0 or not mean > 0:
        return None
    begin, until = running
    seconds = np.array([np.maximum(np.minimum(until, edge) - begin, 0.0).sum() for edge in edges])
    counted = (seconds[-1] - seconds[0]) / width
    if abs(counted - mean) > AGREES * mean:
        return None
    return np.asarray(np.diff(seconds) / np.diff(edges) * (mean / counted))


def _joined(edges: NDArray[np.float64], shares: NDArray[np.float64]) -> Iterator[tuple[float, float, float]]:
    """Join neighbours of about the same share; the share of a piece is the mean over its time."""
    first = 0
    for i in range(1, len(shares) + 1):
        if i == len(shares) or abs(shares[i] - shares[first]) >= SAME:
            yield float(edges[first]), float(edges[i]), float(shares[first:i].mean())
            first = i


def _running(requests: pd.DataFrame) -> Mapping[str, NDArray[np.float64]]:
    """Return by holder (2, N): when responses began and ended on it."""
    times = requests[["start_s", "end_s"]].to_numpy(dtype=float)
    return {str(holder): times[at].T for holder, at in requests.groupby("track", observed=True).indices.items()}
