"""The GPUs of a run in words: as stated, as the log has them, or both, how --gpus was read, and contradictions first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from rlhfless.diagnosis import Diagnosis, Stated, diagnose
from rlhfless.diagnosis.diagnose import collect
from rlhfless.diagnosis.gpus import GpusInWords, gpus_in_words
from rlhfless.diagnosis.logged_run import LoggedRun
from rlhfless.diagnosis.phases import synchronous

NEMO_RL = Path(__file__).parents[1] / "trace" / "importers" / "golden" / "nemo-rl-console" / "async.log"
SLIME = {
    "truncation_rate": 119 / 256, "response_tokens_mean": 710_071 / 256, "response_tokens_max": 4096.0,
    "generate_s": 371.1796889305115, "tokens_per_gpu_s": 239.1257,
}  # fmt: skip


def words_of(stated: Stated, facts: dict[str, float] | None = None, framework: str = "verl", **logged: Any) -> GpusInWords:
    """Return what is said of the GPUs of one logged step."""
    run = LoggedRun("log", framework, pd.DataFrame([{"step": 0, **logged}]), facts=facts or {}, stated=stated)
    numbers = collect(run).numbers
    derived = numbers.get("gpus") or numbers.get("gpus_generate")
    return gpus_in_words(run, derived, apart=synchronous(run) is False)


def test_gpus_that_nobody_logged_are_as_stated() -> None:
    assert words_of(Stated(gpus=8), step_s=1.0) == GpusInWords("8, as you stated, not in the log")
    assert words_of(Stated(), step_s=1.0) == GpusInWords()
    apart = words_of(Stated(gpus=8), step_s=9.0, wait_s=3.0, learn_s=5.0)
    assert "read as all of them" in apart.sentence, "training has GPUs of its own"


@pytest.mark.parametrize(
    ("logged", "facts", "way"),
    [
        ({"step_s": 100.0, "tokens_total": 1.6e6, "perf/throughput": 1000.0}, {}, "perf/throughput"),
        ({"step_s": 1.0}, {"gpus": 16.0}, "recorded cluster"),
        ({"step_s": 1.0, "gpus": 16.0}, {}, "its own count"),
    ],
    ids=["rate", "fact", "column"],
)
def test_stated_gpus_that_the_log_contradicts_are_named(logged: dict[str, float], facts: dict[str, float], way: str) -> None:
    both = words_of(Stated(gpus=4), facts, **logged)
    assert both.contradicts
    assert "you stated 4" in both.sentence
    assert "16" in both.sentence
    assert way in both.sentence
    assert words_of(Stated(gpus=16), facts, **logged) == GpusInWords("16, as you stated and as the log has it")
    assert words_of(Stated(), facts, **logged).sentence == "16, as the log has it"


def test_gpus_that_follow_from_rates_are_compared_with_stated_ones() -> None:
    """710,071 tokens in 371.18 s at 239.126 of a GPU are 8 GPUs."""
    assert words_of(Stated(), framework="slime", **SLIME).sentence == "8 that generate, as the log has it"
    four = words_of(Stated(gpus=4), framework="slime", **SLIME)
    assert (four.contradicts, "the log has 8 by" in four.sentence) == (True, True)


def test_a_rate_contradicts_only_what_it_measures_and_by_more_than_rounding() -> None:
    agrees = GpusInWords("8, as you stated and as the log has it")
    assert words_of(Stated(gpus=8), framework="slime", **SLIME) == agrees
    assert words_of(Stated(gpus=8), framework="slime", **{**SLIME, "tokens_per_gpu_s": 239.1257 * 1.015}) == agrees
    assert words_of(Stated(gpus=8), framework="slime", **{**SLIME, "tokens_per_gpu_s": 239.1257 / 2}).contradicts
    assert not words_of(Stated(gpus=16), framework="slime", **SLIME).contradicts, "training may have the others"
    divided = words_of(Stated(gpus=16), framework="slime", **SLIME, step_s=500.0, wait_s=300.0, learn_s=150.0)
    assert not divided.contradicts, "the rate is of the GPUs that generate"


def diagnosed(**stated: int) -> Diagnosis:
    return diagnose(NEMO_RL, Stated(**stated))


@pytest.mark.parametrize(
    ("stated", "read"),
    [
        ({}, ""), ({"gpus": 8}, "; --gpus is read as all of them"), ({"gpus": 2}, "; --gpus is read as those that generate"),
        ({"gpus": 8, "gpus_generate": 2, "gpus_train": 6}, ""),
    ],
    ids=["none", "all", "generate", "both"],
)  # fmt: skip
def test_of_divided_gpus_it_is_said_how_a_number_was_read(stated: dict[str, int], read: str) -> None:
    said = diagnosed(**stated)
    assert said.gpus == GpusInWords(f"8, as the log has it: 2 generate and 6 train{read}")
    assert "8 GPUs" in said.numbers["gpu_hours"].how, "the same cost in every case"
    assert f"GPUs: {said.gpus.sentence}" in str(said).splitlines()


def test_sides_that_the_log_contradicts_are_named() -> None:
    said = diagnosed(gpus=8, gpus_generate=4, gpus_train=4).gpus
    assert said.contradicts
    assert "you stated 4 that generate and 4 that train, and the log has 2 and 6" in said.sentence


def test_a_contradiction_is_the_first_line() -> None:
    assert str(diagnosed(gpus=5)).startswith("GPUs: you stated 5, and the log has 8 by its own count: 2 generate and 6 train")
