"""The long tail: counted by ends of responses, bounded by lengths; and the engine before any schedule."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhfless.diagnosis import Stated, diagnose
from rlhfless.diagnosis.completion import completions
from rlhfless.diagnosis.diagnose import collect
from rlhfless.diagnosis.engine_speed import shipped_ms
from rlhfless.diagnosis.logged_run import LoggedRun
from rlhfless.diagnosis.numbers import Collected
from rlhfless.latency import list_profiles, load_profile, read_profile


def log(ends: list[float], tokens: list[int] | None = None, **columns: Any) -> pd.DataFrame:
    """Return a log of one step whose responses end at these seconds."""
    of = tokens or [max(1, round(10 * end)) for end in ends]
    return pd.DataFrame(
        {"step": 0, "prompt_id": range(len(ends)), "sample": 0, "response_tokens": of, "end_s": ends, **columns}
    )


def test_one_percent_of_the_responses_takes_two_thirds_of_the_step() -> None:
    ends = [40.0 * (k + 1) / 990 for k in range(990)] + [112.0 + k for k in range(9)] + [120.0]
    said = diagnose(log(ends), Stated(gpus_generate=8))
    assert said.verdict[0].kind == "tail"
    assert "80 of 120 s" in said.verdict[0].sentence
    assert said.numbers["tail_responses"].value == 10
    levers = {lever.kind: lever for lever in said.levers}
    assert levers["partial rollout"].at_most == pytest.approx(2 / 3)
    assert levers["release"].at_most == pytest.approx(2 / 3 * 7 / 8)
    assert levers["release"].of == "GPU-hours of generation"
    assert "incomplete groups" in levers["partial rollout"].price


@given(st.lists(st.integers(1, 1000), min_size=2, max_size=80, unique=True), st.floats(0.005, 0.5))
def test_what_the_last_responses_take_is_the_time_after_the_others(ends: list[int], share: float) -> None:
    (curve,) = completions(LoggedRun("log", "", pd.DataFrame({"step": []}), log([float(end) for end in ends])))
    last, part = curve.left_after(share)
    before = sorted(ends)[: len(ends) - last]
    assert last == max(1, math.floor(share * len(ends) + 1e-9)), "a whole number but for rounding counts as one"
    assert part == pytest.approx(1 - (max(before) / max(ends) if before else 0.0))


def test_lengths_alone_are_a_bound_and_times_of_later_steps_without_starts_are_not_used() -> None:
    frame = pd.concat([log([1.0] * 20 + [10.0]), log([101.0] * 20 + [110.0]).assign(step=1)])
    curves = completions(LoggedRun("log", "", pd.DataFrame({"step": []}), frame.reset_index(drop=True)))
    assert [curve.counted for curve in curves] == [True, False]
    started = frame.assign(start_s=np.where(frame["step"] == 0, 0.0, 100.0)).reset_index(drop=True)
    curves = completions(LoggedRun("log", "", pd.DataFrame({"step": []}), started))
    assert [curve.counted for curve in curves] == [True, True]
    assert curves[1].seconds == pytest.approx(10.0)


def scalars(**columns: Any) -> LoggedRun:
    """Return a run that logged these scalars of one step."""
    return LoggedRun("log", "slime", pd.DataFrame([{"step": 0, **columns}]))


def test_an_engine_that_is_slow_for_any_model_is_said_before_the_tail() -> None:
    pace = {"perf/longest_sample_tokens_per_sec": 4096 / 371.0}
    part = collect(scalars(generate_s=371.0, response_tokens_max=4096.0, response_tokens_mean=2773.7, step_s=463.6, **pace))
    assert part.numbers["ms_per_token"].value == pytest.approx(90.6, abs=0.05)
    kinds = [one.kind for one in sorted(part.findings, key=lambda one: -one.at_stake)]
    assert kinds.index("engine") < kinds.index("tail")
    (engine,) = [one for one in part.findings if one.kind == "engine"]
    assert engine.at_stake == pytest.approx(371 / 463.6 * (1 - shipped_ms(1)[1] / 90.6), rel=1e-3), "its batch is unknown"


def test_what_generation_does_beside_decoding_is_no_pace_of_the_engine() -> None:
    """verl's seconds of generation have weights and memory in them; those of its slowest rank do not."""
    part = collect(scalars(generate_s=60.0, request_s_max=30.0, response_tokens_max=1000.0, step_s=90.0))
    assert part.numbers["ms_per_token"].value == pytest.approx(30.0)
    part = collect(scalars(generate_s=60.0, request_s_max=80.0, response_tokens_max=1000.0, step_s=90.0))
    assert part.numbers["ms_per_token"].value == pytest.approx(60.0)


