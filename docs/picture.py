"""Makes docs/one_step.png, the picture of the README: `make picture` (needs Chromium or Chrome).

Left: the last step of the shipped run, planned and executed. Right: the last four steps under every policy, with the bound.
"""

from __future__ import annotations

import shutil
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
    """Draw both figures, put them side by side, take a screenshot."""
    browser = next((found for name in ("chromium", "google-chrome", "chrome") if (found := shutil.which(name))), None)
    if browser is None:
        print("no Chromium or Chrome found; install one to make the picture", file=sys.stderr)
        return 2
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
        target = ROOT / "docs" / "one_step.png"
        size = ["--window-size=1530,530", "--virtual-time-budget=15000", f"--user-data-dir={folder}/profile"]
        subprocess.run([browser, *FLAGS, *size, f"--screenshot={target}", page.as_uri()], check=True, capture_output=True)
    print(f"wrote {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
