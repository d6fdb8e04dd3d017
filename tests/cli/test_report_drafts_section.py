"""``rlhfless report --only drafts``: acceptance on the shipped run and on other frameworks' logs with texts."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pandas as pd
import pytest
from command_line import Result, run_rlhfless
from error_messages import refused_command

from rlhfless.analysis.draft_study import joined
from solver.timing.draft_length import DraftLength

DATA = Path(__file__).parents[2] / "data"
SOLUTIONS = Path(__file__).parents[3] / "shared" / "data" / "gsm8k" / "example_model_solutions.jsonl"
RUN, MODEL = DATA / "traces" / "arithmetic-grpo", DATA / "models" / "arithmetic-grpo"


def drafts(*arguments: object) -> Result:
    return run_rlhfless("report", "--only", "drafts", *arguments)


@pytest.mark.full
def test_the_shipped_run_is_counted_with_its_own_tokenizer() -> None:
    options = ["--tokenizer", MODEL, "--profile", "l40s-qwen2.5-3b-tp2"]
    found = json.loads(drafts(RUN, *options, "--format", "json").stdout)
    assert found["unit"] == "tokens"
    rows = pd.DataFrame(found["by_source"]).set_index(["source", "draft_tokens"])["tokens_per_pass"]
    assert rows["own tokens", 4] < rows["last visit", 4] <= rows["last visit + siblings", 4] + 0.1
    assert rows["last visit", 1] < rows["last visit", 2] < rows["last visit", 4]
    survival = found["best"]["survival"]
    assert survival == sorted(survival, reverse=True)
    assert found["draft_lengths"][0]["first_batch"] == 1
    ngram, suffix = found["speculative_configs"]
    assert (ngram["method"], suffix) == ("ngram", {"method": "suffix", "num_speculative_tokens": 8})
    assert_table_of_vllm(ngram["num_speculative_tokens_per_batch_size"], ngram["num_speculative_tokens"], 256)
    shown = drafts(RUN, *options).stdout
    assert found["verdict"] in shown
    paying = max(row["last_batch"] for row in found["draft_lengths"] if row["draft_tokens"])
    assert shown.startswith(
        f"Speculative decoding pays up to batches of {paying} responses with l40s-qwen2.5-3b-tp2. {found['verdict']}"
    )
    assert "batches of 1 to" in shown
    assert f"vllm serve ... --speculative-config '{json.dumps(ngram)}'" in shown
    assert "+actor_rollout_ref.rollout.engine_kwargs.vllm.speculative_config.method=suffix" in shown
    assert not re.search(r"batches of (\d+) to \1:", shown)


def assert_table_of_vllm(table: list[list[int]], most: int, slots: int) -> None:
    """Ranges from 1 without gaps or overlaps, as vLLM checks them."""
    assert table[0][0] == 1
    assert table[-1][1] == slots
    assert all(last + 1 == first for (_, last, _), (first, _, _) in itertools.pairwise(table))
    assert max(length for _, _, length in table) == most


def test_only_changes_of_two_tokens_are_told() -> None:
    lengths = [(1, 1, 8), (2, 3, 7), (4, 4, 6), (5, 8, 1), (9, 16, 0), (17, 32, 1)]
    shown = joined([DraftLength(first, last, tokens, 1.0 + tokens) for first, last, tokens in lengths])
    assert [(row.first_batch, row.last_batch, row.draft_tokens) for row in shown] == [
        (1, 3, 8), (4, 4, 6), (5, 8, 1), (9, 16, 0), (17, 32, 1)
    ]  # fmt: skip
    assert shown[0].speedup == 9.0


OWN_PROFILE = json.loads((RUN / "meta.json").read_text("utf-8"))["profile"]


@pytest.mark.parametrize(
    ("options", "profile"), [(["--profile", "l40s-qwen2.5-3b-tp2"], "l40s-qwen2.5-3b-tp2"), ([], OWN_PROFILE)]
)
def test_where_drafts_pay_at_no_batch_size_it_says_so(
    options: list[str], profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The profile is the trace's where none is named."""
    for module in ("draft_study", "draft_configuration"):
        monkeypatch.setattr(f"rlhfless.analysis.{module}.length_table", lambda *given: [DraftLength(1, 256, 0, 1.0)])
    shown = drafts(RUN, "--tokenizer", MODEL, *options).stdout
    assert shown.startswith(f"Speculative decoding pays at no batch size with {profile}.")
    assert "batches of 1 to 256: no drafts" in shown
    assert "speculative" not in shown.partition("\n")[2]


