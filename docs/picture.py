"""Makes all pictures of README and docs: `make picture` (needs kaleido, JupyterLab and Chromium).

one_step.png: what README's own code plots. The last step of the demonstration trace before (static) and after (planned by the
solver), on one time axis, with the cost of both and the bound. Its texts and the picture's SHA-256 are in one_step.json: a test
compares both with what the code gives. The plan is made by counted work, so every machine gives the same texts.
explore.png: the dashboard of `run.explore()` on the same step, in a real JupyterLab; explore.json likewise.
planning.svg: what planning_picture.py draws. It is text, which a test compares whole.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

import rlhfless as rl
from rlhfless.plots import plain, save, why_no_pictures

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / folder) for folder in ("browser", "support")]
sys.path.insert(0, str(ROOT / "docs"))

import planning_picture  # noqa: E402
from lab import Lab, missing, notebook, run_all, wait_drawn  # noqa: E402
from real_browser import browser  # noqa: E402

LARGE = {"width": 1600, "height": 1800}  # wide enough for all columns of the table; JupyterLab cuts off what does not fit
WHOLE_TABLE = ".rlhfless-scroll { max-height: none !important; }"
WIDTH = 960
TAG = re.compile(r"<[^>]+>")
SECONDS = re.compile(r" planned and simulated in [\d.]+ s")  # on this machine


def main() -> int:
    """Make all pictures."""
    planning_picture.main()
    if why := why_no_pictures() or missing():
        print(why, file=sys.stderr)
        return 2
    for target in (one_step(ROOT / "docs" / "one_step.png"), dashboard(ROOT / "docs" / "explore.png")):
        print(f"wrote {target}")
    return 0


def readme_figure(readme: str) -> go.Figure:
    """Run README's Python code up to the line that makes ``comparison``, and return the figure of the comparison.

    Raises:
        ValueError: README has no such line.
    """
    for code in re.findall(r"```python\n(.*?)```", readme, re.DOTALL):
        statements = ast.parse(code).body
        made = [i for i, one in enumerate(statements) if isinstance(one, ast.Assign) and _names(one) == ["comparison"]]
        if made:
            names: dict[str, Any] = {}
            exec(compile(ast.Module(statements[: made[0] + 1], []), "README.md", "exec"), names)
            figure: go.Figure = names["comparison"].plot()
            return figure
    raise ValueError("README.md has no Python code that makes `comparison`")


def _names(assignment: ast.Assign) -> list[str]:
    return [target.id for target in assignment.targets if isinstance(target, ast.Name)]


def told(figure: go.Figure) -> dict[str, Any]:
    """Return what the figure says in numbers: its title, the headings of its panels, and the texts at its bars."""
    bars = [plain(text) for bar in figure.data if bar.type == "bar" and bar.text is not None for text in bar.text]
    return {
        "title": plain(figure.layout.title.text),
        "headings": [plain(n.text) for n in figure.layout.annotations],
        "bars": bars,
    }


def one_step(target: Path) -> Path:
    """Draw the figure of README's code, and record what it says beside it."""
    figure = readme_figure((ROOT / "README.md").read_text("utf-8"))
    save(figure.update_layout(width=WIDTH), target)
    return recorded(target, told(figure))


def recorded(picture: Path, texts: Mapping[str, Any]) -> Path:
    """Write what a picture says, with the picture's SHA-256, beside it; return the picture's path."""
    record = {"sha256": hashlib.sha256(picture.read_bytes()).hexdigest(), **texts}
    picture.with_suffix(".json").write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return picture


def dashboard_texts() -> dict[str, str]:
    """Return what the dashboard says in numbers: its cards, the table of actors, and the titles of its figures."""
    explorer = rl.load(rl.example(), verbose=False).explore()
    if not explorer.wait(600):
        raise TimeoutError("the dashboard's plan took more than 600 s")
    panes = explorer.panes
    texts = {name: " ".join(TAG.sub(" ", getattr(panes, f"pane_{name}")).split()) for name in ("facts", "actors")}
    titles = {
        name: plain(json.loads(getattr(panes, f"pane_{name}"))["layout"]["title"]["text"]) for name in ("timeline", "plane")
    }
    return {**texts, "facts": SECONDS.sub("", texts["facts"]), **titles}


def dashboard(target: Path) -> Path:
    """Run `run.explore()` in a notebook, take a screenshot, and record what the dashboard says beside it."""
    with tempfile.TemporaryDirectory() as name, browser() as opened:
        folder, home = Path(name, "served"), Path(name, "home")
        folder.mkdir()
        home.mkdir()
        source = str(rl.example())
        notebook(folder / "explore.ipynb", f"import rlhfless as rl\nrl.load({source!r}, verbose=False).explore()")
        page = opened.new_context(viewport=LARGE).new_page()
        with Lab(folder, home) as lab:
            lab.open(page, "explore.ipynb")
            run_all(page)
            wait_drawn(page, "plane", 1)
            page.add_style_tag(content=WHOLE_TABLE)
            page.locator(".jp-OutputArea-output").last.screenshot(path=target)
    return recorded(target, dashboard_texts())


if __name__ == "__main__":
    sys.exit(main())
