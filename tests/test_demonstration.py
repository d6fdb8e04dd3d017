"""The demonstration log is what its rule generates, and has the quantiles of the facts that it states."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import rlhfless as rl
from rlhfless.trace import read_trace

SCRIPT = Path(__file__).parents[1] / "data" / "demonstration.py"


@pytest.fixture(scope="module")
def rule() -> Any:
    spec = importlib.util.spec_from_file_location("demonstration", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_shipped_trace_is_what_the_script_writes(rule: Any, tmp_path: Path) -> None:
    rule.write(tmp_path / "again")
    shipped, again = read_trace(rl.example()), read_trace(tmp_path / "again")
    for table in ("rollouts", "allocations", "spans"):
        pd.testing.assert_frame_equal(getattr(shipped, table), getattr(again, table))
    assert shipped.meta["origin"] == again.meta["origin"]


def test_its_lengths_have_the_stated_quantiles(rule: Any) -> None:
    facts = rule.Facts()
    places = np.array([0.05, 0.1, 0.25, 0.5])
    scores = np.array([rule.NORMAL.inv_cdf(p) for p in places])
    assert rule._quantile(scores, facts) == pytest.approx(facts.quantiles_tokens, rel=0.12)
    many = rule._quantile(np.array([rule.NORMAL.inv_cdf(p) for p in np.linspace(0.0005, 0.9995, 1000)]), facts)
    assert 0.95 * facts.cut_share <= (many > rule.LOG_LIMIT_TOKENS).mean() <= facts.cut_share + 0.01


def test_prompts_come_back_and_files_are_small() -> None:
    rollouts = read_trace(rl.example()).rollouts
    assert rollouts.groupby("prompt_id")["step"].nunique().eq(4).all()
    assert rollouts.groupby("step").size().eq(512).all()
    assert sum(file.stat().st_size for file in rl.example().iterdir()) < 1_000_000
