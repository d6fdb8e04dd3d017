"""Trace events: valid, drawn as they are, with the times, costs and batches of the trace they came from."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from command_line import run_rlhfless
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_samples import rollouts, step

from rlhfless.trace import PHASES, ROLES, Trace, TraceError, interval_union_s, read_trace
from rlhfless.trace.perfetto import trace_events
from rlhfless.trace.perfetto.slices import Slice, lanes

TRACES = sorted((Path(__file__).parents[2] / "data" / "traces").iterdir())
PLACE = {"ph": str, "name": str, "pid": int}
KINDS: dict[str, dict[str, type]] = {
    "X": {**PLACE, "tid": int, "ts": int, "dur": int, "cat": str, "args": dict},
    "M": {**PLACE, "tid": int, "args": dict},
    "C": {**PLACE, "ts": int, "args": dict},
    "s": {**PLACE, "tid": int, "ts": int, "cat": str, "id": int},
    "f": {**PLACE, "tid": int, "ts": int, "cat": str, "id": int, "bp": str},
}
"""Fields of every kind of event, by the documentation of the Trace Event Format."""


def check_fields(event: dict[str, Any]) -> None:
    """An event has the fields of its kind, and no others; numbers are whole and not negative, and a double holds them."""
    fields = KINDS[event["ph"]]
    assert {name: type(value) for name, value in event.items()} == fields, event
    assert all(0 <= value <= 2**53 for value in event.values() if type(value) is int)
    assert event["name"]
    assert event["pid"] > 0
    if event["ph"] == "M":
        assert event["name"] in ("process_name", "thread_name")
        assert [type(value) for value in event["args"].values()] == [str]
    if event["ph"] == "C":
        assert event["args"]
        assert all(type(value) is float for value in event["args"].values())


def check(content: dict[str, Any]) -> None:
    """Valid fields, every track named once, nothing hidden, counters in order, arrows from a slice to a later one."""
    assert content.keys() <= {"traceEvents", "displayTimeUnit", "otherData"}
    assert content.get("displayTimeUnit", "ms") in ("ms", "ns")
    for event in content["traceEvents"]:
        check_fields(event)
    events = content["traceEvents"]
    names = [(e["name"], e["pid"], e["tid"]) for e in events if e["ph"] == "M"]
    assert len(names) == len(set(names))
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for e in events:
        if e["ph"] == "X":
            tracks.setdefault((e["pid"], e["tid"]), []).append((e["ts"], e["ts"] + e["dur"]))
    for (pid, tid), slices in tracks.items():
        assert {("process_name", pid, 0), ("thread_name", pid, tid)} <= set(names)
        refuse_hidden(slices)
    counters: dict[tuple[int, str], list[int]] = {}
    for e in events:
        if e["ph"] == "C":
            counters.setdefault((e["pid"], e["name"]), []).append(e["ts"])
    assert all(np.all(np.diff(at) > 0) for at in counters.values())
    ends = {end: {e["id"]: e for e in events if e["ph"] == end} for end in "sf"}
    assert ends["s"].keys() == ends["f"].keys()
    assert sum(e["ph"] in "sf" for e in events) == 2 * len(ends["s"])
    for number, leaves in ends["s"].items():  # the UI draws an arrow between the slices around its two ends
        arrives = ends["f"][number]
        assert leaves["ts"] <= arrives["ts"]
        for e in (leaves, arrives):
            assert any(start <= e["ts"] <= end for start, end in tracks[e["pid"], e["tid"]])


def refuse_hidden(slices: list[tuple[int, int]]) -> None:
    """Two slices of a track are apart, or one lies inside the other; in the order in which they are written."""
    running: list[int] = []
    assert [s for s, _ in slices] == sorted(s for s, _ in slices)
    for start, end in slices:
        while running and running[-1] <= start:
            running.pop()
        assert not running or end <= running[-1], (start, end, running)
        running.append(end)


def exported(trace: Trace) -> dict[str, Any]:
    content = json.loads(json.dumps({"traceEvents": list(trace_events(trace))}, allow_nan=False))
    check(content)
    return content


def track_names(events: list[dict[str, Any]]) -> dict[tuple[int, int], str]:
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    return {(e["pid"], e["tid"]): f"{processes[e['pid']]} / {e['args']['name']}" for e in events if e["name"] == "thread_name"}


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("--usd-per-gpu-hour 2", "convert has no option --usd-per-gpu-hour"),
        ("--gpus 8", "a timeline draws what was logged"),
        ("--max-response-tokens 9", "a timeline draws what was logged"),
        ("--map step=s", "--map is for tables"),
        ("--where step==0", "--where is for tables"),
        ("--run nobody", "has no run nobody"),
        ("--max-requests 9", "write_perfetto"),
        ("--samples-per-prompt 9", "a timeline draws what was logged"),
    ],
)
def test_options_that_mean_nothing_for_a_trace_are_refused(option, sentence, tmp_path):
    done = run_rlhfless("convert", TRACES[0], "-o", str(tmp_path / "t.json"), *option.split())
    assert done.exit_code == 2
    assert sentence in done.output
    assert not (tmp_path / "t.json").exists()


def test_a_name_that_ends_in_gz_is_of_a_packed_file(trace, tmp_path):
    trace.save(tmp_path / "trace")
    for name in ("t.json", "t.json.gz"):
        done = run_rlhfless("convert", tmp_path / "trace", "-o", str(tmp_path / name))
        assert done.exit_code == 0, done.output
    plain = (tmp_path / "t.json").read_bytes()
    check(json.loads(plain))
    assert gzip.decompress((tmp_path / "t.json.gz").read_bytes()) == plain


@pytest.mark.full
@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name)
def test_every_shipped_trace_is_exported(path, tmp_path):
    done = run_rlhfless("convert", path, "-o", str(tmp_path / "t.json"))
    assert done.exit_code == 0, done.output
    content = json.loads((tmp_path / "t.json").read_bytes())
    check(content)
    slices, trace = [e for e in content["traceEvents"] if e["ph"] == "X"], read_trace(path)
    of = {name: [e for e in slices if e["name"] == name] for name in {e["name"] for e in slices}}
    assert {"rl.loop", "rl.sample", "rl.sync"} <= of.keys()
    assert len(of["rl.loop"]) == len(trace.steps)
    for phase, name in (("learn", "rl.train"), ("prepare", "rl.reward")):
        assert len(of.get(name, [])) == (trace.spans["phase"] == phase).sum()
    for phase in ("decode", "prefill"):
        own = trace.spans[trace.spans["phase"] == phase]
        assert sum(e["dur"] for e in of[phase]) == pytest.approx(1e6 * (own["end_s"] - own["start_s"]).sum(), abs=len(own))
    around: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for e in of["rl.sample"]:
        around.setdefault((e["pid"], e["tid"]), []).append((e["ts"], e["ts"] + e["dur"]))
    for e in of["decode"]:
        assert any(start <= e["ts"] and e["ts"] + e["dur"] <= end + 1 for start, end in around[e["pid"], e["tid"]])


def test_slices_lie_where_the_trace_says(trace):
    events = exported(trace)["traceEvents"]
    names = track_names(events)
    drawn = [
        (names[e["pid"], e["tid"]], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X" and e["args"]["step"] == 1
    ]
    s = 1_000_000
    assert sorted(drawn) == sorted(
        [
            ("loop / steps", "rl.loop", 10 * s, 5 * s),
            ("decode, node 0 / decode-0", "held", 10 * s, 4 * s),
            ("decode, node 0 / decode-0", "rl.sample", 10 * s, 3 * s),
            ("decode, node 0 / decode-0", "prefill", 10 * s, s),
            ("decode, node 0 / decode-0", "decode", 11 * s, 2 * s),
            ("decode, node 0 / decode-0, background", "rl.sample", 13 * s, s),
            ("decode, node 0 / decode-0, background", "transfer", 13 * s, s),
            ("decode, node 0 / decode-1", "held", 10 * s, 2 * s),
            ("decode, node 0 / decode-1", "rl.sample", 10 * s, 2 * s),
            ("decode, node 0 / decode-1", "decode", 10 * s, 2 * s),
            ("decode, node 0 / decode-1", "prefill", int(10.5 * s), s // 2),
            ("learner, node 0 / learner", "held", 14 * s, s),
            ("loop / events", "cut", 12 * s, 0),
        ]
    )


def test_counters_are_the_traces_cost_and_batch(trace):
    events = exported(trace)["traceEvents"]
    cost = [(e["ts"], e["args"]["usd"]) for e in events if e["ph"] == "C" and e["name"] == "cost"]
    assert cost[-1] == (15_000_000, pytest.approx(0.032))
    assert dict(cost)[2_000_000] == pytest.approx(0.008)
    batch = [(e["ts"], e["args"]["responses"]) for e in events if e["ph"] == "C" and e["name"] == "running batch"]
    assert batch[:4] == [(0, 4.0), (1_000_000, 6.0), (2_000_000, 2.0), (3_000_000, 0.0)]


def test_gpus_without_a_price_have_no_counter_of_cost():
    rows = step(0)
    del rows["plan"]
    events = exported(Trace(**{**rows, "allocations": [{**row, "usd_per_gpu_s": 0.0} for row in rows["allocations"]]}))
    assert {e["name"] for e in events["traceEvents"] if e["ph"] == "C"} == {"running batch"}


def test_known_times_of_responses_say_what_ran():
    rows = [{**row, "start_s": 1.0, "end_s": 2.0 + i} for i, row in enumerate(rollouts(0, prompts=1, samples=2))]
    events = exported(Trace(rows))["traceEvents"]
    batch = [(e["ts"], e["args"]["responses"]) for e in events if e["ph"] == "C" and e["name"] == "running batch"]
    assert batch == [(1_000_000, 2.0), (2_000_000, 1.0), (3_000_000, 0.0)]


def test_several_runs_have_processes_of_their_own():
    steps = [step(0), step(0)]
    tables = {
        t: [{**row, "run": f"r{i}"} for i, s in enumerate(steps) for row in s[t]] for t in ("rollouts", "allocations", "spans")
    }
    events = exported(Trace(**tables))["traceEvents"]
    names = set(track_names(events).values())
    assert {"r0: loop / steps", "r1: loop / steps", "r0: decode, node 0 / decode-1", "r1: decode, node 0 / decode-1"} <= names


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ({"rollouts": rollouts(0)}, ()),
        ({"rollouts": rollouts(0, start_s=1.0, end_s=1e12)}, ("12",)),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_one_sentence(rows, sentence):
    with refused(TraceError, *sentence):
        list(trace_events(Trace(**rows)))


intervals = st.tuples(st.integers(0, 30), st.integers(0, 15)).map(lambda pair: Slice("x", pair[0], sum(pair), ""))


@given(slices=st.lists(intervals, max_size=25))
def test_lanes_keep_every_slice_and_hide_none(slices):
    dealt = lanes(slices)
    for lane in dealt:
        refuse_hidden([(one.start_us, one.end_us) for one in lane])
    flat = sorted((one.start_us, one.end_us) for lane in dealt for one in lane)
    assert flat == sorted((one.start_us, one.end_us) for one in slices)


times = st.floats(0, 50, allow_nan=False).map(lambda x: round(x, 7))


@st.composite
def made_traces(draw: st.DrawFn) -> Trace:
    """Rows of up to three steps and two runs with any phases, times, holders and gaps."""

    def timed(count: int) -> list[dict[str, Any]]:
        rows = []
        for _ in range(draw(st.integers(0, count))):
            start, long = draw(times), draw(times)
            run, number = draw(st.sampled_from(["a", "b"])), draw(st.integers(0, 2))
            rows.append({"run": run, "step": number, "start_s": start, "end_s": start + long})
        return rows

    holders, phases, roles = st.sampled_from(["actor-1", "actor-10", "x"]), st.sampled_from(PHASES), st.sampled_from(ROLES)
    spans = [
        {**row, "holder": draw(holders), "phase": draw(phases), "background": draw(st.booleans()), "batch_mean": draw(
            st.none() | st.floats(0, 9)), "detail": draw(st.none() | st.just({"é": [None]}))}
        for row in timed(12)
    ]  # fmt: skip
    held = [
        {**row, "holder": draw(holders), "role": draw(roles), "node": draw(st.none() | st.integers(0, 11)), "gpu_ids": [i],
         "kind": "k", "usd_per_gpu_s": draw(st.floats(0, 1))}
        for i, row in enumerate(timed(6))
    ]  # fmt: skip
    rows = [{**r, "prompt_id": "p", "sample": i, "response_tokens": 1} for i, r in enumerate(timed(6))]
    alone = {"run": "a", "step": 0, "prompt_id": "q", "sample": 0, "response_tokens": 1, "start_s": None, "end_s": None}
    events = [{"step": 0, "time_s": draw(times), "name": "cut"} for _ in range(draw(st.integers(0, 2)))]
    return Trace([*rows, alone], held, spans, events)


@settings(max_examples=30)
@given(trace=made_traces())
def test_any_trace_with_times_is_exported_whole(trace):
    timed = [t for t in (trace.allocations, trace.spans, trace.rollouts) if t["end_s"].notna().any()]
    if not timed:
        with refused(TraceError):
            list(trace_events(trace))
        return
    events = exported(trace)["traceEvents"]
    slices = [e for e in events if e["ph"] == "X"]
    expected = len(trace.spans) + len(trace.allocations) + len(trace.events)
    if "start_s" in trace.rollouts.columns:
        expected += int(trace.rollouts[["start_s", "end_s"]].notna().all(axis=1).sum())
    expected += len(pd.concat([t[["run", "step", "end_s"]] for t in timed]).dropna()[["run", "step"]].drop_duplicates())
    around = [e for e in slices if e["name"] == "rl.sample"]
    assert len(slices) - len(around) == expected
    assert all(e["cat"] == "generation" for e in around)
    held = trace.allocations
    cost = {(e["pid"]): e["args"]["usd"] for e in events if e["ph"] == "C" and e["name"] == "cost"}
    priced = held[held.groupby("run")["usd_per_gpu_s"].transform("min") > 0]
    assert sum(cost.values()) == pytest.approx(float((priced["usd_per_gpu_s"] * (priced["end_s"] - priced["start_s"])).sum()))
    for phase in ("learn", "decode"):
        own = trace.spans[trace.spans["phase"] == phase]
        drawn = [e for e in slices if e["cat"] == phase and e["name"] != "held"]
        covered = interval_union_s([e["ts"] / 1e6 for e in drawn], [(e["ts"] + e["dur"]) / 1e6 for e in drawn])
        assert covered == pytest.approx(interval_union_s(own["start_s"], own["end_s"]), abs=1e-4)
