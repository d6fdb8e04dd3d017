"""The dashboard as a page of Voila, in a real browser: sliders without code, for whoever has the token."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lab import ROOT, pane, wait_drawn
from real_browser import PATIENCE_S

pytest.importorskip("voila", reason="voila is not installed (pip install 'rlhfless[dev]')")
pytestmark = [pytest.mark.full, pytest.mark.timeout(1800)]


@contextlib.contextmanager
def served(home: Path, log: Path | None = None) -> Iterator[tuple[str, str]]:
    """The address of the dashboard as `make dashboard` serves it, and its token."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    token, address = secrets.token_hex(16), f"http://127.0.0.1:{port}/"
    options = ["--Voila.ip=127.0.0.1", "--Voila.auto_token=True", "--no-browser", f"--port={port}"]
    options += ["--VoilaExecutor.iopub_timeout=120", "--VoilaExecutor.startup_timeout=300"]
    command = [sys.executable, "-m", "voila", *options, "notebooks/dashboard.ipynb"]
    own = {"JUPYTER_PATH": f"{sys.prefix}/share/jupyter", "JUPYTER_RUNTIME_DIR": str(home), "JUPYTER_TOKEN": token}
    env = {**os.environ, **own, "PYTHONPATH": str(ROOT)}
    if log is not None:
        env["RLHFLESS_LOG"] = str(log)
    with open(home / "voila.log", "w", encoding="utf-8") as told:
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=told, stderr=subprocess.STDOUT)
    try:
        until = time.monotonic() + PATIENCE_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            assert process.poll() is None, (home / "voila.log").read_text("utf-8")
            assert time.monotonic() < until, "Voila did not start"
            time.sleep(0.2)
        yield address, token
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(20)


def test_a_slider_moves_on_a_page_without_code(page: Any, picture: Callable, tmp_path: Path) -> None:
    with served(tmp_path) as (address, token):
        page.route(lambda url: not url.startswith(address), lambda route: route.abort())  # Voila asks a network for icons
        page.goto(f"{address}?token={token}")
        for name in ("timeline", "plane", "responses"):
            wait_drawn(page, name, 1)
        shown = page.evaluate("which => document.querySelector(which)._fullData.map((one) => one.name)", pane("plane"))
        assert {"this plan, executed", "static"} <= set(shown)
        assert page.locator("text=from rlhfless.widgets import explore").count() == 0
        before = page.locator(pane("facts")).inner_text()
        slider = page.get_by_role("slider").first
        slider.focus()
        for _ in range(6):
            page.keyboard.press("ArrowLeft")
        page.wait_for_function(
            "([which, before]) => document.querySelector(which).innerText !== before", arg=[pane("facts"), before]
        )
        wait_drawn(page, "plane", 2)
        assert page.errors == []
        picture(page.locator("body"), "voila")


def test_without_the_token_there_is_a_login_only(tmp_path: Path) -> None:
    with served(tmp_path) as (address, token):
        for path in ("", "?token=" + "0" * len(token), "api/kernels"):
            with urllib.request.urlopen(address + path, timeout=240) as answer:
                assert answer.url.startswith(f"{address}login?next=")
                assert b"What if" not in answer.read()
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"{address}voila/files/07_what_if.ipynb", timeout=240)


def test_a_log_that_cannot_be_read_is_refused_in_a_sentence(page: Any, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    with served(tmp_path, tmp_path / "log.csv") as (address, token):
        page.goto(f"{address}?token={token}")
        told = page.wait_for_selector("text=cannot be explored", timeout=1e3 * PATIENCE_S).inner_text()
        assert "log.csv" in told
        assert "Traceback" not in page.locator("body").inner_text()
