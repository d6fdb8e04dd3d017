"""Where a Chromium or Chrome is on this machine: pictures of figures are drawn with it. Knows names; starts nothing."""

from __future__ import annotations

import os
import shutil

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find_browser() -> str | None:
    """The program that ``BROWSER_PATH`` names, or the first of ``BROWSERS`` that is installed; None where there is none."""
    paths = [os.environ.get("BROWSER_PATH"), *(shutil.which(name) for name in BROWSERS)]
    return next((path for path in paths if path and os.path.exists(path)), None)
