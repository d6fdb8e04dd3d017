"""A test run of two calls of pytest: what is made once, what its last lines say, and which tiers its tests are of."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from error_messages import refused
from shared_run import VARIABLE, made_once
from tiers import check_tier

SUPPORT = Path(__file__).parent / "support"
CONFTEST = "from skip_summary import pytest_sessionfinish"
TESTS = """
import pytest

@pytest.mark.parametrize("n", [1, 2])
def test_one(n):
    pytest.skip("no GPU here")

@pytest.mark.skipif(True, reason="no Chromium\\n  here")
def test_alone():
    pass

def test_passes():
    pass
"""


def call(folder: Path, run: Path, *options: str) -> list[str]:
    """The last lines of one call of pytest."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(folder)]
    done = subprocess.run(
        [*command, *options, str(folder)], capture_output=True, text=True, check=False,
        env={**os.environ, VARIABLE: str(run), "PYTHONPATH": str(SUPPORT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.rstrip().splitlines()


@pytest.mark.full
def test_the_last_lines_say_what_both_calls_skipped_and_why(tmp_path: Path) -> None:
    folder, run = tmp_path / "tests", tmp_path / "run"
    folder.mkdir()
    run.mkdir()
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_some.py").write_text(TESTS)
    (folder / "test_none.py").write_text("import pytest\npytest.importorskip('nothing', reason='nothing is not installed')")
    assert call(folder, run, "-k", "passes", "--ignore", str(folder / "test_none.py"))[-1] == "skipped: nothing"
    first = call(folder, run, "-k", "not alone", "-n", "2")
    assert first[-3:] == ["skipped, and why:", "  2 tests: no GPU here", "  1 whole file: nothing is not installed"]
    second = call(folder, run, "-k", "alone")
    assert second[-4:-1] == ["skipped, and why:", "  2 tests: no GPU here", "  1 test: no Chromium here"]
    assert second[-1] == "  1 whole file: nothing is not installed", "of both calls, once"


def test_what_is_made_once_is_waited_for_and_a_failure_is_tried_again(tmp_path: Path) -> None:
    made: list[Path] = []

    def make(place: Path) -> None:
        made.append(place)
        time.sleep(0.05)
        (place / "file").write_text(str(len(made)))
        if len(made) == 1:
            raise OSError("disk full")

    with refused(OSError):
        made_once(tmp_path / "it", make)
    threads = [threading.Thread(target=made_once, args=(tmp_path / "it", make)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 2
    assert (tmp_path / "it" / "file").read_text() == "2"


@pytest.mark.parametrize("marks", [(), ("full",), ("nightly",), ("full", "alone")])
def test_a_test_is_of_one_tier(marks: tuple[str, ...]) -> None:
    item: Any = SimpleNamespace(nodeid="test_it", get_closest_marker=lambda name: name if name in marks else None)
    check_tier(item)
    marks = ("full", "nightly")
    with refused(pytest.UsageError, "test_it"):
        check_tier(item)
