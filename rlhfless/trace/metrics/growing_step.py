"""Sums and bars of a step while its record grows: what a live view shows.

Every update takes in only the spans that came since the one before; a complete step is taken in with array operations.
GPU-seconds, idle GPU-seconds and dollars are those that ``step_metrics`` makes of the same rows. The number of bars is bounded.
With more spans than ``MOST_BARS``, those of one phase of a holder that begin within the same ``bar_s`` seconds are one bar, as
long as all of them together. Bars that no later span changes are made once, so an update makes only the last of each holder.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from rlhfless.trace.io import Trace
from rlhfless.trace.metrics.step_metrics import billed_steps
from rlhfless.trace.tracks import PlannedActor, planned_actors

MOST_BARS, MOST_EVENTS = 1000, 100
Row = Mapping[str, Any]


class StepCost(NamedTuple):
    """What a step was billed, or a running step until now: a row of ``plot_cost_over_time``.

    Attributes:
        start_s, end_s: of its allocations, in seconds since the run's start.
        idle_gpu_seconds: of the allocated ``gpu_seconds``. cost_usd: NaN where a GPU has no price.
        complete: whether the step is.
    """

    step: int
    start_s: float
    end_s: float
    gpu_seconds: float
    idle_gpu_seconds: float
    cost_usd: float
    actors: int
    complete: bool

    @classmethod
    def of(cls, trace: Trace, sums: pd.DataFrame | None = None, *, complete: bool) -> StepCost:
        """Return what the only step of a trace was billed; ``sums`` is its row of ``step_metrics``, where that is known."""
        held = trace.allocations
        (billed,) = (billed_steps(held, trace.spans) if sums is None else sums).itertuples()
        times = float(held["start_s"].min()), float(held["end_s"].max())
        sums = float(billed.gpu_seconds), float(billed.idle_gpu_seconds), float(billed.cost_usd)
        return cls(int(billed.step), *times, *sums, int(billed.actors), complete)


class Bar(NamedTuple):
    """A span as it is drawn, or several of one phase that begin close together.

    Attributes:
        busy_s: their seconds together. in_use: mean share of the actor's slots in these seconds; NaN where unknown.
    """

    holder: str
    phase: str
    background: bool
    start_s: float
    busy_s: float
    in_use: float


class Held(NamedTuple):
    """GPUs that a holder has been allocated until now, and what they cost."""

    holder: str
    role: str
    node: int
    kind: str
    market: str
    gpu_ids: tuple[int, ...]
    start_s: float
    end_s: float
    gpu_seconds: float
    idle_gpu_seconds: float
    cost_usd: float


@dataclass(frozen=True)
class StepSoFar:
    """A step up to one moment of its own clock.

    Attributes:
        completed, of: number of complete and of all responses. now_s: that moment, in seconds since the run's start.
        bars: at most ``MOST_BARS``, or a few for each holder. spans: number of spans that they stand for.
        bar_s: spans that begin within so many seconds are one bar; 0 where every span is a bar.
        events: at most ``MOST_EVENTS`` of the step's, evenly.
        planned: what its plan says of the actors.
        meta: as of a trace: clock, charging and profile.
    """

    step: int
    completed: int
    of: int
    now_s: float
    cost: StepCost
    held: Sequence[Held]
    bars: Sequence[Bar]
    spans: int
    bar_s: float
    events: Sequence[Row]
    planned: Sequence[PlannedActor]
    meta: Mapping[str, Any]


class BusyTime:
    """The union of a holder's foreground spans. A span that comes in order takes the same time however many came before."""

    def __init__(self) -> None:
        self._starts: list[float] = []  # of disjoint intervals, in order
        self._ends: list[float] = []
        self._before_s: list[float] = []  # seconds of all earlier intervals

    @classmethod
    def of(cls, starts_s: np.ndarray, ends_s: np.ndarray) -> BusyTime:
        """Return the union of (N,) intervals, in any order."""
        order = np.argsort(starts_s, kind="stable")
        start, until = starts_s[order], np.maximum.accumulate(ends_s[order])
        first = np.flatnonzero(np.concatenate([[True], start[1:] > until[:-1]]))
        last = np.append(first[1:], len(start)) - 1
        start, end = start[first], until[last]
        busy = cls()
        busy._starts, busy._ends = start.tolist(), end.tolist()
        busy._before_s = np.concatenate([[0.0], np.cumsum(end - start)[:-1]]).tolist()
        return busy

    def add(self, start_s: float, end_s: float) -> None:
        """Add an interval, which may overlap others and may begin before them."""
        first, last = bisect_left(self._ends, start_s), bisect_right(self._starts, end_s)
        if first < last:  # those that it overlaps or touches
            start_s, end_s = min(start_s, self._starts[first]), max(end_s, self._ends[last - 1])
        self._starts[first:last], self._ends[first:last] = [start_s], [end_s]
        del self._before_s[first:]
        for i in range(first, len(self._starts)):
            self._before_s.append(self._before_s[i - 1] + self._ends[i - 1] - self._starts[i - 1] if i else 0.0)

    def within(self, start_s: float, end_s: float) -> float:
        """Return the seconds that are covered between two times."""
        return max(0.0, self._until(end_s) - self._until(start_s))

    def _until(self, time_s: float) -> float:
        i = bisect_right(self._starts, time_s) - 1
        return 0.0 if i < 0 else self._before_s[i] + min(time_s, self._ends[i]) - self._starts[i]


