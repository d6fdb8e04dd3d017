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


def simulate(path: Path, *options: object) -> Result:
    given = ["simulate", str(path), "--gpus", "8", "--profile", "l40s-qwen2.5-3b-tp2", *map(str, options)]
    return CliRunner().invoke(main, given)


def policies(result: Result) -> pd.DataFrame:
    assert result.exit_code == 0, result.output
    return pd.DataFrame(json.loads(result.stdout)["policies"]).set_index("policy")


def test_a_log_s_own_texts_are_replayed(two_visits: Path, tmp_path: Path) -> None:
    options = ["--policies", "random,spec-fixed-4", "--drafts", two_visits, "--tokenizer", TOKENIZER, "-o", tmp_path / "out"]
    shown = policies(simulate(two_visits, *options, "--format", "json"))
    assert shown["drafts"].to_dict() == {"random": "-", "spec-fixed-4": "4"}
    first, second = (rows for _, rows in read_trace(tmp_path / "out" / "spec-fixed-4").rollouts.groupby("step"))
    for rows in (first, second):
        assert (rows["passes"] + rows["accepted_tokens"] == rows["response_tokens"]).all()
    saved = [rows["accepted_tokens"].sum() / rows["response_tokens"].sum() for rows in (first, second)]
    assert saved[1] > saved[0] > 0.3, "siblings alone, and then the last visit, too"


def test_all_policies_draft_with_a_length_and_two_more_do_by_default(two_visits: Path) -> None:
    every = policies(
        simulate(two_visits, "--policies", "static,spec", "--drafts", "A0.7", "--draft-length", 2, "--format", "json")
    )
    assert every["drafts"].to_dict() == {"static": "2", "spec": "adaptive"}
    more = policies(simulate(two_visits, "--drafts", "weak", "--format", "json"))
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
def test_wrong_drafts_are_refused_in_one_sentence(two_visits: Path, options: list[object], named: tuple[str, ...]) -> None:
    refused_command(simulate(two_visits, *options), *named)


def test_texts_without_a_tokenizer_are_refused(two_visits: Path) -> None:
    result = simulate(two_visits, "--drafts", two_visits)
    assert result.exit_code == 2
    assert "--tokenizer" in result.output
