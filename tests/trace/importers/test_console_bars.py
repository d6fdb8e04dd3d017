"""Texts that have a run's progress bar or its end alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from error_messages import refused

from rlhfless.diagnosis import diagnose
from rlhfless.trace import TraceError, import_log

TRL = ["  0%|          | 0/625 [00:00<?, ?it/s]", " 12%|#2        | 75/625 [1:10:00<8:33:20, 56.00s/it]"]
RUN = "{'train_runtime': 36000.0, 'train_samples_per_second': 0.9, 'train_steps_per_second': 0.018, 'epoch': 1.0}"


def write(folder: Path, *lines: str) -> Path:
    (folder / "run.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder / "run.log"


def test_a_bar_alone_tells_the_step_and_the_run_and_what_is_missing(tmp_path: Path) -> None:
    found = diagnose(write(tmp_path, "Loading weights: 100%|##| 4/4 [00:09<00:00, 2.25s/it]", *TRL))
    assert found.numbers["bar_step_s"].value == 56
    assert found.numbers["run_hours"].value == pytest.approx(625 * 56 / 3600)
    assert any(sentence.startswith("Where the seconds of a step go") for sentence in found.cannot_say)
    assert [one.kind for one in found.findings] == ["cannot say"]
    assert found.verdict == ()
    assert "A step takes 56.0 s, and the run 9.7 hours" in found.findings[0].sentence
    assert found.to_dict()["framework"] == "", "nothing tells whose bar it is"
    assert any("a progress bar and no line of a step" in note for note in found.read)


def test_every_state_of_a_bar_on_one_line_is_read(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_bytes("\r".join(TRL).encode())
    assert import_log(tmp_path / "run.log").facts["steps_done"] == 75


@pytest.mark.parametrize(
    ("before", "framework"),
    [
        ("Training Progress:", "verl"), ("(TaskRunner pid=7) Training Progress:", "verl"), ("Episode [2/20]:", "openrlhf"),
        ("Train epoch [1/1]:", "openrlhf"), ("Training Batches Processed:", "skyrl"), ("Training Step Progress:", "skyrl"),
    ],
)  # fmt: skip
def test_the_text_before_a_bar_tells_the_framework(before: str, framework: str, tmp_path: Path) -> None:
    bare = "  1%|1         | 9/999 [00:09<16:30, 1.00s/it]"  # of something else
    log = import_log(write(tmp_path, bare, f"{before}  12%|#2        | 12/100 [24:00<2:56:00, 120.00s/it]"))
    assert (log.format.name, log.framework) == ("console", framework)
    assert (log.facts["planned_steps"], log.facts["seconds_per_step"]) == (100, 120)


def test_openrlhf_shows_lengths_in_its_bar(tmp_path: Path) -> None:
    bar = "Episode [1/1]:  {0}%|#         | {0}/100 [16:40<1:23:20, 50.00s/it, policy_loss=0.04, reward=0.5, {1}]"
    log = import_log(
        write(
            tmp_path, bar.format(19, "response_length=150, total_length=190, kl=1e-05"),
            bar.format(20, "response_length=170, total_length=214"),
        )
    )  # fmt: skip
    columns = ["step", "response_tokens_mean", "sequence_tokens_mean", "reward_mean"]
    assert log.scalars[columns].to_numpy().tolist() == [[19, 150, 190, 0.5], [20, 170, 214, 0.5]]
    old = "Train epoch [1/1]:  21%|##        | 21/100 [16:40<1:23:20, 50.00s/it, pg=-0.1, rm=0.25, glen=770, tlen=862]"
    assert import_log(write(tmp_path, old)).scalars[columns].to_numpy().tolist() == [[21, 770, 862, 0.25]]


def test_a_line_of_a_step_counts_before_any_bar(tmp_path: Path) -> None:
    log = import_log(write(tmp_path, *TRL, "step:4 - timing_s/gen:30.0 - timing_s/step:60.0"))
    assert (log.framework, log.scalars["step"].tolist()) == ("verl", [4])


@pytest.mark.parametrize("text", ["100%|##| 4/4 [00:09<00:00, 2.25s/it] done", "Map: 100%|##| 4/4 [00:09<00:00, 2.25s/it]"])
def test_bars_of_other_things_are_no_log(text: str, tmp_path: Path) -> None:
    if text.startswith("Map"):
        with refused(TraceError, "without any line that a framework prints"):
            import_log(write(tmp_path, text))
    else:
        assert import_log(write(tmp_path, text)).facts["planned_steps"] == 4  # nothing tells what a bare bar counts


@pytest.mark.parametrize("rest", ["", "100%|##########| 640/640 [10:00:00<00:00, 56.25s/it]"])
def test_the_end_of_a_run_alone_is_a_diagnosis(rest: str, tmp_path: Path) -> None:
    found = diagnose(write(tmp_path, RUN, rest))
    assert (found.framework, found.numbers["run_hours"].value) == ("trl", 10)
    step = found.numbers["bar_step_s"]
    assert step.low <= 56.25 <= step.high
    assert (step.low == step.high) == bool(rest), "three decimals of steps per second are a range"
    assert any("report_to='wandb'" in sentence for sentence in found.cannot_say)


def test_the_result_that_a_notebook_shows_is_the_end_of_a_run(tmp_path: Path) -> None:
    text = f"TrainOutput(global_step=640, training_loss=0.125, metrics={RUN})"
    log = import_log(write(tmp_path, text))
    assert (log.framework, log.facts["steps_done"], log.facts["run_s"]) == ("trl", 640, 36000)
    assert diagnose(tmp_path / "run.log").numbers["bar_step_s"].value == 56.25


def test_a_plan_without_any_time_is_refused(tmp_path: Path) -> None:
    with refused(TraceError, "no complete record of a step"):
        import_log(write(tmp_path, "{'loss': 0.1, 'grad", "  Total optimization steps = 900", "{'loss': 0.1, 'epoch': 0.1, 'x"))
