"""Tests that run side by side: a test that ends its process fails, once, and all others run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parent / "support"
FILES, TESTS = 4, 3
FILE = """
import os
import signal
import pytest


@pytest.mark.parametrize("i", range({tests}))
def test_one(i):
    with open({log!r}, "a") as file:
        print({name!r}, i, file=file)
    if i in {ends}:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("ends", [{0: [0, 2]}, {3: [2]}, {1: [1], 3: [0]}], ids=["first file", "last test", "two files"])
def test_a_test_that_ends_its_process_fails_once_and_all_others_run(tmp_path: Path, ends: dict[int, list[int]]) -> None:
    """Also where the other processes were told to finish before: the run ends, and says which tests those are."""
    log = tmp_path / "ran"
    (tmp_path / "conftest.py").write_text(f"""
import sys
sys.path.insert(0, {str(SUPPORT)!r})
from side_by_side import pytest_xdist_make_scheduler
""")
    for file in range(FILES):
        text = FILE.format(tests=TESTS, log=str(log), name=file, ends=tuple(ends.get(file, ())))
        (tmp_path / f"test_file_{file}.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    failed = {f"test_file_{file}.py::test_one[{i}]" for file, positions in ends.items() for i in positions}
    assert done.returncode == 1, done.stdout + done.stderr
    assert {
        line.split()[4].rstrip(";") for line in done.stdout.splitlines() if line.startswith("a process ended in ")
    } == failed
    assert {line.split()[1] for line in done.stdout.splitlines() if line.startswith("FAILED")} == failed
    assert sorted(log.read_text().splitlines()) == [f"{file} {i}" for file in range(FILES) for i in range(TESTS)]
