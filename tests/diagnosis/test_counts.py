"""Counts of a step by several ways: the GPUs and responses that follow from verl's and slime's numbers, and contradictions."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from error_messages import refused

from rlhfless.diagnosis import Stated
from rlhfless.diagnosis.diagnose import collect
from rlhfless.diagnosis.engine_speed import responses_at_once, responses_per_engine
from rlhfless.diagnosis.gpus import gpus_of
from rlhfless.diagnosis.logged_run import LoggedRun
from rlhfless.diagnosis.numbers import Collected
from rlhfless.errors import InputError


def found(stated: Stated | None = None, facts: dict[str, float] | None = None, **columns: Any) -> Collected:
    """Diagnose one step with these scalars."""
    steps = pd.DataFrame([{"step": 1, **columns}])
    return collect(LoggedRun("log", "verl", steps, facts=facts or {}, stated=stated or Stated()))


VERL = {
    "global_seqlen/mean": 400_000.0, "response_tokens_mean": 300.0, "prompt_tokens_mean": 100.0, "response_tokens_max": 1000.0,
    "generate_s": 60.0, "step_s": 80.0, "truncation_rate": 0.004,
}  # fmt: skip


def test_tokens_of_ranks_give_responses_per_gpu_and_with_gpus_those_of_the_step() -> None:
    alone = found(**VERL).numbers
    assert alone["responses_per_gpu"].value == pytest.approx(1000)
    assert "responses_per_step" not in alone, "a share of 0.004 is no 1/250: it was rounded"
    assert alone["tokens_per_gpu_s"].value == pytest.approx(1000 * 300 / 60)
    on_four = found(Stated(gpus=4), **VERL).numbers
    assert on_four["responses_per_step"].value == pytest.approx(4000)
    assert on_four["tokens_per_s"].value == pytest.approx(4000 * 300 / 60)
    assert on_four["tokens_per_gpu_s"].value == pytest.approx(1000 * 300 / 60)


def test_verls_throughput_is_per_gpu_so_it_tells_the_gpus() -> None:
    """Newer versions have ranks of several GPUs, so tokens of a rank do not."""
    logged = {**VERL, "tokens_total": 1_638_400.0, "perf/throughput": 2560.3, "global_seqlen/mean": 819_200.0}
    numbers = found(**logged).numbers
    assert (numbers["gpus"].value, numbers["responses_per_step"].value) == (8, 4096)
    assert "responses_per_gpu" not in numbers
    assert numbers["gpu_hours_per_step"].value == pytest.approx(8 * 80 / 3600)
    assert numbers["tokens_per_gpu_s"].value == pytest.approx(4096 * 300 / 60 / 8)
    apart = {**logged, "perf/throughput": 2410.0, "global_seqlen/mean": None}
    assert "gpus" not in found(**apart).numbers, "8.5 GPUs are none"


def test_tokens_of_the_ranks_that_train_say_nothing_of_all_gpus() -> None:
    """An asynchronous trainer logs the mean of several updates on its own GPUs."""
    numbers = found(**{**VERL, "wait_s": 20.0, "tokens_total": 1_638_400.0, "generate_s": None}).numbers
    assert numbers["responses_per_step"].value == 4096
    assert {"gpus", "responses_per_gpu"}.isdisjoint(numbers)


def test_shares_written_in_full_give_responses_and_these_the_gpus_that_generate() -> None:
    """119 of 256 responses were cut, and 256 lengths have this mean."""
    numbers = found(
        truncation_rate=119 / 256, response_tokens_mean=710_071 / 256, response_tokens_max=4096.0, generate_s=371.1796889305115,
        tokens_per_gpu_s=239.12643295688667,
    ).numbers  # fmt: skip
    assert numbers["responses_per_step"].value == 256
    assert numbers["response_tokens_per_step"].value == pytest.approx(710_071)
    assert numbers["gpus_generate"].value == pytest.approx(8.0, abs=0.01)


@pytest.mark.parametrize("training", [{}, {"step_s": 500.0, "wait_s": 300.0, "learn_s": 150.0}], ids=["unknown", "divided"])
def test_a_rate_per_gpu_that_generates_tells_these_gpus_alone(training: dict[str, float]) -> None:
    """slime's rate is of the GPUs of its engines; those of the trainer may be others."""
    numbers = found(response_tokens_mean=1000.0, responses=64.0, generate_s=100.0, tokens_per_gpu_s=80.0, **training).numbers
    assert numbers["gpus_generate"].value == pytest.approx(8.0)
    assert "GPU that generates" in numbers["gpus_generate"].how
    assert "gpus" not in numbers


