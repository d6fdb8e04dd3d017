"""What a test run skipped and why, as the last lines of its output, over all calls of pytest in the run.

Knows pytest's reports and the folder of the run (``shared_run``); nothing of the tests.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from shared_run import VARIABLE

FILE = "skipped.json"


def skipped_in(reports: list[Any]) -> dict[str, set[str]]:
    """Group skipped tests, and files that were skipped as a whole, by their reason.

    Returns:
        Reason to node ids.
    """
    found: dict[str, set[str]] = {}
    for report in reports:
        said = report.longrepr[2] if isinstance(report.longrepr, tuple | list) else str(report.longrepr)
        found.setdefault(" ".join(said.removeprefix("Skipped: ").split()), set()).add(report.nodeid)
    return found


def with_calls_before(found: Mapping[str, set[str]], folder: Path) -> dict[str, set[str]]:
    """Add what earlier calls of pytest left in the run's folder, and leave the sum there for later ones."""
    file = folder / FILE
    together = {reason: set(ids) for reason, ids in (json.loads(file.read_text("utf-8")) if file.exists() else {}).items()}
    for reason, ids in found.items():
        together.setdefault(reason, set()).update(ids)
    file.write_text(json.dumps({reason: sorted(ids) for reason, ids in together.items()}), encoding="utf-8")
    return together


def lines(found: Mapping[str, set[str]]) -> list[str]:
    """Say how many tests and files were skipped for which reason, the most frequent first."""
    if not found:
        return ["skipped: nothing"]
    said = ["skipped, and why:"]
    for reason, ids in sorted(found.items(), key=lambda item: (-len(item[1]), item[0])):
        tests = sum("::" in one for one in ids)
        counts = [(tests, "test"), (len(ids) - tests, "whole file")]
        said.append("  " + " and ".join(f"{n} {what}{'s' * (n != 1)}" for n, what in counts if n) + f": {reason}")
    return said


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """Write the lines after everything that pytest says itself; worker processes have no reporter and say nothing."""
    result = yield
    reporter: Any = session.config.pluginmanager.get_plugin("terminalreporter")
    in_run = VARIABLE in os.environ
    if reporter is not None and not session.config.option.collectonly:
        found = skipped_in(reporter.stats.get("skipped", []))
        if in_run:
            found = with_calls_before(found, Path(os.environ[VARIABLE]))
        if found or in_run:
            reporter.ensure_newline()
            for line in lines(found):
                reporter.write_line(line)
    return result
