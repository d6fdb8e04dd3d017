"""``--fuse`` and seconds per token: the step as a whole in plans and simulations, and what is refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner, Result
from error_messages import refused_command

from rlhfless.cli import main
from rlhfless.trace import read_trace

RATES = ("--prepare-per-token-s", "2e-4", "--learn-per-token-s", "8e-4")


def command(name: str, path: Path, *options: object) -> Result:
    """Run a command on the lengths of a log, whose times are of another model."""
    on = ("--gpus", "8", "--profile", "l40s-qwen2.5-3b-tp2", "--no-calibrate")
    return CliRunner().invoke(main, [name, str(path), *on, "--format", "json", *map(str, options)])


def table(result: Result) -> pd.DataFrame:
    assert result.exit_code == 0, result.output
    return pd.DataFrame(json.loads(result.stdout)["policies"]).set_index("policy")


@pytest.mark.full
def test_fused_rows_stand_beside_the_others(two_visits: Path, tmp_path: Path) -> None:
    """Streaming is never slower than learning at the end on the same groups, and no row is below the bound of whole steps."""
    out = tmp_path / "out"
    rows = table(
        command(
            "simulate", two_visits, *RATES, "--learner-gpus", 4, "--policies", "rlhfuse,rlhfuse+stream,stream,static", "-o", out
        )
    )
    assert set(rows["bound_method"]) == {"whole step"}
    assert (rows["gpu_seconds"] >= rows["bound_cost_at_time"] * (1 - 1e-9)).all()
    assert rows.loc["stream", "time_s"] < rows.loc["static", "time_s"]
    assert rows.loc["rlhfuse+stream", "time_s"] <= rows.loc["rlhfuse", "time_s"] * (1 + 1e-9)
    trace = read_trace(out / "rlhfuse+stream")
    assert {"prepare", "learner"} <= set(trace.allocations["role"])
    assert "freed" in set(trace.events["name"])
    held, late = (
        table(command("simulate", two_visits, *RATES, "--learner-gpus", 4, "--policies", "stream", "--learner-start", start))
        for start in ("step", "needed")
    )
    assert held.loc["stream", "gpu_seconds"] == rows.loc["stream", "gpu_seconds"]
    assert late.loc["stream", "gpu_seconds"] < held.loc["stream", "gpu_seconds"]
    freed = table(command("simulate", two_visits, *RATES, "--fuse", "learn", "--policies", "random"))
    after = table(command("simulate", two_visits, *RATES, "--policies", "random"))
    assert freed.loc["random", "time_s"] < after.loc["random", "time_s"]


def test_a_plan_says_what_the_whole_step_takes(two_visits: Path) -> None:
    planned = command("plan", two_visits, *RATES, "--fuse", "learn", "--time-weight", 1)
    assert planned.exit_code == 0, planned.output
    step = json.loads(planned.stdout)["whole_step"]
    assert step["bound_time_s"] <= step["time_s"] <= step["uncut"]["time_s"]
    alone = command("plan", two_visits, *RATES)
    assert "whole_step" not in json.loads(alone.stdout)


WRONG = {
    "nothing to fuse": (("--fuse", "learn"), ("--fuse learn", "--learn-per-token-s")),
    "negative": (("--prepare-per-token-s", "-1"), ("prepare_per_token_s", "-1.0")),
    "not finite": (("--learn-per-token-s", "inf"), ("learn_per_token_s", "inf")),
    "constants as well": ((*RATES, "--learn-s", "3"), ("--learn-s", "seconds per token")),
    "half an actor": ((*RATES, "--learner-gpus", "3"), ("learner_gpus", "3", "multiple")),
    "needed by nobody": ((*RATES, "--learner-start", "needed"), ("learner_start", "learner_gpus")),
    "held": ((*RATES, "--fuse", "prepare", "--hold", "step"), ("static", "step")),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_options_are_one_sentence(two_visits: Path, case: str) -> None:
    options, named = WRONG[case]
    refused_command(command("simulate", two_visits, *options), *named)
