"""Makes docs/one_step.png and docs/explore.png, the pictures of README and guide: `make picture` (needs kaleido and Chromium).

one_step.png: the last step of the demonstration trace before (static) and after (planned by the solver), on one time axis, with
the cost of both and the bound. explore.png: the dashboard `explore` on the same step, in a real JupyterLab.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import rlhfless as rl
from rlhfless.plots import save, why_no_pictures

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / folder) for folder in ("browser", "support")]

from lab import Lab, missing, notebook, run_all, wait_drawn  # noqa: E402
from real_browser import browser  # noqa: E402

LARGE = {"width": 1600, "height": 1800}  # wide enough for all columns of the table; JupyterLab cuts off what does not fit
WHOLE_TABLE = ".rlhfless-scroll { max-height: none !important; }"
WIDTH = 960


def main() -> int:
    """Make both pictures."""
    if why := why_no_pictures() or missing():
        print(why, file=sys.stderr)
        return 2
    for target in (one_step(ROOT / "docs" / "one_step.png"), dashboard(ROOT / "docs" / "explore.png")):
        print(f"wrote {target}")
    return 0


def one_step(target: Path) -> Path:
    """Draw the last step of the demonstration trace before and after."""
    compared = rl.load(rl.example(), verbose=False).plan(step=-1).compare("static")
    return save(compared.plot().update_layout(width=WIDTH), target)


def dashboard(target: Path) -> Path:
    """Run `explore` in a notebook, take a screenshot."""
    with tempfile.TemporaryDirectory() as name, browser() as opened:
        folder, home = Path(name, "served"), Path(name, "home")
        folder.mkdir()
        home.mkdir()
        source = str(rl.example())
        notebook(folder / "explore.ipynb", f"from rlhfless.widgets import explore\nexplore({source!r})")
        page = opened.new_context(viewport=LARGE).new_page()
        with Lab(folder, home) as lab:
            lab.open(page, "explore.ipynb")
            run_all(page)
            wait_drawn(page, "plane", 1)
            page.add_style_tag(content=WHOLE_TABLE)
            page.locator(".jp-OutputArea-output").last.screenshot(path=target)
    return target


if __name__ == "__main__":
    sys.exit(main())
