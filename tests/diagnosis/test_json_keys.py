"""Every number of a diagnosis is in the table of ``docs/diagnosis_json.md``, with the unit that its key tells."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from itertools import product
from pathlib import Path

import pytest

import rlhfless.diagnosis
from rlhfless.diagnosis.diagnosis import STEP_KINDS, VERSION
from rlhfless.diagnosis.numbers import KINDS, LEVERS, UNITS, unit_of

TABLE = Path(__file__).parents[2] / "docs" / "diagnosis_json.md"
MAKERS = {"number", "Number", "mean_of", "total_of"}
FAMILIES = {"PHASE": "[a-z]+", "BESIDE": "[a-z]+", "UNIT": "[a-z]+", "RUN": ".+", "N": r"\d+"}


def documented() -> dict[str, str]:
    """Return unit by key, as the table has them."""
    numbers = TABLE.read_text(encoding="utf-8").partition("## Numbers")[2].partition("\n## ")[0]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in numbers.splitlines() if row.startswith("| `")]
    return {key: unit for keys, unit, _ in cells for key in re.findall(r"`([^`]+)`", keys)}


def pattern(key: str) -> str:
    """Return what the documented key stands for."""
    return "".join(FAMILIES.get(part, re.escape(part)) for part in re.split(r"(PHASE|BESIDE|UNIT|RUN|(?<=_)N(?=_))", key))


def keys_of_the_code() -> set[str]:
    """Return the keys that the code writes, with an example where a key is made of parts."""
    keys = set()
    for file in Path(rlhfless.diagnosis.__file__).parent.glob("*.py"):
        if file.name == "numbers.py":
            continue
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in MAKERS and call.args:
                keys |= _examples(call.args[0])
    return keys


def _examples(key: ast.expr) -> set[str]:
    if isinstance(key, ast.Constant):
        return {str(key.value)}
    if isinstance(key, ast.JoinedStr):
        parts = [_part(part) for part in key.values]
        return {"".join(chosen) for chosen in product(*parts)}
    return set()


def _part(part: ast.expr) -> list[str]:
    if isinstance(part, ast.Constant):
        return [str(part.value)]
    named = ast.unparse(part.value) if isinstance(part, ast.FormattedValue) else ""
    return {"name": ["learn"], "unit": ["item", "step"], "key": ["runs/a"], "position + 1": ["2"]}.get(named, ["a"])


def test_the_table_has_every_key_of_the_code() -> None:
    patterns = [pattern(key) for key in documented()]
    missing = sorted(key for key in keys_of_the_code() if not any(re.fullmatch(one, key) for one in patterns))
    assert not missing, "docs/diagnosis_json.md lacks them"


def test_the_table_has_the_units_of_the_code() -> None:
    examples = {"PHASE": "generate", "BESIDE": "validation", "UNIT": "step", "RUN": "a"}
    for key, unit in documented().items():
        example = re.sub("PHASE|BESIDE|UNIT|RUN", lambda family: examples[family[0]], key).replace("_N_", "_2_")
        assert unit_of(example) == unit, key


def test_every_unit_is_of_some_key() -> None:
    assert {unit for _, unit in UNITS} | {"count"} == set(documented().values())


@pytest.mark.parametrize(
    ("heading", "kinds"),
    [
        ("Kinds of findings", KINDS), ("Kinds of levers", LEVERS),
        ("Kinds of phases", {kind: words for words, kind in STEP_KINDS.items()}),
    ],
    ids=["findings", "levers", "phases"],
)  # fmt: skip
def test_the_document_has_every_kind(heading: str, kinds: Mapping[str, str]) -> None:
    rows = TABLE.read_text(encoding="utf-8").partition(f"## {heading}\n")[2].partition("\n## ")[0]
    assert dict(re.findall(r"^\| `([^`]+)` \| (.*) \|$", rows, re.M)) == kinds


def test_the_document_names_the_version() -> None:
    assert f"`version` is {VERSION}" in TABLE.read_text(encoding="utf-8")


@pytest.mark.parametrize("key", ["step_s", "cut_share", "usd", "gpu_hours"])
def test_the_code_is_read(key: str) -> None:
    assert key in keys_of_the_code()
