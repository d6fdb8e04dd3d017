"""Console text of every framework: what its own functions print is read, and each number stands in its standard column."""

from __future__ import annotations

from pathlib import Path

import pytest
from importer_samples import GOLDEN, sample_rollouts

from rlhfless.diagnosis import diagnose
from rlhfless.trace import ImportedLog, import_log
from rlhfless.trace.importers.console.grammars import GRAMMARS
from rlhfless.trace.importers.console.lines import console_lines
from rlhfless.trace.importers.names import NAMES
from rlhfless.trace.importers.scalars import STANDARD

PHASES = {"prepare_s": 2.0, "learn_s": 3.0, "sync_s": 0.5}
KNOWN: dict[str, dict[str, float]] = {
    "verl": {
        **PHASES, "generate_s": 4.0, "step_s": 10.25, "prompt_tokens_mean": 4.5, "tokens_total": 43.0, "truncation_rate": 0.25,
        "request_s_mean": 2.5, "request_s_max": 3.75, "reward_mean": 0.375, "response_tokens_min": 2.0,
        "response_tokens_max": 9.0,
    },
    "slime": {
        **PHASES, "generate_s": 4.0, "wait_s": 5.0, "step_s": 10.25, "sequence_tokens_mean": 10.75, "truncation_rate": 0.25,
        "request_s_mean": 6.25, "request_s_max": 9.0, "tokens_per_gpu_s": 25 / 4 / 2, "reward_mean": 0.5,
        "response_tokens_min": 2.0, "response_tokens_max": 9.0,
    },
    "skyrl": {
        **PHASES, "wait_s": 4.0, "step_s": 10.25, "responses": 4.0, "off_policy_steps": 1.0, "reward_mean": 0.375,
        "response_tokens_min": 2.0, "response_tokens_max": 9.0,
    },
    "roll": {
        **PHASES, "generate_s": 4.0, "step_s": 10.25, "prompt_tokens_mean": 4.5, "tokens_per_s": 5.5, "reward_mean": 0.375,
        "response_tokens_min": 2.0, "response_tokens_max": 9.0,
    },
    "openrlhf": {**PHASES, "generate_s": 4.0, "step_s": 9.5, "responses": 4.0, "truncation_rate": 0.25},
}  # fmt: skip
"""Standard columns of the first step of each golden text, but for the mean length."""


def golden(framework: str) -> Path:
    return GOLDEN / ("openrlhf" if framework == "openrlhf" else f"{framework}-console") / "console.log"


def read(folder: Path, text: str) -> ImportedLog:
    (folder / "console.log").write_text(text, encoding="utf-8")
    return import_log(folder / "console.log")


@pytest.mark.parametrize("framework", KNOWN)
def test_what_a_framework_prints_is_read_into_standard_columns(framework: str) -> None:
    log = import_log(golden(framework))
    assert (log.format.name, log.framework, log.rollouts) == ("console", framework, None)
    first = 0 if framework == "slime" else 1
    assert log.scalars["step"].tolist() == [first, first + 1]
    means = sample_rollouts().groupby("step")["response_tokens"].mean()
    assert log.scalars["response_tokens_mean"].tolist() == means.tolist()
    found = {name: log.scalars[name].iloc[0] for name in STANDARD if name in log.scalars.columns}
    assert {name: value for name, value in found.items() if name != "response_tokens_mean"} == pytest.approx(KNOWN[framework])


@pytest.mark.parametrize("framework", ["verl", "skyrl"])
def test_the_progress_bar_tells_the_steps_of_the_run(framework: str) -> None:
    assert import_log(golden(framework)).facts == {
        "planned_steps": 50.0, "steps_done": 2.0, "elapsed_s": 20.0, "seconds_per_step": 10.25,
    }  # fmt: skip


@pytest.mark.parametrize("framework", KNOWN)
def test_a_marked_line_is_of_one_framework(framework: str) -> None:
    """So a file is of one framework, whatever the order in which they are asked."""
    with open(golden(framework), "rb") as stream:
        lines = list(console_lines(stream, note=pytest.fail))
    marked = {one.framework for one in GRAMMARS for line in lines if one.marks(line)}
    assert marked == {framework}


