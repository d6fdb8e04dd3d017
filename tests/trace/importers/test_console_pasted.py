"""Console text as people paste it: wrapped by a terminal, shortened to a few names, or without the line of the step."""

from __future__ import annotations

from pathlib import Path

import pytest
from error_messages import refused

from rlhfless.trace import ImportedLog, TraceError, import_log
from rlhfless.trace.importers.console.lines import MOST_PARTS

VERL = (
    "(TaskRunner pid=81) step:34 - global_seqlen/mean:4100.5 - critic/score/mean:-0.25 - response_length/mean:1267.25 - "
    "response_length/max:3072.0 - response_length/clip_ratio:0.3125 - prompt_length/mean:145.125 - timing_s/gen:541.25 - "
    "timing_s/old_log_prob:72.5 - timing_s/update_actor:472.0625 - timing_s/step:1163.9375"
)
SLIME = (
    "[2026-02-05 12:20:29] train_metric_utils.py:44 - perf 2: {'perf/update_weights_time': 0.5, "
    "'perf/train_wait_time': 11.25, 'perf/ref_log_probs_time': 1.375, 'perf/actor_train_time': 1.0625, "
    "'perf/train_time': 2.75, 'perf/step_time': 14.125}"
)
ROLL = (
    '[2026-02-05 12:20:29] [rlvr_pipeline.py (838)] [INFO] [DRIVER 0 / 1][PID 7] {"time/step_generate": 41.25, '
    '"system/global_step": 3, "time/step_train": 12.5, "token/response_length/mean": 812.5}'
)


OPENRLHF = (
    "(PPOTrainer pid=5) Global step 7: {'timing/generation': 41.25, 'timing/make_experience': 12.5, 'timing/ppo_train': 30.75, "
    "'timing/broadcast': 1.5, 'timing/step_total': 90.25, 'rollout/response_length_mean': 812.5, 'status': 'ok'}"
)


def read(folder: Path, text: str, name: str = "paste.txt") -> ImportedLog:
    (folder / name).write_text(text, encoding="utf-8")
    return import_log(folder / name)


def wrapped(text: str, width: int) -> str:
    return "\n".join(text[at : at + width] for at in range(0, len(text), width)) + "\n"


@pytest.mark.parametrize("text", [VERL, SLIME, ROLL, OPENRLHF])
def test_a_line_that_a_terminal_wrapped_is_whole_again(text: str, tmp_path: Path) -> None:
    """At whatever width: in the middle of names and numbers."""
    whole = read(tmp_path, f"{text}\n").scalars.to_dict("list")
    for width in range(105, 160):
        after = "\n(WorkerDict pid=3) loading weights\n12\nTraining Progress: 3 - a word\n"
        assert read(tmp_path, wrapped(text, width) + after).scalars.to_dict("list") == whole, width


def test_lines_after_a_whole_one_are_not_joined_to_it(tmp_path: Path) -> None:
    for after in ("45", "- and then it is slow", "epoch:3", "done", "a:1 - b", "(TaskRunner pid=81) x - y:3"):
        log = read(tmp_path, f"{VERL}\n{after}\n")
        assert log.scalars["step_s"].tolist() == [1163.9375], after


def test_a_record_that_never_ends_takes_no_other_with_it(tmp_path: Path) -> None:
    for text, step in ((SLIME, "perf 2"), (ROLL, '"system/global_step": 3')):
        cut = text.replace(step, step[:-1] + "1")[:-30] + "\n" + "words of something else\n" * (MOST_PARTS + 9)
        log = read(tmp_path, f"{cut}{text}\n")
        assert log.scalars["step"].tolist() == [int(step[-1])]
    begun = ROLL[:-30] + "\n[PID 7] pipeline step 8 start...\n" + ROLL.replace('"system/global_step": 3, ', "") + "\n"
    assert read(tmp_path, begun).scalars["step"].tolist() == [8]


