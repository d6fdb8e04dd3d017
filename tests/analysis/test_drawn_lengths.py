"""Lengths drawn from scalars have the scalars, and findings from them cover those of the responses that were left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from command_line import run_rlhfless
from error_messages import refused, refused_command
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhfless.analysis.drawn_lengths import COVERAGE, DRAWS, StepSizes, drawn_logs, lacking_options
from rlhfless.analysis.framework_defaults import DRAWN
from rlhfless.analysis.length_families import ALIKE, FAMILIES, Family, StepLengths, drawn_lengths, in_groups
from rlhfless.errors import InputError
from rlhfless.report.schedules import refuse_requests_without_steps
from rlhfless.trace import LogWithoutResponses, TraceError, import_log, open_log

GOLDEN = Path(__file__).parents[1] / "trace" / "importers" / "golden"
BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def scalars(lengths: np.ndarray, limit: int, **changes: Any) -> dict[str, Any]:
    """What verl logs of a step with these lengths, after prompts of 40 tokens."""
    cut = np.minimum(lengths, limit)
    data = {
        "response_length/mean": float(cut.mean()),
        "response_length/max": int(cut.max()),
        "response_length/min": int(cut.min()),
        "response_length/clip_ratio": float((lengths >= limit).mean()),
        "prompt_length/mean": 40.0,
        "perf/total_num_tokens": int(cut.sum()) + 40 * len(cut),
    }
    return {key: value for key, value in (data | changes).items() if value is not None}


def written(folder: Path, *steps: dict[str, Any]) -> Path:
    path = folder / "run.jsonl"
    path.write_text("".join(json.dumps({"step": n + 1, "data": step}) + "\n" for n, step in enumerate(steps)))
    return path


def imported(path: Path) -> Any:
    with pytest.raises(LogWithoutResponses) as error:
        open_log(path)
    return error.value.log


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(FAMILIES), st.integers(64, 600), st.floats(0.1, 1.6), st.floats(3.5, 6.5), st.booleans(),
    st.integers(0, 10**6),
)  # fmt: skip
def test_a_draw_has_the_mean_the_longest_and_the_cut_share(
    family: Family, responses: int, spread: float, middle: float, limited: bool, seed: int
) -> None:
    """Lengths of every family have the scalars of true lengths that are lognormal."""
    true = np.exp(np.random.default_rng(seed).normal(middle, spread, responses)).round().clip(1)
    limit = float(np.quantile(true, 0.9).round()) if limited else float(true.max()) + 1
    logged = np.minimum(true, limit)
    truncated = float((true >= limit).mean())
    step = StepLengths(float(logged.mean()), float(logged.min()), float(logged.max()), truncated, responses, 0.0)
    found = drawn_lengths(step, family, np.random.default_rng(seed))
    assert len(found) == responses
    assert found.max() == logged.max()
    assert found.min() == logged.min()
    if limited:
        assert (found == logged.max()).sum() == round(truncated * responses)
    assert found.mean() == pytest.approx(logged.mean(), abs=0.5 / responses + 1e-9)


def test_families_are_far_apart() -> None:
    """With two modes, most lengths are near an end; narrow ones are near the mean; a lognormal one has a heavy tail."""
    step = StepLengths(300.0, 20.0, 1000.0, 0.02, 400, 0.0)
    heavy, modes, narrow = (drawn_lengths(step, family, np.random.default_rng(0)) for family in FAMILIES)
    assert modes.std() > 1.2 * heavy.std() > 1.44 * narrow.std()
    assert np.quantile(modes, 0.25) < 40
    assert (np.abs(narrow - 300) < 200).mean() > 0.9


def test_responses_to_a_prompt_are_alike_or_not() -> None:
    """Of the variance of lengths, about ``ALIKE`` is between prompts; without it, as much as by chance."""
    lengths = np.arange(1, 4001)
    shares = []
    for alike in (True, False):
        order = in_groups(lengths, 8, alike, np.random.default_rng(0))
        assert sorted(order) == lengths.tolist()
        shares.append(order.reshape(-1, 8).mean(axis=1).var() / order.var())
    assert shares[0] == pytest.approx(ALIKE + (1 - ALIKE) / 8, abs=0.05)
    assert shares[1] == pytest.approx(1 / 8, abs=0.03)
    assert sorted(in_groups(lengths[:5], 8, True, np.random.default_rng(0))) == [1, 2, 3, 4, 5]


def test_the_number_of_responses_comes_from_the_tokens(tmp_path: Path) -> None:
    lengths = np.random.default_rng(0).integers(5, 200, 96)
    log = imported(written(tmp_path, scalars(lengths, 150), scalars(lengths[:48], 500)))
    drawn = drawn_logs(log, StepSizes(samples_per_prompt=4))
    assert len(drawn) == 4
    for one in drawn:
        rollouts = one.trace.rollouts
        assert rollouts.groupby("step").size().tolist() == [96, 48]
        assert rollouts.groupby(["step", "prompt_id"]).size().unique().tolist() == [4]
        assert (rollouts["prompt_tokens"] == 40).all()
        assert (rollouts["finish_reason"] == "length").sum() == (lengths >= 150).sum()
        assert not one.dispatch_order_known
        assert "96 per step" not in one.trace.meta[DRAWN], "72 is the median"
        assert len(one.scalars) == 2
    assert not drawn[0].trace.rollouts.equals(drawn[1].trace.rollouts)
    assert drawn_logs(log, StepSizes(responses_per_step=10))[0].trace.rollouts.groupby("step").size().tolist() == [10, 10]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"perf/total_num_tokens": None}, ("step 1", "perf/total_num_tokens", "--responses-per-step")),
        ({"response_length/mean": 900.0}, ("step 1", "900")),
        ({"response_length/clip_ratio": 1.5}, ("step 1", "1.5")),
        ({"response_length/max": None}, ("no responses", "longest", "--max-response-tokens")),
        (
            {"response_length/max": None, "perf/total_num_tokens": None},
            ("longest", "--max-response-tokens", "--responses-per-step"),
        ),
        ({"response_length/max": None, "response_length/mean": None}, ("no responses", "mean length")),
    ],
)
def test_scalars_that_give_no_lengths_are_refused(changes: dict[str, Any], sentence: tuple[str, ...], tmp_path: Path) -> None:
    log = imported(written(tmp_path, scalars(np.arange(10, 90), 500, **changes)))
    with refused(TraceError, *sentence):
        drawn_logs(log, StepSizes())


def test_steps_that_do_not_say_their_responses_have_those_that_were_derived(tmp_path: Path) -> None:
    lengths = np.arange(10, 90)
    log = imported(written(tmp_path, scalars(lengths, 500, **{"perf/total_num_tokens": None}), scalars(lengths, 500)))
    drawn = drawn_logs(log, StepSizes(typical_responses=24))
    assert drawn[0].trace.rollouts.groupby("step").size().tolist() == [24, 80]


def test_the_options_that_drawing_needs(tmp_path: Path) -> None:
    lengths = np.arange(10, 90)
    bare = {"response_length/max": None, "perf/total_num_tokens": None}
    log = imported(written(tmp_path, scalars(lengths, 500, **bare)))
    assert lacking_options(log, StepSizes()) == ["--max-response-tokens", "--responses-per-step"]
    assert lacking_options(log, StepSizes(typical_responses=8)) == ["--max-response-tokens"]
    assert lacking_options(log, StepSizes(responses_per_step=8, max_response_tokens=500)) == []
    assert lacking_options(imported(written(tmp_path, scalars(lengths, 500))), StepSizes()) == []
    without = imported(written(tmp_path, scalars(lengths, 500, **{"response_length/mean": None})))
    assert lacking_options(without, StepSizes()) is None, "no option stands in for lengths"


@pytest.mark.parametrize("cut", [0.25, 0.0])
def test_a_longest_response_that_is_not_logged_has_the_runs_limit(cut: float, tmp_path: Path) -> None:
    """As in logs of OpenRLHF, NeMo-RL and slime. Where none was cut, narrow lengths end at twice the mean."""
    lengths = np.arange(10, 90)
    changes = {"response_length/max": None, "response_length/min": None, "response_length/clip_ratio": cut}
    log = imported(written(tmp_path, scalars(lengths, 500, **changes)))
    drawn = drawn_logs(log, StepSizes(max_response_tokens=120))
    for draw, one in zip(DRAWS, drawn, strict=True):
        tokens, narrow = one.trace.rollouts["response_tokens"], draw.family == "narrow" and not cut
        assert tokens.max() == (99 if narrow else 120), draw
        assert cut == 0 or (tokens == 120).sum() == round(cut * 80)
        assert tokens.mean() == pytest.approx(lengths.mean(), abs=0.01)
        assert "limit of 120 tokens" in one.trace.meta[DRAWN]
        assert str(COVERAGE) not in one.trace.meta[DRAWN], "it was measured with logged longest responses"
    known = drawn_logs(imported(written(tmp_path, scalars(lengths, 500))), StepSizes(max_response_tokens=120))
    assert known[0].trace.rollouts["response_tokens"].max() == 89, "a logged one is used"


def test_a_large_step_of_unknown_groups_is_no_list_of_requests(tmp_path: Path) -> None:
    """What of a table is refused, a step of very many requests with a prompt each, is of scalars a step as it was logged."""
    log = imported(written(tmp_path, scalars(np.arange(10, 90), 500)))
    for drawn in drawn_logs(log, StepSizes(responses_per_step=10_001)):
        refuse_requests_without_steps(drawn)


def test_a_trackers_scalars_have_the_framework_that_named_them() -> None:
    log = imported(GOLDEN / "tensorboard")
    (one, *_) = drawn_logs(log, StepSizes(responses_per_step=8, max_response_tokens=16))
    assert (one.framework, one.trace.meta["framework"]) == ("nemo-rl", "nemo-rl")


def test_what_reports_say_of_their_ranges_was_measured() -> None:
    """The draws are those that the benchmark chose, and its numbers stand in the report."""
    said = json.loads((BENCHMARKS / "results" / "drawn_coverage.json").read_text("utf-8"))["summary"]
    held, width = said["held"], said["mean width"]
    assert [f"{draw.family}, {'alike' if draw.alike else 'apart'}" for draw in DRAWS] == said["draws"]
    assert (said["steps"], held["idle"], held["GPU-seconds"]) == (COVERAGE.steps, COVERAGE.idle, COVERAGE.gpu_s)
    assert (round(width["idle"], 2), round(width["GPU-seconds"], 2)) == (COVERAGE.idle_width, COVERAGE.gpu_s_width)


def test_wrong_sizes_are_refused() -> None:
    with refused(InputError, "samples_per_prompt", "0"):
        StepSizes(samples_per_prompt=0)
    with refused(InputError, "responses_per_step", "'many'"):
        StepSizes(responses_per_step="many")  # type: ignore[arg-type]


@pytest.mark.full
def test_the_report_of_scalars_covers_what_the_responses_say(tmp_path: Path) -> None:
    """A run's idle share of its GPUs lies within the range that its scalars alone give."""
    from dataclasses import replace

    from rlhfless.analysis import own_times
    from rlhfless.latency import load_profile
    from rlhfless.report.study import study
    from rlhfless.simulate import SimulationConfig
    from rlhfless.trace import OpenedLog, Trace
    from solver.model.cluster import Cluster

    random = np.random.default_rng(3)
    steps = [np.exp(random.normal(4.6, 0.8, 64)).round().astype(int).clip(8, 600) for _ in range(2)]
    path = written(tmp_path, *(scalars(lengths, 600) for lengths in steps))
    rows = pd.concat(
        pd.DataFrame(
            {
                "step": n + 1, "prompt_id": [f"{n}-{i}" for i in range(64)], "sample": 0, "prompt_tokens": 40,
                "response_tokens": lengths,
            }
        )
        for n, lengths in enumerate(steps)
    )  # fmt: skip
    latency = load_profile("l40s-qwen2.5-3b-tp2")
    setting = SimulationConfig(Cluster(1, 8, 2, latency.kind, 1.0), latency)
    draws = drawn_logs(imported(path), StepSizes())
    drawn = study(draws[0], setting, None, 2, draws=draws)
    log = OpenedLog(
        replace(Trace(rows.reset_index(drop=True)), meta={"dispatch_order": "unknown"}), imported(path).scalars, "verl-scalars"
    )
    true = study(log, setting, None, 2)
    low, high = drawn.idle_shares
    assert low < high
    assert low - 0.02 <= true.account.idle_share <= high + 0.02
    assert own_times(log, setting).phases.basis == drawn.times.phases.basis
    columns = [name for name in drawn.given_back.columns if name.endswith((" low", " high"))]
    assert (drawn.given_back["time low"] <= drawn.given_back["time high"]).all()
    assert len(columns) == 6
    assert drawn.router is None, "nobody knows which prompts are long"


