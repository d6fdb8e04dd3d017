"""Recipes of the pages that need nothing but what ships: their lines run in the order in which they stand.

Tests of single recipes are with what they are about, such as ``tests/run/test_planning_recipe.py``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.nightly
@pytest.mark.parametrize("page", ["planning.md", "what_ifs.md", "whole_steps.md"])
def test_the_recipes_of_a_page_run_one_after_the_other(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install 'rlhfless[torch]'")
    rng = np.random.default_rng(0)
    rows = [
        {"step": step, "prompt_id": f"p{prompt}", "sample": sample, "response_tokens": int(rng.lognormal(5, 0.8)) + 1}
        for step in range(2) for prompt in range(16) for sample in range(4)
    ]  # fmt: skip
    pd.DataFrame(rows).to_json(tmp_path / "log.jsonl", orient="records", lines=True)
    (tmp_path / "data").symlink_to(ROOT / "data")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text("utf-8"), flags=re.S)
    assert blocks
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
