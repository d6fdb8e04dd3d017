"""Recorder: what it takes is what the trace has, whatever happens to the process, the disk or the values."""

from __future__ import annotations

import json
import logging
import math
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhfless.trace import Recorder, TraceError, read_trace, validate
from rlhfless.trace.recording import recorder
from rlhfless.trace.recording.row_validation import checked_row
from rlhfless.trace.schema.tables import ROLLOUTS, SPANS

RESPONSE = {"step": 0, "prompt_id": "a", "sample": 0, "response_tokens": 5}
KEY = ["step", "prompt_id", "sample"]


def record(folder: Path, *rows: dict[str, Any], **more: Any) -> Recorder:
    """A closed recorder that was given these rows on top of the usual response."""
    with Recorder(folder, **more) as one:
        for row in rows:
            one.append(**{**RESPONSE, **row})
    return one


def test_what_was_appended_is_a_trace(tmp_path):
    folder = tmp_path / "new" / "trace"
    with Recorder(folder, run="mine", meta={"seeds": [7]}) as one:
        for step in range(2):
            with one.span("decode", step=step, tokens=11):
                pass
            for sample in range(3):
                one.append(**{**RESPONSE, "step": step, "sample": sample}, reward=0.5, finish_reason="stop", level="hard")
    trace = read_trace(folder)
    assert (one.recorded, one.lost) == (8, 0)
    assert trace.runs == ["mine"]
    assert trace.meta["seeds"] == [7]
    assert trace.rollouts[[*KEY, "epoch", "level"]].to_numpy().tolist() == [
        [step, "a", sample, step, "hard"] for step in range(2) for sample in range(3)
    ]
    assert trace.spans[["step", "holder", "phase", "tokens"]].to_numpy().tolist() == [
        [step, "trainer", "decode", 11] for step in range(2)
    ]
    assert not (folder / "recording.jsonl").exists()


def test_a_span_is_recorded_where_its_block_raises_and_the_error_is_the_blocks_own(tmp_path):
    with Recorder(tmp_path / "t") as one:
        one.append(**RESPONSE)
        with pytest.raises(ZeroDivisionError), one.span("learn", step=0):
            raise ZeroDivisionError
    assert read_trace(tmp_path / "t").spans["phase"].tolist() == ["learn"]


def test_the_trace_is_readable_while_it_is_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "FLUSH_S", 1000)  # whatever opening the folder takes
    one = Recorder(tmp_path / "t")
    one.append(**RESPONSE)
    with refused(TraceError):
        read_trace(tmp_path / "t")
    one.flush()
    assert len(read_trace(tmp_path / "t").rollouts) == 1
    one.close()
    assert len(read_trace(tmp_path / "t").rollouts) == 1


@pytest.mark.parametrize("rows", [256, 1000])
def test_rows_are_flushed_without_being_asked(tmp_path, rows):
    one = Recorder(tmp_path / "t")
    for sample in range(rows):
        one.append(**{**RESPONSE, "sample": sample})
    assert len(read_trace(tmp_path / "t").rollouts) >= rows - rows % 256
    one.close()


def test_a_slow_loop_is_flushed_by_the_clock(tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "FLUSH_S", 0.0)
    one = Recorder(tmp_path / "t")
    one.append(**RESPONSE)
    assert len(read_trace(tmp_path / "t").rollouts) == 1
    one.close()


