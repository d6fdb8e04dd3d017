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


@pytest.mark.parametrize(
    ("name", "step", "length", "facts"),
    [("run_8xA100.log", 1, 827.975, [1000, 1, 281, 281.24]), ("run_8xH100.log", 100, 639.025, [468, 100, 6860, 68.6])],
)
def test_a_pasted_entry_of_trl_and_its_bar(name: str, step: int, length: float, facts: list[float]) -> None:
    """625 and 71.3 GPU-hours of 8 GPUs. The step comes from the bar. No seconds of phases are made up."""
    log = import_log(CASES / "05_trl_progress_text" / name)
    assert (log.framework, log.scalars["step"].tolist()) == ("trl", [step])
    assert log.scalars["response_tokens_mean"].tolist() == [length]
    names = ("planned_steps", "steps_done", "elapsed_s", "seconds_per_step")
    assert log.facts == dict(zip(names, facts, strict=True))
    gpu_hours = 8 * log.facts["planned_steps"] * log.facts["seconds_per_step"] / 3600
    assert gpu_hours == pytest.approx(625.0 if step == 1 else 71.3, abs=0.05)
    assert {"step_s", "generate_s", "learn_s", "response_tokens_max"}.isdisjoint(log.scalars.columns)


def test_pasted_lines_of_prime_rls_orchestrator() -> None:
    """The throughput counts prompts, too, and most of the step: it is 0.9 to 2.9 % above tokens over the step's seconds."""
    steps = import_log(CASES / "06_prime_rl_orchestrator" / "orchestrator.log").scalars
    assert steps["responses"].tolist() == [512, 512, 512]
    by_hand = steps["responses"] * steps["sequence_tokens_mean"] / steps["step_s"]
    assert by_hand.tolist() == pytest.approx([3932, 5134, 11018], abs=1)
    assert (steps["tokens_per_s"] / by_hand - 1).tolist() == pytest.approx([0.009, 0.012, 0.029], abs=0.0005)
    assert steps["off_policy_steps"].tolist() == [0, 1, 2]
    assert steps["step_s"].sum() == pytest.approx(90.26)
    assert steps["clock_s"].diff().tolist()[1:] == [32, 15]
    assert "response_tokens_mean" not in steps.columns, "Seq. Length is of prompt and response"


def test_a_pasted_block_of_nemo_rls_asynchronous_run() -> None:
    log = import_log(CASES / "07_nemo_rl_async_block" / "console.log")
    step = log.scalars.iloc[0]
    assert (log.framework, step["step"], log.facts) == ("nemo-rl", 12, {"planned_steps": 60})
    assert (step["step_s"], step["wait_s"], step["off_policy_steps"]) == (66.55, 32.52, 1.0)
    assert step["step_s"] - step["wait_s"] == pytest.approx(34.03)
    parts = [name for name in log.scalars.columns if name.startswith("timing/train/") and not name.endswith("total_step_time")]
    assert step[parts].sum() == pytest.approx(66.49)
    assert "generate_s" not in log.scalars.columns, "exposed_generation is waiting"


def test_a_state_of_trl_with_repeated_generations() -> None:
    log = import_log(CASES / "15_trl_repeated_generations" / "trainer_state.json")
    assert log.scalars["step"].tolist() == [1, 3, 5]
    assert log.scalars["generate_s"].sum() == 900
    assert log.scalars["tokens_total"].tolist() == [100_000] * 3
    assert log.facts["planned_steps"] / log.facts["steps_per_generation"] == 781
    assert any("6 entries, 3 generations" in note for note in log.summary.notes)
