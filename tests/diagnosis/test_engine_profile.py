"""What a diagnosis says of an engine's lines: numbers by hand, the tail, the memory bound, drafts; unknown is left out."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from engine_samples import BASE_S, ROLLOUT, line_of, rate_of, read_lines, rollout_lines

from rlhfless.diagnosis import Diagnosis, Stated, diagnose
from rlhfless.diagnosis.engine_profile import engine_lines, time_per_token
from rlhfless.diagnosis.logged_run import LoggedRun
from rlhfless.diagnosis.numbers import Collected, Part
from rlhfless.diagnosis.phases import phases
from rlhfless.trace.importers import import_log

CASE = next(
    (
        folder
        for parent in Path(__file__).resolve().parents
        if (folder := parent / "shared" / "data" / "cases" / "16_vllm_engine_log").is_dir()
    ),
    None,
)


def part_of(engine: pd.DataFrame, steps: pd.DataFrame | None = None) -> Part:
    run, found = LoggedRun("run.log", "vLLM", pd.DataFrame() if steps is None else steps, engine=engine), Collected()
    if steps is not None:
        found.add(phases(run, found))
    return engine_lines(run, found)


def values(part: Part) -> dict[str, float]:
    return {one.key: one.value for one in part.numbers}


def test_a_log_without_engine_lines_says_nothing_of_them() -> None:
    assert part_of(read_lines([])) == Part()


def test_numbers_of_one_rollout_by_hand() -> None:
    part = part_of(read_lines(rollout_lines()))
    found = values(part)
    rates = [rate_of(running) for running in ROLLOUT]
    assert found["engine_peak_requests"] == 200
    assert found["engine_s"] == 110
    assert found["engine_tokens"] == pytest.approx(10 * (sum(rates) - rates[0] / 2 + 3), rel=1e-3)
    assert found["engine_tail_s"] == 50, "10, 4, 4, 1 and the line at which nothing runs any more"
    assert found["engine_tail_share"] == pytest.approx(50 / 110)
    assert found["engine_base_ms"] == pytest.approx(1e3 * BASE_S, rel=1e-2)
    assert found["engine_full_batch_ms"] == pytest.approx(40, rel=1e-3)
    assert found["engine_smallest_batch_ms"] == pytest.approx(20.1, rel=1e-2)
    assert found["engine_memory_bound_s"] == 0
    tail, pace = part.findings
    assert (pace.kind, pace.at_stake) == ("pace", 0)
    tokens = 10 * (sum(rates[6:]) + 3)
    assert (tail.kind, tail.at_stake) == ("tail", pytest.approx((50 - tokens / rates[1]) / 110, rel=1e-3))
    assert set(tail.proof) <= set(found)
    assert "engine_preempted" not in found
    assert "draft_tokens_per_pass" not in found


def test_what_is_at_stake_is_of_the_step_where_that_is_known() -> None:
    steps = pd.DataFrame({"step": [1], "generate_s": [110.0], "step_s": [220.0]})
    alone, of_the_step = (part_of(read_lines(rollout_lines()), s).findings[0].at_stake for s in (None, steps))
    assert of_the_step == pytest.approx(alone / 2)


def test_requests_that_still_arrive_are_no_tail() -> None:
    found = values(part_of(read_lines(rollout_lines((5, 9, 20, 200, 200, 100, 9, 3)))))
    assert found["engine_tail_s"] == 30, "9, 3 and the line at which nothing runs any more"


def test_replicas_are_averaged_in_seconds_and_added_up_in_tokens() -> None:
    one, two = (values(part_of(read_lines([line for name in names for line in rollout_lines(engine=name)])))
                for names in (["000"], ["000", "001"]))  # fmt: skip
    assert two["engine_replicas"] == 2
    for key in ("engine_s", "engine_tail_s", "engine_tail_share", "engine_base_ms"):
        assert two[key] == pytest.approx(one[key]), key
    assert two["engine_tokens"] == pytest.approx(2 * one["engine_tokens"])


def test_waiting_requests_with_a_full_cache_are_bound_by_memory_to_one_interval() -> None:
    queues = ((0, 0.5), (50, 0.97), (30, 0.99), (20, 0.96), (0, 0.99), (9, 0.90), (4, 0.96), (0, 0.2), (0, 0.1), (0, 0.1))
    lines = [
        line_of(10 * at, batch, rate_of(batch), waiting=w, cache=c)
        for at, (batch, (w, c)) in enumerate(zip(ROLLOUT, queues, strict=True))
    ]
    part = part_of(read_lines(lines))
    bound = next(one for one in part.numbers if one.key == "engine_memory_bound_s")
    assert (bound.low, bound.high) == (40, 60), "a stretch of three lines and one of one line, each to one interval more"
    assert {finding.kind for finding in part.findings} == {"tail", "memory", "pace"}


def test_a_cache_with_room_for_less_than_one_more_request_is_full() -> None:
    lines = [line_of(10 * at, 9, 900.0, waiting=50, cache=0.93) for at in range(4)]
    assert values(part_of(read_lines(lines)))["engine_memory_bound_s"] == 40, "a request takes 10 % of the cache"
    lines = [line_of(10 * at, 90, 900.0, waiting=50, cache=0.93) for at in range(4)]
    assert values(part_of(read_lines(lines)))["engine_memory_bound_s"] == 0, "a request takes 1 %, so something else bounds"


def diagnosed(tmp_path: Path, *lines: str, **stated: Any) -> Diagnosis:
    path = tmp_path / "engine.log"
    path.write_text("\n".join(lines) + "\n")
    return diagnose(path, Stated(**stated))


def test_a_few_lines_of_a_steady_engine_say_its_pace(tmp_path: Path) -> None:
    line = (
        "[2025-02-27 04:46:0{} TP0] Decode batch. #running-req: 4, #token: 9000, token usage: 0.02, gen throughput (token/s): "
        "200.00, #queue-req: 0"
    )
    said = diagnosed(tmp_path, *(line.format(at) for at in (1, 3, 5)))
    (first,) = said.verdict
    assert (first.kind, first.at_stake) == ("pace", 0)
    assert "20.0 ms per token" in first.sentence
    assert said.levers == ()


def test_an_engine_that_no_model_explains_is_slow_and_one_with_a_queue_is_not_said_to_be(tmp_path: Path) -> None:
    slow = diagnosed(tmp_path, *(line_of(10 * at, 2, 0.5) for at in range(4)))
    assert (slow.verdict[0].kind, "4,000.0 ms" in slow.verdict[0].sentence) == ("engine", True)
    fed = diagnosed(tmp_path, *(line_of(10 * at, 500, 500.0, waiting=900, cache=0.5) for at in range(4)))
    assert fed.verdict[0].kind == "pace", "prompts are fed meanwhile, so nobody can say what decoding takes"


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("Speculative metrics: Draft acceptance rate: 0.6, System efficiency: 0.5, Number of speculative tokens: 3, Number of "
         "accepted tokens: 50, Number of draft tokens: 99, Number of emitted tokens: 66.", "2.00 tokens per pass"),
        ("INFO 09-09 11:51:35 [metrics.py:96] SpecDecoding metrics: Mean acceptance length: 3.00, Accepted throughput: 4.0 "
         "tokens/s, Drafted throughput: 8.0 tokens/s, Accepted: 40 tokens, Drafted: 80 tokens, Per-position acceptance rate: "
         "0.8, 0.6", "50% of drafts"),
        ("WARNING 08-20 scheduler.py:1141] Sequence group 7 is preempted by PreemptionMode.RECOMPUTE mode because there is not "
         "enough KV cache space. total_num_cumulative_preemption=1", "1 preemption"),
        ("INFO [kv_cache_utils.py:637] Maximum concurrency for 8,000 tokens per request: 2.50x", "20,000 tokens"),
    ],
)  # fmt: skip
def test_one_line_of_another_kind_is_a_log(tmp_path: Path, line: str, part: str) -> None:
    (first,) = diagnosed(tmp_path, line).verdict
    assert part in first.sentence


def test_an_unknown_cache_is_not_an_empty_one() -> None:
    lines = [text.split(", GPU KV cache")[0] for text in rollout_lines()]
    part = part_of(read_lines(lines))
    assert "engine_memory_bound_s" not in values(part)
    assert any("cache" in sentence for sentence in part.cannot_say)


def test_lines_without_times_have_no_seconds_but_a_time_per_token() -> None:
    part = part_of(read_lines(text.split("] ", 1)[1] for text in rollout_lines()))
    found = values(part)
    assert not {"engine_s", "engine_tokens", "engine_tail_s"} & set(found)
    assert found["engine_full_batch_ms"] == pytest.approx(40, rel=1e-3)
    assert part.cannot_say
    (pace,) = part.findings
    assert (pace.kind, "40.0 ms" in pace.sentence, "200" in pace.sentence) == ("pace", True, True)


def test_too_few_lines_are_noted_and_what_they_say_is_kept() -> None:
    part = part_of(read_lines(rollout_lines((9, 8))))
    assert any("run.log" in note for note in part.notes)
    assert "engine_base_ms" not in values(part)
    assert values(part)["engine_s"] == 30


def test_drafts_are_weighted_by_verifications() -> None:
    drafts = (
        "SpecDecoding metrics: Mean acceptance length: 2.0, Accepted throughput: 30.0 tokens/s, Drafted throughput: 60.0 "
        "tokens/s, Per-position acceptance rate: 0.6, 0.4"
    )
    more = (
        "SpecDecoding metrics: Mean acceptance length: 3.0, Accepted throughput: 20.0 tokens/s, Drafted throughput: 20.0 "
        "tokens/s, Per-position acceptance rate: 1.0, 1.0"
    )
    found = values(part_of(read_lines([*rollout_lines(), drafts, more])))
    assert found["draft_tokens_per_pass"] == pytest.approx(1 + 50 / (30 + 10))
    assert found["draft_accepted_share"] == pytest.approx(50 / 80)
    assert found["draft_accepted_at_1_share"] == pytest.approx((30 * 0.6 + 10 * 1.0) / 40)
    assert found["draft_accepted_at_2_share"] == pytest.approx((30 * 0.4 + 10 * 1.0) / 40)


def test_what_drafts_save_of_a_step_is_bounded_by_the_share_of_generation() -> None:
    drafts = (
        "SpecDecoding metrics: Mean acceptance length: 3.0, Accepted throughput: 30.0 tokens/s, Drafted throughput: 60.0 "
        "tokens/s"
    )
    steps = pd.DataFrame({"step": [1], "generate_s": [50.0], "step_s": [100.0]})
    lines = read_lines([*rollout_lines(), drafts])
    assert values(part_of(lines, steps))["draft_step_speedup_at_most"] == pytest.approx(0.5 + 0.5 * 3)
    assert "draft_step_speedup_at_most" not in values(part_of(lines))


def test_preemptions_are_counted() -> None:
    lines = [*rollout_lines(), *("#retracted_reqs: 3" for _ in range(2))]
    assert values(part_of(read_lines(lines)))["engine_preempted"] == 6


@pytest.mark.skipif(CASE is None, reason="the public cases are not beside the project (shared/data/cases)")
def test_the_numbers_by_hand_of_a_public_case() -> None:
    assert CASE is not None
    log = import_log(CASE / "engine.log")
    part = part_of(log.engine)
    points = dict(zip(*(time_per_token(log.engine)[name] for name in ("requests", "ms_per_token")), strict=True))
    assert points[8] == pytest.approx(33.4, abs=0.1)
    assert points[3] == pytest.approx(31.3, abs=0.06)
    full = next(one for one in part.numbers if one.key == "engine_full_batch_ms")
    assert full.low == pytest.approx(121.6, abs=0.1)
    found = values(part)
    assert found["engine_tokens"] == pytest.approx(208_832, abs=1)
    assert (found["engine_s"], found["engine_tail_s"]) == (110, 60)
    bound = next(one for one in part.numbers if one.key == "engine_memory_bound_s")
    assert (bound.low, bound.high) == (20, 30)
    assert 31 < found["engine_base_ms"] < 36
    first = 1e3 * 512 / 2410.0
    assert not any(math.isclose(ms, first, rel_tol=0.01) for ms in points.values()), "the first line of a rollout mixes"


@pytest.mark.skipif(CASE is None, reason="the public cases are not beside the project (shared/data/cases)")
def test_single_lines_of_three_versions_are_read() -> None:
    assert CASE is not None
    log = import_log(CASE / "retyped.log")
    assert log.engine["running"].tolist() == [8, 18, 20, 109]
    points = time_per_token(log.engine).set_index("requests")["ms_per_token"]
    assert points[8] == pytest.approx(33.4, abs=0.1)
    part = part_of(log.engine)
    assert "engine_base_ms" not in values(part)
    assert "engine_s" not in values(part)


def test_drafts_and_preemptions_are_said_beside_what_limits_the_engine(tmp_path: Path) -> None:
    """SGLang's accept length, and vLLM's old warnings, in logs whose first sentence is of the tail or of the cache."""
    decode = (
        "[2025-03-04 10:00:{:02d} TP0] Decode batch, #running-req: {}, #token: 9000, token usage: 0.30, accept len: 2.50, "
        "gen throughput (token/s): {:.2f}, #queue-req: 0,"
    )
    (tmp_path / "sglang").mkdir()
    sizes = (40, 40, 40, 3, 2, 1)
    drafts = diagnosed(tmp_path / "sglang", *(decode.format(5 * at, size, 50.0 * size) for at, size in enumerate(sizes)))
    assert drafts.verdict[0].kind == "tail"
    assert any("2.50 tokens per pass" in note for note in drafts.notes)
    statistics = (
        "INFO 03-04 10:00:{:02d} [metrics.py:455] Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 900.0 "
        "tokens/s, Running: 30 reqs, Swapped: 0 reqs, Pending: 70 reqs, GPU KV cache usage: 99.5%, CPU KV cache usage: 0.0%."
    )
    warning = "WARNING 03-04 10:00:{:02d} [scheduler.py:1057] is preempted, total_num_cumulative_preemption={}"
    lines = [warning.format(1, 1), statistics.format(5), statistics.format(10), warning.format(12, 51), statistics.format(15)]
    preempted = diagnosed(tmp_path, *lines)
    assert preempted.verdict[0].kind == "memory"
    assert any("51 preemptions" in note for note in preempted.notes)


def test_drafts_are_said_beside_what_a_frameworks_phases_say() -> None:
    decode = (
        "[2025-03-04 10:00:{:02d} TP0] Decode batch, #running-req: 40, #token: 9000, token usage: 0.30, accept len: 2.50, "
        "gen throughput (token/s): 900.00, #queue-req: 0,"
    )
    lines = read_lines([decode.format(second) for second in (5, 10, 15)])
    steps = pd.DataFrame([{"step": 1, "step_s": 100.0, "generate_s": 30.0, "learn_s": 65.0}])
    assert any("2.50 tokens per pass" in note for note in part_of(lines, steps).notes)
    alone = part_of(lines)
    assert any("2.50 tokens per pass" in one.sentence for one in alone.findings)
    assert not any("2.50 tokens per pass" in note for note in alone.notes)
