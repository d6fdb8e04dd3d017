"""Executed notebooks as pages of the site: kept as long as nothing changes that they depend on, and made ready for readers.

A figure becomes data that the site's script draws. A dashboard needs a kernel, so a sentence stands in its place, with the
notebook's name. Progress bars are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import figures
from kept import name_for
from staged import ROOT

from rlhfless.system.run_notebook import run_notebook

FIGURE, WIDGET = "application/vnd.plotly.v1+json", "application/vnd.jupyter.widget-view+json"
HTML, PLAIN, MARKDOWN = "text/html", "text/plain", "text/markdown"
DASHBOARD = (
    '<p class="needs-kernel">Here the notebook has a live view with buttons or sliders, which needs a kernel: open '
    "<code>{path}</code> in JupyterLab (<code>make lab</code>).</p>"
)
PICTURES = ("image/png", "image/svg+xml", "image/jpeg")
WRITTEN = re.compile(r"\[([^\]]+)\]\(\.\./out/[^)]*\)")
"""A link to a file that the notebook wrote; the site has no such files."""
THEME = re.compile(r'\s*<style class="rlhfless-theme">')


def stored(path: Path, executed: Path) -> dict[str, Any]:
    """Return a notebook with the outputs of its copy in the folder ``executed``; without outputs where there is no copy."""
    copy = executed / path.name
    if not copy.exists():
        notebook: dict[str, Any] = json.loads(path.read_text("utf-8"))
        return notebook
    return for_readers(json.loads(copy.read_text("utf-8")), path.relative_to(ROOT).as_posix())


def executed(path: Path, kept: Path) -> dict[str, Any]:
    """Return a notebook with its outputs, ready for the site; it is executed where that is not kept.

    Args:
        path: of the notebook. kept: the folder of ``kept_in``.

    Raises:
        InputError: a cell failed, or the kernel did; the message names the notebook.
    """
    file = kept / name_for(path, ".json")
    if not file.exists():
        print(f"executing {path.relative_to(ROOT)}", flush=True)
        raw = run_notebook(path, kept / f"{path.stem}.html")
        made = for_readers(json.loads(raw.read_text("utf-8")), path.relative_to(ROOT).as_posix())
        raw.unlink()
        file.write_text(json.dumps(made, ensure_ascii=False), "utf-8")
    notebook: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return notebook


def for_readers(notebook: dict[str, Any], path: str) -> dict[str, Any]:
    """Return an executed notebook with the outputs that a page shows.

    Args:
        path: of the notebook, for the sentence in place of a dashboard.
    """
    notebook["metadata"].pop("widgets", None)
    drawn = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        shown = []
        for output in cell["outputs"]:
            if output["output_type"] in ("display_data", "execute_result"):
                data = output["data"]
                if FIGURE in data:
                    drawn += 1
                html = _html(data, path, f"figure-{drawn}")
                if html is None:
                    continue
                output["data"] = html
                output["metadata"] = {}
            elif output["output_type"] == "stream" and output["name"] == "stderr":
                continue  # progress, and warnings that name places in the code
            shown.append(output)
        cell["outputs"] = shown
    return notebook


def _html(data: Mapping[str, Any], path: str, name: str) -> dict[str, Any] | None:
    """Return the one form of an output that the page shows; None where it shows nothing."""
    if FIGURE in data:
        return {HTML: figures.html(name, data[FIGURE])}
    if WIDGET in data:  # ours have a form in HTML; bars of progress have none
        return {HTML: DASHBOARD.format(path=path)} if HTML in data else None
    html = "".join(data.get(HTML, ""))
    if html and (THEME.match(html) or "Plotly" in html):
        return None
    for form in (MARKDOWN, HTML, *PICTURES, PLAIN):
        if form in data:
            return {form: WRITTEN.sub(r"`\1`", "".join(data[form])) if form == MARKDOWN else data[form]}
    return None
