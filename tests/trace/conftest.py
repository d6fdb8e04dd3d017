"""Fixtures of the trace tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_samples import step

from rlhfless.trace import Trace, TraceWriter


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A trace folder of the steps 0 and 1."""
    writer = TraceWriter(tmp_path / "trace", {"policy": "static", "seeds": [1, 2]})
    writer.append_step(**step(0))
    writer.append_step(**step(1))
    writer.close()
    return writer.folder


@pytest.fixture
def trace() -> Trace:
    """The same two steps in memory, made without files."""
    steps = [step(0), step(1)]
    tables = {table: steps[0][table] + steps[1][table] for table in ("rollouts", "allocations", "spans", "events")}
    return Trace(**tables, meta={"policy": "static"})
