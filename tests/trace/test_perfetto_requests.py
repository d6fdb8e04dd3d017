"""Timelines of requests: one slice each, counters that brute force finds too, and an arrow for every move between actors."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from command_line import run_rlhfless
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhfless.trace import Trace, read_trace
from rlhfless.trace.perfetto import trace_events, write_perfetto
from rlhfless.trace.perfetto.slices import disjoint_lanes

SHARED = Path(__file__).parents[3] / "shared" / "data" / "llmservingsim-measurements" / "vllm-runs"
MAPS = (
    "step=0 prompt_id=request_id prompt_tokens=input_toks response_tokens=output_toks start_s=scheduled_ts "
    "first_token_s=first_token_ts end_s=last_token_ts"
)


def row(number: int, start_s: float, end_s: float, **more: Any) -> dict[str, Any]:
    needed = {"step": 0, "prompt_id": f"p{number}", "sample": 0, "prompt_tokens": 10, "response_tokens": 100}
    return {**needed, "start_s": start_s, "end_s": end_s, **more}


def counter(events: list[dict[str, Any]], name: str, process: str) -> list[tuple[int, float]]:
    pids = [e["pid"] for e in events if e["name"] == "process_name" and e["args"]["name"] == process]
    return [(e["ts"], *e["args"].values()) for e in events if e["ph"] == "C" and e["name"] == name and e["pid"] in pids]


def at(points: list[tuple[int, float]], time_us: int) -> float:
    """The value of a step function at a time."""
    return [value for moment, value in points if moment <= time_us][-1]


def requests(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [e for e in events if e["ph"] == "X" and e["cat"] == "request"]


def test_requests_without_actors_are_slices_of_one_process():
    events = list(trace_events(Trace([row(0, 0, 4), row(1, 1, 3), row(2, 3, 5, first_token_s=3.5)])))
    drawn = [(e["name"], e["ts"] / 1e6, e["dur"] / 1e6, e["tid"]) for e in requests(events)]
    lanes = [e["tid"] for e in requests(events)]
    assert [entry[:3] for entry in drawn] == [("p0 / 0", 0, 4), ("p1 / 0", 1, 2), ("p2 / 0", 3, 2)]
    assert lanes[1] == lanes[2] != lanes[0]
    assert requests(events)[2]["args"] == {
        "step": 0, "prompt_id": "p2", "sample": 0, "prompt_tokens": 10, "response_tokens": 100, "seconds_to_first_token": 0.5
    }  # fmt: skip
    assert not any(e["ph"] in "sf" for e in events)


def test_kv_tokens_are_prompts_and_the_tokens_so_far():
    events = list(trace_events(Trace([row(0, 0, 4), row(1, 1, 3), row(2, 3, 5, first_token_s=4)])))
    kv = counter(events, "KV tokens", "loop")
    grid_us = 5e6 / 999  # the counter is at most one point of its grid behind
    for time_s, tokens in ((0, 10), (1, 10 + 25 + 10), (2, 10 + 50 + 10 + 50), (3, 10 + 75 + 10), (4, 10), (4.5, 10 + 50)):
        assert at(kv, round(time_s * 1e6)) == pytest.approx(tokens, abs=1 + 100 * grid_us / 1e6)
    assert kv[-1] == (5_000_000, 0.0)


def test_an_unknown_prompt_length_leaves_the_counter_out():
    events = list(trace_events(Trace([row(0, 0, 4, prompt_tokens=None), row(1, 1, 3)])))
    assert not counter(events, "KV tokens", "loop")
    assert counter(events, "running batch", "loop")


def test_a_moved_response_has_a_slice_at_each_actor_and_an_arrow_between_them():
    sent = {"step": 0, "start_s": 2.0, "end_s": 2.5, "from_actor": "a", "kv_tokens": 60, "detail": {"response": 1}}
    spans = [{**sent, "holder": "a", "phase": "migrate"}, {**sent, "holder": "b", "phase": "transfer", "background": True}]
    rows = [row(0, 0, 4, actor="a"), row(1, 0, 4, actor="b")]
    events = list(trace_events(Trace(rows, (), spans)))
    moved = [(e["ts"], e["dur"], e["args"]["part"]) for e in requests(events) if e["name"] == "p1 / 0"]
    assert moved == [(0, 2_000_000, 1), (2_500_000, 1_500_000, 2)]
    arrows = {end: [(e["id"], e["ts"]) for e in events if e["ph"] == end] for end in "sf"}
    assert arrows == {"s": [(1, 2_000_000), (2, 1_999_999)], "f": [(1, 2_499_999), (2, 2_500_000)]}
    batch_of_a, batch_of_b = (counter(events, "batch", f"requests, {actor}") for actor in "ab")
    assert batch_of_a == [(0, 2.0), (2_000_000, 1.0), (4_000_000, 0.0)]
    assert batch_of_b == [(2_500_000, 1.0), (4_000_000, 0.0)]
    kv_of_b = counter(events, "KV tokens", "requests, b")
    assert kv_of_b[0] == (2_500_000, pytest.approx(10 + 100 * 2.5 / 4, abs=1))


@pytest.mark.parametrize(
    "change",
    [
        {"detail": {"response": 7}},
        {"detail": {"response": "1"}},
        {"detail": []},
        {"holder": "c"},
        {"start_s": 5.0, "end_s": 6.0},
    ],
    ids=str,
)
def test_moves_that_contradict_the_response_do_not_cut_it(change):
    sent = {"step": 0, "start_s": 2.0, "end_s": 2.5, "from_actor": "a", "detail": {"response": 1}, **change}
    spans = [{**sent, "holder": "a", "phase": "migrate"}, {**sent, "phase": "transfer", "holder": change.get("holder", "b")}]
    events = list(trace_events(Trace([row(0, 0, 4, actor="a"), row(1, 0, 4, actor="b")], (), spans)))
    assert [(e["ts"], e["dur"]) for e in requests(events)] == [(0, 4_000_000), (0, 4_000_000)]


def test_the_recorded_run_has_an_arrow_for_every_move_of_a_response():
    trace = read_trace(Path(__file__).parents[2] / "data" / "traces" / "arithmetic-grpo-drafts")
    events = list(trace_events(trace))
    moved = int((trace.events["name"] == "move").sum())
    names = [e for e in events if e["ph"] == "s"]
    assert len(requests(events)) == len(trace.rollouts) + (trace.spans["phase"] == "migrate").sum()
    assert len(names) == 2 * (trace.spans["phase"] == "migrate").sum() == 2 * (moved - 1)  # one was moved before it had a token


@settings(max_examples=15)
@given(times=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=12))
def test_counters_are_what_brute_force_counts(times):
    rows = [row(i, start, start + wait + long, first_token_s=start + wait) for i, (start, wait, long) in enumerate(times)]
    events = list(trace_events(Trace(rows)))
    kv, batch = counter(events, "KV tokens", "loop"), counter(events, "running batch", "loop")
    for time_us, value in kv:
        running = [r for r in rows if r["start_s"] * 1e6 <= time_us < r["end_s"] * 1e6]
        told = 0.0
        for r in running:
            began, ended = r["first_token_s"] * 1e6, r["end_s"] * 1e6
            told += 10 + (100 * max(0.0, time_us - began) / (ended - began) if ended > began else 0)
        assert value == pytest.approx(told, abs=1 + 1e-3 * len(rows))
    for time_us, value in batch:
        assert value == sum(r["start_s"] * 1e6 <= time_us < r["end_s"] * 1e6 for r in rows)


@given(times=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), max_size=30))
def test_lanes_of_requests_never_overlap_and_are_as_few_as_possible(times):
    ordered = sorted((start, start + long) for start, long in times)
    lanes = disjoint_lanes([s for s, _ in ordered], [e for _, e in ordered])
    for lane in set(lanes):
        own = [interval for interval, mine in zip(ordered, lanes, strict=True) if mine == lane]
        assert all(end <= start for (_, end), (start, _) in pairwise(own))
    most = max((sum(s <= t < e or s == e == t for s, e in ordered) for t, _ in ordered), default=0)
    assert len(set(lanes)) <= most


def test_a_limit_draws_the_first_requests_and_counts_all(tmp_path):
    trace = Trace([row(i, i, i + 2) for i in range(50)] + [row(50, 60, 61)])
    written = write_perfetto(trace, tmp_path / "t.json", max_requests=10)
    events = json.loads((tmp_path / "t.json").read_bytes())["traceEvents"]
    assert [e["name"] for e in requests(events)] == [f"p{i} / 0" for i in range(10)]
    assert counter(events, "running batch", "loop")[-1] == (61_000_000, 0.0)
    assert len(counter(events, "KV tokens", "loop")) <= 20
    assert (written.requests, written.left_out, written.untimed, written.events) == (10, 41, 0, len(events))
    assert "10 requests; 41 that start later are left out" in str(written)
    assert written.size_bytes == (tmp_path / "t.json").stat().st_size


def test_a_refused_timeline_leaves_no_file(tmp_path):
    with pytest.raises(Exception, match="contains no times"):
        write_perfetto(Trace([{"step": 0, "prompt_id": "p", "sample": 0, "response_tokens": 1}]), tmp_path / "t.json")
    assert not list(tmp_path.iterdir())


def test_a_golden_log_has_a_slice_per_response_and_its_batch(tmp_path):
    """The csv of the importers' tests, as it is: two steps of four responses."""
    log = Path(__file__).parent / "importers" / "golden" / "table" / "log.csv"
    done = run_rlhfless("convert", log, "-o", str(tmp_path / "t.json"))
    assert done.exit_code == 0, done.output
    events, rows = json.loads((tmp_path / "t.json").read_bytes())["traceEvents"], pd.read_csv(log)
    drawn = sorted((e["ts"] / 1e6, (e["ts"] + e["dur"]) / 1e6) for e in requests(events))
    assert drawn == sorted(zip(rows["start_s"], rows["end_s"], strict=True))
    for at_us, size in counter(events, "running batch", "loop"):
        assert size == ((rows["start_s"] <= at_us / 1e6) & (at_us / 1e6 < rows["end_s"])).sum()
    most = max(value for _, value in counter(events, "KV tokens", "loop"))
    assert rows.groupby("step")["prompt_tokens"].sum().max() < most
    assert most <= rows.groupby("step")[["prompt_tokens", "response_tokens"]].sum().sum(axis=1).max()


