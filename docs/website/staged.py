"""Lays the pages of the site out as Sphinx reads them: a copy of the Markdown pages and notebooks, with links that hold there.

Pages of ``docs/`` come to the top of the site, notebooks to ``notebooks/``, and ``PROJECT`` to ``project/``.
A link to a page leads to the page. A link to anything else of the repository, such as a source file, becomes its path in code
type, as the repository has no public address. A link to what does not exist is an error.
"""

from __future__ import annotations

import json
import posixpath
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

ROOT = Path(__file__).parents[2]
PROJECT = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "data/README.md")
"""Pages of the repository, outside of docs/ and notebooks/, that are pages of the site, too."""
LINK = re.compile(r"(?P<picture>!?)\[(?P<text>(?:[^\[\]]|\[[^\[\]]*\])*)\]\((?P<target>[^()\s]+)\)")
FENCE = re.compile(r"^(?P<indent>\s*)(?P<mark>```+|~~~+)")
CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.DOTALL)
PICTURES = (".png", ".svg")
FIRST = "index.md"
GENERATED = {
    "Gallery of figures": "gallery/index",
    "Python": "reference/python/index",
    "Options of every command": "reference/command_line",
    "Configuration of training": "reference/configuration",
}
"""Pages that are made from the code, by their titles in the navigation."""
SIBLINGS = "\n```{toctree}\n:hidden:\n:glob:\n\n*\n```\n"
"""Navigation of the page of a folder, ``README.md``: all other pages of the folder."""


class BrokenLink(ValueError):
    """Raised for a link to a file that does not exist; the message names page and link."""


def page_of(path: Path) -> str | None:
    """Return the place of a file in the site, such as ``notebooks/01_quick_start.ipynb``; None for what is no page.

    Args:
        path: in the repository, absolute.
    """
    if not path.is_relative_to(ROOT):
        return None
    name = path.relative_to(ROOT).as_posix()
    if name in PROJECT:
        return f"project/{name.removesuffix('.md').replace('/README', '').lower()}.md"
    top, _, rest = name.partition("/")
    if top == "docs" and path.suffix == ".md" and path.is_file():
        return rest
    if top == "notebooks" and path.suffix in (".md", ".ipynb") and path.is_file():
        return name
    return None


def pages() -> Iterator[Path]:
    """Yield the files that are pages: those of ``docs/``, the notebooks, and ``PROJECT``."""
    yield from sorted((ROOT / "docs").rglob("*.md"))
    yield from sorted((ROOT / "notebooks").glob("*.md"))
    yield from sorted((ROOT / "notebooks").glob("*.ipynb"))
    yield from (ROOT / name for name in PROJECT)


def stage(target: Path, executed: Callable[[Path], dict[str, Any]]) -> None:
    """Write all pages below a folder. A file that does not change keeps its time, so that Sphinx need not read it again.

    Args:
        target: the folder; what a former call left there and is no page any more is removed.
        executed: returns a notebook as JSON, with its outputs.

    Raises:
        BrokenLink: a page links to a file that does not exist.
    """
    written = set()
    for page in pages():
        name = page_of(page)
        assert name is not None
        written.add(target / name)
        if page.suffix == ".ipynb":
            notebook = executed(page)
            for cell in notebook["cells"]:
                if cell["cell_type"] == "markdown":
                    cell["source"] = moved("".join(cell["source"]), page, name, target)
            write(target / name, json.dumps(notebook, indent=1, ensure_ascii=False))
        else:
            text = moved(page.read_text("utf-8"), page, name, target)
            write(target / name, text + (contents(text) if name == FIRST else SIBLINGS if name.endswith("/README.md") else ""))
    for old in [*target.rglob("*.md"), *target.rglob("*.ipynb")]:
        if old not in written and old.relative_to(target).parts[0] not in ("reference", "gallery"):
            old.unlink()


def write(path: Path, text: str) -> None:
    """Write a text where it is not the file's already."""
    if not path.exists() or path.read_text("utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


def moved(text: str, page: Path, name: str, target: Path) -> str:
    """Return the Markdown of a page with links that hold in the site; its pictures are copied beside it.

    Args:
        text: the page's text, or that of a cell. page: its file in the repository. name: its place in the site.
        target: the folder of the site's pages.

    Raises:
        BrokenLink: a link leads to a file that does not exist.
    """

    def changed(found: re.Match[str]) -> str:
        return _link(found, page, name, target)

    parts: list[tuple[bool, str]] = []  # (is a block of code, its lines)
    fence = ""
    for line in text.splitlines(keepends=True):
        mark = FENCE.match(line)
        is_code = bool(fence or mark)
        if mark:
            fence = mark["mark"] if not fence else "" if mark["mark"].startswith(fence) else fence
        if parts and parts[-1][0] == is_code:
            parts[-1] = (is_code, parts[-1][1] + line)
        else:
            parts.append((is_code, line))
    return "".join(lines if is_code else _outside_code(lines, changed) for is_code, lines in parts)


def _outside_code(text: str, changed: Callable[[re.Match[str]], str]) -> str:
    """Return a text whose links are changed, but not those in code. A link's own text may hold code."""
    code = [(found.start(), found.end()) for found in CODE.finditer(text)]
    return LINK.sub(lambda one: one[0] if any(a <= one.start() < b for a, b in code) else changed(one), text)


def _link(found: re.Match[str], page: Path, name: str, target: Path) -> str:
    place, _, anchor = found["target"].partition("#")
    if page.suffix == ".ipynb" or place.endswith(".ipynb"):
        anchor = anchor.lower()  # Jupyter keeps the capitals of a heading, this site does not
    if not place:
        return f"[{found['text']}](#{anchor})"
    if "://" in place or place.startswith("mailto:"):
        return found[0]
    file = Path(posixpath.normpath(page.parent.as_posix() + "/" + unquote(place)))
    if not file.exists():
        raise BrokenLink(f"{page.relative_to(ROOT)}: links to {found['target']}, which does not exist")
    if found["picture"]:
        copy = (target / name).parent / file.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, copy)
        return f"![{found['text']}]({file.name})"
    there = page_of(file)
    if there is not None:
        relative = posixpath.relpath(there, posixpath.dirname(name) or ".")
        return f"[{found['text']}]({relative}{'#' + anchor if anchor else ''})"
    path = file.relative_to(ROOT).as_posix() + "/" * file.is_dir()
    plain = found["text"].strip("`")
    return f"`{path}`" if path.rstrip("/").endswith(plain.rstrip("/")) else f"{found['text']} (`{path}`)"


def contents(index: str) -> str:
    """Return the first page's tables of contents, which are the navigation: lists of links by section, and generated pages."""
    made = []
    for section in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        links = {
            found["text"]: found["target"].rpartition(".")[0]
            for found in map(LINK.match, re.findall(r"^- (\[.*)$", body, re.MULTILINE))
            if found is not None and "#" not in found["target"] and "://" not in found["target"]
        }
        made.append((title.strip(), links))
    made.append(("Generated from the code", GENERATED))
    return "".join(
        f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n"
        + "".join(f"{text} <{target}>\n" for text, target in links.items()) + "```\n"
        for title, links in made
        if links
    )  # fmt: skip
