"""Slices of requests: one for each response whose times are known, on as many tracks as run at once, and their counters.

A response that moved between actors has a slice at each of them, joined by arrows. Its tokens are assumed to be generated at
an even pace from its first token to its last one; this is what the counter of KV tokens shows between the logged times.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from rlhfless.trace.io import Trace
from rlhfless.trace.perfetto.slices import ArrowNumbers, Counter, Slice, all_us, disjoint_lanes
from rlhfless.trace.schema.casts import is_null, jsonable
from rlhfless.trace.tracks import tracks

GRID = 1_000  # further times at which KV tokens are shown, evenly over the run
ARGS = ("step", "prompt_id", "sample", "prompt_tokens", "response_tokens", "finish_reason")
LONGEST_NAME = 80  # characters of a prompt's id


@dataclass(frozen=True, eq=False)
class RunRequests:
    """The responses of one run whose times are known.

    Attributes:
        rows: of the trace, with ``first_s`` (as the start where the first token's time is unknown).
        pieces: rows of ``tracks``, one per response and actor, by start.
    """

    rows: pd.DataFrame
    pieces: pd.DataFrame

    @property
    def actors(self) -> list[str]:
        """Return the actors of the pieces, in the order in which they are first met."""
        return list(self.pieces["track"].unique())

    def of(self, actor: str | None) -> pd.DataFrame:
        """Return the pieces of an actor, or all of them."""
        return self.pieces if actor is None else self.pieces[self.pieces["track"] == actor]


def requests_of(trace: Trace, run: str) -> RunRequests:
    """Return the requests of a run."""
    pieces = tracks(trace, run, tables=("rollouts",)).sort_values(["start_s", "label"], kind="stable")
    rows = trace.rollouts.loc[pieces["label"].unique()]
    if rows.empty:
        return RunRequests(rows, pieces)
    known = rows["first_token_s"] if "first_token_s" in rows.columns else rows["start_s"]
    first_s = known.fillna(rows["start_s"]).clip(lower=rows["start_s"], upper=rows["end_s"])
    return RunRequests(rows.assign(first_s=first_s), pieces)


def request_slices(
    requests: RunRequests, actor: str, drawn: Collection[Any], numbers: ArrowNumbers
) -> Iterator[tuple[int, Slice]]:
    """Yield the slices of an actor's pieces by start, each with its lane.

    Args:
        drawn: labels of the responses that are drawn. numbers: of the arrows between pieces.
    """
    own = requests.of(actor)
    own = own[own["label"].isin(drawn)]
    start_us, end_us = (all_us(own[name].to_numpy()).tolist() for name in ("start_s", "end_s"))
    rows = requests.rows
    places = rows.index.get_indexer(own["label"])
    columns = {name: rows[name].to_numpy(dtype=object)[places] for name in ARGS}
    first_s, began_s = (rows[name].to_numpy(dtype=float)[places] for name in ("first_s", "start_s"))
    pieces = own[["label", "part", "parts"]].itertuples(index=False)
    for i, (piece, lane) in enumerate(zip(pieces, disjoint_lanes(start_us, end_us), strict=True)):
        args = {name: values[i] for name, values in columns.items() if not is_null(values[i])}
        if piece.part == 1 and first_s[i] > began_s[i]:
            args["seconds_to_first_token"] = round(float(first_s[i] - began_s[i]), 6)
        flows: list[tuple[str, int, int]] = []
        if piece.part > 1:
            flows.append(("f", numbers((piece.label, piece.part)), start_us[i]))
        if piece.part < piece.parts:
            flows.append(("s", numbers((piece.label, piece.part + 1)), max(start_us[i], end_us[i] - 1)))
        if flows:
            args["part"] = piece.part
        title = f"{args['prompt_id'][:LONGEST_NAME]} / {args['sample']}"
        yield lane, Slice(title, start_us[i], end_us[i], "request", jsonable(args), tuple(flows))


def batch_counter(requests: RunRequests, actor: str, most: int) -> Counter:
    """Requests of an actor that are in flight, at most ``most`` values."""
    own = requests.of(actor)
    start, end = (own[name].to_numpy() for name in ("start_s", "end_s"))
    ones = np.ones(len(own))
    return "batch", "requests", step_values(np.concatenate([start, end]), np.concatenate([ones, -ones]), most)


def kv_counter(requests: RunRequests, actor: str | None, most: int) -> Counter | None:
    """KV tokens (prompt and tokens so far) of an actor's requests in flight, or of all; None where a prompt length is unknown.

    Args:
        most: values at most.
    """
    rows = requests.rows
    if not len(rows) or rows["prompt_tokens"].isna().any():
        return None
    own = requests.of(actor)
    places = rows.index.get_indexer(own["label"])
    prompt, tokens = (rows[name].to_numpy(dtype=float)[places] for name in ("prompt_tokens", "response_tokens"))
    first, ended = (rows[name].to_numpy(dtype=float)[places] for name in ("first_s", "end_s"))
    start, end = (own[name].to_numpy() for name in ("start_s", "end_s"))
    pace = np.divide(tokens, ended - first, out=np.zeros_like(tokens), where=ended > first)
    origin = start.min()
    grows = np.clip(first, start, end)  # before, only the prompt is held
    at_s = np.concatenate([start, grows, end]) - origin
    base = prompt - pace * (first - origin)
    levels = np.concatenate([prompt, base - prompt, -base])
    paces = np.concatenate([np.zeros_like(pace), pace, -pace])
    running = np.concatenate([np.ones_like(pace), np.zeros_like(pace), -np.ones_like(pace)])
    shown = np.unique(np.concatenate([at_s, np.linspace(at_s.min(), at_s.max(), GRID)]))
    order = np.argsort(at_s, kind="stable")
    upto = np.searchsorted(at_s[order], shown, side="right") - 1
    sums = [np.cumsum(changes[order])[upto] for changes in (levels, paces, running)]
    values = np.where(np.round(sums[2]) > 0, np.maximum(np.round(sums[0] + sums[1] * shown), 0.0), 0.0)
    return "KV tokens", "tokens", thinned(all_us(shown + origin), values, most)


def step_values(at_s: np.ndarray, changes: np.ndarray, most: int) -> list[tuple[int, float]]:
    """Values of a sum that changes at (N,) times, after each; rounded to what floats keep of it. At most ``most``."""
    order = np.argsort(at_s, kind="stable")
    sums = np.maximum(np.round(np.cumsum(changes[order]), 9), 0.0)
    return thinned(all_us(at_s[order]), sums, most)


def thinned(at_us: np.ndarray, values: np.ndarray, most: int) -> list[tuple[int, float]]:
    """Return the last value of every microsecond; of more than ``most`` evenly chosen ones, with the first and the last."""
    points = list(dict(zip(at_us.tolist(), values.tolist(), strict=True)).items())
    if len(points) <= most:
        return points
    return [points[i] for i in np.unique(np.linspace(0, len(points) - 1, most).round().astype(int))]
