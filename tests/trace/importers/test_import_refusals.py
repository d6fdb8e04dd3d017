"""What a log gets wrong, in one short sentence each, and which of repeated rows count."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from command_line import run_rlhfless
from error_messages import refused, refused_command
from importer_samples import GOLDEN, TOKENIZER, sample_rollouts, write_verl_scalars, write_verl_v1

from rlhfless.trace import ImportOptions, TraceError, import_log, open_log, read_rollouts, read_trace
from rlhfless.trace.perfetto import write_perfetto
from rlhfless.trace.schema.casts import cast_cell
from rlhfless.trace.schema.tables import TABLES

OPTIONS = ImportOptions(tokenizer=TOKENIZER)


def table(path: Path, rows: list[dict[str, Any]]) -> Path:
    pd.DataFrame(rows).to_csv(path, index=False)
    return path


def steps(*numbers: int, tokens: int = 5) -> list[dict[str, Any]]:
    """Eight responses of each step."""
    return [
        {"step": step, "prompt_id": f"p{p}", "sample": s, "response_tokens": tokens + p}
        for step in numbers for p in range(4) for s in range(2)
    ]  # fmt: skip


def test_a_length_that_no_model_has_is_refused_with_its_row_and_column(tmp_path: Path) -> None:
    for name in ("response_tokens", "prompt_tokens"):
        rows = [{"prompt_tokens": 9, **row} for row in steps(1)]
        rows[5][name] = 10**12
        with refused(TraceError, "row 6", f"'{name}'", "1000000000000"):
            import_log(table(tmp_path / "log.csv", rows))


# --- repeated rows --------------------------------------------------------------------------------------------------------


def test_a_log_that_is_there_twice_with_one_other_row_keeps_every_response(tmp_path: Path) -> None:
    rows = steps(1, 2)
    again = [dict(row) for row in rows]
    again[11]["response_tokens"] = 77
    log = import_log(table(tmp_path / "log.csv", rows + again))
    assert log.rollouts is not None
    assert len(log.rollouts) == 16
    assert sorted(log.rollouts["response_tokens"])[-1] == 77, "the later attempt counts"
    assert log.rollouts.groupby("step").size().tolist() == [8, 8]


def test_one_row_that_is_there_again_replaces_that_response_alone(tmp_path: Path) -> None:
    log = import_log(table(tmp_path / "log.csv", [*steps(1, 2), *steps(3), {**steps(2)[3], "response_tokens": 77}]))
    assert log.rollouts is not None
    assert log.rollouts.groupby("step").size().tolist() == [8, 8, 8]
    assert log.rollouts.query("response_tokens == 77")[["step", "prompt_id", "sample"]].values.tolist() == [[2, "p1", 1]]
    assert any(note.startswith("repeats: 1 response logged again with other values") for note in log.summary.notes)


def test_a_step_that_was_done_again_counts_whole(tmp_path: Path) -> None:
    log = import_log(table(tmp_path / "log.csv", [*steps(1), *steps(2)[:5], *steps(1, 2, tokens=50), *steps(3)]))
    assert log.rollouts is not None
    assert log.rollouts.groupby("step")["response_tokens"].min().tolist() == [50, 50, 5]
    assert len(log.rollouts) == 24


# --- what is no number ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("column", ["response_tokens", "step", "sample", "reward"])
@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_true_is_no_number(column: str, suffix: str, tmp_path: Path) -> None:
    frame = pd.DataFrame([{**row, "reward": 1.0} for row in steps(1)]).astype({column: bool})
    path = tmp_path / f"log{suffix}"
    write = {".csv": frame.to_csv, ".parquet": frame.to_parquet}.get(suffix)
    if write is None:
        frame.to_json(path, orient="records", lines=True)
    else:
        write(path, index=False)
    for reader in (import_log, read_rollouts):
        with refused(TraceError, "row 1", str(column)):
            reader(path)


def test_a_single_true_among_numbers_is_found(tmp_path: Path) -> None:
    rows = steps(1)
    rows[3]["response_tokens"] = True
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    with refused(TraceError, "row 4", "'response_tokens'"):
        import_log(tmp_path / "log.jsonl")
    (tokens,) = [column for column in TABLES["rollouts"] if column.name == "response_tokens"]
    with refused(ValueError):
        cast_cell(tokens, True)


def test_a_reward_of_true_is_refused_where_it_stands(tmp_path: Path) -> None:
    folder = write_verl_v1(tmp_path / "log", sample_rollouts())
    first = folder / "1.jsonl"
    lines = first.read_text("utf-8").splitlines()
    first.write_text("\n".join([lines[0].replace('"score": 0.0', '"score": true'), *lines[1:]]) + "\n", encoding="utf-8")
    with refused(TraceError, "1.jsonl", "line 1", "'score'"):
        import_log(folder, OPTIONS)


@pytest.mark.parametrize("value", ["abc", True, [1]])
def test_a_scalar_that_is_no_number_is_refused(value: Any, tmp_path: Path) -> None:
    path = write_verl_scalars(tmp_path / "verl", sample_rollouts())
    records = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    records[1]["data"]["timing_s/gen"] = value
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    with refused(TraceError, "line 2", "'timing_s/gen'"):
        import_log(path)
    state = tmp_path / "trainer_state.json"
    state.write_text(json.dumps({"log_history": [{"step": 1, "step_time": value}]}), encoding="utf-8")
    with refused(TraceError, "line 1", "'step_time'"):
        import_log(state)
    console = tmp_path / "console.log"  # several processes write there, so a line may be mixed with another one
    console.write_text(f"Global step 1: {{'timing/generation': {value!r}, 'kl': 0.5}}\n", encoding="utf-8")
    log = import_log(console)
    assert "generate_s" not in log.scalars.columns
    assert any("'timing/generation'" in note for note in log.summary.notes)


# --- hints ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("separator", "name"), [(";", "semicolons"), ("\t", "tabs"), ("|", "bars")])
def test_a_csv_with_another_separator_gets_a_hint(separator: str, name: str, tmp_path: Path) -> None:
    pd.DataFrame(steps(1)).to_csv(tmp_path / "log.csv", index=False, sep=separator)
    for reader in (import_log, read_rollouts):
        with refused(TraceError, str(name)):
            reader(tmp_path / "log.csv")


@pytest.mark.parametrize("indent", [None, 1])
def test_a_json_array_gets_a_hint(indent: int | None, tmp_path: Path) -> None:
    for name in ("log.jsonl", "log.json"):
        (tmp_path / name).write_text(json.dumps(steps(1), indent=indent), encoding="utf-8")
        with refused(TraceError, str(name)):
            import_log(tmp_path / name)
    with refused(TraceError):
        read_rollouts(tmp_path / "log.jsonl")


def test_a_json_file_is_said_to_be_what_it_is(tmp_path: Path) -> None:
    """A packed array, one that is longer than a line may be, and JSON lines under a name that does not say so."""
    lines = "".join(json.dumps(row) + "\n" for row in steps(1))
    contents = {"array.json.gz": json.dumps(steps(1)), "long.json": "[" + " " * 2**26 + "]", "lines.json": lines}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(gzip.compress(content.encode()) if name.endswith(".gz") else content.encode())
        with refused(TraceError, name, ".jsonl" if name == "lines.json" else "a JSON array"):
            import_log(tmp_path / name)


@pytest.mark.parametrize("content", ['{"input": "01", "outp', "", "[1]\n", '{"other": 1}\n'])
def test_a_folder_whose_first_file_is_wrong_gets_a_short_sentence_about_that_file(content: str, tmp_path: Path) -> None:
    folder = write_verl_v1(tmp_path / "log", sample_rollouts())
    (folder / "1.jsonl").write_text(content, encoding="utf-8")
    with pytest.raises(TraceError) as refused:
        open_log(folder, OPTIONS)
    said = str(refused.value).replace(str(tmp_path), "")
    assert len(said) < 250
    assert "other" in said if "other" in content else "1.jsonl: " in said


def test_a_time_line_needs_a_name_that_says_json(tmp_path: Path) -> None:
    trace = import_log(GOLDEN / "table" / "log.csv").save(tmp_path / "trace")
    done = run_rlhfless("convert", trace, "--to", "perfetto", "-o", tmp_path / "t.txt")
    refused_command(done, ".json", ".json.gz")
    assert not (tmp_path / "t.txt").exists()
    for name in ("t.json", "t.json.gz"):
        assert write_perfetto(read_trace(trace), tmp_path / name).size_bytes > 0
