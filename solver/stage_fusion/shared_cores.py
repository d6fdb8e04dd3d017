"""Follows actors and learner that compute on the same cores, and are slower beside each other than alone.

Processes that compute get equal shares of the cores. Beyond that, caches and memory are shared, too: how much slower each is
beside the other is measured in a run (``CoreContention``). With devices of their own, both factors are 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from solver.model.errors import PlanningError, as_given, is_number
from solver.model.workload import FloatArray


@dataclass(frozen=True)
class CoreContention:
    """How much slower actors and learner are beside each other, beyond equal shares of the cores.

    Attributes:
        decoding: seconds of a pass while the learner works, over those without it, at equal batch.
        learning: seconds of a piece while actors decode, over those without them.
        decode_scale: seconds of a pass without the learner, over those of the latency profile.

    Raises:
        PlanningError: a factor is below 1, or the scale is not above 0.
    """

    decoding: float = 1.0
    learning: float = 1.0
    decode_scale: float = 1.0

    def __post_init__(self) -> None:
        for name in ("decoding", "learning"):
            if not is_number(getattr(self, name), 1):
                raise PlanningError(f"{name} is {as_given(getattr(self, name))}; a factor of 1 or more is needed")
        if not (is_number(self.decode_scale, 0) and self.decode_scale > 0):
            raise PlanningError(f"decode_scale is {as_given(self.decode_scale)}; a number above 0 is needed")


ALONE = CoreContention()
"""No contention, as where actors and learner have devices of their own."""


class CoresStep(NamedTuple):
    """A step on shared cores: when it ends, and when its learner begins."""

    time_s: float
    learns_from_s: float


def follow_on_cores(
    needs_s: FloatArray,
    free_s: FloatArray,
    seconds: FloatArray,
    cores: int,
    *,
    freed: bool,
    join_s: float = 0.0,
    contention: CoreContention = ALONE,
) -> CoresStep:
    """Return how long a step takes whose actors and learner get equal shares of the cores while they compute.

    Args:
        needs_s: (I, N) how long each actor decodes, alone on its core, until each piece's responses are complete there.
        free_s: (N,) until it is done. seconds: (I,) that each piece takes, alone on a core. cores: that all of them share.
        freed: an actor that is done learns, too, after ``join_s``.
        contention: how much slower actors and learner are while both compute. The caller has applied ``decode_scale``.

    Example:
        >>> follow_on_cores(np.array([[1.0], [4.0]]), np.array([4.0]), np.array([1.0, 1.0]), 2, freed=False).time_s
        5.0
        >>> follow_on_cores(np.array([[1.0], [4.0]]), np.array([4.0]), np.array([1.0, 1.0]), 1, freed=False).time_s
        6.0
    """
    waiting = list(range(len(seconds)))
    decoded = np.zeros(len(free_s))
    running: dict[int, tuple[int, float]] = {}  # by server (-1: the trainer): its piece, and the seconds that are left
    joined = {-1}
    now_s, begins_s = 0.0, np.inf
    while True:
        decoding = np.flatnonzero(decoded < free_s)
        servers = [-1, *(np.flatnonzero(decoded >= free_s).tolist() if freed else ())]
        for server in servers:
            ready = next((i for i in waiting if (needs_s[i] <= decoded).all()), None)
            if ready is None:
                break
            if server not in running:
                waiting.remove(ready)
                running[server] = ready, float(seconds[ready]) + (0.0 if server in joined else join_s)
                joined.add(server)
                begins_s = min(begins_s, now_s)
        active = len(decoding) + len(running)
        if not active:
            return CoresStep(now_s, min(begins_s, now_s))
        share = min(1.0, cores / active)
        beside = len(decoding) > 0 and len(running) > 0
        decode_rate, learn_rate = (share / (factor if beside else 1.0) for factor in (contention.decoding, contention.learning))
        nexts = [left / learn_rate for _, left in running.values()]
        for actor in decoding.tolist():
            marks = np.append(needs_s[waiting, actor], free_s[actor])
            nexts.append(float(marks[marks > decoded[actor]].min() - decoded[actor]) / decode_rate)
        step_s = min(nexts)
        now_s += step_s
        targets = decoded[decoding] + step_s * decode_rate
        for actor, target in zip(decoding.tolist(), targets.tolist(), strict=True):
            marks = np.append(needs_s[:, actor], free_s[actor])
            near = marks[np.abs(marks - target) <= 1e-12 * max(1.0, target)]
            decoded[actor] = float(near.max()) if len(near) else target
        running = {
            server: (piece, left - step_s * learn_rate)
            for server, (piece, left) in running.items()
            if left - step_s * learn_rate > 1e-12 * max(1.0, now_s)
        }