@pytest.mark.parametrize("framework", NAMES)
def test_every_column_of_the_table_of_names_is_a_standard_column(framework: str) -> None:
    names = NAMES[framework]
    columns = {*names.columns, *(column for others in names.variants.values() for column in others)}
    assert columns <= set(STANDARD)


def test_verls_parts_of_a_phase_are_not_added_to_it(tmp_path: Path) -> None:
    """``agent_loop/...`` and the engine's own seconds are within ``gen``, their sum would be more than the step."""
    log = read(
        tmp_path,
        "step:5 - timing_s/generate_sequences:61.000 - timing_s/agent_loop/generate_sequences/mean:40.000 - "
        "timing_s/agent_loop/generate_sequences/max:60.000 - timing_s/gen:62.000 - timing_s/step:90.000\n",
    )
    assert log.scalars[["generate_s", "step_s", "request_s_mean", "request_s_max"]].iloc[0].tolist() == [62, 90, 40, 60]


@pytest.mark.parametrize(
    ("names", "generate"),
    [("timing_s/generate_async:70.000 - timing_s/sync_rollout_weights:2.000", 70.0),
     ("timing_s/wait_prev_gen:12.000 - timing_s/generate_sequences:70.000 - timing_s/sync_rollout_weights:2.000", 70.0),
     ("separate_async/decision/remaining:4.000 - timing_s/update_weights:2.000", None),
     ("fully_async/count/current_param_version:3.000 - timing_s/param_sync:2.000", None),
     ("fully_async/count/stale_trajectory_processed:9.000 - timing_s/timing_s/param_sync:2.000", None),
     ("fully_async/total_wait_time:12.000 - timing_s/timing_s/param_sync:2.000", None),
     ("fully_async/trainer/idle_ratio:0.133 - timing_s/timing_s/param_sync:2.000", None),
     ("fully_async/rollouter/idle_ratio:0.250 - timing_s/timing_s/param_sync:2.000", None)],
)  # fmt: skip
def test_what_verls_asynchronous_trainers_call_generation_is_the_wait_for_it(
    names: str, generate: float | None, tmp_path: Path
) -> None:
    gen = "" if "wait_prev_gen" in names else " - timing_s/gen:12.000"
    scalars = read(tmp_path, f"step:3 - {names}{gen} - timing_s/step:90.000\n").scalars.iloc[0]
    assert (scalars["wait_s"], scalars["sync_s"], scalars.get("generate_s")) == (12.0, 2.0, generate)


def test_the_two_records_of_a_step_of_verls_asynchronous_trainer_are_one_step(tmp_path: Path) -> None:
    """The generating side's record comes first, and is not an earlier attempt of the step."""
    log = read(
        tmp_path,
        "(FullyAsyncTrainer pid=9) step:4 - fully_async/rollouter/version_time:80.0 - fully_async/rollouter/idle_ratio:0.25\n"
        "(FullyAsyncTrainer pid=9) step:4 - fully_async/processing_time/avg:30.0 - timing_s/gen:6.0 - timing_s/step:80.0\n",
    )
    columns = ["generators_idle_rate", "wait_s", "request_s_mean", "step_s"]
    assert log.scalars[columns].to_numpy().tolist() == [[0.25, 6.0, 30.0, 80.0]]
    assert not any("restarts" in note for note in log.summary.notes)


def test_batches_of_slimes_updates_are_the_responses_of_the_rollout(tmp_path: Path) -> None:
    """The updates of one rollout have numbers of their own, so they are no steps."""
    lines = [
        f"model.py:918 - step {number}: {{'train/loss': 0.5, 'train/global_batch_size': 128, 'train/step': {number}}}"
        for number in range(4)
    ]
    lines.insert(2, "x - perf 0: {'perf/train_time': 9.0, 'perf/actor_train_time': 7.0, 'perf/step_time': 30.0}")
    lines.append("x - perf 1: {'perf/train_time': 8.0, 'perf/actor_train_time': 6.0, 'perf/step_time': 31.0}")
    scalars = read(tmp_path, "\n".join(lines) + "\n").scalars
    assert scalars["step"].tolist() == [0, 1]
    assert scalars["responses"].tolist() == [256.0, 256.0]


