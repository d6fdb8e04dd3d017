"""What every notebook is held to, read from its file: parameters, names that cells share, links. Runs no cell."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "notebooks"
NOTEBOOKS = {
    path.relative_to(FOLDER).with_suffix("").as_posix(): path
    for path in sorted(FOLDER.rglob("[0-9]*.ipynb"))
    if path.parent.name != ".ipynb_checkpoints"  # JupyterLab's own copies
}
SHIPPED = {**NOTEBOOKS, "dashboard": FOLDER / "dashboard.ipynb"}
"""The numbered path, and the page that is served without its code, which links to no functions and reads a parameter from the
environment."""
READ = {**NOTEBOOKS, "cookbook": FOLDER / "cookbook.ipynb"}
"""What is read: the path and the recipes."""
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr)
SCOPES = (ast.FunctionDef, ast.Lambda, ast.ClassDef, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def cells_of(path: Path) -> list[Any]:
    """All cells of a notebook."""
    found: list[Any] = nbformat.read(path, as_version=4).cells
    return found


def code_of(path: Path) -> list[ast.Module]:
    """Its code cells, parsed."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what Python warns of at parsing, readers would see, too
        return [ast.parse(cell.source) for cell in cells_of(path) if cell.cell_type == "code"]


def parameters_cell(path: Path) -> Any:
    """The one cell with the tag ``parameters``."""
    (cell,) = [cell for cell in cells_of(path) if "parameters" in cell.metadata.get("tags", [])]
    return cell


def assigned(module: ast.AST) -> set[str]:
    """Names that a cell binds for other cells; not those within functions, classes and comprehensions."""
    return {name for name, stored in _names(module) if stored}


def free_names(module: ast.Module) -> set[str]:
    """Names that a cell reads before it has bound them itself, functions' bodies included."""
    bound: set[str] = set()
    free: set[str] = set()
    for statement in module.body:
        inside = {arg.arg for node in ast.walk(statement) if isinstance(node, ast.arguments) for arg in _arguments(node)}
        inside |= _stored_inside(statement)
        reads = {name for name, stored in _names(statement, everywhere=True) if not stored}
        if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
            reads.add(statement.target.id)
        own = set() if isinstance(statement, SIMPLE) else assigned(statement)  # a loop's body reads what the loop binds
        free |= reads - bound - inside - own
        bound |= assigned(statement)
    return free


def hidden_state(path: Path) -> list[str]:
    """Names that a later cell binds anew although a cell before it reads them: running that one again would change it."""
    code = code_of(path)
    writers: dict[str, list[int]] = {}
    for number, module in enumerate(code):
        for name in assigned(module):
            writers.setdefault(name, []).append(number)
    problems = []
    for number, module in enumerate(code):
        for name in sorted(free_names(module)):
            cells = writers.get(name, [])
            if any(cell < number for cell in cells) and cells[-1] >= number:
                problems.append(f"{name}: bound in code cells {cells}, read in {number}")
    return problems


def links_of(text: str) -> list[tuple[str, str]]:
    """(text, target) of the links in Markdown, but for those to other sites and to headings of the same page."""
    return [(name, target.split("#")[0]) for name, target in LINK.findall(text) if not re.match(r"[a-z]+:|#", target)]


def _arguments(node: ast.arguments) -> list[ast.arg]:
    return [*node.posonlyargs, *node.args, *node.kwonlyargs, *filter(None, (node.vararg, node.kwarg))]


def _stored_inside(statement: ast.stmt) -> set[str]:
    """Names that are local to functions and comprehensions within a statement."""
    local: set[str] = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.FunctionDef | ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            local |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return local


def _names(node: ast.AST, everywhere: bool = False) -> Iterator[tuple[str, bool]]:
    """(name, whether it is bound) of a node; within scopes of their own only where ``everywhere``."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name, True
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield from (((one.asname or one.name).split(".")[0], True) for one in node.names)
    if isinstance(node, ast.Name):
        yield node.id, isinstance(node.ctx, ast.Store)
    if isinstance(node, SCOPES) and not everywhere:
        for walrus in (n for n in ast.walk(node) if isinstance(n, ast.NamedExpr)):
            yield walrus.target.id, True
        return
    for child in ast.iter_child_nodes(node):
        yield from _names(child, everywhere)
