"""Console text that people pasted into public threads, retyped, in ``shared/data/cases``: what is read of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhfless.trace import import_log

CASES = next((one / "shared" / "data" / "cases" for one in Path(__file__).parents if (one / "shared").is_dir()), Path("absent"))
pytestmark = pytest.mark.skipif(not CASES.is_dir(), reason="the cases are not beside the project: shared/data/cases")


def test_a_pasted_line_of_verl() -> None:
    log = import_log(CASES / "01_verl_console_lines" / "console.log")
    step = log.scalars.iloc[0]
    assert (log.framework, len(log.scalars), step["step"]) == ("verl", 1, 2)
    assert (step["generate_s"], step["step_s"], step["learn_s"]) == (74.02, 96.551, 14.302)
    assert step["prepare_s"] == pytest.approx(3.566 + 3.42 + 1.167)
    assert 5 * 1024 * (step["response_tokens_mean"] + step["prompt_tokens_mean"]) / step["global_seqlen/mean"] == pytest.approx(
        4.0, abs=0.001
    )
    assert step["truncation_rate"] == 0.004
    assert log.facts == {"planned_steps": 105, "steps_done": 2, "elapsed_s": 193, "seconds_per_step": 96.62}


def test_two_records_of_one_rollout_of_slime() -> None:
    log = import_log(CASES / "04_slime_two_perf_records" / "console.log")
    step = log.scalars.iloc[0]
    assert (log.framework, len(log.scalars), step["step"]) == ("slime", 1, 0)
    assert step["response_tokens_mean"] * 256 / step["generate_s"] / step["tokens_per_gpu_s"] == pytest.approx(8.0, abs=0.001)
    assert (step["step_s"], step["wait_s"], step["learn_s"]) == (463.6, 375.2, 88.4)
    assert step["rollout/zero_std/count_0"] + step["rollout/zero_std/count_1"] == 26
    assert step["truncation_rate"] == 119 / 256
    assert step["response_tokens_max"] / step["generate_s"] == pytest.approx(11.035, abs=0.001)
