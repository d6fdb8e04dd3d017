"""``rlhfless report --only what-ifs``: a table, JSON, and one sentence where the log or an option is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import run_rlhfless

GPUS = ("--gpus", "4", "--profile", "l40s-qwen2.5-3b-tp2", "--usd-per-gpu-hour", "2")


@pytest.fixture
def log(tmp_path: Path) -> str:
    rng = np.random.default_rng(0)
    rows = [f"{step},p{p},{s},{rng.integers(5, 90)},{s % 2}" for step in range(2) for p in range(3) for s in range(2)]
    path = tmp_path / "log.csv"
    path.write_text("\n".join(["step,prompt_id,sample,response_tokens,reward", *rows]))
    return str(path)


def test_the_table_names_every_way(log: str) -> None:
    result = run_rlhfless("report", log, "--only", "what-ifs", *GPUS, "--prepare-s", "1", "--learn-s", "4")
    assert result.exit_code == 0, result.output
    for name in ("as logged", "partial rollout", "asynchronous", "deferred dispatch", "dynamic sampling", "drafts"):
        assert name in result.output


def test_json_has_the_same_rows(log: str) -> None:
    result = run_rlhfless("report", log, "--only", "what-ifs", *GPUS, "--format", "json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert found["ways"][0]["way"] == "as logged"
    assert found["ways"][0]["cost_usd"] == pytest.approx(found["ways"][0]["gpu_seconds"] / 1800)
    assert "asynchronous" in found["left_out"]
    shown = {one["variant"]: one["time_s"] for one in found["knobs"] if one["shown"]}
    assert set(shown) == {"partial rollout", "over-sampling", "over-sampling, rest kept", "released in the tail"}
    assert shown == pytest.approx({one["way"]: one["time_s"] for one in found["ways"] if one["way"] in shown})


@pytest.mark.parametrize("wrong", [["--learn-s", "-1"], ["--dispatch", "random"], ["--learner-gpus", "-2"]])
def test_wrong_options_end_with_one_sentence(log: str, wrong: list[str]) -> None:
    result = run_rlhfless("report", log, "--only", "what-ifs", *GPUS, *wrong)
    assert result.exit_code == 2
    assert len(result.output.strip().splitlines()) == 1
    assert result.output.startswith("rlhfless: ")
