"""Makes docs/one_step.png and docs/explore.png, the pictures of the README: `make picture` (needs Chromium or Chrome).

one_step.png, left: the last step of the shipped run, planned and executed; right: the last four steps under every policy,
with the bound. explore.png: the dashboard `explore` on the same step, in a real JupyterLab.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import solver
from rlhfless.latency import load_profile
from rlhfless.plots import plot_plane, plot_timeline
from rlhfless.simulate import Setting, simulate
from rlhfless.trace import read_trace

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / "browser")]

from lab import Lab, browser, browser_path, missing, notebook, run_all, wait_drawn  # noqa: E402

LARGE = {"width": 1366, "height": 1500}  # JupyterLab cuts off what does not fit
STILL = {"displayModeBar": False}
POLICIES = ["static", "random", "least-loaded", "rlhfuse", "rlhfless", "fold", "solver", "oracle"]
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
]


def main() -> int:
    """Make both pictures."""
    if why := missing():
        print(why, file=sys.stderr)
        return 2
    for target in (one_step(ROOT / "docs" / "one_step.png"), dashboard(ROOT / "docs" / "explore.png")):
        print(f"wrote {target}")
    return 0


def one_step(target: Path) -> Path:
    """Draw both figures, put them side by side, take a screenshot."""
    trace = read_trace(ROOT / "data" / "traces" / "arithmetic-grpo")
    setting = Setting(solver.Cluster(2, 8, 1, "cpu"), load_profile("cpu-tiny-qwen2"), response_limit=320)
    results = simulate(trace.rollouts, setting, POLICIES, steps=trace.steps[-4:]).steps
    left = plot_timeline(trace, trace.steps[-1], roles=["decode"]).update_layout(width=760, height=520)
    right = plot_plane(results, note="last four steps of the shipped run").update_layout(width=760, height=520)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "picture.html")
        parts = [
            left.to_html(full_html=False, include_plotlyjs=True, config=STILL),
            right.to_html(full_html=False, include_plotlyjs=False, config=STILL),
        ]
        style = "margin:0;display:flex;background:#fff"
        page.write_text(f"<body style='{style}'><div>{parts[0]}</div><div>{parts[1]}</div></body>", encoding="utf-8")
        size = ["--window-size=1530,530", "--virtual-time-budget=15000", f"--user-data-dir={folder}/profile"]
        subprocess.run(
            [browser_path(), *FLAGS, *size, f"--screenshot={target}", page.as_uri()], check=True, capture_output=True
        )
    return target


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
            page.locator(".jp-OutputArea-output").last.screenshot(path=target)
    return target


if __name__ == "__main__":
    sys.exit(main())
