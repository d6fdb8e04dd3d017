"""A real JupyterLab on loopback and a real browser: what the browser tests and the dashboards' benchmark share.

Knows JupyterLab's settings and Playwright; nothing of what is on the pages.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from open_pages import keeping_errors
from real_browser import PATIENCE_S

from rlhfless.system.browser import BROWSERS, find_browser

ROOT = Path(__file__).parents[2]
WIDE, TALL = {"width": 1440, "height": 900}, {"width": 1440, "height": 1900}
LAPTOP = {"width": 1366, "height": 768}
LIGHT, DARK = "JupyterLab Light", "JupyterLab Dark"


def missing() -> str:
    """Why there can be no browser test here, in a sentence; the empty text where there can."""
    for name in ("jupyterlab", "playwright"):  # not imported: every process that collects tests would wait for it
        if find_spec(name) is None:
            return f"no browser tests: {name} is not installed (pip install 'rlhfless[notebook,dev]')"
    if find_browser() is None:
        return f"no browser tests: none of {', '.join(BROWSERS)} is installed (apt-get install chromium)"
    return ""


class Lab:
    """JupyterLab over a folder, on a random port with a random token.

    Attributes:
        folder: what is served; url: with the token.
    """

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder = folder
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port = found.getsockname()[1]
        self.token = secrets.token_hex(16)
        self._log = open(home / "jupyterlab.log", "w", encoding="utf-8")  # noqa: SIM115 (closed in close)
        settings = home / "settings"
        for plugin, values in (
            ("apputils-extension/notification", {"fetchNews": "false", "checkForUpdates": False}),
            ("apputils-extension/themes", {"theme": LIGHT}),
            ("notebook-extension/tracker", {"windowingMode": "none", "maxNumberOutputs": 1000}),
        ):
            path = settings / "@jupyterlab" / f"{plugin}.jupyterlab-settings"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(values), encoding="utf-8")
        own = {name: str(home / name.lower()) for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR")}
        self._data = own["JUPYTER_DATA_DIR"]
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        options = [
            "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={self.port}", "--ServerApp.port_retries=0",
            f"--ServerApp.root_dir={folder}", f"--LabApp.user_settings_dir={settings}", "--LabApp.expose_app_in_browser=True",
            f"--LabApp.workspaces_dir={home / 'workspaces'}", "--JupyterNotebookApp.expose_app_in_browser=True",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", *options],
            env={**os.environ, **own, "JUPYTER_TOKEN": self.token, "PYTHONPATH": path, "JUPYTER_PLATFORM_DIRS": "1"},
            stdout=self._log, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._wait()

    def _wait(self) -> None:
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            if self._process.poll() is not None:
                break
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api?token={self.token}", timeout=2).close()
                return
            time.sleep(0.2)
        told = Path(self._log.name).read_text("utf-8")
        self.close()
        raise RuntimeError(f"JupyterLab did not start: {told[-2000:]}")

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server and its kernels."""
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(20)
        self._log.close()

    def trust(self, notebook: str) -> None:
        """Sign a notebook that was executed elsewhere, so that its outputs are shown as if they had come from its kernel."""
        import nbformat
        from nbformat.sign import NotebookNotary

        Path(self._data).mkdir(parents=True, exist_ok=True)
        NotebookNotary(data_dir=self._data).sign(nbformat.read(self.folder / notebook, as_version=4))

    def open(self, page: Any, notebook: str, view: str = "doc/tree") -> None:
        """Open a notebook by its path under the folder, and wait until its kernel is there.

        Args:
            view: ``doc/tree`` is JupyterLab, ``notebooks`` is Notebook 7.
        """
        page.goto(f"http://127.0.0.1:{self.port}/{view}/{notebook}?token={self.token}")
        self.wait_ready(page)

    def wait_ready(self, page: Any) -> None:
        """Wait until the notebook on the page has its cells and an idle kernel."""
        page.wait_for_function("window.jupyterapp !== undefined", timeout=1e3 * PATIENCE_S)
        page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=1e3 * PATIENCE_S)
        page.wait_for_function(
            "() => { const w = window.jupyterapp.shell.currentWidget;"
            " return w && w.context && w.context.isReady && w.sessionContext.isReady && w.sessionContext.session"
            " && w.sessionContext.session.kernel && w.sessionContext.session.kernel.status === 'idle'; }",
            timeout=1e3 * PATIENCE_S,
        )


def another_tab(page: Any) -> Any:
    """Close a tab and return an empty one of the same browser; it keeps the list of errors."""
    later = keeping_errors(page.context.new_page(), page.errors)
    page.close()
    return later


@contextlib.contextmanager
def dark(page: Any) -> Iterator[None]:
    """JupyterLab in dark colours, and light again afterwards: all pages of the server share the setting."""
    try:
        change_theme(page, DARK)
        yield
    finally:
        change_theme(page, LIGHT)


def change_theme(page: Any, theme: str) -> None:
    """Choose the colours of JupyterLab, and wait until the page has them."""
    page.evaluate("(theme) => window.jupyterapp.commands.execute('apputils:change-theme', {theme})", theme)
    page.wait_for_function("(theme) => document.body.dataset.jpThemeName === theme", arg=theme, timeout=1e3 * PATIENCE_S)


