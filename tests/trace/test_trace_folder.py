"""A trace in memory and on disk: round trips, logs in every format, and what is no trace."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_samples import rollouts

from rlhfless.trace import TABLES, Trace, TraceError, read_rollouts, read_trace


def assert_same(one: Trace, other: Trace) -> None:
    for table in TABLES:
        pd.testing.assert_frame_equal(getattr(one, table), getattr(other, table))


def test_a_saved_trace_reads_back(trace: Trace, tmp_path: Path) -> None:
    again = read_trace(trace.save(tmp_path / "a" / "b"))
    assert_same(trace, again)
    assert again.steps == [0, 1]
    assert again.run == "log"
    assert again.meta["policy"] == "static"
    assert again.meta["clock"] is None


def test_what_was_appended_is_what_was_made_in_memory(trace: Trace, folder: Path) -> None:
    assert_same(read_trace(folder), trace)
    plans = read_trace(folder).plans
    assert plans == [{"actors": 2, "gap": 0.25, "bound": None, "step": n} for n in (0, 1)]


def test_the_files_carry_units_and_lists(folder: Path) -> None:
    schema = pq.read_schema(folder / "allocations.parquet")
    assert schema.field("start_s").metadata[b"unit"] == b"s"
    assert str(schema.field("gpu_ids").type).startswith("list<")
    assert pq.read_table(folder / "allocations.parquet")["gpu_ids"].to_pylist()[0] == [0, 1]
    assert json.loads(pq.read_table(folder / "spans.parquet")["detail"][0].as_py()) == {"note": "prefill"}


def test_nested_and_mixed_extra_columns_are_kept_as_json_text(tmp_path: Path) -> None:
    rows = [row | {"tags": [1, {"a": 2}], "mixed": 1} for row in rollouts()]
    rows[1]["mixed"] = "one"
    again = read_trace(Trace(rows).save(tmp_path / "trace")).rollouts
    assert json.loads(again["tags"][0]) == [1, {"a": 2}]
    assert again["mixed"].tolist()[:3] == ["1", "one", "1"]


names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=4)


@settings(max_examples=25, deadline=None)
@given(
    keys=st.lists(st.tuples(names, st.integers(0, 3), names, st.integers(0, 9)), min_size=1, max_size=8, unique=True),
    data=st.data(),
)
def test_any_valid_rollouts_survive_the_round_trip(
    tmp_path_factory: pytest.TempPathFactory, keys: list, data: st.DataObject
) -> None:
    frame = pd.DataFrame(keys, columns=["run", "step", "prompt_id", "sample"]).assign(
        response_tokens=[data.draw(st.integers(0, 2**53)) for _ in keys],
        prompt_tokens=[data.draw(st.none() | st.integers(0, 2**53)) for _ in keys],
        finish_reason=[data.draw(st.sampled_from(["stop", "length", "aborted", None])) for _ in keys],
        reward=[data.draw(st.floats(allow_infinity=False)) for _ in keys],
    )
    trace = Trace(frame)
    assert_same(trace, read_trace(trace.save(tmp_path_factory.mktemp("round") / "trace")))


@pytest.mark.parametrize("name", ["log.csv", "log.csv.gz", "log.jsonl", "log.jsonl.gz", "log.parquet", "log.parquet.gz"])
def test_a_log_reads_the_same_in_every_format(tmp_path: Path, name: str) -> None:
    frame = pd.DataFrame(rollouts()).assign(prompt_id=["007", "007", "07", "07", "b", "b"], actor=["1", None] * 3)
    frame.loc[1, "prompt_tokens"] = np.nan
    path = tmp_path / name.removesuffix(".gz")
    {"csv": lambda: frame.to_csv(path, index=False), "parquet": lambda: frame.to_parquet(path)}.get(
        path.suffix[1:], lambda: frame.to_json(path, orient="records", lines=True)
    )()
    if name.endswith(".gz"):
        (tmp_path / name).write_bytes(gzip.compress(path.read_bytes()))
    read = read_rollouts(tmp_path / name)
    assert read["prompt_id"].tolist() == ["007", "007", "07", "07", "b", "b"]
    assert read["prompt_tokens"].isna().tolist() == [False, True] + [False] * 4
    assert read["actor"].tolist() == ["1", None] * 3
    assert read["response_tokens"].tolist() == [10, 11, 12, 13, 14, 15]


def test_a_trace_folder_is_a_log_too(folder: Path, trace: Trace) -> None:
    pd.testing.assert_frame_equal(read_rollouts(folder), trace.rollouts)
    pd.testing.assert_frame_equal(read_rollouts(folder / "rollouts.parquet"), trace.rollouts)


def test_a_row_number_of_a_jsonl_log_is_its_line(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    good, bad = rollouts()[:2]
    path.write_text(json.dumps(good) + "\n\n" + json.dumps(bad | {"response_tokens": -1}) + "\n")
    with refused(TraceError, "log.jsonl", "row 3", "'response_tokens'"):
        read_rollouts(path)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("absent.csv", None, ("absent.csv",)),
        ("log.txt", b"hello", ("log.txt",)),
        ("log.csv", b"", ("log.csv",)),
        ("log.csv", b"a,b\n1,2,3\n4,5,6\n", ()),
        ("log.csv", b"\xff\xfe\x00\x01", ()),
        ("log.csv", b"step,prompt_id\n", ()),
        ("log.parquet", b"no parquet at all", ()),
        ("log.csv.gz", b"not packed", ()),
        ("log.jsonl", b'{"step": 1}\n{"step": \n', ("line 2",)),
        ("log.jsonl", b"[1, 2]\n", ()),
        ("log.jsonl", b"", ()),
    ],
)
def test_what_is_no_log_is_refused_in_one_sentence(
    tmp_path: Path, name: str, content: bytes | None, sentence: tuple[str, ...]
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with refused(TraceError, *sentence) as refusal:
        read_rollouts(path)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("meta.json", "{", ("meta.json",)),
        ("meta.json", "[]", ("meta.json",)),
        (
            "meta.json",
            '{"schema_version": 9}',
            ("schema_version",),
        ),
        ("meta.json", '{"schema_version": 1}', ()),
        ("meta.json", '{"schema_version": 1, "steps": []}', ()),
        ("plans.jsonl", '{"actors": 2}\n', ("plans.jsonl", "line 1", "'step'")),
        ("plans.jsonl", "[1]\n", ("plans.jsonl", "line 1")),
        ("plans.jsonl", '{"step": 0, "policy": "\xe9"}\n', ("plans.jsonl", "line 1")),
        ("spans.parquet", "broken", ("spans.parquet",)),
    ],
)
def test_a_broken_trace_folder_is_refused_in_one_sentence(
    folder: Path, file: str, content: str, sentence: tuple[str, ...]
) -> None:
    (folder / file).write_text(content, "latin-1")
    with refused(TraceError, *sentence):
        read_trace(folder)


def test_what_is_no_trace_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    with refused(TraceError):
        read_trace(tmp_path / "nothing")
    with refused(TraceError, "meta.json"):
        read_trace(tmp_path)
    (folder / "meta.json").unlink()
    with refused(TraceError, "meta.json", "'rollouts.parquet'"):
        read_trace(folder)


def test_a_wrong_row_of_a_trace_is_named_with_its_file(folder: Path) -> None:
    path = folder / "rollouts.parquet"
    frame = pd.read_parquet(path)
    frame.loc[8, "response_tokens"] = -3
    frame.to_parquet(path)
    with refused(TraceError, "trace/rollouts.parquet", "row 9", "'response_tokens'"):
        read_trace(folder)


def test_a_logged_trace_needs_only_rollouts_and_meta(folder: Path) -> None:
    for table in ("allocations", "spans", "events"):
        (folder / f"{table}.parquet").unlink()
    (folder / "plans.jsonl").unlink()
    assert len(read_trace(folder).rollouts) == 12


def test_save_does_not_replace_a_trace_unasked(trace: Trace, folder: Path) -> None:
    with refused(TraceError):
        trace.save(folder)
    trace.save(folder, overwrite=True)
    assert_same(read_trace(folder), trace)


def test_a_folder_that_cannot_be_made_is_refused(trace: Trace, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with refused(TraceError):
        trace.save(tmp_path / "file" / "trace")


def test_several_runs_have_no_single_name() -> None:
    trace = Trace(rollouts(run="a") + rollouts(run="b"))
    assert trace.runs == ["a", "b"]
    with refused(TraceError, "--run"):
        _ = trace.run


def test_a_trace_prints_itself_short_and_escaped() -> None:
    trace = Trace(rollouts(run="<script>"), meta={"policy": "<b>"})
    assert 3 < len(repr(trace).splitlines()) <= 10
    assert "6 for 3 prompts" in repr(trace)
    assert "<script>" not in trace._repr_html_()
    assert "&lt;script&gt;" in trace._repr_html_()
    assert "&lt;b&gt;" in trace._repr_html_()


def test_an_executed_run_without_its_spans_is_refused(trace: Trace, tmp_path: Path) -> None:
    """Without its spans every GPU would look idle; only a log of lengths may lack tables."""
    for table in ("allocations", "spans"):
        folder = replace(trace, meta={**trace.meta, "clock": "virtual"}).save(tmp_path / table)
        (folder / f"{table}.parquet").unlink()
        with refused(TraceError, str(table), "meta.json"):
            read_trace(folder)
