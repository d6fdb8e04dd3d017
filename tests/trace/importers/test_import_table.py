"""Tables: other names for our columns, what a log lacks, and a real log as it was published."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pandas as pd
import pytest
from error_messages import refused
from trace_samples import AREAL_MAP, GSM8K_LENGTHS, needs_gsm8k_lengths, rollouts

from rlhfless.trace import ImportOptions, ImportSummary, TraceError, import_log, read_trace


def import_table(
    path: Path, mapping: dict[str, str] | None = None, max_response_tokens: int | None = None
) -> tuple[pd.DataFrame, ImportSummary]:
    """The rollouts and the summary of a table."""
    log = import_log(path, ImportOptions(mapping=mapping or {}, max_response_tokens=max_response_tokens), "table")
    assert log.rollouts is not None
    return log.rollouts, log.summary


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A csv log with other names, one row of which is there twice."""
    frame = pd.DataFrame(rollouts()).rename(columns={"prompt_id": "uid", "response_tokens": "len"})
    frame = frame.drop(columns=["prompt_tokens", "finish_reason"]).assign(epoch=4, note="x")
    path = tmp_path / "log.csv"
    pd.concat([frame, frame.iloc[[2]]]).to_csv(path, index=False)
    return path


def test_a_mapped_column_replaces_ours_and_the_rest_is_kept(log: Path) -> None:
    frame, summary = import_table(log, {"prompt_id": "uid", "response_tokens": "len", "step": "epoch"})
    assert frame["step"].unique().tolist() == [4]
    assert frame["source_step"].unique().tolist() == [0]
    assert frame["epoch"].unique().tolist() == [4]
    assert frame["note"].unique().tolist() == ["x"]
    assert "len" not in frame.columns
    assert (summary.rows, summary.prompts, summary.steps, summary.epochs) == (6, 3, 1, 1)
    assert summary.duplicates_dropped == 1
    assert "step: taken from 'epoch'; the file's own column is kept as 'source_step'" in summary.notes


def test_the_summary_says_what_is_missing_and_what_that_disables(log: Path) -> None:
    _, summary = import_table(log, {"prompt_id": "uid", "response_tokens": "len"})
    assert list(summary.missing) == ["prompt_tokens", "finish_reason", "end_s"]
    assert summary.truncation_rate is None
    text = str(summary)
    assert "prompt_tokens: not in the log; planning counts 0 prompt tokens, so prefill and prompt KV are left out" in text
    assert "finish_reason: not in the log; truncation is unknown" in text
    assert "end_s: not in the log; end times are unknown; unless spans or scalars have the generation time, times" in text
    assert "6 responses to 3 prompts in 1 step and 1 epoch, truncation unknown" in text
    assert "duplicate rows dropped: 1" in text


def test_a_notebook_shows_the_summary_as_a_list_and_escapes_the_log(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    pd.DataFrame(rollouts()).assign(prompt="<b>x</b>", note=None).to_csv(path, index=False)
    _, summary = import_table(path)
    shown = summary._repr_html_()
    assert [html.unescape(item) for item in re.findall("<li>(.*?)</li>", shown)] == summary.lines()
    assert "&lt;b&gt;x&lt;/b&gt;" in shown
    assert "<b>" not in shown


def test_what_is_missing_in_some_rows_is_counted(tmp_path: Path) -> None:
    rows = rollouts()
    rows[0]["prompt_tokens"] = None
    pd.DataFrame(rows).to_json(tmp_path / "log.jsonl", orient="records", lines=True)
    _, summary = import_table(tmp_path / "log.jsonl")
    assert summary.missing["prompt_tokens"].startswith("unknown in 1 of 6 rows; for those planning counts 0 prompt tokens")
    assert any(note.startswith("epoch: derived") for note in summary.notes)


def test_a_token_limit_tells_why_responses_ended(log: Path) -> None:
    frame, summary = import_table(log, {"prompt_id": "uid", "response_tokens": "len"}, max_response_tokens=15)
    assert frame["finish_reason"].tolist() == ["stop"] * 5 + ["length"]
    assert summary.truncation_rate == pytest.approx(1 / 6)
    assert "finish_reason" not in summary.missing
    assert "finish_reason: where the log lacks it, 'length' at 15 tokens and 'stop' below" in str(summary)


def test_the_log_knows_better_than_the_token_limit(tmp_path: Path) -> None:
    pd.DataFrame(rollouts(finish_reason="aborted")).to_parquet(tmp_path / "log.parquet")
    frame, _ = import_table(tmp_path / "log.parquet", max_response_tokens=15)
    assert frame["finish_reason"].unique().tolist() == ["aborted"]


@pytest.mark.parametrize(
    ("mapping", "limit", "sentence"),
    [
        ({"prompts": "uid"}, None, ("--map", "'prompts'", "prompt_id")),
        ({"prompt_id": "id"}, None, ("log.csv", "--map", "prompt_id")),
        ({"prompt_id": "uid"}, None, ("'response_tokens'", "--map")),
        (
            {"prompt_id": "uid", "response_tokens": "len"},
            12,
            ("row 4", "'response_tokens'", "13", "12", "15"),
        ),
        (
            {"prompt_id": "note", "response_tokens": "len"},
            None,
            ("row 3", "row 1", "prompt_id"),
        ),
    ],
)
def test_a_wrong_mapping_is_refused(log: Path, mapping: dict[str, str], limit: int | None, sentence: tuple[str, ...]) -> None:
    with refused(TraceError, *sentence):
        import_table(log, mapping, limit)


def test_a_column_that_cannot_step_aside_is_refused(tmp_path: Path) -> None:
    pd.DataFrame(rollouts()).assign(source_step=1, visit=2).to_csv(tmp_path / "log.csv", index=False)
    with refused(TraceError, "'step'", "'source_step'", "--map"):
        import_table(tmp_path / "log.csv", {"step": "visit"})


@needs_gsm8k_lengths
def test_a_published_log_is_imported_as_it_is(tmp_path: Path) -> None:
    before = GSM8K_LENGTHS.read_bytes()
    frame, summary = import_table(GSM8K_LENGTHS, AREAL_MAP)
    assert GSM8K_LENGTHS.read_bytes() == before
    assert (summary.rows, summary.prompts, summary.steps, summary.epochs) == (5120, 512, 2, 2)
    assert summary.duplicates_dropped == 0
    assert summary.missing["prompt_tokens"] == (
        "not in the log; planning counts 0 prompt tokens, so prefill and prompt KV are left out"
    )
    assert frame["source_step"].nunique() == 40
    assert (frame["epoch"] == frame["step"]).all()
    log = import_log(GSM8K_LENGTHS, ImportOptions(mapping=AREAL_MAP))
    again = read_trace(log.save(tmp_path / "trace")).rollouts
    pd.testing.assert_frame_equal(again, frame, check_dtype=False)


@needs_gsm8k_lengths
def test_the_limit_of_a_published_log_agrees_with_its_own_flag() -> None:
    frame, summary = import_table(GSM8K_LENGTHS, AREAL_MAP, max_response_tokens=512)
    assert ((frame["finish_reason"] == "length") == (frame["hit_cap"] == 1)).all()
    assert summary.truncation_rate == pytest.approx(0.1707, abs=1e-4)
