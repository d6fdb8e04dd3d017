"""Every plot with the older plotly, 6, from a folder of its own: built, as JSON, and drawn on one page in a browser."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from every_plot import every_plot
from fetched import fetched
from real_browser import drawn_page

from rlhfless.system.browser import find_browser

pytestmark = pytest.mark.full
HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.fixture(scope="module")
def plotly6() -> Path:
    """The folder with plotly 6."""
    return fetched("plotly>=6,<7", "plotly-6.*.dist-info")


@pytest.fixture(scope="module")
def built(plotly6: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the figures are with plotly 6."""
    folder = tmp_path_factory.mktemp("built")
    path = os.pathsep.join(map(str, (plotly6, ROOT, HERE.parent / "support")))
    command = [sys.executable, str(HERE / "plotly6_figures.py"), str(folder)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def test_every_figure_has_the_traces_that_it_has_with_the_newer_plotly(built: Path) -> None:
    found = json.loads((built / "figures.json").read_text("utf-8"))
    assert found["plotly"].startswith("6.")
    here = {name: [trace.type for trace in make().data] for name, make in every_plot("l40s").items()}
    assert found["types"] == here


@pytest.mark.skipif(find_browser() is None, reason="no Chromium here (apt-get install chromium)")
def test_a_page_draws_every_figure(built: Path) -> None:
    ours = drawn_page(built / "page.html").split('class="figure"')[1:]
    assert len(ours) == len(every_plot("l40s"))
    assert all('class="main-svg"' in figure for figure in ours)