@dataclass(slots=True)
class _Drawn:
    """A bar that may still grow; ``in_use_s``: its seconds, each times the share of slots in use."""

    start_s: float
    busy_s: float
    in_use_s: float


@dataclass
class _Settled:
    """Bars of one holder as they are drawn, which later spans do not change.

    Attributes:
        of: how many they are of each lane's first ones. border: they have a smaller ``_place``; a span that has one, too, is
            late. at_s: where the last one in the foreground ends.
    """

    bars: list[Bar] = field(default_factory=list)
    of: dict[tuple[str, bool], int] = field(default_factory=dict)
    border: float = -math.inf
    at_s: float = -math.inf


@dataclass
class _Last:
    """The last span of a phase of a holder, which may grow, as decoding does while its engine goes on, and what was counted."""

    row: Row
    end_s: float
    in_use_s: float
    drawn: _Drawn


@dataclass
class GrowingStep:
    """The spans of one step so far.

    Attributes:
        start_s: when the step began. plan: as in ``Trace.plans``.
        spans: how many were taken in. bar_s: see ``StepSoFar``.
    """

    start_s: float
    plan: Row = field(default_factory=dict)
    spans: int = 0
    bar_s: float = 0.0
    _busy: dict[str, BusyTime] = field(default_factory=dict)
    _lanes: dict[str, dict[tuple[str, bool], list[_Drawn]]] = field(default_factory=dict)  # in order, by holder and phase
    _settled: dict[str, _Settled] = field(default_factory=dict)
    _last: dict[tuple[str, str], _Last] = field(default_factory=dict)
    _end_s: float = -math.inf
    _bars: int = 0
    _lane_count: int = 0

    def __post_init__(self) -> None:
        self.planned = planned_actors(self.plan)

    @classmethod
    def of_table(cls, spans: pd.DataFrame, start_s: float, plan: Row) -> GrowingStep:
        """Return a step whose spans are all known, in a few array operations: it does not grow.

        Args:
            spans: of one step, as ``Trace.spans``. start_s, plan: see the class.
        """
        grown = cls(start_s, plan)
        if spans.empty:
            return grown
        start, end = spans["start_s"].to_numpy(dtype=float), spans["end_s"].to_numpy(dtype=float)
        (holder, holders), (phase, phases) = (pd.factorize(spans[name].to_numpy()) for name in ("holder", "phase"))
        background = spans["background"].to_numpy(dtype=bool)
        batch, slots = (spans[name].to_numpy(dtype=float, na_value=math.nan) for name in ("batch_mean", "slots"))
        decoding = (spans["phase"].to_numpy() == "decode") & (slots > 0)
        in_use_s = np.where(decoding, (end - start) * batch / np.where(decoding, slots, 1.0), math.nan)
        for i, name in enumerate(holders):
            if len(at := np.flatnonzero((holder == i) & ~background)):
                grown._busy[name] = BusyTime.of(start[at], end[at])
        grown.spans, grown._end_s = len(spans), float(end.max())

        lane = (holder * len(phases) + phase) * 2 + background
        order = np.lexsort((start, lane))
        lane, start, busy_s, in_use_s = lane[order], start[order], (end - start)[order], in_use_s[order]
        lanes = 1 + int(np.count_nonzero(np.diff(lane)))
        most = max(MOST_BARS, 4 * lanes)
        first = np.arange(len(start))
        if len(start) > most:
            length_s = max(grown._end_s - start_s, 1e-9)
            grown.bar_s = length_s * lanes / (most // 2) / 4
            while True:
                place = (start - start_s) // grown.bar_s
                first = np.flatnonzero(np.concatenate([[True], (np.diff(lane) != 0) | (np.diff(place) != 0)]))
                if len(first) <= most // 2 or grown.bar_s > 2 * length_s:
                    break
                grown.bar_s *= 2
        bars = zip(start[first].tolist(), *(np.add.reduceat(one, first).tolist() for one in (busy_s, in_use_s)), strict=True)
        for number, bar in zip(lane[first].tolist(), bars, strict=True):
            which, behind = divmod(number, 2)
            name, key = holders[which // len(phases)], (phases[which % len(phases)], bool(behind))
            grown._lanes.setdefault(name, {}).setdefault(key, []).append(_Drawn(*bar))
        grown._bars, grown._lane_count = len(first), lanes
        return grown

    def take(self, rows: Sequence[Row]) -> None:
        """Take in the spans that were recorded since the last call, and what a holder's last foreground spans have grown by.

        Args:
            rows: all spans of the step, in the order in which they were recorded.
        """
        for last in self._last.values():
            if last.row["end_s"] != last.end_s:
                self._grow(last)
        for row in rows[self.spans :]:
            self._add(row)
        self.spans = len(rows)

    def so_far(
        self,
        step: int,
        allocations: Iterable[Row],
        *,
        responses: tuple[int, int] = (0, 0),
        now_s: float = math.inf,
        events: Sequence[Row] = (),
        meta: Row | None = None,
        further: GrowingStep | None = None,
    ) -> StepSoFar:
        """Return the step as it is now.

        Args:
            allocations: of the step, which end now at the latest. now_s: spans end then at the latest.
            responses: number of complete and of all ones. events, meta: see ``StepSoFar``.
            further: spans of the step that are counted here only, of holders of their own.
        """
        parts = [self] if further is None else [self, further]
        busy = {holder: time for part in parts for holder, time in part._busy.items()}
        held = tuple(_held(row, busy) for row in allocations)
        actors = len({each.holder for each in held if each.role == "decode"})
        sums = {name: math.fsum(getattr(h, name) for h in held) for name in ("gpu_seconds", "idle_gpu_seconds", "cost_usd")}
        start_s = min((h.start_s for h in held), default=self.start_s)
        end_s = max((h.end_s for h in held), default=self.start_s)
        cost = StepCost(step, start_s, end_s, **sums, actors=actors, complete=False)
        bars = tuple(bar for part in parts for bar in part._drawn_until(now_s))
        thin = max(1, -(-len(events) // MOST_EVENTS))
        return StepSoFar(
            step, *responses, now_s, cost, held, bars, sum(part.spans for part in parts), max(part.bar_s for part in parts),
            events[:: -thin][::-1], self.planned, meta or {},
        )  # fmt: skip

    # --- spans --------------------------------------------------------------------------------------------------------

    def _add(self, row: Row) -> None:
        holder, phase, background = row["holder"], row["phase"], bool(row["background"])
        start_s, end_s = row["start_s"], row["end_s"]
        if not background:
            self._busy.setdefault(holder, BusyTime()).add(start_s, end_s)
        self._end_s = max(self._end_s, end_s)
        lane = self._lanes.setdefault(holder, {}).setdefault((phase, background), [])
        self._lane_count += not lane
        drawn = _Drawn(start_s, end_s - start_s, _in_use_s(row))
        self._unsettle(holder, start_s)
        if lane and self._one(lane[-1], drawn):
            drawn = _joined(lane[-1], drawn)
        else:
            insort(lane, drawn, key=_start_s)
            self._bars += 1
        if not background:
            self._last[holder, phase] = _Last(row, end_s, _in_use_s(row), drawn)
        if self._bars > self._most_bars:
            self._coarsen()

    def _grow(self, last: _Last) -> None:
        row, in_use_s = last.row, _in_use_s(last.row)
        self._busy[row["holder"]].add(row["start_s"], row["end_s"])
        self._end_s = max(self._end_s, row["end_s"])
        self._unsettle(row["holder"], last.drawn.start_s)
        last.drawn.busy_s += row["end_s"] - last.end_s
        last.drawn.in_use_s += in_use_s - last.in_use_s
        last.end_s, last.in_use_s = row["end_s"], in_use_s

    @property
    def _most_bars(self) -> int:
        return max(MOST_BARS, 4 * self._lane_count)

    def _one(self, bar: _Drawn, following: _Drawn) -> bool:
        """Return whether two neighbours are drawn as one."""
        return self.bar_s > 0.0 and self._place(bar.start_s) == self._place(following.start_s)

    def _place(self, start_s: float) -> float:
        """Return what neighbours that are drawn as one have in common; larger for later ones."""
        return (start_s - self.start_s) // self.bar_s if self.bar_s else start_s

    def _coarsen(self) -> None:
        """Draw more spans as one, until there are half as many bars as are allowed."""
        most = self._most_bars // 2
        length_s = max(self._end_s - self.start_s, 1e-9)
        self.bar_s = max(2 * self.bar_s, length_s * self._lane_count / most / 4)
        self._settled.clear()
        now_in: dict[int, _Drawn] = {}
        while True:
            self._bars = 0
            for lanes in self._lanes.values():
                for key, lane in lanes.items():
                    kept: list[_Drawn] = []
                    for bar in lane:
                        if kept and self._one(kept[-1], bar):
                            now_in[id(bar)] = _joined(kept[-1], bar)
                        else:
                            kept.append(bar)
                    lanes[key] = kept
                    self._bars += len(kept)
            for last in self._last.values():
                last.drawn = now_in.get(id(last.drawn), last.drawn)
            if self._bars <= most or self.bar_s > 2 * length_s:
                return
            self.bar_s *= 2

    def _unsettle(self, holder: str, start_s: float) -> None:
        """Draw a holder's bars anew if a bar that begins at this time is among those that were thought not to change."""
        if (settled := self._settled.get(holder)) is not None and self._place(start_s) < settled.border:
            del self._settled[holder]

    def _drawn_until(self, now_s: float) -> Iterator[Bar]:
        """Return the bars up to now. Foreground bars of a holder that stand for several spans are put side by side."""
        for holder, lanes in self._lanes.items():
            settled = self._settled.setdefault(holder, _Settled())
            settled.border = max(self._place(lane[-1].start_s) for lane in lanes.values())
            rest = [(bar, key) for key, lane in lanes.items() for bar in lane[settled.of.get(key, 0) :]]
            settles, at_s, further = True, settled.at_s, list[Bar]()
            for bar, key in sorted(rest, key=lambda one: one[0].start_s):
                phase, background = key
                start_s, busy_s = bar.start_s, min(bar.busy_s, now_s - bar.start_s)
                settles = settles and self._place(bar.start_s) < settled.border and bar.start_s + bar.busy_s <= now_s
                drawn = settled.bars if settles else further
                if busy_s > 0:
                    if self.bar_s and not background:
                        start_s = min(max(start_s, at_s), start_s + self.bar_s)
                        at_s = start_s + busy_s
                    drawn.append(Bar(holder, phase, background, start_s, busy_s, bar.in_use_s / bar.busy_s))
                if settles:
                    settled.of[key], settled.at_s = settled.of.get(key, 0) + 1, at_s
            yield from settled.bars
            yield from further


def _held(row: Row, busy: Mapping[str, BusyTime]) -> Held:
    lasts_s, gpus, price = row["end_s"] - row["start_s"], len(row["gpu_ids"]), row["usd_per_gpu_s"]
    busy_s = busy[row["holder"]].within(row["start_s"], row["end_s"]) if row["holder"] in busy else 0.0
    gpu_s = gpus * lasts_s
    return Held(
        row["holder"], row["role"], row["node"], row["kind"], row["market"], tuple(row["gpu_ids"]), row["start_s"],
        row["end_s"], gpu_s, gpus * max(lasts_s - busy_s, 0.0), gpu_s * price if price > 0 or gpu_s == 0 else math.nan,
    )  # fmt: skip


def _in_use_s(row: Row) -> float:
    batch, slots = row["batch_mean"], row["slots"]
    return (
        math.nan if row["phase"] != "decode" or batch is None or not slots else (row["end_s"] - row["start_s"]) * batch / slots
    )


def _start_s(bar: _Drawn) -> float:
    return bar.start_s


def _joined(bar: _Drawn, following: _Drawn) -> _Drawn:
    """Add a bar to its neighbour before it."""
    bar.busy_s += following.busy_s
    bar.in_use_s += following.in_use_s
    return bar


def complete_step(trace: Trace, sums: pd.DataFrame | None = None, *, complete: bool = True) -> StepSoFar:
    """Return the only step of a trace; its cost is that of ``step_metrics``.

    Args:
        sums: its row of ``step_metrics``, where it is computed already.
        complete: whether the step is, or what is kept of one that was ended.
    """
    plan = trace.plans[0] if trace.plans else {}
    held = trace.allocations
    growing = GrowingStep.of_table(trace.spans, float(held["start_s"].min()), plan)
    responses, cost = len(trace.rollouts), StepCost.of(trace, sums, complete=complete)
    thin = max(1, -(-len(trace.events) // MOST_EVENTS))
    found = growing.so_far(
        cost.step, held.to_dict("records"), responses=(responses, responses), now_s=cost.end_s,
        events=trace.events.iloc[:: -thin][::-1].to_dict("records"), meta=trace.meta,
    )  # fmt: skip
    return replace(found, cost=cost)
