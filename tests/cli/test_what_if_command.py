"""``rlhfless what-if``: a table, JSON, a figure, and one sentence where the log or an option is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from rlhfless.cli import main

GPUS = ("--gpus", "4", "--profile", "l40s-qwen2.5-3b-tp2", "--usd-per-gpu-hour", "2")


@pytest.fixture
def log(tmp_path: Path) -> str:
    rng = np.random.default_rng(0)
    rows = [f"{step},p{p},{s},{rng.integers(5, 90)},{s % 2}" for step in range(2) for p in range(3) for s in range(2)]
    path = tmp_path / "log.csv"
    path.write_text("\n".join(["step,prompt_id,sample,response_tokens,reward", *rows]))
    return str(path)


def test_the_table_names_every_way_and_the_figure_is_written(log: str, tmp_path: Path) -> None:
    out = tmp_path / "ways.html"
    result = CliRunner().invoke(main, ["what-if", log, *GPUS, "--prepare-s", "1", "--learn-s", "4", "-o", str(out)])
    assert result.exit_code == 0, result.output
    for name in ("as logged", "partial rollout", "asynchronous", "deferred dispatch", "dynamic sampling", "drafts"):
        assert name in result.output
    assert "What-ifs" in out.read_text("utf-8")


def test_json_has_the_same_rows(log: str) -> None:
    result = CliRunner().invoke(main, ["what-if", log, *GPUS, "--format", "json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert found["ways"][0]["way"] == "as logged"
    assert found["ways"][0]["usd"] == pytest.approx(found["ways"][0]["gpu_s"] / 1800)
    assert "asynchronous" in found["left_out"]
    shown = {one["way"]: one["time_s"] for one in found["knobs"] if one["shown"]}
    assert set(shown) == {"partial rollout", "over-sampling", "over-sampling, rest kept", "released in the tail"}
    assert shown == {one["way"]: one["time_s"] for one in found["ways"] if one["way"] in shown}


@pytest.mark.parametrize("wrong", [["--learn-s", "-1"], ["--dispatch", "random"], ["--learner-gpus", "-2"]])
def test_wrong_options_end_with_one_sentence(log: str, wrong: list[str]) -> None:
    result = CliRunner().invoke(main, ["what-if", log, *GPUS, *wrong])
    assert result.exit_code == 2
    assert len(result.output.strip().splitlines()) == 1
    assert result.output.startswith("rlhfless: ")
