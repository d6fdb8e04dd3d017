"""What an import decides and says: prompts, repeats, restarts, cut files, formats that changed, pickles, missing tokenizers."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from error_messages import refused
from importer_samples import (
    GOLDEN,
    LIMIT,
    ROLLOUT_WRITERS,
    SCALAR_WRITERS,
    TOKENIZER,
    sample_rollouts,
    write_areal,
    write_nemo_rl,
    write_openrlhf,
    write_parquet_rows,
    write_slime,
    write_trl,
    write_verl_scalars,
    write_verl_v0,
    write_verl_v1,
)

from rlhfless.trace import ImportOptions, Limits, TraceError, import_log
from rlhfless.trace.importers import FORMATS, recognise
from rlhfless.trace.importers.console.lines import parse_dict
from rlhfless.trace.importers.formats import Format
from rlhfless.trace.importers.trl import overlap

tokenizers = pytest.importorskip("tokenizers", reason="the tokenizers package is not installed: pip install 'rlhfless[logs]'")
TEXT = ImportOptions(tokenizer=TOKENIZER, max_response_tokens=LIMIT)


def rewritten(path: Path, change: Any) -> None:
    """A file of JSON lines after a change of every record; None takes it out."""
    records = [change(json.loads(line)) for line in path.read_text("utf-8").splitlines()]
    path.write_text("".join(json.dumps(record) + "\n" for record in records if record is not None), encoding="utf-8")


def rollouts_of(path: Path, options: ImportOptions = TEXT) -> pd.DataFrame:
    """The rollouts of a log."""
    found = import_log(path, options).rollouts
    assert found is not None
    return found


def test_texts_without_a_tokenizer_are_refused() -> None:
    with refused(TraceError, "--tokenizer"):
        import_log(GOLDEN / "verl-v1")


def test_a_tokenizer_that_cannot_be_loaded_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with refused(TraceError, "--tokenizer"):
        import_log(GOLDEN / "verl-v1", ImportOptions(tokenizer=tmp_path))
    with refused(TraceError, "tokenizer.json"):
        import_log(GOLDEN / "verl-v1", ImportOptions(tokenizer=GOLDEN))


def test_a_tokenizer_that_is_no_path_is_looked_up_on_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    expected = rollouts_of(GOLDEN / "verl-v1")
    local = tokenizers.Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))

    def found(name: str) -> Any:
        asked.append(name)
        return local

    monkeypatch.setattr(tokenizers, "Tokenizer", SimpleNamespace(from_pretrained=found))
    by_name = import_log(GOLDEN / "verl-v1", ImportOptions(tokenizer="someone/model", max_response_tokens=LIMIT))
    assert asked == ["someone/model"]
    assert by_name.rollouts is not None
    pd.testing.assert_frame_equal(by_name.rollouts, expected)


def test_a_tokenizer_that_the_hub_lacks_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(name: str) -> Any:
        raise OSError(f"404 for {name}.\nSee the documentation.")

    monkeypatch.setattr(tokenizers, "Tokenizer", SimpleNamespace(from_pretrained=gone))
    with pytest.raises(TraceError) as refused:
        import_log(GOLDEN / "verl-v1", ImportOptions(tokenizer="someone/model"))
    assert str(refused.value) == (
        "--tokenizer someone/model: cannot be loaded (404 for someone/model); "
        "a local folder with tokenizer.json or a hub name is needed"
    )


def test_without_a_limit_lengths_are_those_of_the_texts() -> None:
    log = import_log(GOLDEN / "verl-v1", ImportOptions(tokenizer=TOKENIZER))
    known = sample_rollouts()
    assert log.rollouts is not None
    assert log.rollouts["response_tokens"].tolist() == (known.response_tokens - (known.finish_reason == "stop")).tolist()
    assert log.rollouts["finish_reason"].isna().all()
    assert "without the end token" in str(log.summary)


def test_texts_that_tokenise_to_more_than_the_limit_count_as_cut() -> None:
    log = import_log(GOLDEN / "verl-v1", ImportOptions(tokenizer=TOKENIZER, max_response_tokens=5))
    assert log.rollouts is not None
    assert log.rollouts["response_tokens"].max() == 5
    assert "texts have more tokens than the limit when tokenised again" in str(log.summary)


def test_a_prompt_that_verl_names_anew_in_every_step_is_its_text(tmp_path: Path) -> None:
    folder = write_verl_v1(tmp_path / "log", sample_rollouts())
    assert rollouts_of(folder)["prompt_id"].tolist()[::2] == ["gsm_0", "gsm_1"] * 2
    rewritten(folder / "2.jsonl", lambda record: {**record, "uid": "new" + record["uid"]})
    log = import_log(folder, TEXT)
    assert log.rollouts is not None
    assert log.rollouts["epoch"].tolist() == [0] * 4 + [1] * 4
    assert "gives the same prompt another name in every step" in str(log.summary)


def test_two_rows_of_a_data_set_with_the_same_text_stay_two_prompts(tmp_path: Path) -> None:
    folder = write_verl_v1(tmp_path / "log", sample_rollouts())
    for file in folder.iterdir():
        texts = file.read_text("utf-8")
        twins = [line.replace("gsm_0", "twin_0") for line in texts.splitlines(keepends=True) if "gsm_0" in line]
        file.write_text(texts + "".join(twins), encoding="utf-8")
    log = import_log(folder, TEXT)
    assert log.rollouts is not None
    assert log.rollouts.groupby("step")["prompt_id"].unique().map(list).tolist() == [["gsm_0", "gsm_1", "twin_0"]] * 2
    assert not any("anew" in note for note in log.summary.notes)


def test_a_verl_response_that_is_there_twice_counts_once(tmp_path: Path) -> None:
    folder = write_verl_v1(tmp_path / "log", sample_rollouts())
    first = folder / "1.jsonl"
    first.write_text(first.read_text("utf-8") + first.read_text("utf-8").splitlines()[0] + "\n", encoding="utf-8")
    log = import_log(folder, TEXT)
    assert log.summary.duplicates_dropped == 1
    assert log.summary.rows == 8


def test_equal_texts_without_names_are_different_responses(tmp_path: Path) -> None:
    folder = write_verl_v0(tmp_path / "log", sample_rollouts().assign(response_tokens=4, finish_reason="stop", sample=0))
    log = import_log(folder, TEXT)
    assert (log.summary.rows, log.summary.duplicates_dropped) == (8, 0)
    assert log.rollouts is not None
    assert log.rollouts["sample"].tolist() == [0, 1] * 4


def test_fields_that_came_or_went_are_named(tmp_path: Path) -> None:
    folder = write_verl_v1(tmp_path / "log", sample_rollouts())
    rewritten(folder / "1.jsonl", lambda r: {"advantage": 1.0, **{key: value for key, value in r.items() if key != "gts"}})
    rewritten(folder / "2.jsonl", lambda r: {key: value for key, value in r.items() if key != "gts"})
    summary = import_log(folder, TEXT).summary
    assert (summary.unknown_fields, summary.absent_fields) == (("advantage",), ("gts",))
    assert "unknown fields, left out: advantage" in str(summary)
    assert "expected fields that the log lacks: gts" in str(summary)


OF_ANY_FRAMEWORK = ("console", "engine", "model", "scalars", "steps", "table", "tensorboard", "tracker", "wandb")


@pytest.mark.parametrize("one", [one for one in FORMATS if one.name not in OF_ANY_FRAMEWORK], ids=lambda one: one.name)
def test_every_format_of_a_framework_says_which_fields_it_expects(one: Format) -> None:
    assert one.expected
    assert not one.known_fields or one.known_fields >= one.expected


def renamed_in(path: Path, old: str, new: str) -> None:
    """Another name of a field wherever a text file, or the columns of the parquet files of a folder, have it."""
    for file in path.rglob("*.parquet"):
        pd.read_parquet(file).rename(columns={old: new}).to_parquet(file)
    if path.is_file():
        path.write_text(path.read_text("utf-8").replace(old, new), encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("trl", "advantage"),
        ("trl-scalars", "completions/clipped_ratio"),
        ("verl-scalars", "timing_s/gen"),
    ],
)
def test_a_number_under_another_name_is_missed(name: str, field: str, tmp_path: Path) -> None:
    writer = ROLLOUT_WRITERS[name][1] if name in ROLLOUT_WRITERS else SCALAR_WRITERS[name][1]
    path = writer(tmp_path / "log", sample_rollouts())
    before = import_log(path, TEXT).summary
    assert (before.unknown_fields, before.absent_fields) == ((), ())
    renamed_in(path, field, "renamed")
    after = import_log(path, TEXT).summary
    assert after.absent_fields == (field,)
    assert after.unknown_fields == (), "a number may be a reward function's, and every number of a step is kept"


def test_fields_that_are_new_to_trl_and_to_verls_scalars_are_named(tmp_path: Path) -> None:
    folder = write_trl(tmp_path / "trl", sample_rollouts())
    for file in (folder / "completions").iterdir():
        pd.read_parquet(file).assign(tool="search").to_parquet(file)
    assert import_log(folder, TEXT).summary.unknown_fields == ("tool",)
    path = write_verl_scalars(tmp_path / "verl", sample_rollouts())
    rewritten(path, lambda record: {**record, "rank": 0})
    assert import_log(path).summary.unknown_fields == ("rank",)


def test_a_field_that_is_needed_and_gone_is_named(tmp_path: Path) -> None:
    folder = write_verl_v1(tmp_path / "log", sample_rollouts())
    rewritten(folder / "2.jsonl", lambda r: {key: value for key, value in r.items() if key != "output"})
    with refused(TraceError, "2.jsonl", "line 1", "'output'"):
        import_log(folder, TEXT)


@pytest.mark.parametrize("value", [-1, 1.5, "4", True, [4], 10**30])
def test_a_length_that_is_none_is_refused(value: object, tmp_path: Path) -> None:
    folder = write_nemo_rl(tmp_path / "log", sample_rollouts())
    rewritten(folder / "train_data_step2.jsonl", lambda record: {**record, "input_lengths": value})
    with refused(TraceError, "step2.jsonl", "line 1", "'input_lengths'"):
        import_log(folder)


def test_a_last_line_that_was_cut_is_left_out_and_said(tmp_path: Path) -> None:
    folder = write_verl_v1(tmp_path / "log", sample_rollouts())
    last = folder / "2.jsonl"
    last.write_bytes(last.read_bytes()[:-20])
    log = import_log(folder, TEXT)
    assert log.summary.rows == 7
    assert "2.jsonl: the last line is incomplete and was left out" in log.summary.notes
    last.write_bytes(last.read_bytes() + b"\n")
    with refused(TraceError, "2.jsonl", "line 4"):
        import_log(folder, TEXT)


def test_trl_rows_that_reappear_are_dropped_in_order() -> None:
    assert overlap([], ["a"]) == 0
    assert overlap(["a", "b"], ["a", "b"]) == 2
    assert overlap(["a", "b"], ["a", "b", "c"]) == 2  # a buffer that grew
    assert overlap(["a", "b", "c"], ["b", "c", "d"]) == 2  # one that moved on
    assert overlap(["a", "b"], ["b", "a"]) == 1
    assert overlap(["a", "a"], ["b", "a", "a"]) == 0  # the same text again later is a response of its own
    assert overlap(["a"] * 3, ["a"] * 2) == 2


def test_the_reward_of_several_functions_has_to_be_named(tmp_path: Path) -> None:
    folder = write_trl(tmp_path / "log", sample_rollouts())
    for file in (folder / "completions").iterdir():
        pd.read_parquet(file).assign(other=[0.5, 1.5, 2.5, 3.5]).to_parquet(file)
    log = import_log(folder, TEXT)
    assert log.rollouts is not None
    assert log.rollouts["reward"].isna().all()
    assert "use --map reward=COLUMN" in str(log.summary)
    named = ImportOptions(tokenizer=TOKENIZER, mapping={"reward": "other"})
    assert rollouts_of(folder, named)["reward"].tolist() == [0.5, 1.5, 2.5, 3.5] * 2
    with refused(TraceError, "--map"):
        import_log(folder, ImportOptions(tokenizer=TOKENIZER, mapping={"reward": "prompt"}))
    with refused(TraceError, "--map"):
        import_log(folder, ImportOptions(tokenizer=TOKENIZER, mapping={"step": "other"}))


@pytest.mark.parametrize("lost", [1, 2], ids=["the last step was lost", "and another after it"])
@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_a_step_that_was_logged_twice_counts_as_it_was_last(suffix: str, lost: int, tmp_path: Path) -> None:
    rows = sample_rollouts().rename(columns={"prompt": "prompt_id"})[["step", "prompt_id", "sample", "response_tokens"]]
    second = rows[rows["step"] == 2]
    parts = [rows, second.assign(step=3), second.assign(step=4)]
    parts.insert(lost, second.assign(response_tokens=99))
    both = pd.concat(parts, ignore_index=True)
    path = tmp_path / f"log.{suffix}"
    if suffix == "csv":
        both.to_csv(path, index=False)
    elif suffix == "jsonl":
        both.to_json(path, orient="records", lines=True)
    else:
        write_parquet_rows(path, both, group_rows=3)
    log = import_log(path)
    assert log.rollouts is not None
    assert log.rollouts.groupby("step").size().tolist() == [4, 4, 4, 4]
    assert log.rollouts.loc[log.rollouts["step"] == 2, "response_tokens"].tolist() == [99] * 4
    assert "restarts: 1 step logged twice; the later attempt counts, 4 rows left out" in log.summary.notes


def logged(path: Path, *rows: tuple[int, str]) -> Path:
    """A table without samples, of responses to prompts in steps, each with its row as its length."""
    frame = pd.DataFrame([{"step": step, "prompt_id": prompt, "response_tokens": at} for at, (step, prompt) in enumerate(rows)])
    frame.to_json(path, orient="records", lines=True)
    return path


@pytest.mark.parametrize(
    ("order", "kept"),
    [
        ([0, 1, 2, 1, 2, 3], [0, 3, 4, 5]),
        ([0, 1, 2, 1, 2, 1, 2, 3, 4], [0, 5, 6, 7, 8]),
        ([0, 1, 2, 3, 2, 3, 4, 3, 4, 5], [0, 1, 4, 7, 8, 9]),
    ],
    ids=str,
)
def test_without_samples_a_step_that_comes_again_counts_as_it_was_last(
    order: list[int], kept: list[int], tmp_path: Path
) -> None:
    group = ["p", "p", "q", "q"]
    path = logged(tmp_path / "log.jsonl", *((step, prompt) for step in order for prompt in group))
    log = import_log(path)
    assert log.rollouts is not None
    assert log.rollouts["response_tokens"].tolist() == [4 * at + row for at in kept for row in range(4)]
    assert log.rollouts["sample"].tolist() == [0, 1] * 2 * len(kept)
    again = sum(order.count(step) > 1 for step in set(order))
    rows = 4 * (len(order) - len(kept))
    assert f"restarts: {again} steps logged twice; the later attempt counts, {rows} rows left out" in log.summary.notes


def test_of_runs_that_are_logged_among_each_other_only_the_restarted_loses_rows(tmp_path: Path) -> None:
    a = [{"run": "a", "step": step, "prompt_id": prompt} for step in (0, 1, 2, 1, 2, 3) for prompt in "pqp"]
    b = [{"run": "b", "step": step, "prompt_id": prompt} for step in range(6) for prompt in "pqp"]
    rows = pd.DataFrame([row for pair in zip(a, b, strict=True) for row in pair])
    rows.assign(response_tokens=range(36)).to_csv(tmp_path / "log.csv", index=False)
    log = import_log(tmp_path / "log.csv")
    assert log.rollouts is not None
    found = log.rollouts[log.rollouts["run"] == "a"]
    assert found["response_tokens"].tolist() == [0, 2, 4, *range(18, 36, 2)]
    assert (log.rollouts["run"] == "b").sum() == 18
    assert "restarts: 2 steps logged twice; the later attempt counts, 6 rows left out" in log.summary.notes


UNCLEAR = {
    "by samples": [(step, prompt) for _ in range(2) for step in range(4) for prompt in "pq"],
    "by workers of which one was late": [(step, "p") for steps in (range(4), range(2, 4)) for step in steps],
    "as responses ended": [(0, "p"), (0, "p"), (1, "p"), (2, "p"), (1, "p"), (2, "p"), (3, "p"), (3, "p"), (4, "p")],
}


@pytest.mark.parametrize("name", UNCLEAR)
def test_steps_in_an_order_that_need_be_no_restart_are_kept_and_said(name: str, tmp_path: Path) -> None:
    log = import_log(logged(tmp_path / "log.jsonl", *UNCLEAR[name]))
    assert log.summary.rows == len(UNCLEAR[name])
    assert sum("a restart cannot be recognised" in note for note in log.summary.notes) == 1


def test_a_log_by_prompts_is_none_of_a_restarted_run(tmp_path: Path) -> None:
    rows = [(step, prompt) for prompt in "pqr" for step in range(5) for _ in range(2)]
    log = import_log(logged(tmp_path / "log.jsonl", *rows))
    assert log.summary.rows == len(rows)
    assert not any("restart" in note for note in log.summary.notes)


def test_rows_that_repeat_in_most_steps_are_no_restarts(tmp_path: Path) -> None:
    rows = sample_rollouts().assign(prompt_id="same", note=range(8))
    rows.to_csv(tmp_path / "log.csv", index=False)
    with refused(TraceError, "row 3", "row 1", "prompt_id"):
        import_log(tmp_path / "log.csv")


def test_a_run_of_nemo_rl_goes_on_in_its_next_experiment(tmp_path: Path) -> None:
    rows = sample_rollouts()
    early = pd.concat([rows, rows[rows["step"] == 2].assign(step=3)])
    late = rows[rows["step"] == 2].assign(response_tokens=7)
    write_nemo_rl(tmp_path / "exp_001", early)
    assert import_log(tmp_path).summary.notes == import_log(tmp_path / "exp_001").summary.notes
    write_nemo_rl(tmp_path / "exp_002", pd.concat([late, late.assign(step=3), late.assign(step=4)]))
    (tmp_path / "exp_003").mkdir()
    log = import_log(tmp_path)
    assert log.rollouts is not None
    assert log.rollouts.groupby("step").size().to_dict() == {1: 4, 2: 4, 3: 4, 4: 4}
    assert set(log.rollouts.loc[log.rollouts["step"] > 1, "response_tokens"]) == {7}
    assert log.summary.notes[:2] == (
        "restarts: exp_002 begins at step 2; 2 steps of earlier experiments from there on are left out",
        "experiments: exp_001, exp_002 are read as one restarted run; to read one experiment alone, name its folder",
    )


def test_scalars_of_a_step_that_was_logged_twice_are_the_later(tmp_path: Path) -> None:
    path = write_verl_scalars(tmp_path, sample_rollouts())
    path.write_text(path.read_text("utf-8") + json.dumps({"step": 2, "data": {"timing_s/gen": 77.0}}) + "\n", encoding="utf-8")
    log = import_log(path)
    assert log.scalars["generate_s"].tolist() == [1.0, 77.0]
    assert any("restarts: 1 record" in note for note in log.summary.notes)


def test_several_records_of_one_step_of_verls_file_logger_are_one_step(tmp_path: Path) -> None:
    """An asynchronous run writes one of each side, and one of validation."""
    sides = [{"fully_async/rollouter/idle_ratio": 0.25}, {"timing_s/gen": 6.0, "timing_s/step": 80.0}, {"val-core/acc": 0.5}]
    lines = [json.dumps({"step": step, "data": data}) for step in (3, 4) for data in sides]
    (tmp_path / "run.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    log = import_log(tmp_path / "run.jsonl")
    assert log.scalars[["step", "generators_idle_rate", "wait_s", "step_s"]].to_numpy().tolist() == [
        [3, 0.25, 6, 80], [4, 0.25, 6, 80],
    ]  # fmt: skip
    assert not any("restarts" in note or "twice" in note for note in log.summary.notes)


def test_a_table_without_samples_is_numbered_in_its_order(tmp_path: Path) -> None:
    pd.DataFrame({"step": 1, "prompt_id": ["p", "q", "p", "p"], "response_tokens": 7}).to_csv(tmp_path / "log.csv", index=False)
    log = import_log(tmp_path / "log.csv")
    assert log.rollouts is not None
    assert log.rollouts["sample"].tolist() == [0, 0, 1, 2]
    assert log.summary.duplicates_dropped == 0


def test_a_message_about_columns_stays_short(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(
        "step," + "x" * 5000 + "," + ",".join(f"c{at}" for at in range(500)) + "\n1\n", encoding="utf-8"
    )
    with refused(TraceError, "'prompt_id'", "472") as refusal:
        import_log(tmp_path / "log.csv")
    assert len(str(refusal.value)) < 1000


def test_long_texts_of_a_table_are_left_out_and_said(tmp_path: Path) -> None:
    rows = [{"step": 1, "prompt_id": p, "sample": 0, "response_tokens": 3, "tag": "t", "text": "x" * 300 * p} for p in range(2)]
    pd.DataFrame(rows).to_json(tmp_path / "log.jsonl", orient="records", lines=True)
    log = import_log(tmp_path / "log.jsonl")
    assert log.rollouts is not None
    assert log.rollouts["tag"].tolist() == ["t", "t"]
    assert "text" not in log.rollouts.columns
    assert "columns left out, because they contain long texts or nested values: text" in log.summary.notes


def test_the_preview_shows_what_was_understood() -> None:
    text = str(import_log(GOLDEN / "table" / "log.csv").summary)
    assert "the first rows, as imported:" in text
    assert "prompt_tokens" in text.splitlines()[-4]


def test_fractions_in_the_preview_are_rounded(tmp_path: Path) -> None:
    ends = [2.1184912067227843, 1e-5, 1_700_000_000.123456, 8192.0]
    rows = [{"step": 1, "prompt_id": n, "sample": 0, "response_tokens": 3, "reward": end} for n, end in enumerate(ends)]
    shown = {}
    for row in rows:
        pd.DataFrame([row]).to_json(tmp_path / "log.jsonl", orient="records", lines=True, double_precision=15)
        *_, last = str(import_log(tmp_path / "log.jsonl").summary).splitlines()
        shown[row["reward"]] = last.split()[-1]
    assert list(shown.values()) == ["2.1185", "1e-05", "1700000000.1235", "8192"]


def test_tasks_without_a_session_for_every_sample_have_no_times(tmp_path: Path) -> None:
    folder = write_areal(tmp_path / "log", sample_rollouts())
    rewritten(folder / "session_tracer" / "sessions-r0.jsonl", lambda record: None if record["session_id"] == 3 else record)
    log = import_log(folder)
    assert log.rollouts is not None
    assert log.rollouts["end_s"].isna().tolist() == [False, False, True, True] + [False] * 4
    assert "times: unknown for 2 responses, because their task lacks sessions of some samples" in str(log.summary)


def test_areal_sessions_of_several_ranks_are_read_together(tmp_path: Path) -> None:
    whole = import_log(write_areal(tmp_path / "whole", sample_rollouts()))
    folder = write_areal(tmp_path / "log", sample_rollouts()) / "session_tracer"
    lines = (folder / "sessions-r0.jsonl").read_text("utf-8").splitlines(keepends=True)
    for rank in range(2):
        (folder / f"sessions-r{rank}.jsonl").write_text("".join(lines[1 - rank :: 2]), encoding="utf-8")
    log = import_log(tmp_path / "log")
    assert log.rollouts is not None
    assert whole.rollouts is not None
    assert log.rollouts["end_s"].notna().all()
    pd.testing.assert_frame_equal(log.rollouts, whole.rollouts)


def test_areal_rollouts_without_sessions_have_no_times(tmp_path: Path) -> None:
    folder = write_areal(tmp_path / "log", sample_rollouts()) / "rollout"
    (folder.parent / "session_tracer" / "sessions-r0.jsonl").unlink()
    for path in (folder, folder / "1", folder / "1" / "0.jsonl"):
        log = import_log(path)
        assert log.format.name == "areal"
        assert log.rollouts is not None
        assert "end_s" not in log.rollouts.columns


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.write_text, (self.path, "boom")


def test_a_pickle_with_code_is_refused_unrun(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    folder = write_slime(tmp_path / "log", sample_rollouts())
    file = folder / "rollout_data" / "2.pt"
    content = torch.load(file, weights_only=True)
    torch.save({**content, "extra": Bomb(tmp_path / "boom")}, file)
    with refused(TraceError, f"`rlhfless convert {folder} --unsafe-pickle -o FOLDER`"):
        import_log(folder)
    assert not (tmp_path / "boom").exists()
    log = import_log(folder, ImportOptions(unsafe_pickle=True))
    assert (tmp_path / "boom").exists()
    assert log.summary.rows == 8
    assert "WARNING: --unsafe-pickle ran any code that the dumps contain" in log.summary.notes


def test_a_plain_pickle_is_no_dump(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "1.pt").write_bytes(pickle.dumps(Bomb(tmp_path / "boom")))
    with refused(TraceError, "1.pt"):
        import_log(tmp_path / "1.pt")
    assert not (tmp_path / "boom").exists()


def test_lines_of_the_console_that_are_cut_are_counted(tmp_path: Path) -> None:
    path = write_openrlhf(tmp_path, sample_rollouts())
    path.write_text(
        path.read_text("utf-8") + "Global step 3: {'timing/generation': 4.0, 'timi\nGlobal step 4: {'a': __import__('os')}\n",
        encoding="utf-8",
    )
    log = import_log(path)
    assert log.scalars["step"].tolist() == [1, 2]
    assert "2 lines of steps are incomplete or mixed with others and were left out, first line 6" in log.summary.notes


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("{'a': nan, 'b': -inf, 'c': inf}", {"a": None, "b": None, "c": None}),
        ("{'a': np.float64(0.5), 'b': tensor(2.)} trailing", {"a": 0.5, "b": 2.0}),
        ("{'nan': 1, 'text': 'x: nan'}", {"nan": 1, "text": "x: nan"}),
        ("{'a': 1", None),
        ("{'a': open('x')}", None),
        ("{" * 5000 + "}" * 5000, None),
        ("{'a': '" + "x" * 200_000 + "'}", None),
        ("{1, 2}", None),
    ],
)
def test_only_literals_of_the_console_are_read(text: str, values: dict[str, Any] | None) -> None:
    assert parse_dict(text) == values


def test_what_is_no_log_is_refused_with_what_is_known(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    for path in (tmp_path, tmp_path / "notes.txt"):
        with refused(TraceError):
            recognise(path)
    with refused(TraceError):
        import_log(tmp_path / "none")
    with refused(TraceError, "--from"):
        import_log(tmp_path, framework="hydra")
    with refused(TraceError, "--map"):
        import_log(GOLDEN / "nemo-rl", ImportOptions(mapping={"step": "x"}))


@pytest.mark.parametrize("framework", ["verl", "verl-scalars", "trl", "trl-scalars", "console", "nemo-rl", "areal", "slime"])
def test_another_framework_than_the_logs_own_is_refused(framework: str, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"a": 1}\n')
    with pytest.raises(TraceError):
        import_log(path, TEXT, framework)


def test_a_line_that_never_ends_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_bytes(b'{"step": "' + b"x" * 2**21)
    with refused(TraceError, "line 1"):
        import_log(tmp_path / "log.jsonl", ImportOptions(limits=Limits(line_bytes=2**20)))
