"""Mappings to joined columns, constants and row numbers, conditions on rows, and the mappings that a refusal offers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from command_line import run_rlhfless
from error_messages import refused, refused_command
from hypothesis import given
from hypothesis import strategies as st
from trace_samples import PUBLIC_DATA

import rlhfless as rl
from rlhfless.errors import InputError
from rlhfless.trace import ImportOptions, TraceError, import_log, open_log
from rlhfless.trace.importers.mapped_columns import joined

AZURE = PUBLIC_DATA / "azure-llm-2023" / "AzureLLMInferenceTrace_conv.csv"
TASKS = pd.DataFrame(
    {
        "task": ["gsm8k", "gsm8k", "math", "math", "math"],
        "problem": [0, 1, 0, 1, 1],
        "output_toks": [10, 20, 30, 40, 50],
        "split": ["train", "test", "train", "train", "test"],
    }
)
MAPPING: dict[str, Any] = {"prompt_id": "task+problem", "response_tokens": "output_toks", "step": 3}


@pytest.fixture(params=["csv", "jsonl", "parquet"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Prompts of two benchmarks, numbered in each, in one table without steps."""
    path = tmp_path / f"log.{request.param}"
    if request.param == "csv":
        TASKS.to_csv(path, index=False)
    elif request.param == "jsonl":
        TASKS.to_json(path, orient="records", lines=True)
    else:
        TASKS.to_parquet(path)
    return path


def test_columns_are_joined_and_a_constant_is_in_every_row(log: Path) -> None:
    found = import_log(log, ImportOptions(mapping=MAPPING))
    assert found.rollouts is not None
    assert found.rollouts["prompt_id"].tolist() == ["gsm8k/0", "gsm8k/1", "math/0", "math/1", "math/1"]
    assert found.rollouts["step"].unique().tolist() == [3]
    assert found.rollouts["sample"].tolist() == [0, 0, 0, 0, 1]
    assert found.rollouts["task"].tolist() == TASKS["task"].tolist(), "columns that are joined stay"
    assert {"prompt_id: joined from task, problem", "step: 3 in every row"} <= set(found.summary.notes)


def test_only_rows_with_the_condition_are_read(log: Path) -> None:
    found = import_log(log, ImportOptions(mapping=MAPPING, where="split == 'train' and not output_toks < 30"))
    assert found.rollouts is not None
    assert found.rollouts["response_tokens"].tolist() == [30, 40]
    assert "rows: 2 of 5 are read, those with split == 'train' and not output_toks < 30" in found.summary.notes


def test_the_number_of_the_row_is_a_prompt_and_a_text_in_quotes_is_a_constant(log: Path) -> None:
    mapping = {"prompt_id": "row", "response_tokens": "output_toks", "step": "0", "run": "'night'"}
    found = import_log(log, ImportOptions(mapping=mapping, where="split == 'test'"))
    assert found.rollouts is not None
    assert found.rollouts["prompt_id"].tolist() == ["2", "5"], "rows are counted in the file"
    assert found.rollouts["run"].tolist() == ["night", "night"]


def test_batches_of_rows_are_steps(log: Path) -> None:
    mapping = {"prompt_id": "row", "response_tokens": "output_toks", "step": "row/2"}
    found = import_log(log, ImportOptions(mapping=mapping))
    assert found.rollouts is not None
    assert found.rollouts["step"].tolist() == [0, 0, 1, 1, 2]
    assert "step: a new one every 2 rows" in found.summary.notes
    with refused(TraceError, "row/0", "row/128"):
        import_log(log, ImportOptions(mapping=mapping | {"step": "row/0"}))


@given(st.lists(st.tuples(*[st.text("a/\\", max_size=4)] * 2), min_size=2, max_size=12))
def test_joined_values_are_equal_only_where_all_parts_are(pairs: list[tuple[str, str]]) -> None:
    left, right = (pd.Series([pair[i] for pair in pairs], dtype=object) for i in (0, 1))
    assert joined([left, right]).nunique() == len(set(pairs))


