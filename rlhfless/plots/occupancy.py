"""Share of an actor's slots that are in use over time, from the spans of decoding and the times of the responses.

A span says the mean batch of its whole time only. Where the trace has the times and moves of responses, the batch at every
moment is counted from them, and scaled so that its mean is that of the span. Else a span has its mean throughout.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

MAX_PIECES = 640
"""Pieces of all spans of a step: a slider of a dashboard waits until they are drawn."""

PER_SPAN = 32
SAME = 0.02  # neighbouring pieces are one where their shares differ by less
AGREES = 0.2  # relative difference between a counted and a recorded mean batch; above, the count is not used
MOVES = ("move", "cut")  # events that name the receivers of responses
TIMES = ("actor", "start_s", "end_s")


def decode_pieces(spans: pd.DataFrame, rollouts: pd.DataFrame, events: pd.DataFrame) -> pd.DataFrame:
    """Return the decode spans in pieces of time with the share of slots in use.

    Args:
        spans, rollouts, events: of one step.

    Returns:
        ``span`` (position in ``spans``), ``start_s, end_s, in_use``; NaN where a span lacks its batch or slots.
    """
    decode = np.flatnonzero((spans["phase"] == "decode").to_numpy())
    start, end, batch = (spans[name].to_numpy(dtype=float)[decode] for name in ("start_s", "end_s", "batch_mean"))
    slots = spans["slots"].to_numpy(dtype=float, na_value=np.nan)[decode]
    count = min(PER_SPAN, MAX_PIECES // max(1, len(decode)))
    running = _running(rollouts, events) if count > 1 else {}
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


def _running(rollouts: pd.DataFrame, events: pd.DataFrame) -> Mapping[str, NDArray[np.float64]]:
    """Return by holder (2, N): when responses began and ended on it. Empty where a response lacks its times."""
    if any(name not in rollouts or rollouts[name].isna().any() for name in TIMES):
        return {}
    moves = _moves(events)
    parts: dict[str, list[tuple[float, float]]] = {}
    for response, (actor, begin, end) in enumerate(zip(*(rollouts[name].tolist() for name in TIMES), strict=True)):
        for time_s, sender, _ in moves.get(response, ()):
            parts.setdefault(sender, []).append((begin, time_s))
            begin = time_s
        parts.setdefault(actor, []).append((begin, end))
    return {holder: np.array(intervals, dtype=float).T for holder, intervals in parts.items()}


def _moves(events: pd.DataFrame) -> Mapping[int, list[tuple[float, str, str]]]:
    """Return when and from where to where responses moved, by their place in the step."""
    moves: dict[int, list[tuple[float, str, str]]] = {}
    of_moves = events[events["name"].isin(MOVES) & events["detail"].notna()].sort_values("time_s", kind="stable")
    for event in of_moves.itertuples():
        detail: Any = json.loads(event.detail)
        receivers = detail.get("to") if isinstance(detail, dict) else None
        for receiver, responses in receivers.items() if isinstance(receivers, dict) else ():
            for response in responses if isinstance(responses, list) else ():
                moves.setdefault(response, []).append((event.time_s, event.holder, receiver))
    return moves
