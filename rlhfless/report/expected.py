"""What levers of a diagnosis are expected to save, by simulation: only where the profile was checked on the run's own steps."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rlhfless.report.study import LoggedRunFindings

WAYS = {"partial rollout": "partial rollout", "over-sampling": "over-sampling", "asynchrony": "asynchronous"}
"""Kind of lever -> the way that simulates it, whose saving is of time."""
RELEASED = "right-sized, released"


def expected_savings(findings: LoggedRunFindings) -> Mapping[str, tuple[float, float]]:
    """Return the range of what levers save, by kind, as shares of the run's time or GPU-hours.

    Nothing where the profile was not checked on held-out steps, or predicts them no better than a constant. Each range is
    widened by the largest error on held-out steps: a simulated time may be off by so much.
    """
    checked = findings.calibrated.checked
    if checked is None or len(checked.seconds) < 2 or findings.calibrated.by_constant or findings.drawn:
        return {}
    error = float(np.max(checked.errors))
    found = {}
    if findings.ways is not None:
        ways = {way.name: findings.ways.saved(way) for way in findings.ways.ways}
        found = {kind: _widened(ways[name][0], ways[name][0], error) for kind, name in WAYS.items() if name in ways}
        if RELEASED in ways:
            found["release"] = _widened(ways[RELEASED][1], ways[RELEASED][1], error)
    if len(findings.tied):
        row = findings.tied.iloc[0]
        found["assignment"] = _widened(float(row["GPU-seconds low"]), float(row["GPU-seconds high"]), error)
    return found


def _widened(low: float, high: float, error: float) -> tuple[float, float]:
    """Return a range of savings whose simulated times are off by a relative error; none saves more than everything."""
    return 1.0 - (1.0 - low) * (1.0 + error), min(1.0, 1.0 - (1.0 - high) * (1.0 - error))
