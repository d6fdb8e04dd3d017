"""Console text of SkyRL where no dict of a step is printed: the lines in which its timers end."""

from __future__ import annotations

from pathlib import Path

import pytest
from error_messages import refused

from rlhfless.diagnosis import diagnose
from rlhfless.trace import ImportedLog, TraceError, import_log

PREFIX = "(skyrl_entrypoint pid=71) 2026-05-04 10:00:00.000 | INFO     | skyrl.train.trainer:train:200 - "
PHASES = {
    "generate": 60.0, "postprocess_generator_output": 0.5, "convert_to_training_input": 1.5, "fwd_logprobs_values_reward": 10.0,
    "compute_advantages_and_returns": 0.5, "policy_train": 19.5, "train_critic_and_policy": 20.0, "sync_weights": 5.0,
}  # fmt: skip
"""Timers of a step in the order in which they end; ``policy_train`` is within ``train_critic_and_policy``."""
AT_START = [
    "Started: 'init_weight_sync_state'", "Finished: 'init_weight_sync_state', time cost: 40.00s", "Started: 'sync_weights'",
    "Finished: 'sync_weights', time cost: 90.00s", "Finished: 'eval', time cost: 70.00s",
]  # fmt: skip


def step(seconds: float = 100.0, starts: bool = True, **changed: float) -> list[str]:
    lines = ["Started: 'step'"] if starts else []
    for name, took in (PHASES | changed).items():
        lines += [f"Started: '{name}'"] if starts else []
        lines += [f"Finished: '{name}', time cost: {took:.2f}s"]
    return [*lines, f"Finished: 'step', time cost: {seconds:.2f}s"]


def read(folder: Path, *lines: str, prefix: str = PREFIX) -> ImportedLog:
    (folder / "run.log").write_text("".join(f"{prefix}{line}\n" for line in lines), encoding="utf-8")
    return import_log(folder / "run.log")


@pytest.mark.parametrize("starts", [True, False])
def test_timers_of_a_step_are_its_phases(starts: bool, tmp_path: Path) -> None:
    """Also where only the ends of timers were copied, and the beginning of the run is no step."""
    log = read(tmp_path, *(AT_START if starts else AT_START[1:]), *step(starts=starts), *step(120.0, starts, generate=80.0))
    assert (log.format.name, log.framework, log.rollouts) == ("console", "skyrl", None)
    columns = ["step", "step_s", "generate_s", "prepare_s", "learn_s", "sync_s"]
    assert log.scalars[columns].to_numpy().tolist() == [[1, 100, 60, 12.5, 20, 5], [2, 120, 80, 12.5, 20, 5]]


def test_the_first_sentence_names_the_phase_that_takes_longest(tmp_path: Path) -> None:
    read(tmp_path, *step(), *step())
    found = diagnose(tmp_path / "run.log")
    assert found.numbers["generate_share"].value == pytest.approx(0.6)
    assert found.numbers["learn_share"].value == pytest.approx(0.2)
    assert found.findings[0].sentence.startswith("Generation takes 60%")


def test_an_evaluation_after_a_step_is_of_that_step(tmp_path: Path) -> None:
    log = read(tmp_path, *step(), "Started: 'eval'", "Finished: 'eval', time cost: 33.00s", *step())
    assert log.scalars["timing/eval"].fillna(0).tolist() == [33.0, 0.0]


def test_results_between_the_timers_are_read(tmp_path: Path) -> None:
    lines = step()
    lines[-1:-1] = [
        "Number of sequences before padding: 1276", "Number of sequences after padding: 1280",
        "avg_final_rewards: 0.25, avg_response_length: 612.5",
        "reward/avg_pass_at_5: 0.5, reward/avg_raw_reward: 0.25, reward/mean_positive_reward: 0.25",
    ]  # fmt: skip
    row = read(tmp_path, *lines).scalars.iloc[0]
    assert (row["responses"], row["response_tokens_mean"], row["reward_mean"]) == (1276, 612.5, 0.25)


def test_a_step_that_samples_again_is_one_step(tmp_path: Path) -> None:
    """Dynamic sampling ends the timer ``step``, and trains only when enough prompts are left; SkyRL's dict adds them up."""
    part = [
        "Started: 'step'", "Finished: 'generate', time cost: 50.00s", "Dynamic sampling: 20 < 64 prompts",
        "Resample batch 1, continue sampling...", "Finished: 'step', time cost: 51.00s",
    ]  # fmt: skip
    scalars = read(tmp_path, *step(), *part, *step()).scalars
    assert scalars[["step", "step_s", "generate_s"]].to_numpy().tolist() == [[1, 100, 60], [2, 151, 110]]


