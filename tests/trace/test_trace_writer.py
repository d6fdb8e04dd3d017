"""TraceWriter: steps are appended whole, one after the other, and a killed process leaves the completed ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from trace_samples import rollouts, step

from rlhfless.trace import TraceError, TraceWriter, read_trace, storage

HERE = Path(__file__).parent
FILES = ["rollouts.parquet", "allocations.parquet", "spans.parquet", "events.parquet", "plans.jsonl", "meta.json"]


def test_epochs_follow_from_the_steps_before(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path)
    writer.append_step(rollouts(0, prompts=2))
    writer.append_step(rollouts(1, prompts=3))
    writer = TraceWriter.resume(tmp_path)
    writer.append_step(pd.DataFrame(rollouts(2, prompts=1)))
    writer.append_step(rollouts(3, prompts=1, epoch=9))
    epochs = read_trace(tmp_path).rollouts.groupby("step")["epoch"].apply(list)
    assert epochs.tolist() == [[0] * 4, [1, 1, 1, 1, 0, 0], [2, 2], [9, 9]]


def test_a_writer_knows_where_it_is(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path, {"seeds": {"a": 1}})
    assert (writer.steps, writer.next_step, writer.end_s) == ([], 0, 0.0)
    with pytest.raises(TraceError, match="has no completed step yet; append one first"):
        _ = writer.trace
    assert writer.append_step(**step(4)) == 4
    again = TraceWriter.resume(tmp_path)
    for one in (writer, again):
        assert (one.steps, one.next_step, one.end_s) == ([4], 5, 45.0)
        pd.testing.assert_frame_equal(one.trace.spans, read_trace(tmp_path).spans)
    assert again.meta["seeds"] == {"a": 1}


def test_an_empty_trace_can_be_resumed(tmp_path: Path) -> None:
    TraceWriter(tmp_path)
    writer = TraceWriter.resume(tmp_path)
    writer.append_step(**step(0))
    assert read_trace(tmp_path).steps == [0]


def test_columns_may_come_later(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path)
    writer.append_step(rollouts(0))
    writer.append_step(rollouts(1, predicted_tokens=3.5, text="hi"))
    read = read_trace(tmp_path).rollouts
    assert read["predicted_tokens"].isna().sum() == 6
    assert read["text"].iloc[-1] == "hi"


def overlapping() -> dict[str, Any]:
    late = step(1)
    late["allocations"][0] |= {"start_s": 4.5}
    return late


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (step(0), r"step 0 is complete already; the next step is 1"),
        ({"rollouts": rollouts(1) + rollouts(2)}, r"the new rows are of the steps \[1, 2\]; append one step at a time"),
        ({"rollouts": rollouts(1), "events": step(2)["events"]}, r"of the steps \[1, 2\]; append one step at a time"),
        ({"spans": step(1)["spans"]}, "new rollouts: the log has no rows; at least one response is needed"),
        ({"rollouts": rollouts(1), "plan": {"step": 7}}, "the plan is of step 7, the rows are of step 1; one is needed"),
        ({"rollouts": rollouts(1, finish_reason="eos")}, "new rollouts: row 1, column 'finish_reason' is 'eos'; one of stop"),
        ({"rollouts": rollouts(1, text=1)}, "new rollouts: a column has another type than in earlier steps"),
        (overlapping(), r"allocations.parquet: row 4, column 'gpu_ids' takes GPU 0 at 4.5 s, but row 3 \('learner'\) holds it"),
    ],
)
def test_a_wrong_step_is_refused_and_changes_nothing(tmp_path: Path, rows: dict[str, Any], sentence: str) -> None:
    writer = TraceWriter(tmp_path)
    first = step(0)
    first["rollouts"] = rollouts(0, text="hi")
    writer.append_step(**first)
    before = {name: (tmp_path / name).read_bytes() for name in FILES}
    with pytest.raises(TraceError, match=sentence):
        writer.append_step(**rows)
    assert {name: (tmp_path / name).read_bytes() for name in FILES} == before
    writer.append_step(rollouts(1))
    assert read_trace(tmp_path).steps == [0, 1]


def test_a_trace_is_not_replaced_unasked(folder: Path) -> None:
    with pytest.raises(TraceError, match="holds a trace already; name another folder, or resume it"):
        TraceWriter(folder)
    TraceWriter(folder, overwrite=True).append_step(rollouts(5))
    assert read_trace(folder).steps == [5]
    with pytest.raises(TraceError, match="nothing: there is no such folder; a trace folder is needed"):
        TraceWriter.resume(folder / "nothing")


def test_a_full_disk_leaves_the_old_file_and_no_temporary_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    storage.write_text(path, "old")

    def fail(stream: Any) -> None:
        stream.write(b"ne")
        raise OSError(28, "No space left on device")

    with pytest.raises(TraceError, match=r"file: cannot be written \(No space left on device\); a writable folder is needed"):
        storage.replace_file(path, fail)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def child(*lines: str) -> subprocess.Popen[bytes]:
    """A Python process that runs ``lines`` beside the test's helpers."""
    code = "\n".join(["import os, signal, sys", f"sys.path.insert(0, {str(HERE)!r})", *lines])
    return subprocess.Popen([sys.executable, "-c", code])