def run_all(page: Any, timeout_s: float = PATIENCE_S) -> None:
    """Run all cells of the notebook that is open, and wait until they have.

    Raises:
        AssertionError: a cell failed; the message has what it said.
    """
    page.evaluate("() => { window.ran = false; window.jupyterapp.commands.execute('notebook:run-all-cells')"
                  ".finally(() => { window.ran = true; }); }")  # fmt: skip
    page.wait_for_function("window.ran === true", timeout=1e3 * timeout_s)
    said = page.locator(".jp-Notebook .jp-RenderedText[data-mime-type='application/vnd.jupyter.stderr']").all_inner_texts()
    errors = page.locator("[data-mime-type='application/vnd.jupyter.error']").all_inner_texts()
    assert not errors, errors
    failed = [text for text in said if "Traceback" in text]
    assert not failed, failed


def run_cell(page: Any, index: int, timeout_s: float = PATIENCE_S) -> str:
    """Run one cell of the notebook that is open, wait until it has, and return what its output says.

    Raises:
        AssertionError: it failed; the message has what it said.
    """
    page.evaluate(
        "(index) => { window.ran = false; const app = window.jupyterapp, notebook = app.shell.currentWidget.content;"
        " notebook.activeCellIndex = index; notebook.deselectAll();"
        " app.commands.execute('notebook:run-cell').finally(() => { window.ran = true; }); }",
        index,
    )
    page.wait_for_function("window.ran === true", timeout=1e3 * timeout_s)
    cell = page.locator(".jp-Notebook .jp-Cell").nth(index)
    errors = cell.locator("[data-mime-type='application/vnd.jupyter.error']").all_inner_texts()
    assert not errors, errors
    return str(cell.locator(".jp-Cell-outputArea").inner_text())


def notebook(path: Path, *cells: str) -> Path:
    """A notebook of code cells."""
    import nbformat

    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    made.metadata["kernelspec"] = {"display_name": "Python 3", "language": "python", "name": "python3"}
    nbformat.write(made, path)
    return path


def pane(name: str) -> str:
    """The selector of a dashboard's pane."""
    return f".rlhfless-panes [data-pane='{name}']"


def wait_drawn(page: Any, name: str, request: int = 0, timeout_s: float = PATIENCE_S) -> None:
    """Wait until a pane shows a figure for this request or a later one, and is not grey."""
    page.wait_for_function(
        "([which, request]) => { const div = document.querySelector(which); return div && div.dataset.drawn"
        " && Number(div.dataset.request) >= request && !div.parentElement.classList.contains('rlhfless-stale')"
        " && getComputedStyle(div.parentElement).opacity === '1'; }",
        arg=[pane(name), request],
        timeout=1e3 * timeout_s,
    )


def wait_text(page: Any, name: str, text: str, timeout_s: float = PATIENCE_S) -> None:
    """Wait until a pane says this."""
    page.wait_for_function(
        "([which, text]) => (document.querySelector(which) || {innerText: ''}).innerText.includes(text)",
        arg=[pane(name), text],
        timeout=1e3 * timeout_s,
    )


def card(page: Any, name: str) -> str:
    """What a card of the facts says."""
    return str(page.locator(f"{pane('facts')} .rlhfless-card:has(span:text-is('{name}')) b").inner_text())


def shown_request(page: Any, name: str) -> int:
    """The request that a pane's figure answers."""
    return int(page.locator(pane(name)).first.get_attribute("data-request") or 0)


COUNT = """
window.seen = {steps: {}, learning: {}, cards: [], states: []};
window.counts = setInterval(() => {
  const [timeline, cost, facts] = ["timeline", "cost", "facts"].map((name) => document.querySelector(`[data-pane='${name}']`));
  if (!timeline || !cost || !facts) return;
  const {steps, learning, cards, states} = window.seen;
  const note = (list, what) => { if (list.at(-1) !== what) list.push(what); };
  const step = /of step (\\d+)/.exec(timeline.querySelector(".gtitle")?.textContent || "")?.[1];
  if (step && timeline.dataset.drawn !== window.drawn) {
    window.drawn = timeline.dataset.drawn;
    steps[step] = (steps[step] || 0) + 1;
    if ((timeline._fullData || []).some((one) => one.name === "learn")) learning[step] = (learning[step] || 0) + 1;
  }
  const symbols = [cost._fullData?.[0]?.marker.symbol || []].flat();
  const complete = /complete steps\\s+(\\d+)/.exec(facts.innerText), state = /state\\s+(\\w+)/.exec(facts.innerText);
  note(cards, `${complete?.[1]} ${symbols.filter((one) => one === "circle").length}`);
  note(states, state?.[1]);
}, 50);
"""


def count_drawings(page: Any) -> None:
    """Begin to count what a live view on the page draws."""
    page.evaluate(COUNT)


def counted_drawings(page: Any) -> dict[str, Any]:
    """What was counted since then.

    Returns:
        ``steps``: of each step, how often its timeline was drawn; ``learning``: how often with the learner's row.
        ``cards``: the numbers of complete steps in cards and in the cost, one after the other. ``states``: those of the run.
    """
    return dict(page.evaluate("window.seen"))
