"""The notebooks run again with other parameters: one cell of parameters, no outputs, no hidden state, links that lead on."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

pytest.importorskip("nbformat", reason="nbformat is not installed")
from notebook_rules import (
    NOTEBOOKS,
    READ,
    ROOT,
    SHIPPED,
    assigned,
    cells_of,
    code_of,
    free_names,
    hidden_state,
    links_of,
    parameters_cell,
)

each = pytest.mark.parametrize("path", NOTEBOOKS.values(), ids=list(NOTEBOOKS))
each_shipped = pytest.mark.parametrize("path", SHIPPED.values(), ids=list(SHIPPED))


def test_the_index_names_every_notebook_in_order() -> None:
    index = (ROOT / "notebooks" / "README.md").read_text("utf-8")
    positions = [index.index(f"({name}.ipynb)") for name in sorted(NOTEBOOKS)]
    assert positions == sorted(positions)


@each_shipped
def test_outputs_are_stripped(path: Path) -> None:
    code = [cell for cell in cells_of(path) if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in code), "jupyter nbconvert --clear-output --inplace"
    assert not any(set(cell.metadata) - {"tags"} for cell in cells_of(path)), "metadata of an editor's"


@each_shipped
def test_the_kernel_is_the_one_that_every_environment_calls_its_own(path: Path) -> None:
    """Jupyter gives ``python3`` to the environment's own Python (tests/test_lab_kernel.py); a name of ours would have to be
    installed first, also on Colab and by whoever runs a notebook with papermill."""
    import nbformat

    kernel = nbformat.read(path, as_version=4).metadata.kernelspec
    assert (kernel.name, kernel.language) == ("python3", "python")


@each
def test_every_parameter_is_used_and_none_is_overwritten(path: Path) -> None:
    tagged = parameters_cell(path).source
    names = assigned(ast.parse(tagged))
    others = [module for module in code_of(path) if ast.unparse(module) != ast.unparse(ast.parse(tagged))]
    assert names
    assert not free_names(ast.parse(tagged)), "parameters are plain values"
    assert names <= set().union(*map(free_names, others)), "a parameter that changes nothing"
    assert not names & set().union(*map(assigned, others)), "a cell overwrites a parameter, so running it again is another run"


@each_shipped
def test_no_cell_changes_what_a_cell_before_it_reads(path: Path) -> None:
    assert hidden_state(path) == []


@each_shipped
def test_a_cell_that_asks_for_a_gpu_checks_that_there_is_one(path: Path) -> None:
    assert [text for text in map(ast.unparse, code_of(path)) if asks_blindly(text)] == []


def asks_blindly(text: str) -> bool:
    """A cell wants a GPU without looking whether there is one."""
    return "cuda" in text and "is_available()" not in text


def test_a_cell_that_asks_blindly_is_found() -> None:
    assert asks_blindly("model.to('cuda')")
    assert not asks_blindly("model.to('cuda' if torch.cuda.is_available() else 'cpu')")


MANUALS = [ROOT / "data" / "README.md", *(ROOT / "tests" / "benchmarks").rglob("*.md"), *ROOT.glob("*.md")]
MANUALS += [*(ROOT / "docs").rglob("*.md"), *(ROOT / "notebooks").glob("*.md")]


@pytest.mark.parametrize("path", [*MANUALS, *{**SHIPPED, **READ}.values()], ids=lambda path: os.path.relpath(path, ROOT))
def test_relative_links_lead_to_files_of_the_project(path: Path) -> None:
    if path.suffix == ".ipynb":
        text = "\n".join(cell.source for cell in cells_of(path) if cell.cell_type == "markdown")
    else:
        text = path.read_text("utf-8")
    for name, target in links_of(text):
        there = (path.parent / target).resolve()
        assert there.exists(), f"[{name}]({target})"
        assert there.is_relative_to(ROOT), f"[{name}]({target}) leaves the project"


@pytest.mark.parametrize(
    ("cells", "told"),
    [
        (["a = 1", "print(a)", "b = a"], []),
        (["a = 1", "b = a", "a = 2"], ["a: bound in code cells [0, 2], read in 1"]),
        (["a = 1", "a = a + 1"], ["a: bound in code cells [0, 1], read in 1"]),
        (["a = 1", "a += 1"], ["a: bound in code cells [0, 1], read in 1"]),
        (["a = 1", "def f(a):\n    return a\n\n\na = f(2)"], []),
        (["a = 1", "def f():\n    return a", "a = 2"], ["a: bound in code cells [0, 2], read in 1"]),
        (["a = [1]", "[a for a in (1, 2)]", "for a in (1, 2):\n    print(a)"], []),
    ],
)
def test_the_check_of_hidden_state_finds_it(cells: list[str], told: list[str], tmp_path: Path) -> None:
    import nbformat

    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    nbformat.write(made, tmp_path / "made.ipynb")
    assert hidden_state(tmp_path / "made.ipynb") == told