@pytest.mark.skipif(not SHARED.is_dir(), reason="the public vLLM runs are not beside this checkout")
@pytest.mark.parametrize("folder", ["RTX4090_Llama-3.1-8B", "RTXPRO6000_Llama-3.1-8B"])
def test_counters_of_a_vllm_run_are_what_vllm_counted(folder, tmp_path):
    """The run's own samples, once per second: requests that run, and the share of the KV cache in use.

    The smaller GPU ran out of KV memory: requests that it stopped for a while are in flight here, and do not run there.
    """
    maps = [part for pair in MAPS.split() for part in ("--map", pair)]
    log = SHARED / folder / "requests.jsonl"
    done = run_rlhfless("convert", log, "-o", str(tmp_path / "t.json"), *maps)
    assert done.exit_code == 0, done.output
    events = json.loads((tmp_path / "t.json").read_bytes())["traceEvents"]
    assert len(requests(events)) == 300
    samples = np.genfromtxt(SHARED / folder / "timeseries.csv", delimiter=",", names=True)
    began_us = min(json.loads(line)["queued_ts"] for line in log.read_text().splitlines()) * 1e6
    batch, kv = (
        np.array([at(counter(events, name, "loop"), began_us + t * 1e6) for t in samples["t"]])
        for name in ("running batch", "KV tokens")
    )
    if folder.startswith("RTXPRO"):
        assert np.median(np.abs(batch - samples["running"])) == 0
        assert np.abs(batch - samples["running"]).max() <= 3
    else:
        assert np.corrcoef(kv, samples["kv_cache_pct"])[0, 1] > 0.9
