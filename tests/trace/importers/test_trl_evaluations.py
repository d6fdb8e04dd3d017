"""Completions that TRL wrote in evaluations are no responses of training steps; the log is TRL's own, with two evaluations."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from importer_samples import GOLDEN, TOKENIZER

from rlhfless.diagnosis import diagnose
from rlhfless.trace import ImportedLog, ImportOptions, LogWithoutResponses, import_log

pytest.importorskip("tokenizers", reason="the tokenizers package is not installed: pip install 'rlhfless[logs]'")
RUN = GOLDEN / "trl-profiled"


def imported(path: Path) -> ImportedLog:
    return import_log(path, ImportOptions(tokenizer=TOKENIZER, max_response_tokens=24))


def changed(folder: Path, *, evaluated: set[int] | None) -> Path:
    """The run as if it had evaluated after these steps; None: without its trainer state."""
    shutil.copytree(RUN, folder)
    state = json.loads((folder / "trainer_state.json").read_text("utf-8"))
    kept = [entry for entry in state["log_history"] if "eval_loss" not in entry]
    state["log_history"] = kept + [{"step": step, "eval_loss": 0.1} for step in sorted(evaluated or ())]
    (folder / "trainer_state.json").write_text(json.dumps(state))
    if evaluated is None:
        (folder / "trainer_state.json").unlink()
    return folder


def left_out(log: ImportedLog) -> list[str]:
    return [note for note in log.summary.notes if "evaluat" in note]


def test_files_that_an_evaluation_wrote_are_left_out() -> None:
    log = imported(RUN)
    assert log.rollouts is not None
    assert log.rollouts["step"].tolist() == [1] * 16
    assert left_out(log) == [
        "completions of 2 steps (2, 3) are left out, because TRL evaluated after them and wrote the evaluation's completions "
        "over those of training"
    ]
    means = log.scalars.set_index("step")["response_tokens_mean"]
    assert log.rollouts["response_tokens"].mean() == pytest.approx(means[1])
    assert means[3] > 0, "what the trainer logged of such a step is kept"


def test_the_last_file_has_what_the_last_evaluation_generated_and_not_what_the_step_did(tmp_path: Path) -> None:
    """TRL generated 16 responses to train, 32 to evaluate, and the same again; its buffer holds 16."""
    log = imported(changed(tmp_path / "run", evaluated=set()))
    assert log.rollouts is not None
    assert not left_out(log)
    generated = json.loads((RUN / "lengths.json").read_text("utf-8"))
    texts = log.rollouts.loc[log.rollouts["step"] == 3, "response_tokens"].to_numpy()  # without special tokens
    assert abs(texts - np.array(generated[-16:])).max() <= 2
    assert abs(texts - np.array(generated[48:64])).max() > 10


def test_without_the_trainer_state_a_note_says_that_it_is_not_known(tmp_path: Path) -> None:
    log = imported(changed(tmp_path / "run", evaluated=None))
    assert log.rollouts is not None
    assert len(log.rollouts) == 48
    assert "trainer_state.json beside them tells which" in " ".join(left_out(log))


def test_a_run_of_evaluations_alone_has_scalars_alone(tmp_path: Path) -> None:
    log = imported(changed(tmp_path / "run", evaluated={1, 2, 3}))
    assert log.rollouts is None
    with pytest.raises(LogWithoutResponses):
        log.trace()


def entry(step: int, **more: float) -> dict[str, float]:
    return {"step": step, "loss": 0.1, "step_time": 50.0, "completions/mean_length": 300.0 + step, "reward": 0.5, **more}


def test_seconds_of_evaluations_are_those_of_the_step_before_them(tmp_path: Path) -> None:
    history = [entry(10), {"step": 15, "eval_runtime": 70.0}, entry(20), {"step": 20, "eval_runtime": 80.0}, entry(30)]
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps({"log_history": history, "max_steps": 100, "global_step": 30, "logging_steps": 10}))
    scalars = import_log(path).scalars.set_index("step")
    assert scalars["eval_runtime"].dropna().to_dict() == {10: 70.0, 20: 80.0}
    numbers = diagnose(path).numbers
    assert numbers.value("validation_total_s") == 150
    assert numbers.value("all_steps_s") == pytest.approx(50 + 150 / 30)
    assert numbers.value("run_hours") == pytest.approx(100 * 55 / 3600)


def test_a_console_has_the_seconds_of_evaluations_before_and_after_the_bar(tmp_path: Path) -> None:
    def printed(step: int, *, evaluation: str = "") -> str:
        line = str({name: value for name, value in entry(step).items() if name != "step"})
        bar = f" {step}%|#         | {step}/100 [10:00<90:00, 60.0s/it]"
        return "\n".join([line, bar, str({"eval_loss": 0.2, "eval_runtime": 90.0}), bar] if evaluation == "after" else
                         [line, str({"eval_runtime": 40.0}), bar] if evaluation == "before" else [line, bar])  # fmt: skip

    path = tmp_path / "console.log"
    path.write_text("\n".join([printed(10), printed(20, evaluation="after"), printed(30, evaluation="before")]) + "\n")
    scalars = import_log(path).scalars.set_index("step")
    assert scalars["eval_runtime"].dropna().to_dict() == {20: 90.0, 30: 40.0}
    assert diagnose(path).numbers.value("validation_total_s") == 130


def test_a_short_evaluation_is_not_in_the_step(tmp_path: Path) -> None:
    history = [one for step in (1, 2, 3, 4) for one in (entry(step), {"step": step, "eval_runtime": 5.0})]
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps({"log_history": history, "max_steps": 4, "global_step": 4}))
    assert diagnose(path).numbers.value("all_steps_s") == pytest.approx(55)
