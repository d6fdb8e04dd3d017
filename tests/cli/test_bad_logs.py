"""Logs that nobody means to write: ``rlhfless report`` refuses them in one sentence, or says what it left out."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from command_line import run_rlhfless
from error_messages import refused_command


def line(step: int, seconds: str = "100.0", generation: str = "60.0") -> str:
    return (
        f"step:{step} - timing_s/step:{seconds} - timing_s/gen:{generation} - response_length/mean:500.0 - "
        "response_length/max:2048.0 - response_length/clip_ratio:0.0\n"
    )


def said(path: Path, content: str | bytes, *options: str) -> str:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    result = run_rlhfless("report", str(path), *options)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused_log(path: Path, content: str | bytes, *named: str) -> None:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    refused_command(run_rlhfless("report", str(path)), path.name, *named)


def test_a_text_of_two_bytes_per_letter_is_refused_with_the_command_that_converts_it(tmp_path: Path) -> None:
    refused_log(tmp_path / "a.log", line(1).encode("utf-16"), "UTF-16", "iconv")
    refused_log(tmp_path / "a.csv", "step,step_s\n1,2\n".encode("utf-16"), "UTF-16")


def test_an_empty_file_is_said_to_be_empty(tmp_path: Path) -> None:
    for name in ("a.log", "a.csv", "a.json", "a.md"):
        refused_log(tmp_path / name, b"", "empty")


@pytest.mark.parametrize("content", [b"no gzip", gzip.compress(line(1).encode() * 99)[:-9]], ids=["no gzip", "cut"])
def test_a_packed_file_that_is_damaged_is_said_to_be(tmp_path: Path, content: bytes) -> None:
    refused_log(tmp_path / "a.log.gz", content, "unpacked")


def test_a_line_without_an_end_is_not_read_to_its_end_to_be_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlhfless.trace.importers.console.console.PEEK_BYTES", 1000)
    read: list[int] = []
    lines = "rlhfless.trace.importers.console.console.console_lines"

    def counted(stream, note, most_bytes=None):  # type: ignore[no-untyped-def]
        read.append(most_bytes)
        return iter(())

    monkeypatch.setattr(lines, counted)
    refused_log(tmp_path / "a.log", b"x" * 5_000_000, "is needed")
    assert set(read) == {1000}


def test_signs_that_move_a_cursor_are_not_printed(tmp_path: Path) -> None:
    hostile = line(1) + line(2).rstrip() + " - timing_s/\0g\x1b]0;title\x07en:30.0\n"
    for options in ((), ("--format", "json")):
        text = said(tmp_path / "a.log", hostile, *options)
        assert not {"\0", "\x1b", "\x07"} & set(text)


@pytest.mark.parametrize(
    "rows",
    [
        "a,8,1e308\nb,1e308,1e-308\nc,-4,5\nd,0,0\n", "a,8,inf\nb,8,-inf\n", "a,8,-5\nb,8,-6\n", "a,8,1e-308\nb,8,1e308\n",
        "a,8,0\nb,8,0\n",
    ],
)  # fmt: skip
def test_numbers_that_no_run_has_are_not_compared(tmp_path: Path, rows: str) -> None:
    text = said(tmp_path / "runs.csv", f"run,gpus,step_s\n{rows}")
    assert " inf " not in text
    assert "fastest" not in text
    json.loads(said(tmp_path / "runs.csv", f"run,gpus,step_s\n{rows}", "--format", "json"))


def test_numbers_that_no_engine_has_are_unknown(tmp_path: Path) -> None:
    huge = (
        f"Avg generation throughput: {'9' * 20}.0 tokens/s, Running: {'9' * 20} reqs, Waiting: 3 reqs, GPU KV cache usage: 9.0%"
    )
    refused_log(tmp_path / "a.log", f"Avg prompt throughput: 0.0 tokens/s, {huge}\n" * 6, "engine")
    text = said(tmp_path / "b.log", "GPU KV cache size: 99,999,999,999,999 tokens\n")
    assert "no possible number" in text
    assert "holds" not in text


def test_a_table_of_more_runs_than_anybody_compares(tmp_path: Path) -> None:
    refused_log(tmp_path / "a.csv", "run,step_s\n" + "".join(f"r{at},1\n" for at in range(1001)), "1,001 runs", "column step")


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ('{"num_hidden_layers": -5, "num_attention_heads": 4}', "num_hidden_layers"),
        ('{"num_hidden_layers": 5, "num_attention_heads": 0, "hidden_size": 8}', "num_attention_heads"),
        ('{"num_hidden_layers": 5, "num_attention_heads": 4, "hidden_size": "<b>"}', "hidden_size"),
    ],
)
def test_a_wrong_configuration_is_named(tmp_path: Path, config: str, named: str) -> None:
    refused_log(tmp_path / "config.json", config, named)


@pytest.mark.parametrize(
    ("content", "left_out"),
    [
        (line(1) + line(2) + line(3)[:20], ""),
        ((line(1) + line(2) + "step:3 - timing_s/step:\u00e9").encode()[:-1], ""),
        (line(1) + "perf 1: {'perf/rollout_time': 50.0, 'perf/step_time': 80.0}\n" + line(2), "slime"),
        (line(1) + line(2) + line(3) + line(2, "90.0") + line(3, "91.0"), "restarts"),
        (line(1, "-100.0") + line(2, "inf") + line(3, "1e308", "1e308") + line(4, "nan") + line(5), "below 0"),
        (line(5) + line(3) + line(1), ""),
        ((line(1) + line(2)).replace("\n", "\r\n"), ""),
        (line(1) + "x" * 20_000_000 + "\n" + line(2), "longer than"),
    ],
    ids=["cut", "half a letter", "two frameworks", "restart", "impossible", "order", "crlf", "long line"],
)
def test_what_is_left_out_is_said(tmp_path: Path, content: str | bytes, left_out: str) -> None:
    assert left_out in said(tmp_path / "a.log", content, "--format", "json")