def test_generation_that_never_ends_has_no_tail() -> None:
    """verl's fully asynchronous trainer waits for responses, whose slots are filled again at once."""
    lengths = {"response_tokens_mean": 100.0, "response_tokens_max": 1000.0}
    run = LoggedRun("log", "verl", pd.DataFrame([{"step": 0, "wait_s": 40.0, "step_s": 90.0, **lengths}]))
    assert not [one for one in collect(run).findings if one.kind == "tail"]
    batch = LoggedRun("log", "verl", pd.DataFrame([{"step": 0, "wait_s": 40.0, "generate_s": 80.0, "step_s": 90.0, **lengths}]))
    assert [one for one in collect(batch).findings if one.kind == "tail"]


def test_requests_that_wait_for_each_other_are_no_slow_engine() -> None:
    """1,280 responses of one GPU decode in several waves, so that the longest response's time is no engine's pace."""
    run = scalars(
        generate_s=74.02, response_tokens_max=1024.0, response_tokens_mean=325.0, prompt_tokens_mean=102.5,
        **{"global_seqlen/mean": 547_190.5},
    )  # fmt: skip
    part = collect(run)
    assert all(one.kind != "engine" for one in part.findings)
    assert any("1,280 responses of an engine of 1 GPU" in text for text in part.cannot_say)
    assert all(one.kind != "tail" for one in part.findings), "slots are filled again: mean and longest bound nothing"


@pytest.mark.parametrize("seed", range(6))
def test_no_order_of_a_queue_saves_more_than_is_said(seed: int) -> None:
    """Responses start on the next free slot in their order; the best order ends no sooner than work and longest one."""
    rng = np.random.default_rng(seed)
    tokens = np.ceil(rng.lognormal(5.0, [0.4, 0.8, 1.2][seed % 3], 300 + 100 * seed))
    slots = int(rng.integers(2, len(tokens)))
    free = np.zeros(slots)
    for length in tokens:
        first = int(np.argmin(free))
        free[first] += length
    least = max(tokens.sum() / slots, tokens.max())
    run = scalars(
        response_tokens_mean=tokens.mean(), response_tokens_max=tokens.max(), generate_s=free.max(), step_s=free.max()
    )
    part = collect(replace(run, framework="verl", stated=Stated(gpus=1, responses_per_step=len(tokens))))
    saved = part.numbers["order_saves_at_most_share"].value
    assert 1 - least / free.max() <= saved <= 0.5
    (lever,) = [one for one in part.levers if one.kind == "assignment"]
    assert (lever.at_most, lever.of) == (pytest.approx(saved), "time")
    assert part.numbers["step_ordered_least_s"].value <= least


def test_a_queue_says_what_an_order_saves_of_the_step_as_a_range() -> None:
    run = scalars(step_s=120.0, generate_s=90.0, response_tokens_mean=300.0, response_tokens_max=1000.0, truncation_rate=0.002)
    (finding,) = [one for one in collect(replace(run, stated=Stated(gpus=2, responses_per_step=4096))).findings
                  if one.kind == "generation"]  # fmt: skip
    assert "2,048 responses" in finding.sentence
    assert "0 to 37%" in finding.sentence
    assert "limit" not in finding.sentence, "the log says that hardly any response was cut"


def test_seconds_of_requests_bound_the_tail_where_lengths_are_unknown() -> None:
    part = collect(scalars(step_s=100.0, generate_s=60.0, request_s_mean=24.0, request_s_max=58.0))
    assert part.numbers["mean_over_longest"].value == pytest.approx(24 / 58)
    assert part.numbers["slot_idle_share_at_most"].value == pytest.approx(34 / 58)
    assert part.numbers["step_packed_least_s"].value == pytest.approx(64), "the step without generation, and a mean request"
    (tail,) = [one for one in part.findings if one.kind == "tail"]
    assert "request" in tail.sentence
    assert (tail.at_stake, tail.of) == (pytest.approx(0.6 * 34 / 58), "GPU-hours")


