"""A notebook that is run with other parameters has other results: the cell tagged ``parameters`` really is one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

papermill = pytest.importorskip("papermill", reason="papermill is not installed (pip install 'rlhfless[dev]')")
from notebook_rules import NOTEBOOKS, cells_of, parameters_cell  # noqa: E402


@pytest.mark.parametrize("path", NOTEBOOKS.values(), ids=list(NOTEBOOKS))
def test_papermill_finds_the_parameters_with_their_values(path: Path) -> None:
    found = papermill.inspect_notebook(str(path))
    source = parameters_cell(path).source
    values: dict[str, Any] = {}
    exec(source, values)
    assert set(found) == set(values) - {"__builtins__"}
    for name, parameter in found.items():
        assert eval(parameter["default"]) == values[name]


@pytest.mark.full
def test_other_parameters_make_another_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, page = NOTEBOOKS["07_what_if"], tmp_path / "page.html"
    monkeypatch.setenv("RLHFLESS_PAGE", str(page))
    parameters = {"PROFILE": "h100-qwen2.5-3b-tp1", "STEP": 30, "GPUS": [2, 5], "TIME_WEIGHT": 0.25, "COMPARED_STEPS": 1}
    executed = tmp_path / "executed.ipynb"
    papermill.execute_notebook(
        str(path), str(executed), parameters=parameters, cwd=str(path.parent), kernel_name="python3", progress_bar=False
    )
    text = page.read_text("utf-8")
    assert "Step 30 of arithmetic with profile h100-qwen2.5-3b-tp1, time weight 0.25." in text
    assert "Step 30 with 5 GPUs" in text
    assert "Over 1 steps" in text
    tags = [cell.metadata.get("tags", []) for cell in cells_of(executed)]
    assert tags.index(["injected-parameters"]) == tags.index(["parameters"]) + 1
