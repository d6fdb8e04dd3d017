"""A profile measured from an engine's lines: the speed that made the lines comes back, or it is refused in a sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from engine_samples import BASE_S, PER_REQUEST_S, PREFILL_S, ROLLOUT, line_of, rate_of, read_lines, rollout_lines
from error_messages import refused
from hypothesis import given
from hypothesis import strategies as st

from rlhfless.latency import ProfileError, load_profile, read_profile, save_profile
from rlhfless.latency.engine_statistics import BETWEEN, EngineFit, fit_engine, intervals, profile_of_engine


def written(fit: EngineFit, tmp_path: Path, base: str | None = None, kv_cache_tokens: float | None = None) -> Path:
    profile = profile_of_engine(
        fit, read_profile(base) if base else None, kv_cache_tokens, name="mine", origin="a log", command="a command",
        date="2026-03-04",
    )  # fmt: skip
    return save_profile(tmp_path / "mine.json", profile)


def test_the_speed_that_made_the_lines_comes_back() -> None:
    fit = fit_engine(read_lines(rollout_lines()), "log")
    assert fit.base_s == pytest.approx(BASE_S, rel=1e-3)
    assert fit.per_running_s == pytest.approx(PER_REQUEST_S, rel=1e-2)
    assert fit.batch.tolist() == list(ROLLOUT[1:]), "neither the first line of the rollout nor the one at its end"
    assert fit.prefill_per_token_s is None
    assert fit.token_seconds(100) == pytest.approx(BASE_S + 100 * PER_REQUEST_S, rel=1e-2)
    assert float(np.median(fit.checked.errors)) < 0.01 < float(np.median(fit.checked.constant_errors))
    assert not fit.checked.constant_is_better


@given(st.floats(0.002, 0.2), st.floats(0.0, 0.002), st.permutations(list(ROLLOUT[1:])))
def test_any_speed_comes_back_from_any_order_of_batches(base_s: float, per_request_s: float, batches: list[int]) -> None:
    rates = [batch / (base_s + per_request_s * batch) for batch in batches]
    rows = [("0", 0.0, 5.0, 1.0)] + [
        ("0", 10.0 * at, float(b), r) for at, (b, r) in enumerate(zip(batches, rates, strict=True), 1)
    ]
    frame = pd.DataFrame(rows, columns=["engine", "time_s", "running", "generated_tokens_per_s"])
    fit = fit_engine(frame.assign(prompt_tokens_per_s=np.nan, engines=1.0), "log")
    assert (fit.base_s, fit.per_running_s) == (
        pytest.approx(base_s, rel=1e-6),
        pytest.approx(per_request_s, rel=1e-6, abs=1e-9),
    )


def test_prompts_beside_are_fitted_where_lines_have_them() -> None:
    prompts = (9000, 6000, 4000, 5000, 1000)
    fit = fit_engine(read_lines(rollout_lines(prompts=prompts)), "log")
    assert fit.prefill_per_token_s == pytest.approx(PREFILL_S, rel=0.05)
    assert fit.base_s == pytest.approx(BASE_S, rel=0.01)


def test_a_batch_that_falls_between_two_lines_is_read_as_their_mean() -> None:
    running = np.array([200, 200, 150, 120, 80, 50, 30, 10, 4])
    rates = [r / (BASE_S + PER_REQUEST_S * r) for r in (running[1:] + running[:-1]) / 2]
    lines = [line_of(10 * at, batch, rate) for at, (batch, rate) in enumerate(zip(running, [1.0, *rates], strict=True))]
    fit = fit_engine(read_lines(lines), "log")
    assert fit.read_as == BETWEEN
    assert fit.base_s == pytest.approx(BASE_S, rel=0.01)


def test_replicas_and_their_sum_are_one_speed() -> None:
    apart = read_lines([*rollout_lines(engine="000"), *rollout_lines(engine="001")])
    assert fit_engine(apart, "log").base_s == pytest.approx(BASE_S, rel=1e-3)
    together = [text.replace("Engine 000", "2 Engines Aggregated") for text in rollout_lines([2 * b for b in ROLLOUT])]
    summed = [line.replace(f"generation throughput: {rate_of(2 * b):.1f}", f"generation throughput: {2 * rate_of(b):.1f}")
              for line, b in zip(together, [*ROLLOUT, 0], strict=True)]  # fmt: skip
    fit = fit_engine(read_lines(summed), "log")
    assert fit.batch.max() == 200, "requests of one engine"
    assert fit.base_s == pytest.approx(BASE_S, rel=0.01)


def test_rollouts_split_where_nothing_runs_and_at_pauses() -> None:
    lines = [*rollout_lines((9, 9, 9), 0), *rollout_lines((8, 8), 60)]
    no_end = [text for text in lines if "Running: 0" not in text]
    for kept in (lines, no_end):
        found = intervals(read_lines(kept))
        found = found[found["running"] > 0]
        assert found["rollout"].nunique() == 2
        assert found["before"].isna().tolist() == [True, False, False, True, False]
        assert found["seconds"].tolist() == [10] * 5
    assert intervals(read_lines(no_end))["most_seconds"].tolist() == [10, 10, 10, 40, 10]


def test_midnight_is_no_pause() -> None:
    lines = [line_of(18 * 3600 - 20 + 10 * at, 5, 100.0) for at in range(2)] + [
        line_of(10 * at - 6 * 3600, 5, 100.0) for at in (0, 1)
    ]
    found = intervals(read_lines(lines))
    assert found["time_s"].tolist() == [86380, 86390, 0, 10]
    assert (found["rollout"].nunique(), found["seconds"].tolist()) == (1, [10] * 4)


def test_an_idle_engine_has_no_interval() -> None:
    lines = [*rollout_lines((9, 9)), line_of(30, 0, 0.0), line_of(40, 0, 0.0)]
    assert len(intervals(read_lines(lines))) == 3


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        (rollout_lines((9, 8, 4)), ("2 lines", "5")),
        ([], ("0 lines", "5")),
        (rollout_lines((9,) * 12), ("9 to 9 requests",)),
        (rollout_lines((100,) * 6 + (60,) * 6), ("60 to 100 requests",)),
    ],
)
def test_too_few_or_too_like_lines_are_refused(lines: list[str], named: tuple[str, ...]) -> None:
    with refused(ProfileError, "run.log", *named):
        fit_engine(read_lines(lines), "run.log")


def test_the_profile_that_is_written_is_a_latency_model(tmp_path: Path) -> None:
    fit = fit_engine(read_lines(rollout_lines()), "log")
    path = written(fit, tmp_path)
    model, profile = load_profile(path), read_profile(path)
    assert (model.max_batch, model.gpus_per_actor, model.kind) == (200, 1, "unknown")
    for batch in (1, 50, 200):
        assert float(model.iteration_s(batch, batch * 700)) == pytest.approx(fit.token_seconds(batch), rel=1e-5)
    assert profile["engine_lines"]["median_relative_error"] == pytest.approx(float(np.median(fit.checked.errors)))
    assert profile["engine_lines"]["lines"] == 9
    assert "unknown" in profile["assumptions"]["prefill"]
    assert model.prefill_per_token_s == fit.per_running_s, "what a request adds, as no line has prompts"


def test_times_with_drafts_are_said_to_be_with_drafts(tmp_path: Path) -> None:
    drafts = "SpecDecoding metrics: Mean acceptance length: 2.4, Accepted throughput: 14.0 tokens/s"
    for lines, said in ((rollout_lines(), False), ([*rollout_lines(), drafts], True)):
        fit = fit_engine(read_lines(lines), "log")
        assert fit.drafted is said
        assert ("drafts" in read_profile(written(fit, tmp_path))["assumptions"]) is said


def test_what_was_held_out_is_said_in_the_words_of_engines() -> None:
    assert "9 lines of one rollout" in fit_engine(read_lines(rollout_lines()), "log").held_out
    two = [*rollout_lines(), *rollout_lines(begin_s=200)]
    assert "2 rollouts" in fit_engine(read_lines(two), "log").held_out


def test_what_lines_do_not_tell_is_the_base_profiles(tmp_path: Path) -> None:
    base = load_profile("h100-qwen2.5-3b-tp2")
    model = load_profile(written(fit_engine(read_lines(rollout_lines()), "log"), tmp_path, "h100-qwen2.5-3b-tp2"))
    assert (model.kind, model.gpus_per_actor, model.start_s) == (base.kind, base.gpus_per_actor, base.start_s)
    assert model.kv_capacity_tokens == base.kv_capacity_tokens
    assert model.base_s == pytest.approx(BASE_S, rel=1e-3)
    stated = written(fit_engine(read_lines(rollout_lines()), "log"), tmp_path, "h100-qwen2.5-3b-tp2", kv_cache_tokens=4096)
    assert load_profile(stated).kv_capacity_tokens == 4096


def test_an_upper_bound_of_prefill_is_taken_where_it_cannot_be_told_apart(tmp_path: Path) -> None:
    fit = fit_engine(read_lines(rollout_lines(prompts=(8000,))), "log")
    path = written(fit, tmp_path)
    assert load_profile(path).prefill_per_token_s == pytest.approx(1 / 8000)
    assert "upper bound" in read_profile(path)["assumptions"]["prefill"]