def test_a_killed_process_loses_only_what_was_not_flushed(tmp_path):
    script = f"""
        import os, signal
        from rlhfless.trace import Recorder
        from rlhfless.trace.recording import recorder
        recorder.FLUSH_S = 1000
        one = Recorder({str(tmp_path / "t")!r})
        for sample in range(300):
            one.append(step=3, prompt_id="a", sample=sample, response_tokens=sample)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False, env={**os.environ})
    assert done.returncode == -9
    trace = read_trace(tmp_path / "t")
    assert trace.steps == [3]
    assert trace.rollouts["response_tokens"].tolist() == list(range(256))
    record(tmp_path / "t", {"step": 4})
    assert len(read_trace(tmp_path / "t").rollouts) == 257, "a restarted run goes on in the same folder"


def test_a_torn_last_line_is_left_out_and_a_wrong_one_is_refused(tmp_path):
    one = Recorder(tmp_path / "t")
    one.append(**RESPONSE)
    one.flush()
    journal = tmp_path / "t" / "recording.jsonl"
    whole = journal.read_bytes()
    journal.write_bytes(whole + whole[: len(whole) // 2])
    assert len(read_trace(tmp_path / "t").rollouts) == 1
    journal.write_bytes(whole + b"[1]\n")
    with refused(TraceError, "recording.jsonl", "line 2"):
        read_trace(tmp_path / "t")
    journal.write_bytes(whole)
    one.close()


def test_killed_between_the_tables_and_the_journal_nothing_is_lost_or_doubled(tmp_path, monkeypatch):
    monkeypatch.setattr("rlhfless.trace.journal.RecordingJournal.empty", lambda self: None)
    record(tmp_path / "t", {}, {"sample": 1})
    assert (tmp_path / "t" / "recording.jsonl").exists()
    assert len(read_trace(tmp_path / "t").rollouts) == 2


def test_a_step_that_is_recorded_again_replaces_what_was_there(tmp_path):
    record(tmp_path / "t", {"sample": 0}, {"sample": 1}, {"step": 1})
    record(tmp_path / "t", {"step": 1, "prompt_id": "b"}, {"step": 2})
    rows = read_trace(tmp_path / "t").rollouts
    assert rows[KEY].to_numpy().tolist() == [[0, "a", 0], [0, "a", 1], [1, "b", 0], [2, "a", 0]]
    assert rows["epoch"].tolist() == [0, 0, 0, 1]


def test_a_second_run_in_a_folder_leaves_the_first_as_it_was(tmp_path):
    first = [{"step": step, "sample": sample} for step in range(2) for sample in range(3)]
    record(tmp_path / "t", *first, run="a")
    record(tmp_path / "t", {"step": 1}, run="b")
    record(tmp_path / "t", {"step": 1, "prompt_id": "b"}, run="b")
    rows = read_trace(tmp_path / "t").rollouts
    assert rows.loc[rows["run"] == "a", ["step", "sample"]].to_dict("records") == first
    assert rows.loc[rows["run"] == "b", KEY].to_numpy().tolist() == [[1, "b", 0]]


@pytest.mark.parametrize("killed", [False, True], ids=["closed", "killed between the tables and the journal"])
def test_a_step_of_which_only_spans_are_recorded_later_keeps_its_responses(tmp_path, monkeypatch, killed):
    folder = tmp_path / "t"
    with Recorder(folder) as one, one.span("decode", step=2):
        one.append(**{**RESPONSE, "step": 2})
    if killed:
        monkeypatch.setattr("rlhfless.trace.journal.RecordingJournal.empty", lambda self: None)
    with Recorder(folder) as later, later.span("sync", step=2, tokens=3):
        pass
    trace = read_trace(folder)
    assert trace.rollouts[["step", "response_tokens"]].to_numpy().tolist() == [[2, 5]]
    assert trace.spans["phase"].tolist() == ["decode", "sync"]


def test_a_recording_that_has_only_a_span_goes_on(tmp_path, caplog):
    folder = tmp_path / "t"
    with pytest.raises(ZeroDivisionError), Recorder(folder) as crashed, crashed.span("decode", step=0):
        raise ZeroDivisionError
    assert [text.partition(": ")[2] for text in warnings_of(caplog)] == [
        "no response was recorded, so the folder is not a trace yet"
    ]
    with refused(TraceError):
        read_trace(folder)
    with Recorder(folder) as later:
        assert len(pd.read_json(folder / "recording.jsonl", lines=True)) == 1, "the span waits"
        with later.span("prepare", step=0):
            later.append(**RESPONSE)
    assert (later.recorded, later.lost, len(warnings_of(caplog))) == (2, 0, 1)
    trace = read_trace(folder)
    assert (len(trace.rollouts), trace.spans["phase"].tolist()) == (1, ["decode", "prepare"])
    assert trace.spans["start_s"].iloc[1] >= trace.spans["end_s"].iloc[0]


@pytest.mark.parametrize("spans", [0, 1])
@pytest.mark.parametrize("torn", [b"{", b'{"rollouts": {"step": 0, "note": "' + b"x" * 200_000])
def test_a_recording_that_ends_with_a_torn_line_goes_on(tmp_path, caplog, spans, torn):
    folder = tmp_path / "t"
    with Recorder(folder) as crashed:
        for _ in range(spans):
            crashed.append_span(step=0, holder="x", phase="decode", start_s=0, end_s=7)
    with (folder / "recording.jsonl").open("ab") as journal:
        journal.write(torn)
    caplog.clear()
    with Recorder(folder) as later:
        assert later.now_s >= 7 * spans
        later.append(**RESPONSE)
    assert (later.recorded, later.lost, warnings_of(caplog)) == (1, 0, [])
    trace = read_trace(folder)
    assert (len(trace.rollouts), len(trace.spans)) == (1, spans)


def test_of_a_response_that_is_appended_twice_the_last_row_counts(tmp_path):
    record(tmp_path / "t", {"response_tokens": 1}, {"response_tokens": 2})
    assert read_trace(tmp_path / "t").rollouts["response_tokens"].tolist() == [2]


def test_times_go_on_where_an_earlier_recording_ended(tmp_path):
    with Recorder(tmp_path / "t") as one:
        one.append(**RESPONSE, start_s=5, end_s=1000)
    assert 1000 <= Recorder(tmp_path / "t").now_s < 1100


# --- what goes wrong ---------------------------------------------------------------------------------------------------


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name.startswith("rlhfless") and r.levelno == logging.WARNING]


class Unshowable:
    """A value on which everything fails."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __float__(self) -> float:
        raise RuntimeError("no number")


