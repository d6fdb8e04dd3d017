"""A notebook that is run with other parameters has other results: the cell tagged ``parameters`` really is one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

papermill = pytest.importorskip("papermill", reason="papermill is not installed (pip install 'rlhfless[notebook]')")
from notebook_rules import READ, cells_of, parameters_cell  # noqa: E402
from page_figures import figures_json  # noqa: E402
from small_notebooks import SMALL  # noqa: E402


@pytest.mark.parametrize("path", READ.values(), ids=list(READ))
def test_papermill_finds_the_parameters_with_their_values(path: Path) -> None:
    found = papermill.inspect_notebook(str(path))
    source = parameters_cell(path).source
    values: dict[str, Any] = {}
    exec(source, values)
    assert set(found) == set(values) - {"__builtins__"}
    for name, parameter in found.items():
        assert eval(parameter["default"]) == values[name]


def test_tests_execute_notebooks_with_parameters_that_these_have() -> None:
    assert set(SMALL) == set(READ)
    unknown = {name: set(small) - set(papermill.inspect_notebook(str(READ[name]))) for name, small in SMALL.items()}
    assert not any(unknown.values()), unknown


@pytest.mark.full
def test_other_parameters_make_another_page(executed_notebook: Callable[[str], Path]) -> None:
    executed = executed_notebook("06_what_if")
    small = SMALL["06_what_if"]
    page = executed.with_suffix(".html").read_text("utf-8")
    text = page + figures_json(page)
    for gpus in small["GPUS"]:
        assert f"{gpus} GPUs" in text
    assert f"Time against cost, {small['GPUS'][-1]} GPUs" in text
    assert f"GPU timeline of step {small['STEP']}" in text
    tags = [cell.metadata.get("tags", []) for cell in cells_of(executed)]
    assert tags.index(["injected-parameters"]) == tags.index(["parameters"]) + 1
