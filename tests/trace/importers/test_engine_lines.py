"""Lines of engines: every version of vLLM and SGLang, several replicas in one console, and text that only looks like them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from error_messages import refused
from hypothesis import given
from hypothesis import strategies as st
from importer_samples import GOLDEN

from rlhfless.diagnosis.engine_profile import engine_lines as sections
from rlhfless.diagnosis.logged_run import LoggedRun
from rlhfless.diagnosis.numbers import Collected
from rlhfless.trace import TraceError, import_log
from rlhfless.trace.importers import engine_lines, recognise
from rlhfless.trace.importers.engine_lines import ENGINE, EngineLines, engine_frame

OLD = (
    "INFO 12-05 19:25:15 llm_engine.py:645] Avg prompt throughput: 850.0 tokens/s, Avg generation throughput: 100.0 tokens/s, "
    "Running: 110 reqs, Swapped: 4 reqs, Pending: 190 reqs, GPU KV cache usage: 98.5%, CPU KV cache usage: 3.0%."
)
FIRST_V1 = (
    "INFO 02-05 19:25:15 loggers.py:50] Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 50.0 tokens/s, "
    "Running: 2 reqs, Waiting: 1 reqs "
)
V1 = (
    "INFO 07-28 06:40:59 [loggers.py:118] Engine {}: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 240.0 "
    "tokens/s, Running: 8 reqs, Waiting: 0 reqs, GPU KV cache usage: 91.0%, Prefix cache hit rate: 0.0%"
)
DECODE = "Decode batch. #running-req: 20, #token: 2600, token usage: 0.13, gen throughput (token/s): 880.00, #queue-req: 3"


def rows_of(*lines: str) -> list[dict[str, Any]]:
    engine = EngineLines()
    return [row for number, text in enumerate(lines, 1) if (row := engine.line(number, text)) is not None]


@pytest.mark.parametrize("name", ["engine-vllm", "engine-sglang"])
def test_what_the_engines_own_functions_print_is_recognised(name: str) -> None:
    assert recognise(GOLDEN / name / "engine.log").name == "engine"


def test_the_lines_of_vllm() -> None:
    log = import_log(GOLDEN / "engine-vllm" / "engine.log")
    assert (log.framework, log.rollouts, len(log.scalars)) == ("vLLM", None, 0)
    assert any("5 lines of 1 engine of vLLM" in note for note in log.summary.notes)
    assert list(log.engine.columns) == list(ENGINE)
    statistics, drafts = log.engine.iloc[:4], log.engine.iloc[4]
    assert statistics["engine"].unique().tolist() == ["71/000"]
    assert statistics["running"].tolist() == [512, 512, 88, 8]
    assert statistics["waiting"].tolist() == [900, 640, 0, 0]
    assert statistics["cache_share"].tolist() == pytest.approx([0.62, 0.959, 0.526, 0.134])
    assert statistics["generated_tokens_per_s"].tolist() == [2410, 4210, 1560, 239]
    assert statistics["prompt_tokens_per_s"].tolist() == [18032, 2100, 0, 0]
    assert statistics["prefix_hit_share"].tolist() == [0.25] * 4
    assert statistics["time_s"].diff().dropna().tolist() == [60] * 3
    assert statistics["preempted"].fillna(-1).tolist() == [-1, -1, 7, -1]
    assert drafts["engine"] == "71/000", "the engine whose statistics came before"
    assert (drafts["tokens_per_pass"], drafts["accepted_tokens_per_s"], drafts["drafted_tokens_per_s"]) == (2.4, 14, 30)
    assert drafts["accepted_at"] == (0.8, 0.4, 0.2)
    assert math.isnan(drafts["running"])


def test_the_lines_of_sglang() -> None:
    log = import_log(GOLDEN / "engine-sglang" / "engine.log")
    assert log.framework == "SGLang"
    prefill, first, last = log.engine.iloc[0], log.engine.iloc[1], log.engine.iloc[3]
    assert (prefill["prefix_hit_share"], prefill["waiting"]) == (0.2, 5)
    assert math.isnan(prefill["generated_tokens_per_s"])
    assert (first["running"], first["generated_tokens_per_s"], first["cache_share"], first["waiting"]) == (20, 880, 0.13, 3)
    assert last["tokens_per_pass"] == 2.3
    assert last["accepted_tokens_per_s"] == pytest.approx(130 * 1.3 / 2.3), "the others are the engine's own tokens"


@pytest.mark.parametrize(
    ("text", "known"),
    [
        (OLD, {"engine": "", "running": 110, "waiting": 194, "cache_share": 0.985, "generated_tokens_per_s": 100}),
        (FIRST_V1, {"running": 2, "waiting": 1, "prompt_tokens_per_s": 1}),
        (V1.format("003"), {"engine": "003", "time_s": 6 * 3600 + 40 * 60 + 59, "engines": 1}),
        (V1.format("000").replace("GPU KV", "CPU KV"), {"cache_share": 0.91}),
        (V1.format("000").replace("Engine 000", "4 Engines Aggregated"), {"engine": "4 together", "engines": 4}),
        (f"[gpu=0] {DECODE}", {"engine": "0", "running": 20}),
        (f"[2026-07-28 06:40:01 DP2 TP4 EP4] {DECODE}", {"engine": "DP2", "time_s": 6 * 3600 + 40 * 60 + 1}),
        (f"\x1b[36m(SGLangEngine pid=88, ip=10.0.0.7)\x1b[0m [2026-07-28 06:40:01] {DECODE}", {"engine": "10.0.0.7:88"}),
        (
            "Decode batch [77], #running-req: 41, #full token: 99, full token usage: 0.10, #swa token: 9, swa token usage: "
            "0.40, cuda graph: True, gen throughput (token/s): 9.0, #queue-req: 0",
            {"running": 41, "cache_share": 0.4},
        ),
        (
            "SpecDecoding metrics: Draft acceptance rate: 65.0%, Mean acceptance length: 2.30, Accepted: 13 tokens, Drafted: "
            "20 tokens, Per-position acceptance rate: 0.8, 0.5",
            {"tokens_per_pass": 2.3, "accepted_at": (0.8, 0.5)},
        ),
        (
            "Speculative metrics: Draft acceptance rate: 0.500, System efficiency: 0.600, Number of speculative tokens: 2, "
            "Number of accepted tokens: 10, Number of draft tokens: 20, Number of emitted tokens: 18.",
            {"tokens_per_pass": pytest.approx(1.8)},
        ),
        (" 40%|████      | 2/5 [01:02<01:33]\r" + V1.format("000"), {"time_s": 6 * 3600 + 40 * 60 + 59, "running": 8}),
    ],
)  # fmt: skip
def test_a_line_of_any_version_is_read(text: str, known: dict[str, Any]) -> None:
    (row,) = rows_of(text)
    assert {name: row.get(name) for name in known} == known


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Decode batch",
        "Prefill batch sizes are chosen by hand, #3",
        "Avg prompt throughput: ",
        "Avg prompt throughput: x tokens/s, Avg generation throughput: nan tokens/s, Running: many reqs",
        V1.format("000").replace("240.0", "-240.0"),
        "KV cache size: none",
        "total_num_cumulative_preemption=",
        "#retracted_reqs: all",
        "Avg prompt throughput: " + "9" * 10_000,
        "Avg prompt throughput: " + "a," * 5_000,
    ],
)
def test_text_that_only_looks_like_a_line_is_none(text: str) -> None:
    assert rows_of(text) == []


def test_values_that_cannot_be_are_unknown() -> None:
    (row,) = rows_of(V1.format("000").replace("91.0%", "191.0%").replace("Waiting: 0", "Waiting: -3"))
    assert "cache_share" not in row
    assert "waiting" not in row


def test_replicas_of_one_console_have_names_of_their_own() -> None:
    lines = [f"(vLLMHttpServer pid={pid}) {V1.format('000')}" for pid in (11, 12)]
    drafts = "(vLLMHttpServer pid=11) SpecDecoding metrics: Mean acceptance length: 2.0"
    assert [row["engine"] for row in rows_of(*lines, drafts)] == ["11/000", "12/000", "11/000"]


def test_every_rank_prints_the_same_and_one_counts() -> None:
    retracted = (
        "[2026-07-28 06:40:02 {}] KV cache pool is full. Retract requests. #retracted_reqs: 3, #new_token_ratio: 0.1 -> 0.2"
    )
    rows = rows_of(*(retracted.format(rank) for rank in ("TP1", "TP0", "DP1 TP4", "TP1", "DP1 TP5")))
    assert [(row["engine"], row["preempted"]) for row in rows] == [("0", 3), ("DP1", 3), ("0", 3)]


def test_old_warnings_of_preemptions_count_those_in_between() -> None:
    warning = (
        "WARNING 05-09 00:49:33 scheduler.py:1057] Sequence group 0 is preempted by PreemptionMode.RECOMPUTE mode because {}"
    )
    counts = ["total_num_cumulative_preemption=1", "total_cumulative_preemption_cnt=51", "total_num_cumulative_preemption=1"]
    assert [row["preempted"] for row in rows_of(*(warning.format(count) for count in counts))] == [1, 50, 1]


@pytest.mark.parametrize(
    "text",
    [
        "INFO 07-28 06:39:50 [kv_cache_utils.py:1087] GPU KV cache size: 512,345 tokens",
        "INFO 07-28 06:39:50 GPU KV cache size: 512,345 tokens, Maximum concurrency for 8,192 tokens per request: 62.54x",
        "[2026-07-28 06:39:50] max_total_num_tokens=512345, chunked_prefill_size=8192, max_running_requests=2048",
    ],
)
def test_the_size_of_the_cache_is_a_fact_of_the_run(text: str, tmp_path: Path) -> None:
    (tmp_path / "engine.log").write_text(f"{text}\n{V1.format('000')}\n")
    assert import_log(tmp_path / "engine.log").facts == {"kv_cache_tokens": 512345}


def test_blocks_make_the_size_of_the_cache_exact(tmp_path: Path) -> None:
    path = tmp_path / "start.log"
    path.write_text(
        "INFO # GPU blocks: 1952, # CPU blocks: 2048\nINFO Maximum concurrency for 20000 tokens per request: 1.56x\n"
    )
    log = import_log(path)
    assert log.facts == {"kv_cache_tokens": 1952 * 16, "max_context_tokens": 20_000}
    assert log.engine.empty


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(engine_lines, "MOST_LINES", 3)
    (tmp_path / "engine.log").write_text(f"{V1.format('000')}\n" * 10)
    log = import_log(tmp_path / "engine.log")
    assert len(log.engine) == 3
    assert any("7 more" in note for note in log.summary.notes)


PIECES = st.sampled_from([
    "Avg prompt throughput: ", "Avg generation throughput: ", "Running: ", "Waiting: ", "GPU KV cache usage: ", "Engine 000: ",
    "Decode batch", "Prefill batch", ". #running-req: ", "#retracted_reqs: ", "SpecDecoding metrics: ", "accept len: ", ", ",
    "gen throughput (token/s): ", "Per-position acceptance rate: ", "total_num_cumulative_preemption=", "KV cache size: ", "-1",
    "(A pid=1, ip=::1)", "[2026-07-28 06:40:01 DP0 TP0] ", "25:61:61", " 06:40:01 ", "\r", "\n", "\x00", "\x1b[36m", "é", "0",
    "#new-token: ", "#cached-token: ", " tokens", "[repeated 3x across cluster]", "System efficiency: ", "9" * 30, "12.5%",
    "1e999", "nan",
])  # fmt: skip


@given(st.lists(st.lists(st.one_of(PIECES, st.text(max_size=5)), max_size=30).map("".join), max_size=8))
def test_any_text_is_a_line_or_none(texts: list[str]) -> None:
    frame = engine_frame(rows_of(*texts))
    numbers = frame.drop(columns=["engine", "accepted_at"])
    assert np.isfinite(numbers.to_numpy(dtype=float)[numbers.notna().to_numpy()]).all()
    assert not (numbers < 0).any(axis=None)
    part = sections(LoggedRun("log", "", pd.DataFrame(), engine=frame), Collected())
    assert all(0 <= finding.at_stake <= 1 for finding in part.findings)


def test_lines_that_ray_counts_and_does_not_print_are_noted(tmp_path: Path) -> None:
    repeated = f"(Worker pid=1) {V1.format('000')} [repeated 4x across cluster] (Ray deduplicates logs by default)"
    (tmp_path / "engine.log").write_text(f"{repeated}\n")
    assert any("RAY_DEDUP_LOGS" in note and "3" in note for note in import_log(tmp_path / "engine.log").summary.notes)


def test_a_log_that_is_cut_in_the_middle_of_a_line_is_read_up_to_there(tmp_path: Path) -> None:
    (tmp_path / "engine.log").write_text(V1.format("000") + "\n" + V1.format("000")[:120])
    assert len(import_log(tmp_path / "engine.log").engine) == 1


def test_a_text_without_such_lines_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.log").write_text("Avg generation throughput was low\n")
    with refused(TraceError, str(tmp_path / "notes.log")):
        import_log(tmp_path / "notes.log")
    with refused(TraceError, str(tmp_path / "notes.log"), "Avg generation throughput", "Decode batch"):
        import_log(tmp_path / "notes.log", framework="engine")


def test_a_log_of_an_engine_alone_is_no_trace(tmp_path: Path) -> None:
    log = import_log(GOLDEN / "engine-vllm" / "engine.log")
    with refused(TraceError, "engine.log", "responses"):
        log.save(tmp_path / "trace")
    assert not (tmp_path / "trace").exists()
