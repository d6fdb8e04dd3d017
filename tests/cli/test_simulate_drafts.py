"""``rlhfless simulate --drafts``: on a log's own texts, at a rate, weak or strong; and what is refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner, Result
from error_messages import refused_command

from rlhfless.cli import main
from rlhfless.trace import read_trace

DATA = Path(__file__).parents[2] / "data"
TOKENIZER = str(DATA / "models" / "arithmetic-grpo")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two visits of 8 prompts of the shipped run."""
    rows = read_trace(DATA / "traces" / "arithmetic-grpo").rollouts
    rows = rows[rows["step"].isin([28, 32]) & rows["prompt_id"].isin(rows["prompt_id"].unique()[:8])]
    path = tmp_path_factory.mktemp("log") / "log.parquet"
    rows.assign(step=rows["step"].map({28: 0, 32: 1})).drop(columns="epoch").to_parquet(path)
    return path


def simulate(path: Path, *options: object) -> Result:
    given = ["simulate", str(path), "--gpus", "8", "--profile", "l40s-qwen2.5-3b-tp2", *map(str, options)]
    return CliRunner().invoke(main, given)


def policies(result: Result) -> pd.DataFrame:
    assert result.exit_code == 0, result.output
    return pd.DataFrame(json.loads(result.stdout)["policies"]).set_index("policy")


def test_a_log_s_own_texts_are_replayed(log: Path, tmp_path: Path) -> None:
    options = ["--policies", "random,spec-fixed-4", "--drafts", log, "--tokenizer", TOKENIZER, "-o", tmp_path / "out"]
    shown = policies(simulate(log, *options, "--format", "json"))
    assert shown["drafts"].to_dict() == {"random": "-", "spec-fixed-4": "4"}
    first, second = (rows for _, rows in read_trace(tmp_path / "out" / "spec-fixed-4").rollouts.groupby("step"))
    for rows in (first, second):
        assert (rows["passes"] + rows["accepted_tokens"] == rows["response_tokens"]).all()
    saved = [rows["accepted_tokens"].sum() / rows["response_tokens"].sum() for rows in (first, second)]
    assert saved[1] > saved[0] > 0.3, "siblings alone, and then the last visit, too"


def test_all_policies_draft_with_a_length_and_two_more_do_by_default(log: Path) -> None:
    every = policies(simulate(log, "--policies", "static,spec", "--drafts", "A0.7", "--draft-length", 2, "--format", "json"))
    assert every["drafts"].to_dict() == {"static": "2", "spec": "adaptive"}
    more = policies(simulate(log, "--drafts", "weak", "--format", "json"))
    assert more["drafts"][["fold", "spec", "spec+fold"]].tolist() == ["-", "adaptive", "adaptive"]


@pytest.mark.parametrize(("options", "named"), [
    (["--policies", "spec"], ("spec", "--drafts")),
    (["--draft-length", "3"], ("--draft-length", "--drafts")),
    (["--policies", "random", "--drafts", "weak"], ("--draft-length", "spec")),
    (["--drafts", "A1.5"], ("1.5",)),
    (["--drafts", "nowhere"], ("nowhere", "A0.7")),
    (["--drafts", "weak", "--draft-length", "0"], ("'0'", "32")),
    (["--drafts", "weak", "--draft-length", "long"], ("'long'", "adaptive")),
    (["--drafts", "weak", "--policies", "spec-fixed-99"], ("'spec-fixed-99'", "32")),
    (["--drafts", DATA / "traces" / "reasoning-static"], ("response", "--map")),
])  # fmt: skip
def test_wrong_drafts_are_refused_in_one_sentence(log: Path, options: list[object], named: tuple[str, ...]) -> None:
    refused_command(simulate(log, *options), *named)


def test_texts_without_a_tokenizer_are_refused(log: Path) -> None:
    result = simulate(log, "--drafts", log)
    assert result.exit_code == 2
    assert "--tokenizer" in result.output
