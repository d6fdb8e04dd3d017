"""validate: what a table becomes, and the sentence of every refusal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_samples import rollouts, step

from rlhfless.trace import TABLES, TraceError, validate
from rlhfless.trace.recording.row_validation import checked_row
from rlhfless.trace.schema.casts import FEW, cast


def changed(row: int, **cells: Any) -> list[dict[str, Any]]:
    """Valid rollouts with some cells of one row (counted from 1) replaced."""
    rows = rollouts()
    rows[row - 1] |= cells
    return rows


def test_columns_come_in_order_with_their_types_and_extras_behind() -> None:
    frame = validate("rollouts", [dict(reversed(row.items())) | {"text": "hi"} for row in rollouts()])
    names = [column.name for column in TABLES["rollouts"] if not column.optional]
    assert list(frame.columns) == [*names, "text"]
    assert frame["prompt_id"].tolist() == ["0", "0", "1", "1", "2", "2"]
    assert frame["run"].unique().tolist() == ["log"]
    assert frame["response_tokens"].dtype == np.int64
    assert str(frame["prompt_tokens"].dtype) == "Int64"


def test_what_a_log_does_not_say_is_null() -> None:
    few = [{"step": 0, "prompt_id": "a", "sample": 0, "response_tokens": "7"}]
    frame = validate("rollouts", few)
    assert frame[["prompt_tokens", "finish_reason", "reward", "weights_version"]].isna().all(axis=None)
    assert "predicted_tokens" not in frame.columns
    assert frame["response_tokens"].tolist() == [7]


def test_rows_keep_their_order() -> None:
    frame = validate("rollouts", rollouts(prompts=12)[::-1])
    assert frame["prompt_id"].iloc[0] == "11"
    assert frame["prompt_id"].iloc[-1] == "0"


@pytest.mark.parametrize("ids", [[1, 2], [1.0, 2.0], np.array([1, 2], dtype=np.uint8), ["1", "2"]])
def test_prompt_ids_become_text(ids: Any) -> None:
    frame = pd.DataFrame({"step": 0, "prompt_id": ids, "sample": 0, "response_tokens": 1})
    assert validate("rollouts", frame)["prompt_id"].tolist() == ["1", "2"]


def test_a_missing_epoch_counts_the_smaller_steps_that_had_the_prompt() -> None:
    rows = rollouts(step=7) + rollouts(step=3, prompts=1) + rollouts(step=7, run="other")
    frame = validate("rollouts", rows)
    assert frame["epoch"].tolist() == [1, 1, 0, 0, 0, 0] + [0, 0] + [0] * 6


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([], ()),
        (
            changed(3, response_tokens=-1),
            ("row 3", "'response_tokens'"),
        ),
        (changed(2, response_tokens=float("nan")), ("row 2", "'response_tokens'")),
        (changed(2, response_tokens=float("inf")), ("row 2", "'response_tokens'")),
        (changed(2, response_tokens=1.5), ("row 2", "'response_tokens'", "1.5")),
        (changed(2, response_tokens="many"), ("row 2", "'response_tokens'", "'many'")),
        (changed(2, response_tokens=[1]), ("row 2", "'response_tokens'")),
        (changed(2, response_tokens=1e300), ("row 2", "'response_tokens'", "300")),
        (changed(6, prompt_tokens=-4), ("row 6", "'prompt_tokens'")),
        (changed(1, step=None), ("row 1", "'step'")),
        (changed(1, prompt_id=None), ("row 1", "'prompt_id'")),
        (changed(1, prompt_id=0.5), ("row 1", "'prompt_id'", "0.5")),
        (changed(1, prompt_id=[1, 2]), ("row 1", "'prompt_id'")),
        (changed(4, finish_reason="eos"), ("row 4", "'finish_reason'", "'eos'")),
        (changed(4, reward=float("-inf")), ("row 4", "'reward'")),
        (
            changed(2, sample=0),
            ("row 2", "row 1", "prompt_id", "'log'", "'0'"),
        ),
        ([row | {"start_s": 2, "end_s": 1} for row in rollouts()], ("row 1", "'end_s'", "'start_s'")),
        (
            [{"step": 0, "prompt_id": 1, "response_tokens": 4}],
            ("'sample'", "prompt_id", "response_tokens", "--map"),
        ),
    ],
)
def test_wrong_rollouts_are_refused_in_one_sentence(rows: Any, sentence: tuple[str, ...]) -> None:
    with refused(TraceError, *sentence) as refusal:
        validate("rollouts", rows, "log")
    assert "\n" not in str(refusal.value)


def test_a_long_value_is_shortened_in_the_sentence() -> None:
    with refused(TraceError):
        validate("rollouts", changed(1, finish_reason="x" * 500))


def test_a_filtered_frame_keeps_the_row_numbers_of_its_file() -> None:
    frame = pd.DataFrame(changed(5, response_tokens=-1))
    with refused(TraceError, "row 5"):
        validate("rollouts", frame[frame["prompt_id"] > 0])


def test_a_column_that_is_there_twice_is_refused() -> None:
    frame = pd.DataFrame(rollouts())
    with refused(TraceError, "'step'"):
        validate("rollouts", pd.concat([frame, frame[["step"]]], axis=1))


def with_cell(table: str, row: int, **cells: Any) -> list[dict[str, Any]]:
    rows = step()[table]
    rows[row - 1] |= cells
    return rows


@pytest.mark.parametrize(
    ("table", "row", "cells", "sentence"),
    [
        ("allocations", 2, {"end_s": -1.0}, ("row 2", "'end_s'", "-1.0")),
        ("allocations", 3, {"end_s": 3.0}, ("row 3", "'end_s'", "'start_s'")),
        ("allocations", 2, {"gpu_ids": [1, 1]}, ("row 2", "'gpu_ids'")),
        ("allocations", 2, {"gpu_ids": [0.5]}, ("row 2", "'gpu_ids'")),
        ("allocations", 2, {"gpu_ids": "2,3"}, ("row 2", "'gpu_ids'", "'2,3'")),
        ("allocations", 1, {"role": "actor"}, ("row 1", "'role'", "'actor'")),
        ("allocations", 1, {"usd_per_gpu_s": None}, ("row 1", "'usd_per_gpu_s'")),
        (
            "allocations",
            2,
            {"gpu_ids": [1, 2]},
            ("row 2", "'gpu_ids'", "row 1", "'decode-0'"),
        ),
        ("allocations", 1, {"idle": 1}, ("'idle'",)),
        ("spans", 1, {"phase": "wait"}, ("row 1", "'phase'", "'wait'")),
        ("spans", 2, {"batch_mean": 5.0}, ("row 2", "'batch_mean'", "'slots'")),
        ("spans", 2, {"background": "perhaps"}, ("row 2", "'background'", "'perhaps'")),
        ("spans", 2, {"detail": "{oops"}, ("row 2", "'detail'", "'{oops'")),
        ("spans", 2, {"end_s": 0.5}, ("row 2", "'end_s'", "0.5", "'start_s'")),
        ("events", 1, {"time_s": None}, ("row 1", "'time_s'")),
        ("events", 1, {"name": ""}, ("row 1", "'name'")),
    ],
)
def test_wrong_records_are_refused_in_one_sentence(
    table: str, row: int, cells: dict[str, Any], sentence: tuple[str, ...]
) -> None:
    with refused(TraceError, *sentence):
        validate(table, with_cell(table, row, **cells))


def test_a_missing_column_of_a_record_is_refused() -> None:
    with refused(TraceError, "'end_s'"):
        validate("spans", pd.DataFrame(step()["spans"]).drop(columns="end_s"))


def test_gpus_may_change_hands_at_one_moment_and_belong_to_each_run() -> None:
    one = {"step": 0, "role": "decode", "gpu_ids": [0], "kind": "l40s", "usd_per_gpu_s": 0}
    times = [("a", 0, 0.1 + 0.2, "r"), ("b", 0.3, 1, "r"), ("c", 0, 1, "s"), ("d", 0.5, 0.5, "r")]
    rows = [one | {"holder": who, "start_s": start, "end_s": end, "run": run} for who, start, end, run in times]
    assert len(validate("allocations", rows)) == 4


def test_a_holder_on_a_cpu_has_no_gpus() -> None:
    one = {"step": 0, "role": "learner", "kind": "l40s", "usd_per_gpu_s": 0, "start_s": 0.0, "end_s": 1.0}
    held = validate("allocations", [one | {"holder": "a", "gpu_ids": []}, one | {"holder": "b", "gpu_ids": []}])
    assert [list(ids) for ids in held["gpu_ids"]] == [[], []]


def test_empty_tables_have_their_columns() -> None:
    for table in ("allocations", "spans", "events"):
        frame = validate(table, None)
        assert list(frame.columns) == [column.name for column in TABLES[table]]
        assert len(frame) == 0


cells = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=1),
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(
    table=st.sampled_from(sorted(TABLES)),
    data=st.data(),
)
def test_any_cell_is_taken_or_refused_with_a_trace_error(table: str, data: st.DataObject) -> None:
    column = data.draw(st.sampled_from([column.name for column in TABLES[table]]))
    rows = with_cell(table, 1, **{column: data.draw(cells)})
    try:
        frame = validate(table, rows)
    except TraceError:
        return
    assert len(frame) == len(rows)
    pd.testing.assert_frame_equal(validate(table, frame), frame)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(TABLES)),
    st.lists(cells | st.integers(0, 9) | st.sampled_from(["decode", "7"]), max_size=3),
    st.data(),
)
def test_a_long_column_is_converted_as_a_short_one(table: str, some: list[Any], data: st.DataObject) -> None:
    column = data.draw(st.sampled_from(TABLES[table]))
    results = []
    for times in (1, FEW + 1):
        values = pd.Series(some * times, name=column.name, dtype=object)
        try:
            results.append(cast(column, values, "log").iloc[: len(some)])
        except TraceError:
            results.append(None)
    short, long = results
    assert (short is None) == (long is None)
    if short is not None:
        pd.testing.assert_series_equal(short, long, check_names=False)


DRAFTS = {"response_tokens": 9, "passes": 4, "drafted_tokens": 8, "accepted_tokens": 5}


def test_counts_of_drafts_are_optional_columns() -> None:
    frame = validate("rollouts", changed(2, **DRAFTS))
    assert frame["passes"].tolist() == [pd.NA, 4, *[pd.NA] * 4]
    assert (frame["passes"] + frame["accepted_tokens"]).iloc[1] == frame["response_tokens"].iloc[1]
    assert checked_row("rollouts", changed(2, **DRAFTS)[1])["drafted_tokens"] == 8
    assert "passes" not in validate("rollouts", rollouts()).columns


@pytest.mark.parametrize(("wrong", "named"), [
    ({"drafted_tokens": 4}, ("accepted_tokens", 5, "drafted_tokens", 4)),
    ({"passes": 5}, ("passes", "accepted_tokens", 10, "response_tokens", 9)),
    ({"passes": -1}, ("passes", -1)),
])  # fmt: skip
def test_counts_of_drafts_that_cannot_be_are_refused(wrong: dict[str, int], named: tuple[object, ...]) -> None:
    rows = changed(2, **DRAFTS | wrong)
    with refused(TraceError, "row 2", *named):
        validate("rollouts", rows)
    with refused(TraceError, *named):
        checked_row("rollouts", rows[1])


def test_columns_of_the_users_own_may_have_names_of_other_tables() -> None:
    """Spans have slots; in rollouts such a column is the user's."""
    for own in ("large", 2):
        rows = pd.DataFrame(rollouts(0)).assign(slots=own, batch_mean=9)
        assert validate("rollouts", rows, "rollouts")["slots"].tolist() == [own] * len(rows)
        assert checked_row("rollouts", {**rollouts(0)[0], "slots": own, "batch_mean": 9})["slots"] == own
