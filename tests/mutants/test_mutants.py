"""Every mutant can be applied: its line is in its file, once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MUTANTS = json.loads((Path(__file__).parent / "mutants.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("number", range(len(MUTANTS)))
def test_the_line_of_a_mutant_is_in_its_file(number: int) -> None:
    mutant = MUTANTS[number]
    lines = (ROOT / mutant["path"]).read_text(encoding="utf-8").splitlines()
    found = lines.count(mutant["before"])
    assert found == 1 or found > mutant.get("occurrence", found), f"draw mutant {number} of {mutant['path']} anew"
    assert mutant["before"] != mutant["after"]
    assert all((ROOT / test).exists() for test in mutant["tests"])
