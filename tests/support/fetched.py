"""Packages in other versions than the environment's, each in a folder of its own under ``out``."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

OUT = Path(__file__).parents[2] / "out"


def fetched(requirement: str, there: str) -> Path:
    """The folder with a package, without what it needs; fetched once for a checkout.

    Args:
        requirement: as pip takes it, ``plotly>=6,<7``.
        there: a name in the folder by which it is known that the package is there, ``plotly-6.*.dist-info``.

    The test is skipped where the package cannot be fetched.
    """
    folder = OUT / re.sub(r"\W+", "-", requirement).strip("-")
    if not list(folder.glob(there)):
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1", "--no-deps"]
        command = [*pip, "--upgrade", "--target", str(folder), requirement]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"{requirement} cannot be fetched with pip (exit code {done.returncode})")
    return folder
