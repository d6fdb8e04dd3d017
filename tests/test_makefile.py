"""`make` finds a Python that it can use, and says so; where there is none it says what to type."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NAMES = ("python3.11", "python3.12", "python3.13", "python3")

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def run_make(folder: Path, works: tuple[str, ...], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Call make where only the Pythons named work; the others are names on the path that fail when they are run."""
    for name in NAMES:
        body = f'exec {sys.executable} "$@"' if name in works else f"echo '{name}: command not found' >&2; exit 127"
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    # what stands on the command line of the make that runs these tests reaches this one by the environment
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE") and name != "PYTHON"}
    environment["PATH"] = f"{folder}{os.pathsep}{environment['PATH']}"
    command = ["make", f"VENV={folder / 'environment'}", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("works", "taken"),
    [
        (NAMES, "python3.11"),
        (("python3.12", "python3.13"), "python3.12"),
        (("python3.13",), "python3.13"),
        (("python3",), "python3"),
    ],
)
def test_the_first_python_that_runs_is_taken(works: tuple[str, ...], taken: str, tmp_path: Path) -> None:
    planned = run_make(tmp_path, works, "--dry-run", "run")
    assert planned.returncode == 0, planned.stderr
    assert f"{taken} -m venv {tmp_path / 'environment'}" in planned.stdout.splitlines()


@pytest.mark.parametrize("named", [(), ("PYTHON=python3.12",)])
def test_without_a_python_that_runs_make_says_what_to_type_and_makes_nothing(named: tuple[str, ...], tmp_path: Path) -> None:
    refused = run_make(tmp_path, (), *named, "run")
    assert refused.returncode == 2
    for part in ("3.11, 3.12 or 3.13", "make PYTHON=PATH", *(name.removeprefix("PYTHON=") for name in named)):
        assert part in refused.stdout
    assert not (tmp_path / "environment").exists()
