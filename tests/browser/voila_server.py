"""Voila over the notebook of the dashboard, as `make dashboard` serves it.

Knows Voila's command; nothing of what is on the page.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab import ROOT, wait_drawn
from real_browser import PATIENCE_S


def open_dashboard(page: Any, address: str, *panes: str, request: int = 1) -> None:
    """Open a page with these panes, and again where a busy machine lost one of its requests, as the page itself then says.

    Args:
        request: the first one that the panes' figures answer; 0 where nobody asks for them.
    """
    from playwright.sync_api import TimeoutError as NotInTime

    for _ in range(3):
        page.goto(address)
        with contextlib.suppress(NotInTime):
            for name in panes:
                wait_drawn(page, name, request, PATIENCE_S / 3)
            return
    pytest.fail(f"the dashboard is not drawn; the page says: {page.locator('body').inner_text()}; errors: {page.errors}")


@contextlib.contextmanager
def served(
    home: Path, log: Path | None = None, notebook: Path = Path("notebooks/dashboard.ipynb")
) -> Iterator[tuple[str, str]]:
    """The address of the dashboard as `make dashboard` serves it, or of another notebook, and its token."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    token, address = secrets.token_hex(16), f"http://127.0.0.1:{port}/"
    options = ["--Voila.ip=127.0.0.1", "--Voila.auto_token=True", "--no-browser", f"--port={port}"]
    options += ["--VoilaExecutor.iopub_timeout=120", "--VoilaExecutor.startup_timeout=300"]
    command = [sys.executable, "-m", "voila", *options, str(notebook)]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    own = {"JUPYTER_PATH": f"{sys.prefix}/share/jupyter", "JUPYTER_RUNTIME_DIR": str(home), "JUPYTER_TOKEN": token}
    env = {**os.environ, **own, "PYTHONPATH": path}
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
