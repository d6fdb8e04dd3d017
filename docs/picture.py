"""Makes docs/one_step.png, the picture of the README: `make picture` (needs kaleido and Chromium or Chrome).

Left: the last step of the shipped run, planned and executed. Right: the last four steps under every policy, with the bound.
"""

from __future__ import annotations

import base64
import sys
import tempfile
from pathlib import Path

import plotly.graph_objects as go

import solver
from rlhfless.figure_files import save, save_all
from rlhfless.latency import load_profile
from rlhfless.pictures import why_no_pictures
from rlhfless.plots import plot_plane, plot_timeline
from rlhfless.simulate import Setting, simulate
from rlhfless.trace import read_trace

ROOT = Path(__file__).parents[1]
POLICIES = ["static", "random", "least-loaded", "rlhfuse", "rlhfless", "fold", "solver", "oracle"]
WIDTH, HEIGHT = 760, 520


def main() -> int:
    """Draw both figures and put them side by side."""
    if why_not := why_no_pictures():
        print(why_not, file=sys.stderr)
        return 2
    trace = read_trace(ROOT / "data" / "traces" / "arithmetic-grpo")
    setting = Setting(solver.Cluster(2, 8, 1, "cpu"), load_profile("cpu-tiny-qwen2"), response_limit=320)
    results = simulate(trace.rollouts, setting, POLICIES, steps=trace.steps[-4:]).steps
    left = plot_timeline(trace, trace.steps[-1], roles=["decode"])
    right = plot_plane(results, note="last four steps of the shipped run")
    print(f"wrote {save(beside(left, right), ROOT / 'docs' / 'one_step.png')}")
    return 0


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