@pytest.mark.full
def test_a_page_is_written_from_scalars_and_says_so(tmp_path: Path) -> None:
    lengths = np.random.default_rng(0).integers(5, 200, 32)
    path = written(tmp_path, scalars(lengths, 150))
    out = tmp_path / "report.html"
    arguments = [
        "report",
        str(path),
        "--gpus",
        "4",
        "--profile",
        "l40s-qwen2.5-3b-tp2",
        "--steps",
        "1",
        "--simulate",
        "-o",
        str(out),
    ]
    result = run_rlhfless(*arguments)
    assert result.exit_code == 0, result.output
    page = out.read_text("utf-8")
    assert "The log has no responses. Their lengths are drawn" in page
    assert "32 per step" in page
    assert "response lengths, from the mean, the longest" in page
    assert "contradict" not in page
    notebook = run_rlhfless(*arguments[:-1], str(tmp_path / "report.ipynb"))
    refused_command(notebook, "scalars alone", ".html")


def test_sizes_are_for_scalars(tmp_path: Path) -> None:
    rows = [{"step": 0, "prompt_id": "a", "sample": s, "response_tokens": 5 + s} for s in range(2)]
    pd.DataFrame(rows).to_csv(tmp_path / "log.csv", index=False)
    result = run_rlhfless("report", str(tmp_path / "log.csv"), "--samples-per-prompt", "2", "-o", str(tmp_path / "a.html"))
    refused_command(result, "--samples-per-prompt", "responses are read")
    assert import_log(tmp_path / "log.csv").rollouts is not None
