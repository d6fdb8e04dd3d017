"""Tables and lists of measurements as people paste them into a text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhfless.diagnosis import diagnose
from rlhfless.trace import ImportedLog, TraceError, import_log
from rlhfless.trace.importers.text_table import tables
from rlhfless.trace.importers.written_cells import amount, gpus


def read(folder: Path, text: str, name: str = "pasted.md") -> ImportedLog:
    (folder / name).write_text(text, encoding="utf-8")
    return import_log(folder / name)


def by_run(log: ImportedLog, column: str) -> dict[str, Any]:
    return dict(zip(log.scalars["run"], log.scalars[column], strict=True))


MARKDOWN = """We compared two layouts:

| layout | GPUs | step time | throughput |
|--------|-----:|----------:|-----------:|
| **TP=1**, 4 engines | 8x H100 | ~1m 20s | 12.4k tok/s |
| TP=2, 2 engines | 8x H100 | 95.5 s (119%) | 10,100 tok/s |

Which one is better?
"""
BLANKS = """GPUs   batch   s/step   tok/s
8      512     180.0    11.0k
16     512     100.0    20.0k
"""
BOXED = """
┌─────────────┬─────────┬─────────┬──────────┐
│   Metric    │  Sync   │  Async  │ Speedup  │
├─────────────┼─────────┼─────────┼──────────┤
│ step time   │ 180.0s  │ 100.0s  │ 1.8\u00d7     │
│ train wait  │ 90.0s   │ 5.0s    │ 18\u00d7      │
└─────────────┴─────────┴─────────┴──────────┘
"""
BULLETS = """H100, 7B
* 2 nodes → ~40 s/step
* 16 nodes → ~8 - 10 s/step
"""
DRAFTS = """* vanilla, [02:08<00:00,  1.61s/it, est. speed input: 40.00 toks/s, output: 100.00 toks/s]
* k=2: [01:34<00:00,  1.18s/it, est. speed input: 60.00 toks/s, output: 150.00 toks/s] **Accpt Len: 1.90**
"""
TITLED = """baseline:
#questions: 80, Throughput: 200.00 token/s
EAGLE:
#questions: 80, Throughput: 300.00 token/s, Acceptance length: 4.50
"""
PHASES = """TP=1 (4 engines): gen 182s, step 260s
TP=2 (2 engines): gen 151s, step 231s
"""
WIDE = """| | 8 GPUs | 16 GPUs |
|---|---|---|
| rollout (s) | 120 | 71 |
| step (s) | 190 | 113 |
"""
MEMORY = """| Backend | Step time (s) | GPU mem |
|---|---|---|
| HF generate | 312 | 61GB |
| vLLM | 58 | 74GB |
"""
COMMENTED = """# 1x H100, Qwen3-8B, GRPO step
metric,sync,async
step_time_s,182.4,121.0
generation_s,118.0,112.3
"""
BLOCKS = """============ Serving Benchmark Result ============
Successful requests:                     100
Benchmark duration (s):                  60.00
Output token throughput (tok/s):         350.00
Mean TPOT (ms):                          11.31
==================================================
============ Serving Benchmark Result ============
Successful requests:                     100
Benchmark duration (s):                  40.00
Output token throughput (tok/s):         525.00
==================================================
"""


def test_a_markdown_table_with_units_in_its_cells(tmp_path: Path) -> None:
    log = read(tmp_path, MARKDOWN)
    assert log.rollouts is None
    assert by_run(log, "step_s") == {"TP=1, 4 engines": 80.0, "TP=2, 2 engines": 95.5}
    assert by_run(log, "tokens_per_s") == {"TP=1, 4 engines": 12_400.0, "TP=2, 2 engines": 10_100.0}
    assert set(log.scalars["gpus"]) == {8.0}
    assert any("line 3" in note for note in log.summary.notes)


@pytest.mark.parametrize("name", ["a.log", "a.txt", "a.md", "a"])
def test_columns_apart_by_blanks_under_any_name(tmp_path: Path, name: str) -> None:
    log = read(tmp_path, BLANKS, name)
    assert by_run(log, "step_s") == {"8 GPUs": 180.0, "16 GPUs": 100.0}
    assert by_run(log, "tokens_per_s") == {"8 GPUs": 11_000.0, "16 GPUs": 20_000.0}


@pytest.mark.parametrize("apart", ["\t", ",", "; ", " "])
def test_other_signs_between_columns_say_the_same(tmp_path: Path, apart: str) -> None:
    text = "\n".join(apart.join(line.split()) for line in BLANKS.splitlines())
    pd.testing.assert_frame_equal(read(tmp_path, text, "a.txt").scalars, read(tmp_path, BLANKS, "b.txt").scalars)


def test_a_table_with_a_metric_per_row_is_turned(tmp_path: Path) -> None:
    log = read(tmp_path, BOXED)
    assert by_run(log, "step_s") == {"Sync": 180.0, "Async": 100.0}
    assert by_run(log, "wait_s") == {"Sync": 90.0, "Async": 5.0}


@pytest.mark.parametrize(
    ("text", "column", "values"),
    [
        (BULLETS, "step_s", {"2 nodes": 40.0, "16 nodes": 9.0}),
        (DRAFTS, "tokens_per_s", {"vanilla": 100.0, "k=2": 150.0}),
        (TITLED, "tokens_per_s", {"baseline": 200.0, "EAGLE": 300.0}),
        (PHASES, "step_s", {"TP=1 (4 engines)": 260.0, "TP=2 (2 engines)": 231.0}),
        (PHASES, "generate_s", {"TP=1 (4 engines)": 182.0, "TP=2 (2 engines)": 151.0}),
        (WIDE, "generate_s", {"8 GPUs": 120.0, "16 GPUs": 71.0}), (WIDE, "step_s", {"8 GPUs": 190.0, "16 GPUs": 113.0}),
        (COMMENTED, "generate_s", {"sync": 118.0, "async": 112.3}), (MEMORY, "step_s", {"HF generate": 312.0, "vLLM": 58.0}),
        (BLOCKS, "run_s", {"benchmark 1": 60.0, "benchmark 2": 40.0}),
        ("without: 1,200 tokens/s\nwith drafts: 1.8k tokens/s\n", "tokens_per_s", {"without": 1200.0, "with drafts": 1800.0}),
    ],
)  # fmt: skip
def test_lists_of_measurements(tmp_path: Path, text: str, column: str, values: dict[str, float]) -> None:
    assert by_run(read(tmp_path, text, "a.log"), column) == values


def test_the_gpus_in_the_names_of_runs_count(tmp_path: Path) -> None:
    assert by_run(read(tmp_path, WIDE), "gpus") == {"8 GPUs": 8.0, "16 GPUs": 16.0}
    assert "gpus" not in read(tmp_path, WIDE.replace("16 GPUs", "all")).scalars.columns, "of one run nobody says it"


def test_a_table_of_more_rows_than_people_paste_is_left_to_its_own_format(tmp_path: Path) -> None:
    rows = "".join(f"| {at} | 1 |\n" for at in range(2001))
    with refused(TraceError, "pasted.md"):
        read(tmp_path, f"| run | step_s |\n|---|---|\n{rows}")


def test_gigabytes_are_no_gpus(tmp_path: Path) -> None:
    assert "gpus" not in read(tmp_path, MEMORY).scalars.columns


def test_drafts_of_two_lines_are_compared(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(DRAFTS)
    said = diagnose(tmp_path / "a.log")
    assert said.numbers["runs/k=2/times_as_fast"].value == pytest.approx(1.5)
    assert said.numbers["runs/k=2/pass_cost_ratio"].value == pytest.approx(1.9 / 1.5)
    assert str(said).startswith("The runs compared: k=2 is the fastest with 150 tokens/s, 1.50 times as fast as vanilla")
    assert "Run vanilla" not in str(said), "of a row alone nothing more is known"


def test_rows_of_one_name_are_told_apart_by_their_gpus(tmp_path: Path) -> None:
    log = read(tmp_path, "| name | GPUs | time |\n|---|---|---|\n| ours | 8xH100 | 10 min |\n| ours | 2x8xH100 | 6 min |\n")
    assert by_run(log, "run_s") == {"ours, 8 GPUs": 600.0, "ours, 16 GPUs": 360.0}


def test_a_csv_with_written_cells(tmp_path: Path) -> None:
    text = "mode,gpus,steps,wall (min)\nsync,8,100,400\nasync,4+4,100,250\ncrashed,8,100,OOM\n"
    log = read(tmp_path, text, "runs.csv")
    assert by_run(log, "run_s") == pytest.approx({"sync": 24_000.0, "async": 15_000.0, "crashed": float("nan")}, nan_ok=True)
    assert set(log.scalars["gpus"]) == {8.0}


@pytest.mark.parametrize(
    "text",
    [
        "a | b\nno | table\n", "name: value\nother: value\n", "step 1: 20 tokens/s\nstep 2: 21 tokens/s\nstep 3: 22 tokens/s\n",
        "[10:00:01] throughput 20 tokens/s\n[10:00:02] throughput 21 tokens/s\n", "rank 0: 20 tok/s\nrank 1: 19 tok/s\n",
        "| file | lines |\n|---|---|\n| a.py | 12 |\n", "The engine made 120 tokens/s.\n", "x  y\n1  2\n",
    ],
)  # fmt: skip
def test_other_texts_are_no_tables_of_runs(tmp_path: Path, text: str) -> None:
    with refused(TraceError, "pasted.md"):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        ("12.5s", 12.5, "s"), ("~28.1-30.7s", 29.4, "s"), ("1,652.8 s (54%)", 1652.8, "s"), ("2:08", 128, "s"),
        ("1:02:03", 3723, "s"), ("1h 20m", 4800, "s"), ("**11.2k** tok/s", 11_200, "tok/s"),
        ("1.72\u00d7 speedup", 1.72, "\u00d7 speedup"),
        ("1e3", 1000, ""), ("-5", -5, ""),
    ],
)  # fmt: skip
def test_amounts_as_people_write_them(text: str, value: float, unit: str) -> None:
    found = amount(text)
    assert found is not None
    assert (found.value, found.unit) == (pytest.approx(value), unit)


@pytest.mark.parametrize("text", ["Qwen3-4B", "OOM", "—", "", "8x8xH100", "30-20 s", "9" * 200, "v1.2.3", "TP=2"])
def test_what_is_no_amount(text: str) -> None:
    assert amount(text) is None


def test_gpus_as_people_write_them() -> None:
    written = {
        "8": 8,
        "8xH100": 8,
        "2x8x H100 SXM": 16,
        "4+4": 8,
        "16 A100": 16,
        "8 \u00d7 H200": 8,
        "H100": None,
        "none": None,
    }
    assert {text: gpus(text) for text in written} == written


@settings(max_examples=80, deadline=None)
@given(st.text(alphabet="ab1 9.,|-:s/%\t\n=k", max_size=300))
def test_any_text_has_tables_or_none(text: str) -> None:
    for one in tables(text.splitlines()):
        assert one.rows
        assert all(isinstance(number, int) for number, _ in one.rows)
        one.turned()