def test_texts_without_a_tokenizer_are_counted_in_bytes(tmp_path: Path) -> None:
    table = pd.DataFrame({"step": [0, 0], "prompt_id": ["a", "a"], "prompt_tokens": 3, "response_tokens": [6, 6],
                          "answer": ["abcabc", "abcabé"]})  # fmt: skip
    table.to_json(tmp_path / "log.jsonl", orient="records", lines=True)
    shown = drafts(tmp_path / "log.jsonl", "--map", "response=answer").stdout
    assert "2 responses of 13 bytes" in shown
    assert "name the run's tokenizer with --tokenizer" in shown
    assert "--profile to see up to which batch size drafts pay" in shown


@pytest.mark.skipif(not SOLUTIONS.is_file(), reason="the public solutions to GSM8K are not beside the checkout")
def test_a_public_log_with_texts_is_counted(tmp_path: Path) -> None:
    """Four solutions to each problem, of four models: an answer drafts from those of the others."""
    problems = [json.loads(line) for line in SOLUTIONS.read_text(encoding="utf-8").splitlines()[:20]]
    rows = [
        {"step": 0, "prompt_id": i, "sample": j, "response": one["solution"], "response_tokens": len(one["solution"].encode())}
        for i, problem in enumerate(problems)
        for j, one in enumerate(answer for answer in problem.values() if isinstance(answer, dict))
    ]
    pd.DataFrame(rows).to_csv(tmp_path / "log.csv", index=False)
    found = json.loads(drafts(tmp_path / "log.csv", "--format", "json").stdout)
    assert found["unit"] == "bytes"
    per_pass = {(row["source"], row["draft_tokens"]): row["tokens_per_pass"] for row in found["by_source"]}
    assert per_pass["siblings", 8] > per_pass["own tokens", 8] > per_pass["own tokens", 1] > 1


@pytest.mark.parametrize("name", ["trl", "verl-v1"])
def test_texts_of_a_training_log_are_kept(name: str) -> None:
    logs = Path(__file__).parents[1] / "trace" / "importers" / "golden"
    found = json.loads(drafts(logs / name, "--tokenizer", logs / "trl", "--format", "json").stdout)
    assert found["by_source"]
    assert found["unit"] == "tokens"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ((RUN, "--profile", "h100"), ("h100",)),
        ((RUN, "-o", "page.html"), ("-o", "--only")),
    ],
    ids=["profile", "page"],
)
def test_bad_input_is_one_line(options: tuple[object, ...], named: tuple[str, ...]) -> None:
    refused_command(drafts(*options), *named)


def test_a_log_without_texts_is_one_line(tmp_path: Path) -> None:
    table = pd.DataFrame({"step": [0], "prompt_id": ["a"], "prompt_tokens": 3, "response_tokens": [6]})
    table.to_csv(tmp_path / "log.csv", index=False)
    refused_command(drafts(tmp_path / "log.csv"), "response", "--map", "lengths alone")


@pytest.mark.parametrize("end", ["jsonl", "parquet"])
def test_messages_of_a_chat_in_place_of_texts_are_refused(end: str, tmp_path: Path) -> None:
    frame = pd.DataFrame({"step": 0, "prompt_id": ["a", "b"], "response_tokens": [3, 4]})
    frame = frame.assign(response=[[{"role": "assistant", "content": text}] for text in ("so", "no")])
    path = tmp_path / f"log.{end}"
    if end == "jsonl":
        frame.to_json(path, orient="records", lines=True)
    else:
        frame.to_parquet(path)
    refused_command(drafts(path), "no texts", "--map response=")


@pytest.mark.parametrize("end", ["csv", "jsonl"])
def test_answers_that_are_numbers_are_texts(end: str, tmp_path: Path) -> None:
    rows = [{"step": step, "prompt_id": "p", "sample": k, "response_tokens": 6, "response": 123456 + k}
            for step in range(2) for k in range(2)]  # fmt: skip
    path = tmp_path / f"log.{end}"
    frame = pd.DataFrame(rows)
    frame.to_csv(path, index=False) if end == "csv" else frame.to_json(path, orient="records", lines=True)
    done = drafts(path, "--format", "json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["unit"] == "bytes"
