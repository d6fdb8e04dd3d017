"""Finds a Chromium or Chrome on this machine, which draws the pictures of figures. Starts no process."""

from __future__ import annotations

import os
import shutil

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find_browser() -> str | None:
    """Return the program that ``BROWSER_PATH`` names, or the first installed of ``BROWSERS``; None where there is none."""
    paths = [os.environ.get("BROWSER_PATH"), *(shutil.which(name) for name in BROWSERS)]
    return next((path for path in paths if path and os.path.exists(path)), None)
