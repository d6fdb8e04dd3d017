"""``rlhfless plan`` with deduplicated prefill: what it prints, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner, Result
from error_messages import refused_command

from rlhfless.cli import main

ON = ["--gpus", "8", "--gpus-per-actor", "2", "--profile", "l40s-qwen2.5-3b-tp2", "--time-limit", "0.15"]
PROMPTS, SAMPLES, COMMON = 6, 4, 300


def rlhfless(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Prompts of 300 tokens that all begin with, and 10 to 15 of their own."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(20, 60, (PROMPTS, SAMPLES))
    table = pd.DataFrame(
        [
            {
                "step": step, "prompt_id": f"q{p}", "sample": s, "prompt_tokens": COMMON + 10 + p,
                "response_tokens": int(lengths[p, s]),
                "prompt_ids": json.dumps([1] * COMMON + [2 + p] * (10 + p)),
            }
            for step in range(2) for p in range(PROMPTS) for s in range(SAMPLES)
        ]
    )  # fmt: skip
    table.to_csv(tmp_path / "log.csv", index=False)
    return tmp_path / "log.csv"


def planned(log: Path, *options: object) -> dict:
    result = rlhfless("plan", log, *ON, "--min-actors", 2, *options, "--format", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_prefill_is_deduplicated_when_asked_for(log):
    assert planned(log)["notes"].get("prefill") is None
    said = planned(log, "--deduplicate-prefill", "--learner-node", 0)["notes"]["prefill"]
    assert said["tokens_before"] == SAMPLES * sum(COMMON + 10 + p for p in range(PROMPTS))
    assert said["tokens_after"] <= said["tokens_before"] // 2
    text = rlhfless("plan", log, *ON, "--deduplicate-prefill").stdout
    assert "Deduplication(" in text
    assert "prefill tokens before" in text


def test_a_prefill_actor_computes_what_all_prompts_share_once(log):
    """With the ids of the prompts or with the length of what they share: the same."""
    on_learner = ["--learner-node", 0, "--learner-gpus", 2, "--time-weight", 0.0, "--time-limit", 30]  # the clock never decides
    plans = [planned(log, *on_learner, *how) for how in (["--prefix-tokens", COMMON], ["--prompt-ids", "prompt_ids"])]
    for plan in plans:
        assert plan["prefill"] is not None
        assert plan["prefill"]["computed_tokens"] < 2 * COMMON
        assert plan["prefill"]["prompts"]
    assert plans[0]["prefill"] == plans[1]["prefill"]
    assert plans[0]["notes"]["prefill"] == plans[1]["notes"]["prefill"]


def test_what_it_cannot_know_is_refused_in_a_sentence(log, tmp_path):
    def refused(table: Path, options: tuple[object, ...], *named: object) -> None:
        refused_command(rlhfless("plan", table, *ON, *options), *named)

    refused(log, ("--prefix-tokens", 311), "--prefix-tokens", "311", "310")
    refused(log, ("--prompt-ids", "text"), "'text'")
    refused(log, ("--prompt-ids", "prompt_id"), "prompt_id")
    refused(log, ("--prompt-ids", "prompt_ids", "--prefix-tokens", 3), "--prompt-ids", "--prefix-tokens")
    refused(log, ("--learner-node", 7), "learner_node", "7", "0 to 0")
    table = pd.read_csv(log)
    table.assign(prompt_tokens=table["prompt_tokens"] + 1).to_csv(tmp_path / "longer.csv", index=False)
    refused(tmp_path / "longer.csv", ("--prompt-ids", "prompt_ids"), "prompt_tokens", "310", "311")
    table.drop(columns="prompt_tokens").to_csv(tmp_path / "unknown.csv", index=False)
    refused(tmp_path / "unknown.csv", ("--deduplicate-prefill",), "prompt_tokens")
