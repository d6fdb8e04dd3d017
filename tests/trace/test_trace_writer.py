"""TraceWriter: steps are appended whole, one after the other, and a killed process leaves the completed ones."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from error_messages import refused
from trace_samples import rollouts, step

from rlhfless.trace import TraceError, TraceWriter, read_trace, storage, store

SUPPORT = Path(__file__).parents[1] / "support"
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
    with refused(TraceError):
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


def contents(folder: Path) -> dict[Path, bytes]:
    """All files of a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def overlapping() -> dict[str, Any]:
    late = step(1)
    late["allocations"][0] |= {"start_s": 4.5}
    return late


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (step(0), ("step 0",)),
        ({"rollouts": rollouts(1) + rollouts(2)}, ()),
        ({"rollouts": rollouts(1), "events": step(2)["events"]}, ()),
        ({"spans": step(1)["spans"]}, ()),
        ({"rollouts": rollouts(1), "plan": {"step": 7}}, ("step 7", "step 1")),
        ({"rollouts": rollouts(1, finish_reason="eos")}, ("row 1", "'finish_reason'", "'eos'")),
        ({"rollouts": rollouts(1, text=1)}, ()),
        (overlapping(), ("allocations.parquet", "row 4", "'gpu_ids'", "4.5", "row 3", "'learner'")),
    ],
)
def test_a_wrong_step_is_refused_and_changes_nothing(tmp_path: Path, rows: dict[str, Any], sentence: tuple[str, ...]) -> None:
    writer = TraceWriter(tmp_path)
    first = step(0)
    first["rollouts"] = rollouts(0, text="hi")
    writer.append_step(**first)
    before = contents(tmp_path)
    with refused(TraceError, *sentence):
        writer.append_step(**rows)
    assert contents(tmp_path) == before
    writer.append_step(rollouts(1))
    assert read_trace(tmp_path).steps == [0, 1]


def test_a_trace_is_not_replaced_unasked(folder: Path) -> None:
    with refused(TraceError):
        TraceWriter(folder)
    TraceWriter(folder, overwrite=True).append_step(rollouts(5))
    assert read_trace(folder).steps == [5]
    with refused(TraceError):
        TraceWriter.resume(folder / "nothing")


def test_a_full_disk_leaves_the_old_file_and_no_temporary_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    storage.write_text(path, "old")

    def fail(stream: Any) -> None:
        stream.write(b"ne")
        raise OSError(28, "No space left on device")

    with refused(TraceError):
        storage.replace_file(path, fail)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def child(*lines: str) -> subprocess.Popen[bytes]:
    """A Python process that runs ``lines`` beside the test's helpers."""
    code = "\n".join(["import sys", f"sys.path.insert(0, {str(SUPPORT)!r})", *lines])
    return subprocess.Popen([sys.executable, "-c", code])


def dying(do: Callable[..., None], name: str) -> Callable[..., None]:
    """It does what ``do`` does, unless its last argument has this name: then this process is killed."""

    def or_die(*given: Any, **more: Any) -> None:
        if str(given[-1]).endswith(f"/{name}"):
            os.kill(os.getpid(), signal.SIGKILL)
        do(*given, **more)

    return or_die


def killed_before(name: str, work: Callable[[], object]) -> None:
    """Do something in a copy of this process, which is killed before it replaces or removes what has this name."""
    if pid := os.fork():
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        return
    for place, doing in ((os, "rename"), (os, "replace"), (shutil, "rmtree")):
        setattr(place, doing, dying(getattr(place, doing), name))
    try:
        work()
    finally:
        os._exit(0)


@pytest.mark.full
def test_a_process_killed_before_any_file_is_there_leaves_the_completed_steps(tmp_path: Path) -> None:
    """Before a step's folder is, before each of the files that closing replaces, and before the folders that it removes."""
    moments = ["000002", *FILES, "000000"]
    for name in moments:
        writer = TraceWriter(tmp_path / name, {"policy": "static"})
        for number in (0, 1):
            writer.append_step(**step(number))
        killed_before(name, lambda writer=writer: (writer.append_step(**step(2)), writer.close()))
    for name in moments:
        killed = tmp_path / name
        there = [0, 1] if name == "000002" else [0, 1, 2]
        assert read_trace(killed).steps == there
        assert [plan["step"] for plan in read_trace(killed).plans] == there
        assert len(read_trace(killed).rollouts) == 6 * len(there)
        writer = TraceWriter.resume(killed)
        if name == "000002":
            writer.append_step(**step(2))
        writer.append_step(**(step(3) | {"events": None}))
        writer.close()
        again = read_trace(killed)
        assert again.steps == [0, 1, 2, 3]
        assert again.events["step"].tolist() == [0, 1, 2]
        assert len(again.rollouts) == 24
        assert sorted(os.listdir(killed)) == sorted(FILES), name


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
        while (steps := completed(tmp_path / "trace")) < done + 2:
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


def completed(folder: Path) -> int:
    """Completed steps; reads while the other process writes."""
    return len(store.unmerged_steps(folder, ()))


