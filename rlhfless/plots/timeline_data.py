"""Data of a step's GPU timeline: allocations, spans, events and the plan as rows, in seconds since the step's start.

Input is any trace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from rlhfless.plots.last_response import LastResponse, last_response
from rlhfless.plots.occupancy import decode_pieces
from rlhfless.plots.style import clean, hover, number, usd
from rlhfless.plots.tables import stacked
from rlhfless.plots.tracks import track_label
from rlhfless.trace import DecodeCapacity, Trace, decode_capacity
from rlhfless.trace.metrics.step_metrics import billed_allocations
from rlhfless.trace.tracks import PlannedActor, of_step, planned_actors, timed, tracks

ALLOCATION_COLUMNS = "row start_s end_s gpu_seconds idle_gpu_seconds slot_idle_gpu_seconds hover"
NO_REQUESTS = pd.DataFrame({"track": [], "start_s": [], "end_s": []})
NO_CAPACITY = DecodeCapacity(0.0, 0.0, 0.0)
MAX_SPANS = 10_000
"""A step with more spans is drawn as a heatmap: no browser draws that many bars well."""


class StepTimeline(NamedTuple):
    """The data of the timeline of one step; times are seconds since the step's start.

    Attributes:
        run, step, start_s: of which step, and when it began in the run.
        holders: rows from top to bottom. labels: a clean label per row. only_actors: all of them have the role decode.
        allocations: ``row, start_s, end_s, gpu_seconds, idle_gpu_seconds, slot_idle_gpu_seconds, hover``.
        spans: ``row, phase, start_s, end_s, background, in_use, hover``; ``in_use`` as below, mean over the span.
        decoding: the decode spans in pieces, ``row, start_s, end_s, in_use`` (share of the actor's slots; NaN when unknown),
            ``hover``.
        planned: ``row, start_s, end_s, hover``, from the step's plan.
        events: ``row, name, time_s, hover``; events without a holder are in the first row.
        time_s, gpu_seconds, idle_gpu_seconds, cost_usd: of the step; NaN without allocations, dollars also without a price.
        capacity: paid and empty decode capacity. last: the response that the step waited for; None when unknown.
        generation_s: when the last actor had decoded; NaN without such spans.
        sizes: ``(holders, GPUs of each, kind)`` of every size of allocation, smallest first.
        missing: why there is nothing to show, or the empty text.
    """

    run: str
    step: int
    start_s: float
    holders: tuple[str, ...]
    labels: tuple[str, ...]
    allocations: pd.DataFrame
    spans: pd.DataFrame
    planned: pd.DataFrame
    events: pd.DataFrame
    time_s: float
    gpu_seconds: float
    idle_gpu_seconds: float
    cost_usd: float
    only_actors: bool = False
    missing: str = ""
    decoding: pd.DataFrame = pd.DataFrame()
    capacity: DecodeCapacity = NO_CAPACITY
    last: LastResponse | None = None
    generation_s: float = float("nan")
    sizes: tuple[tuple[int, int, str], ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return all bars and events below each other, with their holders."""

        def held(bars: pd.DataFrame) -> pd.DataFrame:
            if bars.empty:
                return bars
            named = bars.assign(holder=[self.holders[row] for row in bars["row"]]).drop(columns=["row", "hover"])
            return named.astype({"phase": str}) if "phase" in named else named

        return stacked(
            allocations=held(self.allocations), spans=held(self.spans), decoding=held(self.decoding),
            planned=held(self.planned), events=held(self.events),
        )  # fmt: skip


def of_roles(trace: Trace, roles: Collection[str]) -> Trace:
    """Return the trace with only the allocations of these roles, and the spans and events of their holders."""
    held = trace.allocations[trace.allocations["role"].isin(list(roles))]
    keys = pd.MultiIndex.from_frame(held[["run", "step", "holder"]])

    def of_holders(table: pd.DataFrame) -> pd.DataFrame:
        return table[pd.MultiIndex.from_frame(table[["run", "step", "holder"]]).isin(keys)]

    return trace.with_rows(allocations=held, spans=of_holders(trace.spans), events=of_holders(trace.events))


def step_timeline(
    trace: Trace,
    step: int | None = None,
    run: str | None = None,
    *,
    max_spans: int = MAX_SPANS,
    between_s: tuple[float, float] | None = None,
) -> StepTimeline:
    """Return the data of ``plot_timeline``.

    Args:
        trace: any trace. step: the last one when None. run: the first one of the trace when None.
        max_spans: if there are more spans, none of them gets a hover text, as they are not drawn one by one.
        between_s: leave out the spans and events outside this part of the step, in seconds since its start. Sums are always of
            the whole step.
    """
    run = str(trace.rollouts["run"].iloc[0]) if run is None else run
    step = trace.steps[-1] if step is None else step
    rows = tracks(trace, run, step, ("allocations", "spans"))
    allocations, spans, events, rollouts = (
        of_step(table, run, step) for table in (trace.allocations, trace.spans, trace.events, trace.rollouts)
    )
    if rows.empty:
        steps = trace.steps
        missing = f"Step {step} has no allocations or spans: the log holds lengths, without times of GPUs."
        if step not in steps:
            missing = f"There is no step {step}; " + (
                f"the steps are {steps[0]} to {steps[-1]}." if steps else "the trace has no steps."
            )
        elif run not in trace.runs:
            missing = f"There is no run {run}; the runs are {', '.join(trace.runs[:3])}{' and others' * (len(trace.runs) > 3)}."
        none, nan = pd.DataFrame(), float("nan")
        return StepTimeline(run, step, 0.0, (), (), none, none, none, none, nan, nan, nan, nan, missing=missing)
    held = billed_allocations(allocations, spans)
    recorded = held if len(held) else spans
    start_s = float(recorded["start_s"].min())
    plans = [plan for plan in trace.plans if plan.get("step") == step and plan.get("run", run) == run]
    planned = planned_actors(plans[0]) if plans else ()
    row, tracked = pd.factorize(rows["track"])
    holders = tracked.tolist()
    bars = rows.assign(row=row).iloc[len(held) :]
    generating = bars["end_s"][bars["category"].isin(["prefill", "decode"])]
    if between_s is not None:
        low, high = start_s + between_s[0], start_s + between_s[1]
        within = ((bars["end_s"] > low) & (bars["start_s"] < high)).to_numpy()
        bars, spans = bars[within], spans[within]
        events = events[events["time_s"].between(low, high)]
    names = [actor.holder for actor in planned]
    holders += [name for name in names if name not in holders] if set(names) & set(holders) else []
    row_of = {name: row for row, name in enumerate(holders)}
    gpus = held.drop_duplicates("holder").set_index("holder")["gpu_ids"].to_dict()
    drawn = len(spans) <= max_spans
    requests = _requests(trace, rollouts, run, step) if drawn else NO_REQUESTS
    bars = _span_bars(bars, spans, start_s, with_hover=drawn)
    sums = held[["gpu_seconds", "idle_gpu_seconds", "cost_usd"]].sum(skipna=False, min_count=1).astype(float)
    return StepTimeline(
        run,
        step,
        start_s,
        tuple(holders),
        tuple(track_label(name, gpus.get(name, ())) for name in holders),
        _frame(_allocation_bars(held, row_of, start_s), ALLOCATION_COLUMNS),
        bars,
        _frame(_planned_bars(planned, row_of, recorded, start_s), "row start_s end_s hover"),
        _frame(_event_marks(events, row_of, start_s), "row name time_s hover"),
        float(held["end_s"].max() - held["start_s"].min()),
        sums["gpu_seconds"],
        sums["idle_gpu_seconds"],
        sums["cost_usd"],
        only_actors=len(held) > 0 and bool((held["role"] == "decode").all()),
        decoding=_decode_bars(bars, spans if drawn else spans.iloc[:0], requests, start_s),
        capacity=decode_capacity(held),
        last=last_response(rollouts, row_of, start_s),
        generation_s=float(generating.max()) - start_s,
        sizes=_sizes(held),
    )


def sorted_by_end(info: StepTimeline) -> StepTimeline:
    """Return the same timeline with the rows whose last span ends last on top."""
    ends = info.spans.groupby("row")["end_s"].max() if len(info.spans) else pd.Series(dtype=float)
    order = ends.reindex(range(len(info.holders))).fillna(0.0).sort_values(ascending=False, kind="stable").index.tolist()
    place = {row: at for at, row in enumerate(order)}
    tables = {name: getattr(info, name) for name in ("allocations", "spans", "planned", "events", "decoding")}
    moved = {name: table.assign(row=table["row"].map(place)) if len(table) else table for name, table in tables.items()}
    return info._replace(
        holders=tuple(info.holders[row] for row in order), labels=tuple(info.labels[row] for row in order),
        last=info.last and info.last._replace(row=place[info.last.row]), **moved,
    )  # fmt: skip


def _frame(rows: Iterator[dict[str, Any]], columns: str) -> pd.DataFrame:
    return pd.DataFrame(list(rows), columns=columns.split())


def _sizes(held: pd.DataFrame) -> tuple[tuple[int, int, str], ...]:
    """Return how many holders have so many GPUs of a kind."""
    first = held.drop_duplicates("holder")
    found = Counter((len(ids), str(kind)) for ids, kind in zip(first["gpu_ids"], first["kind"], strict=True))
    return tuple((holders, gpus, kind) for (gpus, kind), holders in sorted(found.items()))


def _allocation_bars(held: pd.DataFrame, row_of: Mapping[str, int], start_s: float) -> Iterator[dict[str, Any]]:
    for allocation in held.itertuples():
        begin, end = allocation.start_s - start_s, allocation.end_s - start_s
        text = [
            ("role", clean(allocation.role)),
            ("GPUs", clean(f"{', '.join(map(str, allocation.gpu_ids)) or 'none'} ({allocation.kind}, {allocation.market})")),
            ("allocated", f"{number(begin, 's')} to {number(end, 's')}"),
            ("cost", ", ".join(filter(None, [number(allocation.gpu_seconds, "GPU-seconds"), usd(allocation.cost_usd)]))),
            ("idle", number(allocation.idle_gpu_seconds, "GPU-seconds")),
            ("empty slots (not part of idle)", number(allocation.slot_idle_gpu_seconds, "GPU-seconds")),
        ]
        yield {
            "row": row_of[allocation.holder], "start_s": begin, "end_s": end, "gpu_seconds": allocation.gpu_seconds,
            "idle_gpu_seconds": allocation.idle_gpu_seconds, "slot_idle_gpu_seconds": allocation.slot_idle_gpu_seconds,
            "hover": hover(text, f"{clean(allocation.holder)}: allocated"),
        }  # fmt: skip


def _span_bars(bars: pd.DataFrame, spans: pd.DataFrame, start_s: float, with_hover: bool) -> pd.DataFrame:
    in_use = spans["batch_mean"].to_numpy(dtype=float) / spans["slots"].to_numpy(dtype=float, na_value=float("nan"))
    return pd.DataFrame(
        {
            "row": bars["row"].to_numpy(), "phase": bars["category"].array, "start_s": bars["start_s"].to_numpy() - start_s,
            "end_s": bars["end_s"].to_numpy() - start_s, "background": bars["background"].to_numpy(),
            "in_use": np.where(bars["category"] == "decode", in_use, float("nan")),
            "hover": list(_span_hovers(spans, start_s)) if with_hover else "",
        }
    )  # fmt: skip


def _requests(trace: Trace, rollouts: pd.DataFrame, run: str, step: int) -> pd.DataFrame:
    """Return the rows of the responses of a step; none where one lacks its actor or times: the others are not the batch."""
    known = "actor" in rollouts and bool((timed(rollouts) & rollouts["actor"].notna()).all())
    return tracks(trace, run, step, ("rollouts",)) if known else NO_REQUESTS


def _decode_bars(bars: pd.DataFrame, spans: pd.DataFrame, requests: pd.DataFrame, start_s: float) -> pd.DataFrame:
    """Return the pieces of the decode spans; ``bars`` are those of the spans, in their order."""
    pieces = decode_pieces(spans, requests)
    at = pieces["span"].to_numpy(dtype=int)
    slots = spans["slots"].to_numpy(dtype=float, na_value=float("nan"))[at]
    hovers = [
        head if share != share else f"{head}<br>slots in use, in this part: {number(share * all_slots)} ({share:.1%})"
        for head, share, all_slots in zip(bars["hover"].to_numpy()[at], pieces["in_use"], slots, strict=True)
    ]
    return pd.DataFrame(
        {
            "row": bars["row"].to_numpy()[at], "start_s": pieces["start_s"] - start_s, "end_s": pieces["end_s"] - start_s,
            "in_use": pieces["in_use"], "hover": hovers,
        }
    )  # fmt: skip


def _span_hovers(spans: pd.DataFrame, start_s: float) -> Iterator[str]:
    optional = {"batch_mean": "mean batch", "slots": "slots", "tokens": "tokens", "kv_tokens": "KV tokens", "bytes": "bytes"}
    values = {name: spans[name].astype(float).tolist() for name in optional}
    for i, span in enumerate(spans.itertuples()):
        begin, end = span.start_s - start_s, span.end_s - start_s
        text = [("time", f"{number(begin, 's')} to {number(end, 's')}"), ("took", number(end - begin, "s"))]
        text += [(title, number(values[name][i])) for name, title in optional.items() if values[name][i] == values[name][i]]
        text += [("from", clean(span.from_actor))] if isinstance(span.from_actor, str) else []
        yield hover(text, f"{clean(span.holder)}: {span.phase}" + (" (in the background)" if span.background else ""))


def _planned_bars(
    planned: Iterable[PlannedActor], row_of: Mapping[str, int], recorded: pd.DataFrame, start_s: float
) -> Iterator[dict[str, Any]]:
    ended = recorded.groupby("holder")["end_s"].max()
    for name, begin, end, responses in planned:
        if name not in row_of:
            continue
        text = [("responses", f"{responses:,}"), ("complete at", number(end, "s"))]
        if name in ended:
            late = float(ended[name]) - start_s - end
            text.append(("released", f"{number(abs(late), 's')} {'later' if late > 0 else 'earlier'} than planned"))
        yield {"row": row_of[name], "start_s": begin, "end_s": end, "hover": hover(text, f"{clean(name)}: planned")}


def _event_marks(events: pd.DataFrame, row_of: Mapping[str, int], start_s: float) -> Iterator[dict[str, Any]]:
    for event in events.itertuples():
        holder = event.holder if isinstance(event.holder, str) else ""
        text = [("time", number(event.time_s - start_s, "s"))]
        text += [("detail", clean(event.detail, 120))] if isinstance(event.detail, str) else []
        head = f"{clean(holder)}: {clean(event.name)}" if holder else clean(event.name)
        yield {"row": row_of.get(holder, 0), "name": event.name, "time_s": event.time_s - start_s, "hover": hover(text, head)}
