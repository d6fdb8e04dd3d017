"""Slices of requests: one for each response whose times are known, on as many tracks as run at once, and their counters.

A response that moved between actors has a slice at each of them, joined by arrows. Its tokens are assumed to be generated at
an even pace from its first token to its last one; this is what the counter of KV tokens shows between the logged times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from rlhfless.trace.io import Trace
from rlhfless.trace.perfetto.moves import ResponseMove
from rlhfless.trace.perfetto.slices import ArrowNumbers, Counter, Slice, all_us, disjoint_lanes
from rlhfless.trace.schema.casts import is_null, jsonable

REQUESTS = "requests"  # the process of responses whose actor is unknown
GRID = 1_000  # further times at which KV tokens are shown, evenly over the run
ARGS = ("step", "prompt_id", "sample", "prompt_tokens", "response_tokens", "finish_reason")
LONGEST_NAME = 80  # characters of a prompt's id


class RequestPiece(NamedTuple):
    """The time of a response on one actor; ``part`` counts them, from 1. ``last``: it ended there."""

    row: int
    actor: str
    start_s: float
    end_s: float
    part: int
    last: bool


@dataclass(frozen=True, eq=False)
class RunRequests:
    """The responses of one run whose times are known.

    Attributes:
        rows: by start, with ``first_s`` (as the start where the first token's time is unknown).
        pieces: of all rows, by start; actor is the empty text where it is unknown.
    """

    rows: pd.DataFrame
    pieces: list[RequestPiece]

    @property
    def actors(self) -> list[str]:
        """Return the actors of the pieces, in the order in which they are first met."""
        return list(dict.fromkeys(piece.actor for piece in self.pieces))


def timed(rollouts: pd.DataFrame) -> pd.Series:
    """Return for each (r,) response whether its slice is known: it has a start and an end."""
    if not {"start_s", "end_s"} <= set(rollouts.columns):
        return pd.Series(False, index=rollouts.index)
    return rollouts["start_s"].notna() & rollouts["end_s"].notna()


def requests_of(trace: Trace, run: str, moved: Sequence[ResponseMove]) -> RunRequests:
    """Return the requests of a run.

    Args:
        moved: of the same trace.
    """
    rows = trace.rollouts[(trace.rollouts["run"] == run) & timed(trace.rollouts)]
    if rows.empty:
        return RunRequests(rows, [])
    known = rows["first_token_s"] if "first_token_s" in rows.columns else rows["start_s"]
    rows = rows.assign(first_s=known.fillna(rows["start_s"]).clip(lower=rows["start_s"], upper=rows["end_s"]))
    actors = rows["actor"] if "actor" in rows.columns else pd.Series("", index=rows.index)
    hops = _hops(trace, run, moved)
    pieces: list[RequestPiece] = []
    for label, actor, start_s, end_s in zip(rows.index, actors, rows["start_s"], rows["end_s"], strict=True):
        pieces += _pieces(label, "" if is_null(actor) else str(actor), float(start_s), float(end_s), hops.get(label, []))
    pieces.sort(key=lambda piece: (piece.start_s, piece.row))
    return RunRequests(rows, pieces)


def _hops(trace: Trace, run: str, moved: Sequence[ResponseMove]) -> dict[Any, list[ResponseMove]]:
    """Return the moves of each response by its label; the number of a response is its place among those of the step."""
    hops: dict[Any, list[ResponseMove]] = defaultdict(list)
    own = [move for move in moved if move.run == run and not move.copied_first]
    if own:
        rollouts = trace.rollouts[trace.rollouts["run"] == run]
        labels = {step: group.index for step, group in rollouts.groupby("step", sort=False)}
        for move in own:
            of_step = labels.get(move.step, ())
            if 0 <= move.response < len(of_step):
                hops[of_step[move.response]].append(move)
    return hops


def _pieces(label: int, actor: str, start_s: float, end_s: float, hops: Sequence[ResponseMove]) -> list[RequestPiece]:
    """Cut a response's time at its moves, if these lead to its last actor one after the other within that time."""
    senders, receivers = [hop.sender for hop in hops], [hop.receiver for hop in hops]
    times = [start_s, *(at_s for hop in hops for at_s in (hop.leave_s, hop.arrive_s)), end_s]
    leads_there = receivers == [*senders[1:], actor]
    if not hops or not leads_there or times != sorted(times):
        return [RequestPiece(label, actor, start_s, end_s, 1, True)]
    where = [*senders, actor]
    return [
        RequestPiece(label, name, times[2 * i], times[2 * i + 1], i + 1, i == len(hops)) for i, name in enumerate(where)
    ]  # fmt: skip


def process_of(actor: str) -> str:
    """Return the name of the process with an actor's requests."""
    return f"{REQUESTS}, {actor}" if actor else REQUESTS


def request_slices(
    requests: RunRequests, actor: str, drawn: Collection[Any], numbers: ArrowNumbers
) -> Iterator[tuple[int, Slice]]:
    """Yield the slices of an actor's pieces by start, each with its lane.

    Args:
        drawn: labels of the responses that are drawn. numbers: of the arrows between pieces.
    """
    own = [piece for piece in requests.pieces if piece.actor == actor and piece.row in drawn]
    start_us = all_us(np.array([piece.start_s for piece in own])).tolist()
    end_us = all_us(np.array([piece.end_s for piece in own])).tolist()
    rows = requests.rows
    places = rows.index.get_indexer([piece.row for piece in own])
    columns = {name: rows[name].to_numpy(dtype=object)[places] for name in ARGS}
    first_s, began_s = (rows[name].to_numpy(dtype=float)[places] for name in ("first_s", "start_s"))
    for i, (piece, lane) in enumerate(zip(own, disjoint_lanes(start_us, end_us), strict=True)):
        args = {name: values[i] for name, values in columns.items() if not is_null(values[i])}
        if piece.part == 1 and first_s[i] > began_s[i]:
            args["seconds_to_first_token"] = round(float(first_s[i] - began_s[i]), 6)
        flows: list[tuple[str, int, int]] = []
        if piece.part > 1:
            flows.append(("f", numbers((piece.row, piece.part)), start_us[i]))
        if not piece.last:
            flows.append(("s", numbers((piece.row, piece.part + 1)), max(start_us[i], end_us[i] - 1)))
        if flows:
            args["part"] = piece.part
        title = f"{args['prompt_id'][:LONGEST_NAME]} / {args['sample']}"
        yield lane, Slice(title, start_us[i], end_us[i], "request", jsonable(args), tuple(flows))


def batch_counter(requests: RunRequests, actor: str, most: int) -> Counter:
    """Requests of an actor that are in flight, at most ``most`` values."""
    own = [piece for piece in requests.pieces if piece.actor == actor]
    start, end = (np.array([getattr(piece, name) for piece in own]) for name in ("start_s", "end_s"))
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
    own = [piece for piece in requests.pieces if actor is None or piece.actor == actor]
    places = rows.index.get_indexer([piece.row for piece in own])
    prompt, tokens = (rows[name].to_numpy(dtype=float)[places] for name in ("prompt_tokens", "response_tokens"))
    first, ended = (rows[name].to_numpy(dtype=float)[places] for name in ("first_s", "end_s"))
    start, end = (np.array([getattr(piece, name) for piece in own]) for name in ("start_s", "end_s"))
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
