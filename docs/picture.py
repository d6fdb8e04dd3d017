"""Makes docs/one_step.png and docs/explore.png, the pictures of README and guide: `make picture` (needs kaleido and Chromium).

one_step.png, left: the last step of the shipped run, planned and executed; right: the last four steps under every policy,
with the bound. explore.png: the dashboard `explore` on the same step, in a real JupyterLab.
"""

from __future__ import annotations

import base64
import sys
import tempfile
from pathlib import Path

import plotly.graph_objects as go

import solver
from rlhfless.latency import load_profile
from rlhfless.plots import plot_plane, plot_timeline
from rlhfless.plots.export.files import save, save_all
from rlhfless.plots.export.render import why_no_pictures
from rlhfless.simulate import SimulationConfig, simulate
from rlhfless.trace import read_trace

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / folder) for folder in ("browser", "support")]

from lab import Lab, missing, notebook, run_all, wait_drawn  # noqa: E402
from real_browser import browser  # noqa: E402

LARGE = {"width": 1600, "height": 1800}  # wide enough for all columns of the table; JupyterLab cuts off what does not fit
WHOLE_TABLE = ".rlhfless-scroll { max-height: none !important; }"
POLICIES = ["static", "random", "least-loaded", "rlhfuse", "rlhfless", "fold", "solver", "oracle"]
WIDTH, HEIGHT = 760, 520


def main() -> int:
    """Make both pictures."""
    if why := why_no_pictures() or missing():
        print(why, file=sys.stderr)
        return 2
    for target in (one_step(ROOT / "docs" / "one_step.png"), dashboard(ROOT / "docs" / "explore.png")):
        print(f"wrote {target}")
    return 0


def one_step(target: Path) -> Path:
    """Draw both figures and put them side by side."""
    trace = read_trace(ROOT / "data" / "traces" / "arithmetic-grpo")
    setting = SimulationConfig(solver.Cluster(2, 8, 1, "cpu"), load_profile("cpu-tiny-qwen2"), max_response_tokens=320)
    results = simulate(trace.rollouts, setting, POLICIES, steps=trace.steps[-4:]).steps
    left = plot_timeline(trace, trace.steps[-1], roles=["decode"])
    right = plot_plane(results, note="last four steps of the shipped run")
    return save(beside(left, right), target)


def dashboard(target: Path) -> Path:
    """Run `explore` in a notebook, take a screenshot."""
    with tempfile.TemporaryDirectory() as name, browser() as opened:
        folder, home = Path(name, "served"), Path(name, "home")
        folder.mkdir()
        home.mkdir()
        source = str(ROOT / "data" / "traces" / "arithmetic-grpo")
        notebook(folder / "explore.ipynb", f"from rlhfless.widgets import explore\nexplore({source!r}, usd_per_gpu_hour=1.0)")
        page = opened.new_context(viewport=LARGE).new_page()
        with Lab(folder, home) as lab:
            lab.open(page, "explore.ipynb")
            run_all(page)
            wait_drawn(page, "plane", 1)
            page.add_style_tag(content=WHOLE_TABLE)
            page.locator(".jp-OutputArea-output").last.screenshot(path=target)
    return target


def beside(*figures: go.Figure) -> go.Figure:
    """Figures in one row, as a figure of their pictures."""
    with tempfile.TemporaryDirectory() as folder:
        sized = [figure.update_layout(width=WIDTH, height=HEIGHT) for figure in figures]
        files = save_all((figure, Path(folder, f"{i}.svg")) for i, figure in enumerate(sized))
        pictures = [base64.b64encode(file.read_bytes()).decode() for file in files]
    row = go.Figure(layout={"template": "none", "width": WIDTH * len(figures), "height": HEIGHT})
    row.update_layout(margin=dict.fromkeys("lrtb", 0))
    for i, picture in enumerate(pictures):
        row.add_layout_image(
            source=f"data:image/svg+xml;base64,{picture}", xref="paper", yref="paper", x=i / len(pictures), y=1,
            sizex=1 / len(pictures), sizey=1,
        )  # fmt: skip
    return row.update_xaxes(visible=False).update_yaxes(visible=False)


if __name__ == "__main__":
    sys.exit(main())