def test_each_wrapped_line_keeps_its_step(tmp_path: Path) -> None:
    text = wrapped(VERL, 90) + wrapped(VERL.replace("step:34", "step:35").replace("541.25", "600.5"), 90)
    assert read(tmp_path, text).scalars[["step", "generate_s"]].to_numpy().tolist() == [[34, 541.25], [35, 600.5]]


PASTED = {
    "bullets": "- timing_s/gen:115.25 \n-  timing_s/step:188.5\n* `response_length/max`: 300.0\nIs that slow?\n",
    "a dict": "{'timing_s/gen': 115.25, 'timing_s/step': np.float64(188.5),\n 'response_length/max': 300}",
    "half a dict": "timing_s/gen': 115.25\n'timing_s/step': 188.5, \n'response_length/max': 300",
    "assignments": "timing_s/gen=115.25s, timing_s/step = 188.5 s; response_length/max=300",
    "a summary": "(Runner pid=16) wandb:  timing_s/gen 115.25     \n(Runner pid=16) wandb: timing_s/step 188.5\n"
                 "wandb: response_length/max 300\nwandb: timing_s/adv ▁▂▆█\n",
}  # fmt: skip


@pytest.mark.parametrize("form", PASTED)
def test_names_with_numbers_are_read_without_the_line_of_a_step(form: str, tmp_path: Path) -> None:
    log = read(tmp_path, PASTED[form])
    assert (log.format.name, log.framework) == ("console", "verl")
    assert log.scalars[["generate_s", "step_s", "response_tokens_max"]].to_numpy().tolist() == [[115.25, 188.5, 300.0]]
    assert any(note.startswith("pasted") for note in log.summary.notes)


def test_a_name_that_is_there_again_begins_another_step(tmp_path: Path) -> None:
    text = (
        "before:\ntiming_s/gen: 9.0\ntiming_s/step: 20.0\nafter:\ntiming_s/gen: 8.0\ntiming_s/step: 19.0\ntiming_s/gen: 8.0\n"
    )
    assert read(tmp_path, text).scalars[["step", "generate_s", "step_s"]].to_numpy().tolist() == [[0, 9, 20], [1, 8, 19]]


def test_the_steps_own_number_counts(tmp_path: Path) -> None:
    text = "training/global_step: 7\ntiming_s/gen: 9.0\ntraining/global_step: 8\ntiming_s/gen: 8.0\n"
    assert read(tmp_path, text).scalars[["step", "generate_s"]].to_numpy().tolist() == [[7, 9], [8, 8]]


def test_numbers_of_other_folders_and_rows_of_tables_are_left_alone(tmp_path: Path) -> None:
    text = "timing_s/gen: 9.0\ntiming_s/mine: 1.5\nlib/cuda 12.4\nval/acc: 0.5\n| timing_s/step | 20.0 | 30.0 |\n"
    assert set(read(tmp_path, text).scalars.columns) == {"step", "generate_s", "timing_s/gen", "timing_s/mine"}


def test_numbers_of_another_framework_are_left_out_and_named(tmp_path: Path) -> None:
    text = "slime: perf/rollout_time': 245.5\n'perf/total_train_time' ≈ 287.25,\nverl: timing_s/step: ~33.5 s\n"
    log = read(tmp_path, text)
    assert (log.framework, log.scalars[["generate_s", "step_s"]].to_numpy().tolist()) == ("slime", [[245.5, 287.25]])
    assert any("left out: 1 number" in note and "verl" in note for note in log.summary.notes)


@pytest.mark.parametrize("text", ["timing_s/gen is 9 times what it was\n", "timing_s/gen\n9.0\n", "timing_s/gen: 9.0.1\n"])
def test_a_name_without_its_number_is_no_log(text: str, tmp_path: Path) -> None:
    with refused(TraceError, "paste.txt", "verl", "step:N"):
        read(tmp_path, text)
