"""Executes the files of ``docs/gallery`` and writes the gallery: a page per file, and a first page with pictures of all.

A file is plain Python in cells. The first cell prepares. Each other one begins with ``# %% NAME: what it shows`` and ends with
the line that makes the figure. ``NAME`` is a function of ``rlhfless.plots``, or a method that plots.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import figures
from kept import name_for
from staged import ROOT, write

from rlhfless import plots
from rlhfless.plots.export.render import ImageRequest, draw, why_no_pictures

FOLDER = ROOT / "docs" / "gallery"
CELL = re.compile(r"^# %%(?: (?P<name>[\w.]+): (?P<shows>.+))?\n", re.MULTILINE)
THUMBNAIL = (480, 320)  # CSS pixels
MARGIN = {"l": 60, "r": 20, "t": 20, "b": 50}
FRONT_OF_METHODS = {"Comparison": "rlhfless.simulate", "PlannedWholeStep": "rlhfless.run", "Split": "rlhfless.run"}


class Example(NamedTuple):
    """One figure of the gallery.

    Attributes:
        name: the function that plots, or class and method. shows: what the figure shows.
        code: the lines that make it. figure: what they gave, as plotly's JSON.
    """

    name: str
    shows: str
    code: str
    figure: dict[str, Any]

    @property
    def where(self) -> str:
        """The full name of the function or method."""
        owner = self.name.partition(".")[0]
        return f"{FRONT_OF_METHODS.get(owner, 'rlhfless.plots')}.{self.name}"


class Page(NamedTuple):
    """One file of the gallery: its title, a text, the code that prepares, and its examples."""

    name: str
    title: str
    text: str
    prepares: str
    examples: list[Example]


class WrongGallery(ValueError):
    """Raised for a file of the gallery that is not as it should be, or where a plot is missing."""


def executed(file: Path, kept: Path) -> Page:
    """Return a file of the gallery with its figures; it is executed, in the project's folder, where they are not kept.

    Args:
        file: a Python file. kept: the folder of ``kept_in``.

    Raises:
        WrongGallery: it has no title, or a cell does not end with a figure.
    """
    text = file.read_text("utf-8")
    about = ast.get_docstring(ast.parse(text))
    pieces = CELL.split(text)[1:]
    if about is None or not pieces or pieces[0] is not None:
        raise WrongGallery(f"{file.name}: a docstring with its title, and a cell '# %%' that prepares, are needed")
    title, _, words = about.partition("\n")
    page = Page(file.stem.split("_", 1)[1], title, words.strip(), pieces[2].strip(), [])
    results = kept / name_for(file, ".json")
    if results.exists():
        page.examples.extend(Example(*one) for one in json.loads(results.read_text("utf-8")))
        return page
    print(f"executing {file.relative_to(ROOT)}", flush=True)
    names: dict[str, Any] = {}
    before = Path.cwd()
    os.chdir(ROOT)
    try:
        _run(pieces[2], file.name, names)
        for name, shows, code in zip(pieces[3::3], pieces[4::3], pieces[5::3], strict=True):
            figure = _run(code, file.name, names)
            if not hasattr(figure, "to_plotly_json"):
                raise WrongGallery(f"{file.name}: the cell of {name} ends with no figure")
            page.examples.append(Example(name, shows.strip(), code.strip(), json.loads(figure.to_json())))
    finally:
        os.chdir(before)
    results.write_text(json.dumps(page.examples, ensure_ascii=False), "utf-8")
    return page


def _run(code: str, name: str, names: dict[str, Any]) -> Any:
    """Execute a cell, and return the value of its last line; None where that is a statement."""
    tree = ast.parse(code, name)
    if not tree.body or not isinstance(tree.body[-1], ast.Expr):
        exec(compile(tree, name, "exec"), names)
        return None
    last = ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]
    exec(compile(tree, name, "exec"), names)
    return eval(compile(last, name, "eval"), names)


def write_gallery(folder: Path, kept: Path) -> None:
    """Write the pages of the gallery into a folder.

    Args:
        folder: of the pages and pictures. kept: the folder of ``kept_in``.

    Raises:
        WrongGallery: see ``executed``, or a ``plot_`` function of ``rlhfless.plots`` has no example.
    """
    pages = [executed(file, kept) for file in sorted(FOLDER.glob("*.py"))]
    shown = {one.name for page in pages for one in page.examples}
    if missing := {name for name in plots.__all__ if name.startswith("plot_")} - shown:
        raise WrongGallery(f"docs/gallery: has no example of {', '.join(sorted(missing))}")
    pictured = _pictures(pages, folder, kept)
    for page in pages:
        write(folder / f"{page.name}.md", "\n".join(_page(page)))
    write(folder / "index.md", "\n".join(_index(pages, pictured)))


def _pictures(pages: list[Page], folder: Path, kept: Path) -> bool:
    """Write a picture of every figure where this machine can draw them; return whether it can."""
    if why := why_no_pictures():
        print(f"the gallery's first page has no pictures: {why}")
        return False
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {}
    for one in (one for page in pages for one in page.examples):
        figure = _bare(one.figure)
        key = hashlib.sha256(json.dumps(figure).encode()).hexdigest()[:16]
        wanted[anchor(one)] = (kept / f"{key}.png", figure)
    new = {file: figure for file, figure in wanted.values() if not file.exists()}
    for file, data in zip(new, draw([ImageRequest(one, "png", *THUMBNAIL) for one in new.values()]), strict=True):
        file.write_bytes(data)
    for name, (file, _) in wanted.items():
        shutil.copy2(file, folder / f"{name}.png")
    return True


def _bare(figure: Mapping[str, Any]) -> dict[str, Any]:
    """Return a figure as a small picture shows it: without texts around its plots."""
    dropped = ("title", "legend", "sliders", "updatemenus", "width", "height", "annotations")
    layout = {key: value for key, value in figure["layout"].items() if key not in dropped}
    return {"data": figure["data"], "layout": {**layout, "showlegend": False, "margin": MARGIN}}


def _page(page: Page) -> Iterator[str]:
    yield from (f"# {page.title}", "", page.text, "", "```python", page.prepares, "```")
    for number, one in enumerate(page.examples, 1):
        yield from ("", f"({anchor(one)})=", f"## {one.shows[0].upper()}{one.shows[1:]}", "")
        yield from ("```python", one.code, "```", "")
        yield from ("```{raw} html", figures.html(f"figure-{number}", one.figure), "```", "")
        yield f"{{py:obj}}`{one.where}` describes the arguments."
    yield ""


def anchor(one: Example) -> str:
    """Return the name of an example's heading and picture; examples of one function show different things."""
    return "gallery-" + re.sub(r"[^a-z0-9]+", "-", f"{one.name} {one.shows}".lower()).strip("-")


def _index(pages: list[Page], pictured: bool) -> Iterator[str]:
    yield from ("# Gallery of figures", "")
    yield "Every figure that the package draws, with the lines that draw it. They were executed when this page was made."
    for page in pages:
        yield from ("", f"## {page.title}", "", ":::{container} gallery")
        for one in page.examples:
            picture = f"![]({anchor(one)}.png)" if pictured else ""
            yield from ("", f"[{picture}`{one.name}` {one.shows[0].upper()}{one.shows[1:]}](#{anchor(one)})")
        yield ":::"
    toc = "\n".join(page.name for page in pages)
    yield f"\n```{{toctree}}\n:hidden:\n\n{toc}\n```\n"