# --- what a step costs ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="this system does not count what a process writes")
def test_a_step_writes_as_much_whatever_came_before_it(tmp_path: Path) -> None:
    def written() -> int:
        return int(Path("/proc/self/io").read_text().split("wchar:")[1].split()[0])

    writer, of_step = TraceWriter(tmp_path), []
    for number in range(40):
        before = written()
        writer.append_step(**step(number))
        of_step.append(written() - before)
    assert max(of_step[-5:]) < 1.1 * max(of_step[:5])
    rows = read_trace(tmp_path).rollouts
    writer.close()
    pd.testing.assert_frame_equal(read_trace(tmp_path).rollouts, rows)


@pytest.mark.full
def test_a_writer_keeps_no_responses_in_memory(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path)
    tracemalloc.start()
    try:
        sizes = []
        for number in range(6):
            writer.append_step(**(step(number) | {"rollouts": rollouts(number, text="x" * 500_000)}))
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0] + pa.total_allocated_bytes())
    finally:
        tracemalloc.stop()
    assert sizes[-1] - sizes[0] < 500_000, "six responses of half a million letters were appended five times since"
    assert len(writer.trace.rollouts) == 36


MERGES = """
from pathlib import Path
from rlhfless.trace import store

def peak_kib(): return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])

store.ROWS_AT_ONCE = 600  # of a table in memory, whatever the number of steps
peaks = [peak_kib()]
for folder, steps in FOLDERS:
    store.merge_steps(Path(folder), {"steps": list(range(steps))})
    peaks.append(peak_kib())
before, few, many = peaks
quarter, more = few - before, many - few
sys.exit(f"{quarter:,} KiB for a quarter of the steps, {more:,} KiB more for all" if 2 * more > quarter else None)
"""


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="this system does not tell a process's largest memory")
def test_closing_takes_no_more_memory_for_many_steps(tmp_path: Path) -> None:
    """One process merges 500 steps, then 2,000. What 8,000 files say of themselves would take four times as much as 2,000."""
    folders = []
    for steps in (500, 2000):
        folder = tmp_path / str(steps)
        TraceWriter(folder).append_step(**step(0))
        for number in range(1, steps):
            shutil.copytree(store.path_of(folder, 0), store.path_of(folder, number))
        folders.append((str(folder), steps))
    assert child(f"FOLDERS = {folders!r}", MERGES).wait(timeout=600) == 0
    assert pq.read_metadata(tmp_path / "2000" / "rollouts.parquet").num_rows == 12_000


# --- steps and tables -----------------------------------------------------------------------------------------------------


def test_closing_changes_nothing_of_what_is_read(tmp_path: Path) -> None:
    """Columns that come later, go or turn from whole numbers into others; steps out of order; closed between two steps."""
    writer = TraceWriter(tmp_path, {"policy": "static", "clock": "virtual"})
    for number, more in ((0, {"tries": 1}), (2, {"tries": 2.5, "text": "hi"}), (1, {}), (3, {"flag": True})):
        writer.append_step(**(step(number) | {"rollouts": rollouts(number, **more)}))
        open_, plans = read_trace(tmp_path), read_trace(tmp_path).plans
        if number in (2, 3):
            writer.close()
            writer.close()
            closed = read_trace(tmp_path)
            assert closed.plans == plans
            assert closed.meta == open_.meta
            for table in ("rollouts", "allocations", "spans", "events"):
                theirs, ours = (getattr(one, table).sort_values("step", kind="stable") for one in (open_, closed))
                pd.testing.assert_frame_equal(ours, theirs)
            assert sorted(os.listdir(tmp_path)) == sorted(FILES)
    assert closed.steps == [0, 1, 2, 3]
    assert closed.rollouts["tries"].dropna().unique().tolist() == [1.0, 2.5]
    schema = pq.read_schema(tmp_path / "spans.parquet")
    assert schema.field("start_s").metadata[b"unit"] == b"s"


def test_a_step_between_earlier_ones_gets_its_epoch(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path)
    for number in (0, 4, 2):
        writer.append_step(rollouts(number, prompts=1))
    assert read_trace(tmp_path).rollouts.groupby("step")["epoch"].first().to_dict() == {0: 0, 2: 1, 4: 1}


def test_steps_are_read_while_they_are_put_into_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = TraceWriter(tmp_path)
    writer.append_step(**step(0))
    list_steps = store.unmerged_steps

    def closed_meanwhile(folder: Path, named: Any) -> list[int]:
        monkeypatch.undo()
        found = list_steps(folder, named)
        writer.close()
        return found

    monkeypatch.setattr(store, "unmerged_steps", closed_meanwhile)
    assert read_trace(tmp_path).steps == [0]


def write_steps(folder: Path, count: int) -> None:
    writer = TraceWriter(folder)
    for number in range(count):
        writer.append_step(**step(number))