BAD = [
    {"step": -1}, {"step": "x"}, {"step": None}, {"step": 10**400}, {"response_tokens": 1.5}, {"response_tokens": math.nan},
    {"finish_reason": "bored"}, {"prompt_id": 1.5}, {"sample": Unshowable()}, {"reward": math.inf}, {"reward": "good"},
    {"start_s": 5.0, "end_s": 4.0}, {"epoch": None},
]  # fmt: skip


def test_bad_values_are_lost_alone_and_reported_once(tmp_path, caplog):
    with Recorder(tmp_path / "t") as one:
        for i, bad in enumerate(BAD):
            one.append(**{**RESPONSE, **bad})
            one.append(**{**RESPONSE, "sample": i})
        one.append()
        one.append_span(step=0, holder="x", phase="sleep", start_s=0, end_s=1)
        one.append_span(step=0, holder="x", phase="learn", start_s=0, end_s=1, colour="red")
        one.append_span(step=0, holder="x", phase="learn", start_s=0, end_s=1, batch_mean=3, slots=2)
    assert len(read_trace(tmp_path / "t").rollouts) == len(BAD)
    assert (one.recorded, one.lost) == (len(BAD), len(BAD) + 4)
    told = warnings_of(caplog)
    assert len(told) == 3, told
    assert "column 'step' is -1; a whole number of 0 or more is needed" in told[0]
    assert "'sleep'" in told[1]
    assert f"{len(BAD) + 4} of {2 * len(BAD) + 4} rows were lost" in told[2]


@pytest.mark.parametrize("given", [{"folder": None}, {"folder": 3}, {"folder": "nul\0"}, {"meta": 3}, {"meta": [1]}], ids=str)
def test_a_recorder_that_cannot_be_made_of_what_it_is_given_stops_nothing(tmp_path, given, caplog):
    one = record(**{"folder": tmp_path / "t", **given})
    one.append(**RESPONSE)
    assert (one.recorded, one.lost) == (0, 1)
    told = warnings_of(caplog)
    assert (len(told), "nothing is recorded" in told[0]) == (2, True)


def test_spans_that_cannot_be_recorded_leave_their_blocks_alone(tmp_path, caplog):
    with Recorder(tmp_path / "t") as one:
        one.append(**RESPONSE)
        for wrong in [{}, {"phase": "decode"}, {"step": 0}, {"phase": "decode", "step": 0, "start_s": 1e9}]:
            with one.span(**wrong):
                one.append(**RESPONSE)
        with one.span("decode", step=0, start_s=0.0, end_s=7.0):
            pass
    assert (one.recorded, one.lost) == (6, 4)
    assert sum("a span was not recorded" in text for text in warnings_of(caplog)) == 1
    assert read_trace(tmp_path / "t").spans[["start_s", "end_s"]].to_numpy().tolist() == [[0.0, 7.0]]


def test_text_that_is_no_unicode_is_kept_as_far_as_it_goes(tmp_path):
    record(tmp_path / "t", {"prompt_id": "ok\ud800", "answer": "\udfff!"})
    assert read_trace(tmp_path / "t").rollouts[["prompt_id", "answer"]].to_numpy().tolist() == [["ok?", "?!"]]


@pytest.mark.parametrize("wrong", ["a file", "under a file", "another trace", "two recorders", "no meta"])
def test_a_folder_that_cannot_be_used_stops_nothing(tmp_path, wrong, caplog, folder):
    where = {"a file": tmp_path / "f", "under a file": tmp_path / "f" / "t", "another trace": folder}.get(wrong, tmp_path / "t")
    (tmp_path / "f").write_text("")
    first = Recorder(where) if wrong == "two recorders" else None
    if wrong == "no meta":
        where.mkdir()
        (where / "meta.json").write_text("{")
    before = sorted(path.name for path in folder.iterdir())
    one = record(where, {}, {"sample": 1})
    assert (one.recorded, one.lost) == (0, 2)
    assert sum("nothing is recorded" in text for text in warnings_of(caplog)) == 1
    assert sorted(path.name for path in folder.iterdir()) == before
    if first is not None:
        first.append(**RESPONSE)
        first.close()
        assert len(read_trace(where).rollouts) == 1


