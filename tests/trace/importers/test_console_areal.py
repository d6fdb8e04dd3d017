"""AReaL's console text: a line per step and a table below it, of one or several pairs of columns."""

from __future__ import annotations

from pathlib import Path

import pytest
from importer_samples import GOLDEN

from rlhfless.diagnosis import diagnose
from rlhfless.trace import ImportedLog, import_log
from rlhfless.trace.importers.console.grammars import GRAMMARS
from rlhfless.trace.importers.console.lines import console_lines

HEAD = "(AReaL) 20250304-{} StatsLogger INFO: Epoch 1/4 Step {step}/30 Train step {step}/120 done."
SECONDS = {
    "timeperf/rollout": 61.5, "timeperf/recompute_logp": 6.25, "timeperf/compute_advantage": 0.25, "timeperf/train_step": 24.0,
    "timeperf/update_weights": 3.5, "timeperf/save": 0.5,
}  # fmt: skip


def block(clock: str, step: int, actor: str = "ppo_actor", pairs: int = 1, **others: float) -> list[str]:
    """Return a step as ``StatsLogger.commit`` prints it, with so many pairs of columns in the table."""
    numbers = {
        **SECONDS, f"{actor}/n_seqs": 128.0, f"{actor}/seq_len/avg": 1500.0, f"{actor}/prompt_len/avg": 250.0,
        f"{actor}/no_eos_ratios/avg": 0.0625, f"{actor}/task_reward/avg": 0.375, **others,
    }  # fmt: skip
    cells = [f"│ {name:<36} │ {number:.4e} " for name, number in numbers.items()]
    rows = ["".join(cells[at : at + pairs]) + "│" for at in range(0, len(cells), pairs)]
    between = "├──────┼──────┤"
    table = ["╒══════╤══════╕", *[line for row in rows for line in (row, between)][:-1], "╘══════╧══════╛"]
    return [HEAD.format(clock, step=step), "(AReaL) 20250304-09:00:00.000 StatsLogger INFO: Stats (1/1):", *table]


def read(folder: Path, *lines: str) -> ImportedLog:
    (folder / "train.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return import_log(folder / "train.log")


@pytest.mark.parametrize("pairs", [1, 4])
@pytest.mark.parametrize("actor", ["ppo_actor", "grpo_actor"])
def test_what_a_step_prints_is_read_into_standard_columns(actor: str, pairs: int, tmp_path: Path) -> None:
    log = read(tmp_path, *block("09:01:00.250", 3, actor, pairs), *block("09:02:40.250", 4, actor, pairs))
    assert (log.framework, log.scalars["step"].tolist(), log.facts["planned_steps"]) == ("areal", [3, 4], 120)
    last = log.scalars.iloc[-1]
    found = {name: last[name] for name in ("wait_s", "prepare_s", "learn_s", "sync_s", "step_s", "responses", "reward_mean")}
    assert found == {
        "wait_s": 61.5, "prepare_s": 6.5, "learn_s": 24.0, "sync_s": 3.5, "step_s": 100.0, "responses": 128,
        "reward_mean": 0.375,
    }  # fmt: skip
    assert (last["sequence_tokens_mean"], last["prompt_tokens_mean"]) == (1500, 250)
    assert log.scalars["step_s"].isna().tolist() == [True, False], "nothing says when the first step began"
    assert "truncation_rate" not in log.scalars.columns, "no_eos_ratios counts the longest of a batch, whatever ended it"


def test_a_pasted_table_without_the_lines_between_is_read_and_other_tables_are_not(tmp_path: Path) -> None:
    other = ["│ timeperf/rollout │ 9.9000e+01 │"]
    head, _, *table = block("09:01:00.000", 3)
    log = read(tmp_path, *other, head, *table, *other, *block("09:02:00.000", 4))
    assert log.scalars["wait_s"].tolist() == [61.5, 61.5]


def test_steps_that_do_not_follow_each_other_have_no_seconds(tmp_path: Path) -> None:
    later = block("09:09:00.000", 7)
    log = read(tmp_path, *block("09:01:00.000", 3), *later, *block("99999999-09:10:00.000", 8))
    assert "step_s" not in log.scalars.columns


def test_a_step_of_which_the_table_is_missing_is_incomplete(tmp_path: Path) -> None:
    log = read(tmp_path, HEAD.format("", step=2).replace("20250304- ", ""), *block("09:01:00.000", 3))
    assert log.scalars["step"].tolist() == [3]
    assert any("incomplete" in note for note in log.summary.notes)


def test_the_diagnosis_says_what_training_waits_for(tmp_path: Path) -> None:
    read(tmp_path, *(line for step in range(4) for line in block(f"09:0{2 * step}:00.000", step + 1)))
    found = diagnose(tmp_path / "train.log")
    assert found.numbers["step_s"].value == 120
    assert found.numbers["wait_share"].value == pytest.approx(61.5 / 120)
    assert found.verdict[0].kind == "waiting"


def test_what_areals_own_writer_prints_is_read_and_is_nobody_elses() -> None:
    path = GOLDEN / "areal-console" / "console.log"
    log = import_log(path)
    assert (log.framework, log.scalars["step"].tolist(), log.rollouts) == ("areal", [1, 2], None)
    first = log.scalars.iloc[0]
    names = ("wait_s", "prepare_s", "learn_s", "sync_s", "responses", "sequence_tokens_mean", "prompt_tokens_mean")
    assert [first[name] for name in names] == [4.0, 2.0, 3.0, 0.5, 4, 10.75, 4.5]
    assert log.scalars["step_s"].tolist()[1:] == [10.25]
    with open(path, "rb") as stream:
        lines = list(console_lines(stream, note=pytest.fail))
    assert {one.framework for one in GRAMMARS for line in lines if one.marks(line)} == {"areal"}