@pytest.mark.parametrize(
    ("where", "sentence"),
    [
        ("split", ("split", "neither true nor false", "example")),
        ("output_toks", ("output_toks", "neither true nor false")),
        ("len(split) == 5", ("len(split)", "comparisons", "example")),
        ("split.str == 'x'", ("split.str", "comparisons")),
        ("@pd == 1", ("@pd == 1", "not a condition")),
        ("split ==", ("split ==", "not a condition", "example")),
        ("'a' == 'a'", ("names no column",)),
        ("kind == 'train'", ("'kind'", "task, problem, output_toks, split")),
        ("output_toks > 'x'", ("output_toks > 'x'", "cannot be applied")),
        ("output_toks > 900", ("none of its 5 rows",)),
    ],
)
def test_a_wrong_condition_is_refused(where: Any, sentence: tuple[str, ...], tmp_path: Path) -> None:
    TASKS.to_csv(tmp_path / "log.csv", index=False)
    with refused(TraceError, *sentence):
        import_log(tmp_path / "log.csv", ImportOptions(mapping=MAPPING, where=where))


def test_a_condition_is_a_text(tmp_path: Path) -> None:
    TASKS.to_csv(tmp_path / "log.csv", index=False)
    with refused(InputError, "where is 7", "such as"):
        import_log(tmp_path / "log.csv", ImportOptions(mapping=MAPPING, where=7))  # type: ignore[arg-type]


@pytest.mark.parametrize("theirs", ["task+kind", "kind", "train", None])
def test_a_mapping_that_names_nothing_is_refused(theirs: Any, tmp_path: Path) -> None:
    TASKS.to_csv(tmp_path / "log.csv", index=False)
    with refused(TraceError, str(theirs), "needed"):
        import_log(tmp_path / "log.csv", ImportOptions(mapping={**MAPPING, "prompt_id": theirs}))