@pytest.mark.skipif(os.geteuid() == 0 and not Path("/proc/sys").exists(), reason="root writes everywhere but in /proc")
def test_a_read_only_folder_stops_nothing(tmp_path, caplog):
    where = tmp_path / "read-only"
    where.mkdir()
    where.chmod(0o500)
    one = record(Path("/proc/sys/t") if os.geteuid() == 0 else where / "t", {})
    assert (one.recorded, one.lost) == (0, 1)
    assert "nothing is recorded" in warnings_of(caplog)[0]


def test_a_full_disk_loses_rows_and_not_the_loop_or_the_trace(tmp_path):
    script = f"""
        import json, resource, sys
        from rlhfless.trace import Recorder
        from rlhfless.trace.recording import recorder
        recorder.FLUSH_S, recorder.MAX_WAITING = 1000, 500
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, resource.RLIM_INFINITY))
        one = Recorder({str(tmp_path / "t")!r})
        for sample in range(2000):
            one.append(step=0, prompt_id="a", sample=sample, response_tokens=1)
        stuck = one.lost
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        one.close()
        print(json.dumps([stuck, one.recorded, one.lost]))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, capture_output=True, text=True)
    stuck, recorded, lost = json.loads(done.stdout)
    rows = read_trace(tmp_path / "t").rollouts
    assert stuck > 0
    assert recorded + lost == 2000
    assert len(rows) == recorded, "what waited was written when there was room again"
    assert rows["sample"].max() == 1999
    assert done.stderr.count("rows could not be written") == 1


def test_a_disk_that_stays_full_leaves_what_was_written(tmp_path):
    script = f"""
        import resource
        from rlhfless.trace import Recorder
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
        with Recorder({str(tmp_path / "t")!r}) as one:
            for sample in range(2000):
                one.append(step=0, prompt_id="a", sample=sample, response_tokens=1)
        print(one.recorded)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, capture_output=True, text=True)
    assert 0 < len(read_trace(tmp_path / "t").rollouts) == int(done.stdout) < 2000


# --- one row is checked as a whole table is ----------------------------------------------------------------------------

values = st.one_of(
    st.none(), st.integers(-3, 5), st.floats(), st.text(max_size=3), st.booleans(), st.sampled_from(["stop", "learn", "3"]),
    st.lists(st.integers(0, 3), max_size=2), st.dictionaries(st.text(max_size=2), st.integers(), max_size=1),
)  # fmt: skip


def accepted(table: str, row: dict[str, Any]) -> bool:
    try:
        validate(table, pd.DataFrame([row]).astype(object))
    except TraceError:
        return False
    return True


@settings(max_examples=40)
@given(data=st.data())
def test_a_row_is_taken_exactly_where_a_table_of_it_is_valid(data):
    table, columns = data.draw(st.sampled_from([("rollouts", ROLLOUTS), ("spans", SPANS)]))
    usual = RESPONSE if table == "rollouts" else {"step": 0, "holder": "x", "phase": "learn", "start_s": 1.0, "end_s": 2.0}
    row = {**usual, **data.draw(st.dictionaries(st.sampled_from([c.name for c in columns]), values, max_size=3))}
    try:
        taken = checked_row(table, row)
    except TraceError:
        assert not accepted(table, row)
        return
    assert accepted(table, row)
    given_back = json.loads(json.dumps(taken, allow_nan=False))
    one = validate(table, pd.DataFrame([row]).astype(object)).astype(object)
    pd.testing.assert_frame_equal(validate(table, pd.DataFrame([given_back])).astype(object)[one.columns], one)


@settings(max_examples=12)
@given(rows=st.lists(st.dictionaries(st.sampled_from([c.name for c in ROLLOUTS] + ["note", "mixed"]), values), max_size=6))
def test_whatever_is_appended_the_trace_opens_with_what_was_taken(rows, tmp_path_factory):
    folder = tmp_path_factory.mktemp("any") / "t"
    one = record(folder, {"sample": 99}, *rows)
    trace = read_trace(folder)
    assert 1 <= len(trace.rollouts) <= one.recorded
    assert one.recorded + one.lost == len(rows) + 1