@pytest.mark.parametrize(
    ("stated", "each"),
    [
        ({}, 16.0),
        ({"gpus": 8}, 16.0),
        ({"gpus": 24}, 16.0),
        ({"gpus": 24, "gpus_generate": 16}, 8.0),
        ({"gpus": 4}, 32.0),
    ],
)
def test_an_engine_has_the_responses_of_the_gpus_that_generate(stated: dict[str, int], each: float) -> None:
    """slime's rate says that 8 GPUs generate, so of 24 stated ones 16 train. 64 responses, 2 GPUs per engine."""
    logged = {"step": 1, "response_tokens_mean": 1000.0, "responses": 64.0, "generate_s": 100.0, "tokens_per_gpu_s": 80.0}
    run = LoggedRun("log", "slime", pd.DataFrame([logged]), stated=Stated(tensor_parallel=2, **stated))
    told = collect(run)
    assert responses_at_once(run, told) == pytest.approx((each, each))
    assert responses_per_engine(run, told) == pytest.approx(each)


def test_ways_that_contradict_each_other_are_a_range_and_named() -> None:
    part = found(responses=512.0, response_tokens_mean=100.0, prompt_tokens_mean=100.0, tokens_total=51_200.0)
    count = part.numbers["responses_per_step"]
    assert (count.low, count.high) == (256, 512)
    assert any("contradicts itself" in note and "256" in note and "512" in note for note in part.notes)


def test_the_end_of_a_run_gives_responses_per_step() -> None:
    numbers = found(facts={"samples_per_s": 12.8, "steps_per_s": 0.1}, response_tokens_mean=50.0).numbers
    assert numbers["responses_per_step"].value == 128


def test_nothing_is_said_of_what_nobody_counted() -> None:
    part = found(response_tokens_mean=50.0)
    assert "responses_per_step" not in part.numbers
    assert any("--responses-per-step" in text and "perf/total_num_tokens" in text for text in part.cannot_say)


def test_batches_of_gpus_that_differ_little_are_no_lever() -> None:
    rows = {"response_tokens_mean": 300.0, "prompt_tokens_mean": 100.0, "global_seqlen/mean": 400_000.0}
    even, apart = (
        collect(LoggedRun("log", "verl", pd.DataFrame([{"step": 1, **rows, "global_seqlen/minmax_diff": diff}])))
        for diff in (8_000.0, 200_000.0)
    )
    assert even.numbers["gpu_tokens_apart_share"].value == pytest.approx(0.02)
    assert any("2.0% in tokens" in note for note in even.notes)
    assert not any("in tokens" in note for note in apart.notes)


def test_sides_that_are_more_than_the_run_are_refused() -> None:
    with refused(InputError, "gpus_generate 12", "gpus 8"):
        Stated(gpus=8, gpus_generate=12)
    with refused(InputError, "gpus_generate 6 and gpus_train 4", "gpus 8"):
        Stated(gpus=8, gpus_generate=6, gpus_train=4)
    assert Stated(gpus=8, gpus_generate=6, gpus_train=2).gpus == 8


def test_stated_sides_of_another_size_than_the_row_are_not_used() -> None:
    run = LoggedRun("log", "", pd.DataFrame({"step": [0], "gpus": [8.0]}), stated=Stated(gpus_generate=12))
    assert gpus_of(run) == (8.0, None, None)
    fits = LoggedRun("log", "", pd.DataFrame({"step": [0], "gpus": [16.0]}), stated=Stated(gpus=8, gpus_generate=4))
    assert gpus_of(fits) == (16.0, 4.0, 12.0)
