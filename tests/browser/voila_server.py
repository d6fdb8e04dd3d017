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

from lab import ROOT
from real_browser import PATIENCE_S


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
