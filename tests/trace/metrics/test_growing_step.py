"""A step that grows: its sums are those of the trace at every moment, and what is drawn of it is bounded."""

from __future__ import annotations

import copy
import itertools
import json
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from many_spans import many_spans

from rlhfless.plots.growing_timeline import growing_timeline
from rlhfless.trace import Trace, interval_union_s, step_metrics
from rlhfless.trace.metrics import growing_step
from rlhfless.trace.metrics.growing_step import MOST_BARS, MOST_EVENTS, BusyTime, GrowingStep, complete_step

Row = dict[str, Any]


def span(holder: str, phase: str, start_s: float, end_s: float, **more: Any) -> Row:
    """A row of the table of spans."""
    batch = {"batch_mean": 3.0, "slots": 4} if phase == "decode" else {"batch_mean": None, "slots": None}
    return {
        "run": "run",
        "step": 0,
        "holder": holder,
        "phase": phase,
        "start_s": start_s,
        "end_s": end_s,
        "background": False,
        **batch,
        **more,
    }


def allocation(holder: str, start_s: float, end_s: float, role: str = "decode", usd: float = 0.5) -> Row:
    """A row of the table of allocations."""
    first = 2 * int(holder.removeprefix("actor-"))
    return {
        "run": "run", "step": 0, "holder": holder, "role": role, "node": 0, "gpu_ids": [first, first + 1], "kind": "gpu",
        "market": "on-demand", "usd_per_gpu_s": usd, "start_s": start_s, "end_s": end_s,
    }  # fmt: skip


def trace_of(allocations: list[Row], spans: list[Row]) -> Trace:
    """One step with one response."""
    rollouts = [{"run": "run", "step": 0, "prompt_id": "0", "sample": 0, "response_tokens": 1}]
    return Trace(pd.DataFrame(rollouts), pd.DataFrame(allocations), pd.DataFrame(spans))


def test_the_union_of_spans_is_that_of_all_of_them_in_any_order() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        start = rng.uniform(0, 10, 40).round(1)
        end = start + rng.uniform(0, 2, 40).round(1)
        busy = BusyTime()
        for n in range(40):
            busy.add(start[n], end[n])
            low, high = np.sort(rng.uniform(-1, 12, 2))
            within = interval_union_s(np.clip(start[: n + 1], low, high), np.clip(end[: n + 1], low, high))
            assert busy.within(low, high) == pytest.approx(within, abs=1e-9)


def test_the_sums_are_the_traces_at_every_moment() -> None:
    """Spans overlap, run in the background, begin before their allocation and end after it, and come late."""
    rng = np.random.default_rng(1)
    rows: list[Row] = []
    grown = GrowingStep(0.0)
    for n in range(200):
        start_s = max(0.0, n / 20 - rng.uniform(0, 1))
        phase = str(rng.choice(["decode", "prefill", "transfer", "sync"]))
        rows.append(span(f"actor-{rng.integers(3)}", phase, start_s, start_s + rng.uniform(0.01, 0.5), background=n % 7 == 0))
        if n % 10 == 9:
            grown.take(rows)
            held = [allocation(f"actor-{i}", 0.1 * i, n / 20, usd=0.5 * (i < 2 or n < 100)) for i in range(3)]
            now, table = grown.so_far(0, held), step_metrics(trace_of(held, rows)).iloc[0]
            for name in ("gpu_seconds", "idle_gpu_seconds", "cost_usd", "actors"):
                assert getattr(now.cost, name) == pytest.approx(float(table[name]), rel=1e-9, nan_ok=True), name
            assert now.cost.end_s - now.cost.start_s == pytest.approx(table["time_s"])
            assert now.spans == n + 1
    assert math.isnan(now.cost.cost_usd), "a price is unknown"


def test_a_decode_span_that_grows_is_counted_as_far_as_it_goes() -> None:
    rows = [span("actor-0", "decode", 0.0, 1.0)]
    grown = GrowingStep(0.0)
    grown.take(rows)
    rows[0] |= {"end_s": 4.0, "batch_mean": 2.0}
    rows.append(span("actor-0", "prefill", 4.0, 4.5))
    grown.take(rows)
    now = grown.so_far(0, [allocation("actor-0", 0.0, 5.0)])
    assert now.cost.idle_gpu_seconds == pytest.approx(2 * 0.5)
    (decode, prefill) = now.bars
    assert (decode.busy_s, decode.in_use, prefill.start_s) == pytest.approx((4.0, 0.5, 4.0))