def test_a_token_takes_no_longer_than_the_mean_request_per_token() -> None:
    each = collect(scalars(generate_s=60.0, response_tokens_max=1000.0, response_tokens_mean=500.0, request_s_mean=10.0))
    assert each.numbers["ms_per_token"].value == pytest.approx(20), "and not 60 s over 1,000 tokens"
    assert each.numbers["ms_per_token"].evidence == "bound"


def test_with_several_replicas_one_works_until_the_longest_response_ends() -> None:
    steps = {"generate_s": 20.0, "response_tokens_mean": 10.0, "response_tokens_max": 1000.0}
    run = replace(scalars(**steps), stated=Stated(gpus=2, gpus_generate=2, responses_per_step=64))
    (lever,) = [one for one in collect(run).levers if one.kind == "assignment"]
    assert lever.at_most == pytest.approx(0.5)


def test_the_slowest_request_of_verl_tells_the_pace_where_the_longest_response_is_unknown() -> None:
    slowest = {f"timing_s/agent_loop/slowest/{name}": value for name, value in
               {"generate_sequences": 450.0, "response_length": 3000.0, "tool_calls": 0.0}.items()}  # fmt: skip
    run = replace(scalars(generate_s=460.0, step_s=900.0, **slowest), stated=Stated(gpus=8, responses_per_step=128))
    part = collect(run)
    assert part.numbers["ms_per_token"].value == pytest.approx(150)
    assert "engine" in [one.kind for one in part.findings]
    unsure = collect(replace(run, stated=Stated()))
    assert any("150.0 ms" in text for text in unsure.cannot_say), "requests may wait for each other"
    with_tools = {**slowest, "timing_s/agent_loop/slowest/tool_calls": 5.0}
    assert "ms_per_token" not in collect(scalars(generate_s=460.0, step_s=900.0, **with_tools)).numbers, "answers are in it"


def test_generation_that_is_longer_than_its_step_is_no_pace_of_the_engine() -> None:
    step = {"step_s": 100.0, "generate_s": 400.0, "response_tokens_max": 1000.0, "response_tokens_mean": 500.0}
    part = collect(replace(scalars(**step), stated=Stated(gpus=8, responses_per_step=64)))
    assert "ms_per_token" not in part.numbers
    assert any("400.0 s" in note for note in part.notes)


def test_a_healthy_engine_is_not_named() -> None:
    part = collect(scalars(generate_s=20.0, response_tokens_max=2000.0, response_tokens_mean=1900.0))
    assert all(one.kind != "engine" for one in part.findings)


def test_an_engine_is_measured_against_the_stated_model() -> None:
    """20 ms per token are healthy for 70B and slow for 3B; with more responses than slots on a GPU nobody can say."""
    step = {"generate_s": 40.0, "response_tokens_max": 2000.0, "response_tokens_mean": 1900.0, "prompt_tokens_mean": 100.0}
    known = Stated(model="Qwen2.5-3B", gpu="h100", gpus=8, responses_per_step=256)
    run = replace(scalars(**step), stated=Stated(gpus=8, responses_per_step=256))
    slow = collect(replace(run, stated=known))
    assert slow.numbers["engine_floor_ms"].value < 20 / 3.5
    assert "engine" in [one.kind for one in slow.findings]
    assert not [lever for lever in slow.levers if lever.kind == "assignment"], "no savings of schedules on such a pace"
    assert "engine" not in [one.kind for one in collect(run).findings]
    for other in (replace(known, responses_per_step=8192), replace(known, gpus=None, responses_per_step=None)):
        unsure = collect(replace(run, stated=other))
        assert "engine" not in [one.kind for one in unsure.findings], "responses may wait for slots"
        assert any("engine is slow" in text for text in unsure.cannot_say)