def test_the_dict_of_a_step_counts_instead_of_its_timers(tmp_path: Path) -> None:
    whole = ["Step 7: ", "{'timing/generate': '60.2500',", " 'timing/step': '100.5000'}"]
    lines = "\n".join([*(PREFIX + line for line in [*step(), whole[0]]), *whole[1:], *(PREFIX + line for line in step(90.0))])
    (tmp_path / "run.log").write_text(lines + "\n", encoding="utf-8")
    scalars = import_log(tmp_path / "run.log").scalars
    assert scalars[["step", "step_s", "generate_s"]].to_numpy().tolist() == [[7, 100.5, 60.25], [8, 90.0, 60.0]]


def test_a_dict_without_seconds_numbers_the_timers(tmp_path: Path) -> None:
    """With console and timers, an old version's dict may hold the metrics alone."""
    values = [PREFIX + "Step 5: ", "{'generate/avg_num_tokens': '300.0000',", " 'generate/batch_num_seq': '8'}"]
    text = "\n".join([*(PREFIX + line for line in step()), *values])
    (tmp_path / "run.log").write_text(text + "\n", encoding="utf-8")
    scalars = import_log(tmp_path / "run.log").scalars
    assert scalars[["step", "step_s", "response_tokens_mean"]].to_numpy().tolist() == [[5, 100.0, 300.0]]


def test_a_resumed_run_counts_on_from_its_bar(tmp_path: Path) -> None:
    bar = "Training Batches Processed:  33%|###3      | {}/300 [{}<9:00:00, 100.00s/it]"
    log = read(
        tmp_path, AT_START[1], "Finished: 'load_checkpoints', time cost: 50.00s", AT_START[3], bar.format(100, "00:00"),
        *step(), bar.format(101, "01:40"), *step(),
    )  # fmt: skip
    assert log.scalars["step"].tolist() == [101, 102]
    assert log.facts["planned_steps"] == 300


def test_a_step_that_hangs_is_left_out_but_for_phases_that_no_other_step_has(tmp_path: Path) -> None:
    """Rewards and log probabilities are several timers, of which it has some only."""
    log = read(tmp_path, *step(), *step()[:9])
    assert log.scalars[["step_s", "generate_s", "prepare_s"]].to_numpy().tolist() == [[100, 60, 12.5]]
    assert any("incomplete" in note for note in log.summary.notes)
    alone = read(tmp_path, "Finished: 'step', time cost: 100.00s", *step(generate=45.0)[1:9], prefix="x - ").scalars
    assert alone["generate_s"].fillna(0).tolist() == [0, 45]
    assert "prepare_s" not in alone.columns


def test_a_step_that_ends_in_an_error_is_left_out(tmp_path: Path) -> None:
    """Timers end while an error passes through them, so their seconds are no duration of the work."""
    broken = [line for line in step(71.0, policy_train=1.0, train_critic_and_policy=1.0) if "sync_weights" not in line]
    log = read(tmp_path, *step(), *broken, "Traceback (most recent call last):", "torch.OutOfMemoryError: CUDA out of memory.")
    assert log.scalars["step_s"].tolist() == [100]
    assert any("incomplete" in note for note in log.summary.notes)


def test_a_traceback_within_a_step_that_goes_on_is_no_end(tmp_path: Path) -> None:
    """Environments of agents print their errors and go on."""
    lines = step()
    log = read(tmp_path, *lines[:2], "Traceback (most recent call last):", *lines[2:])
    assert log.scalars["step_s"].tolist() == [100]


def test_a_second_run_in_the_text_is_another_run(tmp_path: Path) -> None:
    log = read(tmp_path, *AT_START, *step(), *step(), *AT_START, *step(110.0), *step())
    assert log.scalars["run"].tolist() == ["1", "1", "2", "2"]
    assert log.scalars["step"].tolist() == [1, 2, 1, 2]


def test_timers_of_another_program_are_not_taken_for_skyrls(tmp_path: Path) -> None:
    with refused(TraceError, "without any line that a framework prints"):
        read(tmp_path, "Finished: 'parse the input', time cost: 3.00s", prefix="")