@pytest.mark.parametrize("count", [320, 30_000])
def test_what_is_drawn_and_the_work_of_an_update_are_bounded(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At 30,000 spans an update takes in the new spans alone, and its drawing is as large as at a few thousand."""
    trace = many_spans(count)
    rows = sorted(trace.spans.to_dict("records"), key=lambda row: row["start_s"])
    held = trace.allocations.to_dict("records")
    grown, taken, bars = GrowingStep(0.0), [0], [0]
    add, joined = GrowingStep._add, []
    monkeypatch.setattr(GrowingStep, "_add", lambda self, row: (taken.append(1), add(self, row)))
    for n in range(0, count, 160):
        taken.clear()
        grown.take(rows[: n + 160])
        assert len(taken) == min(160, count - n)
        now = grown.so_far(0, held, now_s=rows[min(n + 160, count) - 1]["end_s"])
        assert len(now.bars) <= MOST_BARS
        if n % 3200 == 0:
            joined.append(len(json.dumps(growing_timeline(now))))
            bars.append(sum(len(drawn["x"]) for drawn in growing_timeline(now)["data"]))
    assert max(joined) < 120_000
    assert max(bars) < MOST_BARS + 200
    now = grown.so_far(0, held)
    assert (now.spans, now.bar_s > 0) == (count, count > MOST_BARS)
    for phase, seconds in (trace.spans["end_s"] - trace.spans["start_s"]).groupby(trace.spans["phase"]).sum().items():
        assert sum(bar.busy_s for bar in now.bars if bar.phase == phase) == pytest.approx(seconds, rel=1e-9)
    assert (f"{count:,} spans; those" in json.dumps(growing_timeline(now))) == (count > MOST_BARS)
    for holder in {bar.holder for bar in now.bars}:  # side by side
        of = sorted((bar for bar in now.bars if bar.holder == holder), key=lambda bar: bar.start_s)
        assert all(right.start_s >= left.start_s + left.busy_s - 1e-6 for left, right in itertools.pairwise(of))


@pytest.mark.parametrize("count", [300, 4000])
def test_what_is_drawn_does_not_depend_on_how_often_it_was_looked_at(count: int) -> None:
    """Some spans come late, decode spans grow, and engines are ahead of the moment that is drawn."""
    rng = np.random.default_rng(2)
    rows: list[Row] = []
    often, seldom, clock = GrowingStep(0.0), GrowingStep(0.0), [0.0] * 3
    for n in range(count):
        actor = int(rng.integers(3))
        late_s = rng.uniform(0, 0.3 * clock[actor]) if rng.random() < 0.02 else 0.0
        lasts_s, phase = rng.uniform(0.01, 0.5), str(rng.choice(["decode", "prefill", "transfer"], p=[0.8, 0.1, 0.1]))
        start_s = clock[actor] - late_s
        rows.append(span(f"actor-{actor}", phase, start_s, start_s + lasts_s, background=phase == "transfer"))
        clock[actor] = max(clock[actor], start_s + lasts_s)
        often.take(rows)
        seldom.take(rows)
        if n % 7 == 0:
            often.so_far(0, [], now_s=min(clock))
        if phase == "decode" and not late_s and rng.random() < 0.5:
            rows[-1]["end_s"] += 0.1
            clock[actor] += 0.1
        if n % (count // 10) == 0:
            fresh = copy.deepcopy(seldom)
            assert repr(often.so_far(0, [], now_s=min(clock)).bars) == repr(fresh.so_far(0, [], now_s=min(clock)).bars)
    assert repr(often.so_far(0, []).bars) == repr(seldom.so_far(0, []).bars)


def test_an_update_late_in_a_step_makes_only_the_bars_that_are_new(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = sorted(many_spans(30_000).spans.to_dict("records"), key=lambda row: row["start_s"])
    grown, made, bar = GrowingStep(0.0), [0], growing_step.Bar
    monkeypatch.setattr(growing_step, "Bar", lambda *given: (made.append(1), bar(*given))[1])
    most = {}
    for begin, end in ((0, 600), (29_400, 30_000)):
        for until in range(begin + 32, end + 1, 32):
            grown.take(rows[:until])
            made.clear()
            now = grown.so_far(0, [], now_s=rows[until - 1]["end_s"])
            if until > begin + 32:  # the first one has all that came since the one before
                most[end] = max(most.get(end, 0), len(made))
    assert len(now.bars) > 400
    assert most[600] <= 100
    assert most[30_000] <= most[600]


def test_a_decode_span_goes_on_growing_after_its_bar_was_joined_to_another() -> None:
    rows = [span("actor-0", "decode", float(i), i + 0.5) for i in range(3 * MOST_BARS)]
    grown = GrowingStep(0.0)
    grown.take(rows)
    rows[-1]["end_s"] += 0.25
    grown.take(rows)
    now = grown.so_far(0, [allocation("actor-0", 0.0, 3.0 * MOST_BARS)])
    assert len(now.bars) <= MOST_BARS
    assert sum(bar.busy_s for bar in now.bars) == pytest.approx(1.5 * MOST_BARS + 0.25)
    assert {round(bar.in_use, 9) for bar in now.bars} == {0.75}


def test_events_are_thinned_and_the_last_one_stays() -> None:
    events = [{"name": "move", "holder": "actor-0", "time_s": float(i), "detail": None} for i in range(1000)]
    grown = GrowingStep(0.0)
    now = grown.so_far(0, [allocation("actor-0", 0.0, 1.0)], events=events)
    assert len(now.events) <= MOST_EVENTS
    assert now.events[-1] is events[-1]


def test_a_complete_step_has_the_numbers_of_step_metrics() -> None:
    trace = many_spans(640)
    done, table = complete_step(trace), step_metrics(trace).iloc[0]
    assert (done.cost.gpu_seconds, done.cost.idle_gpu_seconds) == (table["gpu_seconds"], table["idle_gpu_seconds"])
    assert done.cost.complete
    assert (done.completed, done.of) == (8, 8)


@pytest.mark.parametrize("count", [640, 30_000])
def test_a_complete_step_is_drawn_as_one_that_grew(count: int) -> None:
    """All seconds of every phase and holder are drawn, in a bounded number of bars with the shares of the growing step."""
    trace = many_spans(count)
    grown = GrowingStep(0.0)
    grown.take(sorted(trace.spans.to_dict("records"), key=lambda row: row["start_s"]))
    step, done = grown.so_far(0, trace.allocations.to_dict("records")), complete_step(trace)
    assert len(done.bars) <= MOST_BARS
    assert (done.spans, done.bar_s > 0) == (step.spans, step.bar_s > 0)
    assert done.cost.idle_gpu_seconds == pytest.approx(step.cost.idle_gpu_seconds, rel=1e-9)
    for one, other in zip(done.held, step.held, strict=True):
        assert one.idle_gpu_seconds == pytest.approx(other.idle_gpu_seconds, rel=1e-9)
    for key in {(bar.holder, bar.phase, bar.background) for bar in step.bars}:
        mine, theirs = ([bar for bar in each.bars if bar[:3] == key] for each in (done, step))
        assert sum(bar.busy_s for bar in mine) == pytest.approx(sum(bar.busy_s for bar in theirs), rel=1e-9)
        if key[1] == "decode":
            assert {round(bar.in_use, 9) for bar in mine} == {round(bar.in_use, 9) for bar in theirs} == {0.1875}
    if count < MOST_BARS:
        assert {bar[:5] for bar in done.bars} == {bar[:5] for bar in step.bars}, "every span is a bar"


def test_the_busy_time_of_all_spans_at_once_is_that_of_one_after_the_other() -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        start = rng.uniform(0, 10, 40).round(1)
        end = start + rng.uniform(0, 2, 40).round(1)
        at_once, one_by_one = BusyTime.of(start, end), BusyTime()
        for n in range(40):
            one_by_one.add(start[n], end[n])
        for begin, until in rng.uniform(0, 12, (20, 2)):
            assert at_once.within(begin, until) == pytest.approx(one_by_one.within(begin, until), abs=1e-9)