def test_a_condition_is_for_tables(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_text('{"input": "a", "output": "b", "gts": 1, "score": 1.0, "step": 1, "uid": "a_0_0"}\n')
    with refused(TraceError, "--where is for tables", "--from table"):
        import_log(tmp_path, ImportOptions(where="step == 1"))


def test_a_refusal_offers_mappings_which_read_the_table(tmp_path: Path) -> None:
    """What the message says is what helps."""
    TASKS.rename(columns={"problem": "prompt_index"}).drop(columns="task").to_csv(tmp_path / "log.csv", index=False)
    result = run_rlhfless("convert", str(tmp_path / "log.csv"), "--preview")
    options = ["--map", "step=0", "--map", "prompt_id=prompt_index", "--map", "response_tokens=output_toks"]
    refused_command(result, " ".join(options))
    result = run_rlhfless("convert", str(tmp_path / "log.csv"), "--preview", *options, "--where", "split == 'train'")
    assert result.exit_code == 0, result.output
    assert "3 responses to 2 prompts in 1 step" in result.output


PROMPT_COLUMNS = (
    "prompt", "Prompt", "prompt_text", "question", "problem", "query", "instruction", "input", "uid", "index", "problem_id",
    "question_idx", "example_id", "task_id", "id", "user_prompt", "my_question",
)  # fmt: skip


@pytest.mark.parametrize("name", PROMPT_COLUMNS)
def test_whatever_may_identify_a_prompt_is_offered_before_the_row(name: str, tmp_path: Path) -> None:
    """The offer keeps the groups: two responses to each of two prompts."""
    rows = [{"step": 0, name: f"what is {i // 2}?", "response_tokens": 10 + i} for i in range(4)]
    pd.DataFrame(rows).to_csv(tmp_path / "log.csv", index=False)
    result = run_rlhfless("convert", str(tmp_path / "log.csv"), "--preview")
    refused_command(result, f"--map prompt_id={name}")
    found = import_log(tmp_path / "log.csv", ImportOptions(mapping={"prompt_id": name}))
    assert (found.summary.prompts, found.prompts_known) == (2, True)


@pytest.mark.parametrize("names", [("prompt_tokens", "prompt_len"), ("prompt_length", "question_score"), ("when", "who")])
def test_lengths_and_scores_of_prompts_are_no_names_of_prompts(names: tuple[str, ...], tmp_path: Path) -> None:
    pd.DataFrame([dict.fromkeys(names, 3) | {"step": 0, "response_tokens": 5}]).to_csv(tmp_path / "log.csv", index=False)
    with refused(TraceError, "prompt_id=row", "no two responses"):
        import_log(tmp_path / "log.csv")


def test_a_text_comes_before_a_number_that_may_count_rows(tmp_path: Path) -> None:
    rows = [{"step": 0, "index": i, "id": i, "prompt": f"p{i // 2}", "response_tokens": 5} for i in range(4)]
    pd.DataFrame(rows).to_csv(tmp_path / "log.csv", index=False)
    with refused(TraceError, "--map prompt_id=prompt "):
        import_log(tmp_path / "log.csv")


@pytest.mark.parametrize("end", ["csv", "jsonl", "parquet"])
def test_long_texts_of_prompts_are_short_names(end: str, tmp_path: Path) -> None:
    long = "Natalia sold clips to 48 of her friends.\n" * 40
    frame = pd.DataFrame({"step": 0, "prompt": [long, long, f"{long}!", "short"], "response_tokens": [1, 2, 3, 4]})
    path = tmp_path / f"log.{end}"
    if end == "csv":
        frame.to_csv(path, index=False)
    elif end == "jsonl":
        frame.to_json(path, orient="records", lines=True)
    else:
        frame.to_parquet(path)
    found = import_log(path, ImportOptions(mapping={"prompt_id": "prompt"}))
    assert found.rollouts is not None
    names = found.rollouts["prompt_id"].tolist()
    assert names[0] == names[1] != names[2]
    assert names[3] == "short"
    assert all(len(name) < 100 and "\n" not in name for name in names)
    assert names[0].startswith("Natalia sold clips")


@pytest.mark.parametrize("end", ["jsonl", "parquet"])
def test_prompts_that_are_messages_of_a_chat_are_told_apart(end: str, tmp_path: Path) -> None:
    chats = [[{"role": "user", "content": text}] for text in ("one?", "one?", "two?")]
    frame = pd.DataFrame({"step": 0, "prompt": chats, "response_tokens": [1, 2, 3]})
    path = tmp_path / f"log.{end}"
    frame.to_json(path, orient="records", lines=True) if end == "jsonl" else frame.to_parquet(path)
    found = import_log(path, ImportOptions(mapping={"prompt_id": "prompt"}))
    assert found.summary.prompts == 2


@pytest.mark.parametrize("command", ["convert", "plan", "simulate", "report"])
def test_a_row_as_its_prompt_is_warned_of(command: str, tmp_path: Path) -> None:
    rows = [{"step": step, "response_tokens": 10 + i} for step in range(2) for i in range(4)]
    pd.DataFrame(rows).to_csv(tmp_path / "log.csv", index=False)
    options = {
        "convert": ["-o", str(tmp_path / "trace")],
        "simulate": ["--policies", "random"],
        "plan": [],
        "report": ["--only", "what-ifs"],
    }[command]
    gpus = [] if command == "convert" else ["--gpus", "4", "--profile", "l40s-qwen2.5-3b-tp2"]
    log, reading = tmp_path / "log.csv", ["--map", "prompt_id=row"]
    if command in ("plan", "simulate"):  # they read what convert wrote
        assert run_rlhfless("convert", log, *reading, "-o", tmp_path / "converted").exit_code == 0
        log, reading = tmp_path / "converted", []
    result = run_rlhfless(command, log, *reading, *options, *gpus)
    assert result.exit_code == 0, result.output
    assert "every row is a prompt of its own" in result.output


def test_a_run_whose_prompts_are_rows_says_what_is_lost(tmp_path: Path) -> None:
    rows = [{"step": step, "response_tokens": 10 + i} for step in range(2) for i in range(4)]
    pd.DataFrame(rows).to_csv(tmp_path / "log.csv", index=False)
    run = rl.load(tmp_path / "log.csv", 4, "l40s-qwen2.5-3b-tp2", mapping={"prompt_id": "row"}, verbose=False)
    assert any("every row is a prompt of its own" in text for text in run.assumed)
    known = rl.load(tmp_path / "log.csv", 4, "l40s-qwen2.5-3b-tp2", mapping={"prompt_id": "row/2"}, verbose=False)
    assert not any("every row" in text for text in known.assumed)
    run.trace.save(tmp_path / "trace")
    assert not open_log(tmp_path / "trace").prompts_known, "an imported trace remembers it"


@pytest.mark.skipif(not AZURE.exists(), reason=f"public data absent: {AZURE.name}")
def test_a_public_log_of_requests_is_read_as_its_refusal_says() -> None:
    with pytest.raises(TraceError) as error:
        import_log(AZURE)
    options = "--map step=row/128 --map prompt_id=row --map response_tokens=GeneratedTokens --map prompt_tokens=ContextTokens"
    assert options in str(error.value)
    mapping = {"step": "row/128", "prompt_id": "row", "response_tokens": "GeneratedTokens", "prompt_tokens": "ContextTokens"}
    found = import_log(AZURE, ImportOptions(mapping=mapping, where="ContextTokens > 4000"))
    assert found.rollouts is not None
    assert found.rollouts["prompt_tokens"].min() > 4000
