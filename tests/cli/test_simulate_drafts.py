"""``rlhfless simulate --drafts``: at a rate, weak or strong; on a log's own texts in Python; and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from command_line import Result, run_rlhfless
from error_messages import refused_command

import rlhfless as rl
from rlhfless.analysis.log_drafts import LogDrafts
from rlhfless.analysis.log_texts import text_encoder
from rlhfless.simulate import simulate as rl_simulate

DATA = Path(__file__).parents[2] / "data"
TOKENIZER = str(DATA / "models" / "arithmetic-grpo")


def simulate(path: Path, *options: object) -> Result:
    given = ["simulate", str(path), "--gpus", "8", "--profile", "l40s-qwen2.5-3b-tp2", *map(str, options)]
    return run_rlhfless(*given)


def policies(result: Result) -> pd.DataFrame:
    assert result.exit_code == 0, result.output
    return pd.DataFrame(json.loads(result.stdout)["policies"]).set_index("policy")


def test_a_log_s_own_texts_are_replayed(two_visits: Path) -> None:
    run = rl.load(two_visits, gpus=8, profile="l40s-qwen2.5-3b-tp2", verbose=False)
    encode, _ = text_encoder(TOKENIZER)
    setting = replace(run.calibrated, drafts=LogDrafts(run.rollouts, encode))
    result = rl_simulate(run.rollouts, setting, ["random", "spec-fixed-4"])
    first, second = (rows for _, rows in result.traces["spec-fixed-4"].rollouts.groupby("step"))
    for rows in (first, second):
        assert (rows["passes"] + rows["accepted_tokens"] == rows["response_tokens"]).all()
    saved = [rows["accepted_tokens"].sum() / rows["response_tokens"].sum() for rows in (first, second)]
    assert saved[1] > saved[0] > 0.3, "siblings alone, and then the last visit, too"


def test_policies_that_draft_do_and_two_more_do_by_default(two_visits: Path) -> None:
    chosen = policies(simulate(two_visits, "--policies", "static,spec-fixed-2,spec", "--drafts", "A0.7", "--format", "json"))
    assert chosen["drafts"].to_dict() == {"static": "-", "spec-fixed-2": "2", "spec": "adaptive"}
    more = policies(simulate(two_visits, "--drafts", "weak", "--format", "json"))
    assert more["drafts"][["fold", "spec", "spec+fold"]].tolist() == ["-", "adaptive", "adaptive"]


@pytest.mark.parametrize(("options", "named"), [
    (["--policies", "spec"], ("spec", "--drafts")),
    (["--draft-length", "3"], ("--draft-length", "Speculative")),
    (["--policies", "random", "--drafts", "weak"], ("--policies", "spec")),
    (["--drafts", "A1.5"], ("1.5",)),
    (["--drafts", "nowhere"], ("nowhere", "A0.7")),
    (["--drafts", "weak", "--policies", "spec-fixed-99"], ("'spec-fixed-99'", "32")),
    (["--drafts", DATA / "traces" / "arithmetic-grpo"], ("weak, strong", "A0.7")),
])  # fmt: skip
def test_wrong_drafts_are_refused_in_one_sentence(two_visits: Path, options: list[object], named: tuple[str, ...]) -> None:
    refused_command(simulate(two_visits, *options), *named)
