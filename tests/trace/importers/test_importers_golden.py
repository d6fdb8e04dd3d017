"""Golden logs of every framework: recognised, read, and what they say is what is known of them."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from error_messages import refused
from importer_samples import GOLDEN, LIMIT, ROLLOUT_WRITERS, SCALAR_WRITERS, TOKENIZER, sample_rollouts

from rlhfless.trace import ImportOptions, LogWithoutResponses, TraceError, import_log, open_log, read_scalars, read_trace
from rlhfless.trace.importers import FORMATS, recognise

pytest.importorskip("tokenizers", reason="the tokenizers package is not installed: pip install 'rlhfless[logs]'")
TEXT = ImportOptions(tokenizer=TOKENIZER, max_response_tokens=LIMIT)


def golden(name: str) -> Path:
    """What a user would name."""
    return {
        "table": GOLDEN / "table" / "log.csv",
        "table-jsonl": GOLDEN / "table-jsonl" / "log.jsonl",
        "table-parquet": GOLDEN / "table-parquet" / "log.parquet",
        "verl-scalars": GOLDEN / "verl-scalars" / "experiment.jsonl",
        "openrlhf": GOLDEN / "openrlhf" / "console.log",
        "trl-scalars": GOLDEN / "trl" / "trainer_state.json",
        "wandb": GOLDEN / "wandb" / "run-golden.wandb",
        "step-table": GOLDEN / "step-table" / "steps.csv",
    }.get(name, GOLDEN / name)


@pytest.mark.parametrize("name", [*ROLLOUT_WRITERS, *SCALAR_WRITERS])
def test_a_log_is_recognised_by_itself(name: str) -> None:
    expected = {**{key: value[0] for key, value in ROLLOUT_WRITERS.items()}, **{k: v[0] for k, v in SCALAR_WRITERS.items()}}
    assert recognise(golden(name)).name == expected[name]


def test_every_format_has_a_golden_log() -> None:
    with_golden = {value[0] for value in (*ROLLOUT_WRITERS.values(), *SCALAR_WRITERS.values())}
    elsewhere = {
        "scalars",
        "engine",
        "model",
        "tracker",
    }  # what an import wrote is made below; the others have tests of their own
    assert {one.name for one in FORMATS} == with_golden | elsewhere


@pytest.mark.parametrize("name", [name for name in ROLLOUT_WRITERS if name != "trl"])
def test_a_golden_log_says_what_is_known_of_it(name: str) -> None:
    if name == "slime":
        pytest.importorskip("torch")
    log = import_log(golden(name), TEXT)
    assert log.rollouts is not None
    known = sample_rollouts()
    for column in ROLLOUT_WRITERS[name][2]:
        values = known[column] - known["start_s"].min() if column.endswith("_s") and "table" not in name else known[column]
        assert log.rollouts[column].tolist() == values.tolist(), column
    assert log.rollouts["epoch"].tolist() == [0] * 4 + [1] * 4
    assert (log.summary.rows, log.summary.prompts, log.summary.steps, log.summary.epochs) == (8, 2, 2, 2)
    assert log.summary.truncation_rate == pytest.approx((known["finish_reason"] == "length").mean())
    assert log.summary.absent_fields == (() if name != "verl-v0" else ("uid",))
    assert log.summary.unknown_fields == (() if name != "verl-v0" else ("acc",))


@pytest.mark.parametrize("name", ["verl-v0", "verl-v1"])
def test_our_writer_of_verls_dumps_writes_the_bytes_of_verls_own(name: str, tmp_path: Path) -> None:
    ours = ROLLOUT_WRITERS[name][1](tmp_path, sample_rollouts())
    assert {p.name: p.read_bytes() for p in ours.iterdir()} == {p.name: p.read_bytes() for p in golden(name).iterdir()}


def test_lengths_of_trls_own_run_are_those_that_it_generated() -> None:
    log = import_log(GOLDEN / "trl", ImportOptions(tokenizer=TOKENIZER, max_response_tokens=24))
    assert log.rollouts is not None
    generated = json.loads((GOLDEN / "trl" / "lengths.json").read_text("utf-8"))
    assert log.rollouts["response_tokens"].tolist() == generated
    assert (log.rollouts["finish_reason"] == "length").tolist() == [tokens == 24 for tokens in generated]
    assert log.summary.duplicates_dropped == 16  # the second step logged the first one's buffer again
    assert log.rollouts["step"].unique().tolist() == [1, 3]
    assert log.rollouts["reward"].notna().all()
    means = log.rollouts.groupby("step")["response_tokens"].mean()
    assert log.scalars.set_index("step")["response_tokens_mean"].dropna().to_dict() == pytest.approx(means.to_dict())
    assert (log.scalars["step_s"] > 0).all()
    state = import_log(golden("trl-scalars")).summary
    for summary in (log.summary, state):
        assert (summary.unknown_fields, summary.absent_fields) == ((), ())


@pytest.mark.parametrize("name", ["verl-scalars", "openrlhf", "tensorboard", "wandb", "step-table"])
def test_scalars_of_a_golden_log_are_what_is_known_of_it(name: str, tmp_path: Path) -> None:
    log = import_log(golden(name))
    steps = sample_rollouts().groupby("step")["response_tokens"]
    assert log.rollouts is None
    assert log.scalars["step"].tolist() == [1, 2]
    assert log.scalars["response_tokens_mean"].tolist() == steps.mean().tolist()
    prepare = 2 + 3 + 4 + 5 if name == "verl-scalars" else 2
    learn, sync, generate, step = (6, 7, 1, 8) if name == "verl-scalars" else (3, 0.5, 4, 9.5)
    first = log.scalars.iloc[0]
    assert [first[f"{x}_s"] for x in ("generate", "prepare", "learn", "sync", "step")] == [generate, prepare, learn, sync, step]
    assert "kl" not in log.scalars.columns  # it was never a number
    assert "the log has no responses" in str(log.summary)
    assert (log.summary.unknown_fields, log.summary.absent_fields) == ((), ())
    with refused(TraceError):
        open_log(golden(name))
    log.save(tmp_path / "out")
    pd.testing.assert_frame_equal(read_scalars(tmp_path / "out"), log.scalars)
    again = import_log(tmp_path / "out")
    assert (again.format.name, again.rollouts) == ("scalars", None)
    pd.testing.assert_frame_equal(again.scalars[log.scalars.columns], log.scalars)
    with refused(LogWithoutResponses, "no responses"):
        open_log(tmp_path / "out")
    with refused(TraceError):
        log.save(tmp_path / "out")


def test_scalars_go_beside_the_rollouts_of_the_same_run(tmp_path: Path) -> None:
    import_log(golden("verl-v1"), TEXT).save(tmp_path / "run")
    assert len(read_scalars(tmp_path / "run")) == 0
    import_log(golden("verl-scalars")).save(tmp_path / "run")
    assert len(read_trace(tmp_path / "run").rollouts) == 8
    assert len(read_scalars(tmp_path / "run")) == 2


def test_scalars_that_find_no_writable_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    log = import_log(golden("openrlhf"))
    for folder in (tmp_path / "file", tmp_path / "file" / "run"):
        with refused(TraceError, str(folder), "writable folder"):
            log.save(folder)


def test_a_log_is_opened_without_naming_anything(tmp_path: Path) -> None:
    trace = open_log(golden("nemo-rl")).trace
    assert trace.meta["framework"] == "nemo-rl"
    trace.save(tmp_path / "trace")
    assert len(open_log(tmp_path / "trace").trace.rollouts) == len(trace.rollouts)