def resumed_by_another_process(folder: Path, at: int, *more: str) -> None:
    """Remove the steps from ``at`` on in another process, and do more there."""
    code = ["from trace_samples import step", "from rlhfless.trace import TraceWriter"]
    assert child(*code, f"writer = TraceWriter.resume({str(folder)!r}, {at})", *more).wait(timeout=600) == 0


def test_steps_are_read_while_another_process_resumes_at_an_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process removes steps after the reader has listed them."""
    write_steps(tmp_path, 3)
    list_steps = store.unmerged_steps

    def resumed_meanwhile(folder: Path, named: Any) -> list[int]:
        monkeypatch.undo()
        found = list_steps(folder, named)
        resumed_by_another_process(folder, 1)
        return found

    monkeypatch.setattr(store, "unmerged_steps", resumed_meanwhile)
    assert read_trace(tmp_path).steps == [0]


def test_a_step_that_another_process_replaces_is_read_from_one_of_the_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process removes the step after the reader has read its tables, and writes it anew without spans."""
    write_steps(tmp_path, 2)
    read_journal = store.joined

    def replaced_meanwhile(*given: Any) -> Any:
        monkeypatch.undo()
        later = "writer.append_step(**{table: rows for table, rows in step(1).items() if table != 'spans'})"
        resumed_by_another_process(tmp_path, 1, later)
        return read_journal(*given)

    monkeypatch.setattr(store, "joined", replaced_meanwhile)
    assert read_trace(tmp_path).spans["step"].unique().tolist() == [0]


def test_a_reader_does_not_wait_for_a_writer_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that are appended while others are read are those of the next reader."""
    writer = TraceWriter(tmp_path)
    writer.append_step(**step(0))
    list_steps = store.unmerged_steps

    def appended_meanwhile(folder: Path, named: Any) -> list[int]:
        found = list_steps(folder, named)
        writer.append_step(**step(writer.next_step))
        return found

    monkeypatch.setattr(store, "unmerged_steps", appended_meanwhile)
    assert read_trace(tmp_path).steps == [0]


@pytest.mark.parametrize("name", ["7", "000007"])
def test_a_file_in_place_of_a_step_is_named(tmp_path: Path, name: str) -> None:
    TraceWriter(tmp_path).append_step(**step(0))
    (tmp_path / "steps" / name).write_text("mine")
    with refused(TraceError, "steps/000007/rollouts.parquet"):
        read_trace(tmp_path)


def test_an_overwritten_trace_leaves_no_steps_behind(tmp_path: Path) -> None:
    TraceWriter(tmp_path).append_step(**step(3))
    writer = TraceWriter(tmp_path, overwrite=True)
    writer.append_step(**step(0))
    assert read_trace(tmp_path).steps == [0]


@pytest.mark.parametrize("damage", ["removed", "torn"])
def test_a_damaged_file_of_a_step_is_named(tmp_path: Path, damage: str) -> None:
    writer = TraceWriter(tmp_path)
    writer.append_step(**step(0))
    path = store.path_of(tmp_path, 0) / "spans.parquet"
    if damage == "removed":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-20])
    with refused(TraceError, "steps/000000/spans.parquet"):
        read_trace(tmp_path)
    with refused(TraceError, "spans.parquet"):
        writer.close()
    assert path.parent.is_dir(), "what can be read of it stays"


def test_a_folder_that_is_gone_is_not_made_again(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "trace")
    writer.append_step(**step(0))
    shutil.rmtree(tmp_path / "trace")
    with refused(TraceError):
        writer.append_step(**step(1))
    assert os.listdir(tmp_path) == []
    assert writer.steps == [0]


def killed_after_the_merge(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write three steps and merge them; the process dies before it removes their folders."""
    writer = TraceWriter(folder)
    for number in range(3):
        writer.append_step(**step(number))
    with monkeypatch.context() as killed:
        killed.setattr(store, "_remove_steps", lambda folder: None)
        writer.close()
    assert (folder / "steps" / "000001").is_dir()


def test_steps_that_are_taken_back_do_not_return_from_folders_that_a_killed_merge_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_after_the_merge(tmp_path, monkeypatch)
    assert read_trace(tmp_path).steps == [0, 1, 2]
    writer = TraceWriter.resume(tmp_path, 1)
    assert writer.steps == [0]
    writer.append_step(**step(1))
    writer.close()
    assert read_trace(tmp_path).steps == [0, 1]


def test_a_half_removed_folder_of_a_merged_step_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed_after_the_merge(tmp_path, monkeypatch)
    (tmp_path / "steps" / "000001" / "spans.parquet").unlink()
    assert TraceWriter.resume(tmp_path, 2).steps == [0, 1]


def test_a_run_is_closed_whatever_the_limits_on_logs_of_others_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLHFLESS_LIMITS", "max_rows=4")
    writer = TraceWriter(tmp_path)
    for number in range(2):
        writer.append_step(**step(number))
    writer.close()
    monkeypatch.delenv("RLHFLESS_LIMITS")
    assert not (tmp_path / "steps").exists()
    assert read_trace(tmp_path).steps == [0, 1]