@pytest.mark.parametrize("name", [name for name in list_profiles() if not name.startswith("cpu")])
@pytest.mark.parametrize("batch", [8, 128, 256])
def test_the_pace_of_a_shipped_profile_at_its_batch_is_no_slow_engine(name: str, batch: int) -> None:
    """512 responses on 4 replicas of Qwen2.5-7B on L40S take 26.5 ms per token, and 6.1 ms alone."""
    known, profile = read_profile(name), load_profile(name)
    each = profile.base_s + profile.per_response_s * (batch - 1)
    tokens = np.arange(100, 100 + 4 * batch)
    step = {
        "step": 0,
        "prompt_id": range(4 * batch),
        "sample": 0,
        "response_tokens": tokens,
        "start_s": 0.0,
        "end_s": tokens * each,
    }
    replica = known["gpus_per_actor"]
    stated = Stated(gpus=4 * replica, gpu=known["kind"], model=known["model"], tensor_parallel=replica)
    for one in (
        stated,
        replace(stated, model=None),
        replace(stated, gpus=None),
        Stated(gpus=4 * replica),
        Stated(),
    ):
        assert all(finding.kind != "engine" for finding in diagnose(pd.DataFrame(step), one).findings), one
    slow = diagnose(pd.DataFrame(step).assign(end_s=40 * tokens * each), stated)
    assert slow.verdict[0].kind == "engine"


def test_a_pace_that_a_batch_explains_is_said_to_be_open() -> None:
    step = {"generate_s": 50.0, "response_tokens_max": 1000.0, "response_tokens_mean": 500.0}
    part = collect(replace(scalars(**step), stated=Stated(gpus=8, responses_per_step=256)))
    assert all(one.kind != "engine" for one in part.findings), "its replicas may have several GPUs"
    assert any("batch" in text for text in part.cannot_say)
    known = replace(scalars(**step), stated=Stated(gpus=8, tensor_parallel=1, responses_per_step=64))
    assert [one.kind for one in collect(known).findings if one.kind == "engine"], "a batch of 8 does not explain it"


def test_replicas_of_unknown_size_may_have_more_responses_than_slots() -> None:
    """With 8 GPUs each and slime's 512 slots, replicas decode 1,024 responses in two waves; of one GPU, 128 have room."""
    step = {"generate_s": 100.0, "response_tokens_max": 1000.0, "response_tokens_mean": 500.0}

    def found(factor: float, **stated: int) -> Collected:
        run = scalars(**{**step, "generate_s": factor * step["generate_s"]})
        return collect(replace(run, stated=Stated(gpus=8, responses_per_step=1024, **stated)))

    assert all(one.kind != "engine" for one in found(1.0).findings)
    assert any("--gpus-per-actor" in text for text in found(1.0).cannot_say)
    assert [one for one in found(10.0).findings if one.kind == "engine"], "more than two waves explain"
    assert [one for one in found(1.0, tensor_parallel=1).findings if one.kind == "engine"]
    assert any("1,024 responses of an engine of 8 GPUs" in text for text in found(3.0, tensor_parallel=8).cannot_say)


def test_generation_without_lengths_is_named_before_a_smaller_learner() -> None:
    steps = pd.DataFrame([{"step": 0, "generate_s": 47.0, "learn_s": 45.0, "step_s": 100.0}])
    said = sorted(collect(LoggedRun("log", "nemo-rl", steps)).findings, key=lambda one: -one.at_stake)
    assert [one.kind for one in said[:2]] == ["generation", "learner"]
    assert "47%" in said[0].sentence


def test_calls_of_tools_are_no_slow_engine() -> None:
    step = {"generate_s": 90.0, "response_tokens_max": 1000.0, "response_tokens_mean": 500.0}
    run = replace(
        scalars(**step, **{"timing_s/agent_loop/tool_calls/mean": 20.0}), stated=Stated(gpus=8, responses_per_step=64)
    )
    part = collect(run)
    assert "engine" not in [one.kind for one in part.findings]
    assert any("tools" in text for text in part.cannot_say)


def test_beside_training_it_is_the_wait_that_a_tail_is_a_part_of() -> None:
    step = {"step_s": 92.0, "generate_s": 90.0, "wait_s": 30.0, "learn_s": 60.0, "response_tokens_mean": 900.0,
            "response_tokens_max": 3000.0}  # fmt: skip
    (tail,) = [one for one in collect(LoggedRun("log", "slime", pd.DataFrame([{"step": 0, **step}]))).findings
               if one.kind == "tail"]  # fmt: skip
    assert "waiting for generation takes 33%" in tail.sentence
