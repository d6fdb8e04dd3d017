"""Measures in a step how much slower actors decode while the learner works beside them, and the learner beside actors.

Decode spans and learn items of the step's record are followed together: processes that compute get equal shares of the cores.
What a span took beyond its share, against the same passes without the learner, is contention. Seconds of passes without the
learner are those of the profile times a scale, which steps without learning beside actors measure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from solver.model.latency import LatencyModel
from solver.model.workload import FloatArray

MOST = 4.0  # that a factor is taken for: in a short overlap the rest of the step decides it
LEAST_BESIDE_S = 0.05  # of decoding beside the learner, below which nothing is measured


class Busy(NamedTuple):
    """A time in which a process computes, and the seconds that it is expected to take alone on a core."""

    start_s: float
    end_s: float
    alone_s: float


@dataclass(frozen=True)
class Slowdown:
    """What one step measured.

    Attributes:
        scale: measured seconds of decoding alone over the profile's. None: the learner worked beside actors.
        unshared_scale: the same of seconds as if the cores were unshared, also beside the learner.
        decoding, learning: factors as in ``solver.stage_fusion.shared_cores.CoreContention``. None: too little was beside.
    """

    scale: float | None = None
    unshared_scale: float | None = None
    decoding: float | None = None
    learning: float | None = None


def decoded(spans: Iterable[Mapping[str, Any]], latency: LatencyModel) -> list[Busy]:
    """Return the decode spans of a step with the profile's seconds of their passes, at equal batch."""
    found = []
    for span in spans:
        if span["phase"] != "decode" or not span["tokens"]:
            continue
        batch = max(float(span["batch_mean"]), 1.0)
        drafts = json.loads(span["detail"]) if isinstance(span.get("detail"), str) else {}
        passes = (span["tokens"] - drafts.get("accepted", 0)) / batch
        fed = batch + drafts.get("drafted", 0) / max(passes, 1.0)
        pass_s = float(latency.affine.iteration_s(fed, float(span["kv_tokens"])))
        found.append(Busy(span["start_s"], span["end_s"], passes * pass_s))
    return found


def slowdown(decoding: Sequence[Busy], learning: Sequence[Busy], cores: int, scale: float | None = None) -> Slowdown:
    """Return what a step measured.

    Args:
        decoding: in seconds of the profile. learning: in measured seconds of a core. cores: that all of them share.
        scale: of decoding, from steps without a learner beside it; None: nothing was measured.

    Example:
        >>> alone = slowdown([Busy(0.0, 2.0, 1.0)], [], cores=2)
        >>> alone.scale
        2.0
        >>> slowdown([Busy(0.0, 4.0, 1.5)], [Busy(2.0, 4.0, 1.6)], cores=2, scale=2.0)
        Slowdown(scale=None, unshared_scale=None, decoding=2.0, learning=1.25)
    """
    shared = _Shares([*decoding, *learning], len(decoding), cores)
    if not decoding:
        return Slowdown()
    alone_s = sum(one.alone_s for one in decoding)
    own_s, beside_s = shared.work_s(range(len(decoding)))
    if not learning or beside_s < LEAST_BESIDE_S:
        return Slowdown(scale=own_s / alone_s if alone_s and not beside_s else None)
    learned_s, beside_actors_s = shared.work_s(range(len(decoding), len(decoding) + len(learning)))
    expected_s = sum(one.alone_s for one in learning)
    return Slowdown(
        decoding=None if scale is None else _factor(beside_s, scale * alone_s - own_s),
        learning=_factor(beside_actors_s, expected_s - learned_s),
    )


def _factor(took_s: float, alone_s: float) -> float:
    """Return a ratio between 1 and ``MOST``."""
    return min(max(took_s / max(alone_s, 1e-9), 1.0), MOST)


class _Shares:
    """When processes compute, and the share of a core that each has then."""

    def __init__(self, busy: Sequence[Busy], decoding: int, cores: int) -> None:
        starts, ends = np.array([one.start_s for one in busy]), np.array([one.end_s for one in busy])
        times = np.unique(np.concatenate([starts, ends]))
        self._runs = (starts[:, None] <= times[:-1]) & (ends[:, None] >= times[1:])
        running = np.maximum(self._runs.sum(axis=0), 1)
        self._work_s: FloatArray = np.diff(times) * np.minimum(1.0, cores / running)
        self._both = self._runs[:decoding].any(axis=0) & self._runs[decoding:].any(axis=0)

    def work_s(self, rows: Iterable[int]) -> tuple[float, float]:
        """Return the seconds of a core that these had: while actors or the learner computed alone, and beside each other."""
        runs = self._runs[list(rows)].sum(axis=0)
        return float((runs * self._work_s)[~self._both].sum()), float((runs * self._work_s)[self._both].sum())
