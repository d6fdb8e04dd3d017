"""Seconds of training steps by phase, for the comparisons with TRL."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

from process_cpu import tree_cpu_s


class Stopwatch:
    """Seconds of a step by phase; what no phase covers is its rest. CPU seconds are those of all processes below this one, too.

    Args:
        turns: where to wait for this contender's turn before each step, and to say what it took; None: it never waits.
    """

    def __init__(self, turns: Connection | None = None) -> None:
        self.steps: list[dict[str, float]] = []
        self.of_step: dict[str, float] = {}
        self.began = self._cpu = 0.0
        self._turns = turns

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """What runs within it belongs to a phase."""
        began = time.perf_counter()
        yield
        self.of_step[phase] = self.of_step.get(phase, 0.0) + time.perf_counter() - began

    def begin(self) -> None:
        """A step begins, once it is its turn."""
        if self._turns is not None:
            self._turns.recv()
        self._cpu = tree_cpu_s()
        self.of_step, self.began = {}, time.perf_counter()

    def end(self, **numbers: float) -> None:
        """It ends; ``numbers`` are kept beside its seconds."""
        total = time.perf_counter() - self.began
        rest = total - sum(self.of_step.values())
        cpu = {"cpu_s": tree_cpu_s() - self._cpu}
        self.steps.append({"step_s": total, **self.of_step, "rest": rest, **cpu, **numbers})
        if self._turns is not None:
            self._turns.send(self.steps[-1])