def test_a_process_killed_before_any_file_is_replaced_leaves_the_completed_steps(tmp_path: Path) -> None:
    kill_before = (
        "replace = os.replace",
        "def replace_or_die(source, target):",
        "    if str(target).endswith(sys.argv_name): os.kill(os.getpid(), signal.SIGKILL)",
        "    replace(source, target)",
    )
    children = []
    for name in FILES:
        work = (
            "from trace_samples import step",
            "from rlhfless.trace import TraceWriter",
            f"writer = TraceWriter({str(tmp_path / name)!r}, {{'policy': 'static'}})",
            "writer.append_step(**step(0)); writer.append_step(**step(1))",
            f"sys.argv_name = {name!r}; os.replace = replace_or_die",
            "writer.append_step(**step(2))",
        )
        children.append(child(*kill_before, *work))
    assert [one.wait() for one in children] == [-signal.SIGKILL] * len(FILES)
    for position, name in enumerate(FILES):
        killed = tmp_path / name
        assert read_trace(killed).steps == [0, 1]
        assert [plan["step"] for plan in read_trace(killed).plans] == [0, 1]
        in_file = sorted(pd.read_parquet(killed / "rollouts.parquet")["step"].unique())
        assert in_file == ([0, 1] if position == 0 else [0, 1, 2])
        assert [path.name for path in killed.glob(".*.tmp")] != []
        without_events = step(2) | {"events": None}
        TraceWriter.resume(killed).append_step(**without_events)
        again = read_trace(killed)
        assert again.steps == [0, 1, 2]
        assert again.events["step"].tolist() == [0, 1]
        assert len(again.rollouts) == 18
        assert sorted(os.listdir(killed)) == sorted(FILES)


def test_a_process_killed_at_any_moment_can_be_resumed(tmp_path: Path) -> None:
    done = 0
    for _ in range(3):
        writing = child(
            "from pathlib import Path",
            "from trace_samples import step",
            "from rlhfless.trace import TraceWriter",
            f"folder = Path({str(tmp_path / 'trace')!r})",
            "writer = TraceWriter.resume(folder) if (folder / 'meta.json').exists() else TraceWriter(folder)",
            "while True: writer.append_step(**step(writer.next_step))",
        )
        deadline = time.monotonic() + 600
        while not (tmp_path / "trace" / "meta.json").exists() or (steps := last_step(tmp_path / "trace")) < done + 2:
            assert time.monotonic() < deadline, "the writing process makes no progress"
            time.sleep(0.02)
        writing.send_signal(signal.SIGKILL)
        assert writing.wait() == -signal.SIGKILL
        trace = read_trace(tmp_path / "trace")
        assert trace.steps == list(range(len(trace.steps)))
        assert len(trace.steps) >= steps > done
        for table in (trace.rollouts, trace.allocations, trace.spans, trace.events):
            assert table["step"].value_counts().nunique() == 1
            assert sorted(table["step"].unique()) == trace.steps
        done = len(trace.steps)


def last_step(folder: Path) -> int:
    """Completed steps; reads while the other process writes."""
    return len(storage.read_json(folder / "meta.json")["steps"])
