"""Writes the pages of the Python reference: one for each front, which is a package that users import from.

``rlhfless`` comes first. A name that two fronts have is described on the first one's page, and the other page leads there.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

from docstrings import as_rst
from sphinx.pycode import ModuleAnalyzer
from staged import write

FRONTS = (
    "rlhfless", "rlhfless.run", "rlhfless.trace", "rlhfless.plots", "rlhfless.report", "rlhfless.widgets", "rlhfless.simulate",
    "rlhfless.analysis", "rlhfless.diagnosis", "rlhfless.scheduling", "rlhfless.scheduling.published", "rlhfless.predict",
    "rlhfless.latency", "rlhfless.engine", "rlhfless.executor", "rlhfless.training", "rlhfless.paper", "solver",
    "solver.layouts", "solver.pipeline",
)  # fmt: skip
NEEDS = {"VllmEngineFactory": "vllm", "TrlRecorder": "transformers"}
"""Names whose loading needs an optional package."""


def write_reference(folder: Path) -> None:
    """Write a page for each front, and the list of them.

    Args:
        folder: of the pages.
    """
    described: dict[int, str] = {}
    lines = []
    for front in FRONTS:
        write(folder / f"{front}.rst", "\n".join(_page(front, described)))
        first = (importlib.import_module(front).__doc__ or "").strip().split("\n\n")[0]
        lines.append(f"- [{front}]({front}.rst): {' '.join(first.split())}")
    toc = "\n".join(FRONTS)
    write(
        folder / "index.md",
        "# Python\n\nThe packages that one imports from, with all names that they offer. Everything else may change.\n\n"
        + "\n".join(lines) + f"\n\n```{{toctree}}\n:hidden:\n\n{toc}\n```\n",
    )  # fmt: skip


def _page(front: str, described: dict[int, str]) -> Iterator[str]:
    module = importlib.import_module(front)
    yield from (front, "=" * len(front), "", f".. automodule:: {front}", "   :no-members:", "")
    yield from (".. list-table::", "   :widths: auto", "")
    for name in module.__all__:
        yield from (f"   * - :py:obj:`{name} <{front}.{name}>`", f"     - {_first_sentence(front, name)}")
    yield ""
    for name in module.__all__:
        try:
            value = getattr(module, name)
        except ImportError:
            if name not in NEEDS:
                raise
            yield from (f".. py:class:: {front}.{name}", "", f"   Needs {NEEDS[name]}, which was not installed.", "")
            continue
        full = f"{front}.{name}"
        if inspect.ismodule(value):
            continue
        known = described.get(id(value)) if inspect.isclass(value) or inspect.isfunction(value) else None
        if known is not None:
            yield from (f".. py:data:: {full}", "   :no-typesetting:", "", f"**{name}** is :py:obj:`{known}`.", "")
            continue
        described[id(value)] = full
        if inspect.isclass(value) and issubclass(value, BaseException):
            yield from (f".. autoexception:: {full}", "")
        elif inspect.isclass(value):
            yield from (f".. autoclass:: {full}", "   :members:", "")
        elif inspect.isroutine(value):
            yield from (f".. autofunction:: {full}", "")
        else:
            yield from (f".. py:data:: {full}", "", *(f"   {line}" for line in _comment_of(front, name)), "")


def _first_sentence(front: str, name: str) -> str:
    """Return what a name is, in a sentence."""
    try:
        value = getattr(importlib.import_module(front), name)
    except ImportError:
        return f"Needs {NEEDS[name]}, which was not installed."
    is_described = inspect.isclass(value) or inspect.isroutine(value)
    lines = [line.strip() for line in (inspect.getdoc(value) or "").splitlines()] if is_described else _comment_of(front, name)
    paragraph = " ".join(itertools.takewhile(bool, itertools.dropwhile(lambda line: not line, lines)))
    sentence = re.match(r".*?[.:](?= [A-Z`]|$)", paragraph)
    text = [(sentence[0] if sentence else paragraph).rstrip(":")]
    if is_described:
        as_rst(None, "class", name, None, None, text)
    return text[0]


def _comment_of(front: str, name: str) -> list[str]:
    """Return the lines below an assignment that say what it is, from the module that the front has it from."""
    module, own = front, name
    while True:
        tree = ast.parse(Path(str(importlib.import_module(module).__file__)).read_text("utf-8"))
        found = next(
            (
                (node.module, alias.name)
                for node in ast.walk(tree)
                if isinstance(node, ast.ImportFrom) and node.module
                for alias in node.names
                if (alias.asname or alias.name) == own
            ),
            None,
        )
        if found is None:
            break
        module, own = found
    lines = ModuleAnalyzer.for_module(module).find_attr_docs().get(("", own), [])[:]
    as_rst(None, "data", name, None, None, lines)
    return lines