def test_skyrls_dict_is_read_between_lines_of_other_processes(tmp_path: Path) -> None:
    """Whatever a cluster puts before the lines, and where a value is no number."""
    lines = [
        "(entrypoint pid=1) Step 3: of 9", "(entrypoint pid=1) INFO - Step 4: ", "(entrypoint pid=1) {'async/names': ['a'],",
        "(vLLM pid=2) {'other': 1}", "(entrypoint pid=1)  'generate/avg_num_tokens': '812.5000',", "(vLLM pid=2) 'x",
        "2026-05-04T10:00:00Z stdout F  'timing/step': '90.5000',", "(entrypoint pid=1)  'trainer/note': 'text'}",
        "(entrypoint pid=1)  'timing/generate': '1.0000',",
    ]  # fmt: skip
    scalars = read(tmp_path, "\n".join(lines) + "\n").scalars
    assert scalars[["step", "response_tokens_mean", "step_s"]].to_numpy().tolist() == [[4, 812.5, 90.5]]
    assert "generate_s" not in scalars.columns


def test_a_dict_of_skyrl_that_never_ends_is_incomplete(tmp_path: Path) -> None:
    whole = "x - Step {}: \n{{'timing/step': '90.5000',\n 'timing/sync_weights': '1.5000'}}\n"
    cut = "x - Step 7: \n{'timing/step': '80.5000',\n" + "a line of another process\n" * 300
    log = read(tmp_path, whole.format(6) + cut + cut + " 'timing/generate': '1.0000'}\n" + whole.format(8) + cut[:40])
    assert log.scalars["step"].tolist() == [6, 8]
    assert any(note.startswith("3 lines of steps are incomplete") for note in log.summary.notes)


def test_roll_logs_its_metrics_alone_on_a_line_whatever_its_tracker_is(tmp_path: Path) -> None:
    """The step is among them, or in a line before; the seconds of the step before are moved to it."""
    line = 'x (rlvr_pipeline.py (838)) [PID 7] {{"time/step_total": {}, "system/global_step": {}, "time/step_generate": 4.0}}\n'
    scalars = read(tmp_path, line.format(0.0, 3) + '[PID 7] {"prompt": "a"}\n' + line.format(9.5, 4)).scalars
    assert scalars[["step", "generate_s"]].to_numpy().tolist() == [[3, 4.0], [4, 4.0]]
    assert scalars["step_s"].dropna().tolist() == [9.5]
    agentic = (
        'x] pipeline step {} start...\nx] {{"rollout/score/mean": 0.5, "time/step_rollout": 5.0, "time/step_train": 2.0}}\n'
    )
    scalars = read(tmp_path, agentic.format(7) + agentic.format(8)).scalars
    assert scalars[["step", "generate_s", "learn_s"]].to_numpy().tolist() == [[7, 5.0, 2.0], [8, 5.0, 2.0]]


def test_of_one_step_of_roll_the_seconds_are_those_of_the_step_before(tmp_path: Path) -> None:
    log = read(tmp_path, 'x] {"system/global_step": 12, "time/step_generate": 40.0, "time/step_total": 64.0}\n')
    assert log.scalars[["step", "generate_s", "step_s"]].to_numpy().tolist() == [[12, 40.0, 64.0]]
    assert any("step before" in note for note in log.summary.notes)


def test_rolls_agentic_pipeline_logs_the_total_of_the_step_itself(tmp_path: Path) -> None:
    line = 'x metrics_tag: {{"step": {}, "metrics": {{"time/step_total": {}, "time/step_rollout": 4.0}}}}\n'
    scalars = read(tmp_path, line.format(0, 9.0) + line.format(1, 8.0)).scalars
    assert scalars["step_s"].tolist() == [9.0, 8.0]


@pytest.mark.parametrize("name", ["response_clip_ratio", "truncated", "rollout/truncated_rate"])
def test_every_version_of_openrlhf_names_the_share_of_cut_responses_otherwise(name: str, tmp_path: Path) -> None:
    text = f"Global step 3: {{'reward': 0.5, '{name}': 0.125, 'timing/generation': 40.0, 'timing/step_total': 64.0}}"
    assert read(tmp_path, text).scalars["truncation_rate"].tolist() == [0.125]
    (number,) = [one for one in diagnose(tmp_path / "console.log").numbers.values() if one.key == "cut_share"]
    assert number.value == 0.125
