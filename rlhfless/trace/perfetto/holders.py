"""Slices of those who hold GPUs, of the steps of a run and of its events: the rows of ``tracks`` with their arguments.

All consecutive phases of generation of a holder are inside one slice ``rl.sample``.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from rlhfless.trace.io import Trace
from rlhfless.trace.moves import ResponseMove
from rlhfless.trace.perfetto.slices import ArrowNumbers, Slice, Tracks, all_us, us
from rlhfless.trace.schema.casts import is_null, jsonable
from rlhfless.trace.tracks import tracks

SAMPLING = ("prefill", "transfer", "decode", "migrate")
ARGS = {
    "allocations": ("step", "gpu_ids", "kind", "market", "usd_per_gpu_s"),
    "spans": ("step", "call", "batch_mean", "slots", "tokens", "kv_tokens", "bytes", "from_actor", "detail"),
    "events": ("step", "holder", "detail"),
}
TITLES = {"gpu_ids": "gpus"}


def holder_slices(trace: Trace, moved: Sequence[ResponseMove], numbers: ArrowNumbers) -> Tracks:
    """Return the slices of a trace by track; background spans are on separate tracks.

    Args:
        moved: moves of responses, each an arrow from its span at the sender to that at the receiver. numbers: of the arrows.
    """
    rows = tracks(trace, tables=(*ARGS, "steps"))
    is_span = rows["table"] == "spans"
    rows = pd.concat([rows[~is_span], rows[is_span].sort_values(["start_s", "end_s"], kind="stable")])
    rows = rows.assign(start_us=all_us(rows["start_s"].to_numpy()), end_us=all_us(rows["end_s"].to_numpy()))
    arrows = _arrows(moved, numbers)
    args: dict[str, Mapping[Any, dict[str, Any]]] = {
        table: _arguments(getattr(trace, table), names, nulls=table == "allocations") for table, names in ARGS.items()
    }
    found: Tracks = {}
    keys = ["table", "run", "step", "panel", "track", "background"]
    for (table, run, step, panel, track, behind), group in rows.groupby(keys, sort=False, observed=True):
        flows = arrows if table == "spans" else {}
        columns = (group[name].tolist() for name in ("label", "name", "start_us", "end_us", "category"))
        slices = [
            Slice(
                name, start_us, end_us, category, args[table][label] if table in args else {"step": step}, flows.get(label, ())
            )
            for label, name, start_us, end_us, category in zip(*columns, strict=True)
        ]
        where = found.setdefault((run, panel, f"{track}, background" if behind else track), [])
        where += slices + (_samplings(slices) if table == "spans" else [])
    return found


def _arguments(table: pd.DataFrame, names: Sequence[str], nulls: bool) -> dict[Any, dict[str, Any]]:
    """Return what is said of the rows of a table, by their labels; what is unknown is left out, or null."""
    values = [table[name].tolist() for name in names]
    titles = [TITLES.get(name, name) for name in names]
    return {
        label: jsonable({title: value for title, value in zip(titles, row, strict=True) if nulls or not is_null(value)})
        for label, row in zip(table.index, zip(*values, strict=True), strict=True)
    }


def _arrows(moved: Sequence[ResponseMove], numbers: ArrowNumbers) -> dict[Any, tuple[tuple[str, int, int], ...]]:
    """Return ends of arrows by the label of their span: from the start of a move to its arrival."""
    arrows: dict[Any, tuple[tuple[str, int, int], ...]] = {}
    for move in moved:
        if move.source is not None and us(move.leave_s) < us(move.arrive_s):
            number = numbers(("span", move.source))
            arrows[move.source] = (("s", number, us(move.leave_s)),)
            arrows[move.target] = (("f", number, us(move.arrive_s) - 1),)
    return arrows


def _samplings(slices: Sequence[Slice]) -> list[Slice]:
    """Return one ``rl.sample`` slice around all consecutive phases of generation; ``slices`` are sorted by start."""
    samples = []
    for sampling, group in itertools.groupby(slices, key=lambda entry: entry.category in SAMPLING):
        if sampling:
            grouped = list(group)
            end_us, args = max(entry.end_us for entry in grouped), {"step": grouped[0].args["step"]}
            samples.append(Slice("rl.sample", grouped[0].start_us, end_us, "generation", args))
    return samples
