"""A log that several commands read."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhfless.trace import read_trace

RUN = Path(__file__).parents[2] / "data" / "traces" / "arithmetic-grpo"


@pytest.fixture(scope="session")
def two_visits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two visits of 8 prompts of the shipped run, with their texts, as a Parquet table."""
    rows = read_trace(RUN).rollouts
    rows = rows[rows["step"].isin([28, 32]) & rows["prompt_id"].isin(rows["prompt_id"].unique()[:8])]
    path = tmp_path_factory.mktemp("log") / "log.parquet"
    rows.assign(step=rows["step"].map({28: 0, 32: 1})).drop(columns="epoch").to_parquet(path)
    return path
