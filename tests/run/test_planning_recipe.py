"""The recipe of docs/planning.md that goes from a log to changed planning problems."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "planning.md"


def test_the_recipe_changes_what_is_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    section = PAGE.read_text("utf-8").split("## Change what is planned", 1)[1].split("\n## ", 1)[0]
    rng = np.random.default_rng(0)
    rows = [
        {"step": step, "prompt_id": f"p{prompt}", "sample": sample, "response_tokens": int(rng.lognormal(5, 0.8)) + 1}
        for step in range(2) for prompt in range(16) for sample in range(4)
    ]  # fmt: skip
    pd.DataFrame(rows).to_json(tmp_path / "log.jsonl", orient="records", lines=True)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", section, flags=re.S)), names)
    changed, plans = names["changed"], names["plans"]
    assert len(plans) == len(changed) == 7
    together, step = plans["samples of a prompt on one actor, its prefill shared"], names["problem"].workload
    homes = [{name for name, ids in enumerate(_groups(together)) if set(ids) & set(np.flatnonzero(step.prompt_of == prompt))}
             for prompt in np.unique(step.prompt_of)]  # fmt: skip
    assert {len(home) for home in homes} == {1}
    assert 2 <= len(plans["two to four actors"].actors) <= 4
    assert changed["two actors prewarmed"].cluster.prewarmed == 2
    assert changed["by the worst quarter of the scenarios"].objective.cvar_alpha == 0.25
    assert step.scenarios is not None


def _groups(plan: Any) -> list[Any]:
    return [actor.responses for actor in plan.actors]
